"""What can be heard of a run while it goes on.  Stats floor: imports nothing."""
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunInfo:
    """What a run is: `name` is the model file's, `identity` stays the same over all its resumes, `folder` has its statistics.

    `step` is the optimizer step at which it starts or goes on; what was heard of later ones before will come again. `past` has the figures of all steps
    and validations up to it, as :class:`Callback` hears them, by kind ("train", "validation", "final_validation"): who has lost some (a kill leaves
    no time to finish) or was not there from the beginning finds them here.
    """

    name: str
    identity: str
    folder: Path
    settings: dict[str, Any]
    plan: dict[str, Any]
    step: int
    past: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Callback:
    """Subclass it, and name the class with ``--callback module:Class``; every method may be left out.

    Figures are those of the statistics files: `step`, `samples`, `tokens`, `loss` (nats per token), `accuracy` (of words), `lr`, `grad_norm`, and so on; None
    where nothing was measured.
    """

    def start(self, run: RunInfo) -> None:
        """A run begins or goes on; :meth:`restore` has been called before, if there is a checkpoint."""

    def train(self, figures: dict[str, Any]) -> None:
        """An optimizer step has been done."""

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """A validation has been done; `final` is the longer one at the end of a stage."""

    def event(self, kind: str, figures: dict[str, Any]) -> None:
        """Something else has happened: kind is "stage", "stage done", "saved", "resumed" or "skipped batch"; figures say where (`step`, `samples`)."""

    def end(self, status: str, pictures: list[Path]) -> None:
        """The run ends: status is "done", "stopped" or "failed"; pictures are the plots of its statistics."""

    def state(self) -> dict[str, Any]:
        """Give what must be known to go on, as plain values; saved in each checkpoint."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""


@dataclass
class Callbacks(Callback):
    """Several callbacks as one; they are called in order, and their names tell their states apart."""

    members: dict[str, Callback] = field(default_factory=dict)

    def start(self, run: RunInfo) -> None:
        """See :class:`Callback`."""
        for member in self.members.values():
            member.start(run)

    def train(self, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        for member in self.members.values():
            member.train(figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """See :class:`Callback`."""
        for member in self.members.values():
            member.validation(figures, final)

    def event(self, kind: str, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        for member in self.members.values():
            member.event(kind, figures)

    def end(self, status: str, pictures: list[Path]) -> None:
        """See :class:`Callback`."""
        for member in self.members.values():
            member.end(status, pictures)

    def state(self) -> dict[str, Any]:
        """See :class:`Callback`."""
        return {name: member.state() for name, member in self.members.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`Callback`; a member that was not there before starts anew."""
        for name, member in self.members.items():
            if name in state:
                member.restore(state[name])
