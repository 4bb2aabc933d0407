"""Totals, histories, sources and marks of saves: kept in the checkpoint, written into the statistics files.  Stats floor, no torch."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypedDict

from .figures import Figure, Mark, Progress, SourceLoss
from .histories import NO_SOURCES, History

# At this many marks of saves every second of the older ones is dropped.
MOST_SAVES = 1000


class Judged(TypedDict, total=False):
    """The result of a validation: the samples before it, its loss, and the lowest possible loss where known, in nats per token."""

    samples: int
    loss: float
    floor: float


class ModelStats:
    """Totals and histories of a run, or of one stage of it."""

    def __init__(self, figures: Iterable[Figure] = ()) -> None:
        """
        :param figures: declared ones, see :meth:`declare`.
        """
        self.totals: Counter[str] = Counter()
        self.sources: dict[str, dict[str, Any]] = {}  # if there are several: samples, tokens and rows per epoch (None = unknown) of each
        self.train = History()
        self.validate = History()
        self.best: Judged | None = None
        self.final: Judged | None = None
        self.declare(figures)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The declared figures."""
        return tuple(self.train.declared.values())

    def declare(self, figures: Iterable[Figure]) -> None:
        """Keep more figures, those of an objective, from here on; declaring them again changes nothing.

        :param figures: their raw values are given to :meth:`add_train` and :meth:`add_validation`, or left out where they were not measured.
        :raises ValueError: for a name whose figure is computed from other raw values.
        """
        figures = list(figures)
        for history in (self.train, self.validate):
            history.declare(figures)

    def count_step(self, samples: int, tokens: int, counts: Counter[str]) -> None:
        """Count an optimizer step, which the device may not have finished yet.

        :param samples: those that end in its batch.
        :param tokens: those to be learned in it.
        :param counts: other totals (pieces, continuations …).
        """
        self.totals.update({"total_train_steps": 1, "total_train_samples": samples, "total_train_tokens": tokens})
        self.totals.update(counts)

    def begin_sources(self, rows_per_epoch: Mapping[str, int | None]) -> None:
        """Count by source from here on, in this order; None rows per epoch = unknown or endless."""
        for name, rows in rows_per_epoch.items():
            self.sources.setdefault(name, {"samples": 0, "tokens": 0})["rows_per_epoch"] = rows

    def count_source(self, name: str, samples: int, tokens: int) -> None:
        """Count a source's part of a step: samples that end in it, and tokens to be learned."""
        counts = self.sources[name]
        counts["samples"] += samples
        counts["tokens"] += tokens

    def add_train(self, progress: Progress, figures: Mapping[str, float], sources: Mapping[str, SourceLoss] = NO_SOURCES) -> None:
        """Add the raw values of a step that has been counted.

        :param progress: the run's after the step.
        :param figures: raw values by name (see `figures.FIGURES`); no loss where the batch was skipped.
        :param sources: loss sum and tokens by source, if there are several.
        :raises ValueError: for an unknown name.
        """
        self.train.add(sources, **progress._asdict(), **figures)
        self.totals["train_loss_total"] += figures.get("loss_sum", 0.0)  # type: ignore[assignment]

    def add_validation(self, progress: Progress, figures: Mapping[str, float], final: bool = False, sources: Mapping[str, SourceLoss] = NO_SOURCES) -> None:
        """Add the raw values of a validation, see :meth:`add_train`; `final` is the longer one at the end of a stage."""
        self.validate.add(sources, **progress._asdict(), **figures)
        self.totals["total_validations"] += 1
        result: Judged = {"samples": progress.samples, "loss": figures["loss_sum"] / figures["n_tokens"]}
        if figures["nats_tokens"] == figures["n_tokens"]:
            result["floor"] = figures["nats_sum"] / figures["nats_tokens"]
        if final:
            self.final = result
        if self.best is None or result["loss"] < self.best["loss"]:
            self.best = result

    def describe_sources(self) -> dict[str, dict[str, Any]]:
        """List of each source its samples, tokens, epochs (samples / rows per epoch) and mean losses at the end; None = unknown."""
        return {name: {"samples": counts["samples"], "tokens": counts["tokens"],
                       "epochs": counts["samples"] / counts["rows_per_epoch"] if counts["rows_per_epoch"] else None,
                       "train_loss": self.train.loss_at_end(name), "validate_loss": self.validate.loss_at_end(name)}
                for name, counts in self.sources.items()}

    def state(self) -> dict[str, Any]:
        """Return everything as plain values."""
        declared = {"figures": [asdict(figure) for figure in self.figures]} if self.figures else {}
        return {**self.totals, "sources": {name: dict(counts) for name, counts in self.sources.items()}, "train": self.train.state(),
                "validate": self.validate.state(), "best": self.best, "final": self.final, **declared}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`; figures that are declared already keep their descriptions.

        :raises ValueError: for a declared figure that was computed from other raw values.
        """
        state = dict(state)
        now = self.figures
        self.declare([Figure(**one) for one in state.pop("figures", ())])
        self.declare(now)
        self.sources = {name: dict(counts) for name, counts in state.pop("sources", {}).items()}
        self.train.restore(state.pop("train"))
        self.validate.restore(state.pop("validate"))
        self.best, self.final = state.pop("best"), state.pop("final")
        self.totals = Counter(state)


def add_save(saves: list[Mark], mark: Mark) -> None:
    """Append a save to the list, oldest first, which stays at most `MOST_SAVES` long."""
    if len(saves) >= MOST_SAVES:
        del saves[1::2]
    saves.append(mark)
