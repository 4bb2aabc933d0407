"""Rows of tables that installed packages can add to, by entry points; a row is imported on demand."""
from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from .errors import LmplayError, UserError


@dataclass(frozen=True)
class Plugin:
    """A row: its name, a line about it, and where it is imported from, ``module:Class``.

    `kind` is what a row is called in messages (the group of entry points is ``lmplay.KINDs``), `chosen_by` the flag or plan key that chooses a row, and
    `method` what a target must have: a class can be called.
    """

    kind: ClassVar[str]
    chosen_by: ClassVar[str]
    method: ClassVar[str] = "__call__"
    name: str
    description: str
    target: str

    def load(self) -> Any:
        """Import the target; raises UserError when it cannot be imported, or does not have the `method`."""
        from importlib.metadata import EntryPoint

        try:
            target = EntryPoint(self.name, self.target, f"lmplay.{self.kind}s").load()
        except LmplayError:
            raise
        except Exception as error:  # a module can raise anything on import; the message names its package
            raise self.fault(f"{self.target} cannot be imported ({type(error).__name__}: {error})") from error
        if not callable(getattr(target, self.method, None)):
            raise self.fault(f"{self.target} {'is not a class' if self.method == '__call__' else f'has no method {self.method}'}")
        return target

    def fault(self, what: str) -> UserError:
        """Make the error that says what is wrong with this row, and what to do."""
        remedy = f"fix or uninstall the package that offers it ({self.description}), or choose another {self.chosen_by}."
        return UserError(f"{self.kind} '{self.name}': {what}; {remedy}")


Row = TypeVar("Row", bound=Plugin)


def with_offered(row: type[Row], built_in: Iterable[Row]) -> dict[str, Row]:
    """List the built-in rows, then those of installed packages, by name; imports none of them. Raises UserError when two offer the same name."""
    table = {known.name: known for known in built_in}
    for entry in sorted(_entry_points(tuple(sys.path)).select(group=f"lmplay.{row.kind}s"), key=lambda entry: (entry.name, entry.value)):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package"
        new = row(entry.name, f"from {package}", entry.value)
        if taken := table.get(entry.name):
            raise UserError(f"{row.kind} '{entry.name}': offered twice, as {taken.target} ({taken.description}) and as {new.target} ({new.description}); "
                            f"uninstall one of the packages or rename its {row.kind}.")
        table[entry.name] = new
    return table


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> Any:
    """Read the entry points of all packages on the import path, once: with hundreds of packages it takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return entry_points()
