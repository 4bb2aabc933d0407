"""What can be heard of a run while it goes on.  Stats floor: imports nothing."""
from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunInfo:
    """What a run is: `name` is the model file's, `identity` stays the same over all its resumes, `folder` has its statistics.

    `step` is the optimizer step at which it starts or goes on; what was heard of later ones before will come again. `past` has the figures of all steps
    and validations up to it, as :class:`Callback` hears them, by kind ("train", "validation", "final_validation"), and "samples" all that was written: a
    callback that has lost some (a kill leaves no time to finish) or was not there from the beginning finds them here.
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

    Figures are those of the statistics files: `step`, `samples`, `tokens`, `loss` (nats per token), `accuracy` (of words), `lr`, `grad_norm`, and so on, and
    those that an objective declares; None where nothing was measured. Where a stage has several sources, those that had a part have their own:
    `source/NAME/loss`.
    """

    # Whether :meth:`end` is to be given the plots; drawing them takes a few seconds.
    wants_pictures = False

    def start(self, run: RunInfo) -> None:
        """A run begins or goes on; :meth:`restore` has been called before, if there is a checkpoint."""

    def train(self, figures: dict[str, Any]) -> None:
        """An optimizer step has been done."""

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """A validation has been done; `final` is the longer one at the end of a stage."""

    def samples(self, rows: list[dict[str, Any]]) -> None:
        """The model has gone on with the prompts of `--sample-prompts`: `step`, `samples`, `stage`, `prompt`, `text` of each; comes before the validation."""

    def event(self, kind: str, figures: dict[str, Any]) -> None:
        """Something else has happened: kind is "stage", "stage done", "saved", "resumed" or "skipped batch".

        Figures say where (`step`, `samples`, `tokens`), and the name of the stage (`stage`).
        """

    def end(self, status: str, pictures: list[Path]) -> None:
        """The run ends: status is "done", "stopped" or "failed"; pictures are the plots of its statistics once it is done, if they are wanted."""

    def state(self) -> dict[str, Any]:
        """Give what must be known to go on, as plain values; saved in each checkpoint."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""


class Tracker(Callback):
    """A callback that logs figures under the kinds "train", "validation" and "final_validation"."""

    def train(self, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        self._log("train", figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """See :class:`Callback`."""
        self._log("final_validation" if final else "validation", figures)

    def _log(self, kind: str, figures: dict[str, Any]) -> None:
        """Log what was measured at a step."""
        raise NotImplementedError


def past_rows(run: RunInfo) -> list[tuple[str, dict[str, Any]]]:
    """Give kind and figures of all past steps and validations."""
    return [(kind, row) for kind in ("train", "validation", "final_validation") for row in run.past.get(kind, [])]


def samples_by_step(rows: list[dict[str, Any]]) -> dict[int, str]:
    """Write what :meth:`Callback.samples` says as a text for each step: a line begins with the prompt, and goes on with what was written."""
    texts: dict[int, list[str]] = {}
    for row in rows:
        texts.setdefault(int(row["step"]), []).append(f"{row['prompt']} ▸ {row['text']}\n")
    return {step: "\n".join(parts) for step, parts in texts.items()}


class Forwarding(Callback):
    """Turns the calls about a run into calls of one method, `_tell`, with the name of what is called and its arguments."""

    def start(self, run: RunInfo) -> None:
        """See :class:`Callback`."""
        self._tell("start", run)

    def train(self, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        self._tell("train", figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """See :class:`Callback`."""
        self._tell("validation", figures, final)

    def samples(self, rows: list[dict[str, Any]]) -> None:
        """See :class:`Callback`."""
        self._tell("samples", rows)

    def event(self, kind: str, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        self._tell("event", kind, figures)

    def end(self, status: str, pictures: list[Path]) -> None:
        """See :class:`Callback`."""
        self._tell("end", status, pictures)

    def _tell(self, what: str, *heard: Any) -> Any:
        """Call the method of that name."""
        raise NotImplementedError


class Callbacks(Forwarding):
    """Several callbacks as one: called in order, told apart by their names. If one fails, the user is told and training goes on without it."""

    def __init__(self, members: dict[str, Callback] | None = None, say: Callable[[str], None] = print):
        """
        :param members: by the names that the user gave them.
        :param say: tells the user.
        """
        self.members = members or {}
        self._say = say
        self._states: dict[str, Any] = {}  # of those that are not here now, too: they may come back

    def state(self) -> dict[str, Any]:
        """See :class:`Callback`."""
        self._states |= self._tell("state")
        return copy.deepcopy(self._states)

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`Callback`; a member that was not there before starts anew."""
        self._states = copy.deepcopy(state)
        for name in list(self.members):
            if name in state:
                self._tell("restore", copy.deepcopy(state[name]), only=name)

    def _tell(self, what: str, *heard: Any, only: str | None = None) -> dict[str, Any]:
        """Call a method of all members, or of one; gives what they return, by name."""
        given: dict[str, Any] = {}
        for name, member in list(self.members.items()):
            if only not in (None, name):
                continue
            try:
                given[name] = getattr(member, what)(*heard)
                if what == "state":
                    _check_plain(given[name])
            except Exception as error:
                given.pop(name, None)
                del self.members[name]
                self._say(f"WARNING: --callback {name} failed in {what} ({type(error).__name__}: {error}); training goes on without it.\n"
                          + "".join(traceback.format_exception(error)).rstrip())
        return given


def _check_plain(value: Any) -> None:
    """Refuse what a checkpoint does not take: it is read without running anybody's code.

    :raises TypeError: saying what was found.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            _check_plain(key)
            _check_plain(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_plain(part)
    elif type(value) not in (int, float, str, bool, bytes, type(None)):
        raise TypeError(f"a state holds plain values, and this has a {type(value).__name__}")
