"""Callbacks: what they can hear of a run while it goes on.  Stats floor: imports nothing."""
from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunInfo:
    """A run: `name` is the model file's, `identity` stays the same over all resumes, `folder` has its statistics.
    `settings` are those it uses, side by side (those of a stage as STAGE.KEY).

    `step` is the optimizer step at which it starts or goes on; later steps that a callback has heard of come again. `past` has the figures of all steps,
    validations and evaluations up to it, as :class:`Callback` hears them, by kind ("train", "validation", "final_validation", "evaluation"), and all
    completions under "samples": for a callback that has lost some (a kill leaves no time to finish) or was added later.
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
    those that an objective declares; None where nothing was measured. Where a stage has several sources, those in the step have `source/NAME/loss`.
    """

    wants_pictures = False  # True = :meth:`end` gets the plots; drawing them takes a few seconds

    def start(self, run: RunInfo) -> None:
        """A run begins, or goes on after :meth:`restore`."""

    def train(self, figures: dict[str, Any]) -> None:
        """An optimizer step has been done."""

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """A validation has been done; `final` is the one at the end of a stage, which judges the same samples as the others."""

    def evaluation(self, figures: dict[str, Any]) -> None:
        """The model has been judged by a named set, or at the end of a stage by all that is judged there ("held_out"); `set` is its name."""

    def samples(self, rows: list[dict[str, Any]]) -> None:
        """The model has continued the prompts of `--sample-prompts`, before a validation; a row has `step`, `samples`, `stage`, `prompt` and `text`."""

    def event(self, kind: str, figures: dict[str, Any]) -> None:
        """Another event: "stage", "stage done", "saved", "resumed" or "skipped batch"; figures are `step`, `samples`, `tokens` and the `stage`'s name."""

    def end(self, status: str, pictures: list[Path]) -> None:
        """The run ends: status is "done", "stopped" or "failed"; pictures are the plots of a run that is done, if they are wanted."""

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on, as plain values; saved in each checkpoint."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`."""


@dataclass(frozen=True)
class Naming:
    """What a run is called in trackers; where None or empty, the tracker's own environment variables say it, else lmplay."""

    project: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()


class Tracker(Callback):
    """A callback that logs figures under the kinds "train", "validation", "final_validation" and, for each set, "evaluation/SET"."""

    naming = Naming()

    def train(self, figures: dict[str, Any]) -> None:
        self._log("train", figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        self._log("final_validation" if final else "validation", figures)

    def evaluation(self, figures: dict[str, Any]) -> None:
        self._log(*_of_set(figures))

    def _log(self, kind: str, figures: dict[str, Any]) -> None:
        """Log what was measured at a step."""
        raise NotImplementedError


def past_rows(run: RunInfo) -> list[tuple[str, dict[str, Any]]]:
    """List kind and figures of all past steps, validations and evaluations, as a :class:`Tracker` logs them."""
    return [(kind, row) for kind in ("train", "validation", "final_validation") for row in run.past.get(kind, [])] + \
        list(map(_of_set, run.past.get("evaluation", [])))


def _of_set(figures: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Give the kind under which an evaluation is logged, and its figures."""
    return f"evaluation/{figures['set']}", {name: value for name, value in figures.items() if name != "set"}


def rewound(newest: int, step: int) -> str | None:
    """Say, for a store whose rows cannot be taken back, which of its steps a killed run had done after its checkpoint; None where there are none.

    :param newest: the newest step in the store.
    :param step: the checkpoint's, from which the run goes on.
    """
    if newest <= step:
        return None
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}: went on from step {step}; steps {step + 1} to {newest} are of the attempt before, with its settings"


def samples_by_step(rows: list[dict[str, Any]]) -> dict[int, str]:
    """Join the rows of :meth:`Callback.samples` into a text for each step, a line for each prompt and its continuation."""
    texts: dict[int, list[str]] = {}
    for row in rows:
        texts.setdefault(int(row["step"]), []).append(f"{row['prompt']} ▸ {row['text']}\n")
    return {step: "\n".join(parts) for step, parts in texts.items()}


class Forwarding(Callback):
    """Turns all calls about a run into calls of one method, `_call`."""

    def start(self, run: RunInfo) -> None:
        self._call("start", run)

    def train(self, figures: dict[str, Any]) -> None:
        self._call("train", figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        self._call("validation", figures, final)

    def evaluation(self, figures: dict[str, Any]) -> None:
        self._call("evaluation", figures)

    def samples(self, rows: list[dict[str, Any]]) -> None:
        self._call("samples", rows)

    def event(self, kind: str, figures: dict[str, Any]) -> None:
        self._call("event", kind, figures)

    def end(self, status: str, pictures: list[Path]) -> None:
        self._call("end", status, pictures)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the method of that name."""
        raise NotImplementedError


class Callbacks(Forwarding):
    """Several callbacks as one, called in order. If one fails, the user is warned and training goes on without it."""

    def __init__(self, members: dict[str, Callback] | None = None, say: Callable[[str], None] = print):
        """
        :param members: by the names that the user gave them.
        :param say: warns the user.
        """
        self.members = members or {}
        self._say = say
        self._states: dict[str, Any] = {}  # also of callbacks that are missing in this run: they may come back

    def state(self) -> dict[str, Any]:
        self._states |= self._call("state")
        return copy.deepcopy(self._states)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore those with a state; a new one starts afresh."""
        self._states = copy.deepcopy(state)
        for name in list(self.members):
            if name in state:
                self._call("restore", copy.deepcopy(state[name]), only=name)

    def _call(self, method: str, *arguments: Any, only: str | None = None) -> dict[str, Any]:
        """Call a method of all members, or of one; returns their results by name."""
        results: dict[str, Any] = {}
        for name, member in list(self.members.items()):
            if only not in (None, name):
                continue
            try:
                result = getattr(member, method)(*arguments)
                if method == "state":
                    _check_plain(result)
                results[name] = result
            except Exception as error:
                del self.members[name]
                self._say(f"WARNING: --callback {name} failed in {method} ({type(error).__name__}: {error}); training goes on without it.\n"
                          + "".join(traceback.format_exception(error)).rstrip())
        return results


def _check_plain(value: Any) -> None:
    """Refuse with a TypeError what is no plain value: reading a checkpoint runs no pickled code."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_plain(key)
            _check_plain(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_plain(part)
    elif type(value) not in (int, float, str, bool, bytes, type(None)):
        raise TypeError(f"a state holds plain values, and this has a {type(value).__name__}")
