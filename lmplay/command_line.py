"""The parser of the command lines."""
from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from .errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """An argument parser whose faults are one clear line each, and that takes `_` for `-` in the name of a flag."""

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UserError(f"{message}. `{self.prog} --help` lists the flags.")

    def read(self, argv: list[str] | None = None) -> argparse.Namespace:
        """Read a command line; None = that of the process. Raises UserError when a flag is unknown or its value is not allowed."""
        known, unknown = self.parse_known_args([_with_hyphens(word) for word in (sys.argv[1:] if argv is None else argv)])
        if unknown:
            flags = [option for action in self._actions for option in action.option_strings]
            wrong = [word for word in unknown if word.startswith("-")] or unknown  # the value behind an unknown flag is unknown too
            raise UserError(*(
                f"{word}: {'there is no such flag' if word.startswith('-') else 'is not the value of any flag'}.{nearest(word, flags)} "
                f"`{self.prog} --help` lists them." for word in wrong))
        return known


def _with_hyphens(word: str) -> str:
    """Write the name of a flag with hyphens; its value stays as it is."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word
