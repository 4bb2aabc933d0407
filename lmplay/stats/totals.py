"""Totals, histories, sources and marks of saves: kept in the checkpoint, written into the statistics files.  Stats floor, no torch."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from .figures import BY_NAME, NATS, Figure, Mark, Progress, SampleLoss, SourceLoss, values
from .histories import NO_SOURCES, History

# The names of a stage's validation samples and of all held-out samples that its end judges, beside those of sets in plans.
VALIDATION, HELD_OUT = "validation", "held_out"
# Samples of a set whose losses are kept, the first ones.
MOST_SAMPLES = 5000
# What only the end of a stage measures.
_AT_END = BY_NAME["written_accuracy"].raw
_OF_SET = [BY_NAME[name] for name in ("loss", "standard_error", "perplexity", "bits_per_byte", "accuracy", "edit_accuracy")]
# What a result says beside the samples.
_JUDGED = [BY_NAME[name] for name in ("loss", "standard_error", "floor")]
# At this many marks of saves every second of the older ones is dropped.
MOST_SAVES = 1000


class Judged(TypedDict, total=False):
    """The result of a validation: the samples before it; its loss, the loss's standard error, and the lowest possible loss where known, in nats per token
    unless there is another `unit` (the empty text where it is not known)."""

    samples: int
    unit: str
    loss: float
    standard_error: float
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
        self.sets: dict[str, History] = {}  # evaluations by the name of the set
        self.best: Judged | None = None
        self.final: Judged | None = None
        self.judged: dict[str, dict[str, Any]] = {}  # the newest evaluation of each set and the newest validation, with the loss of each sample
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
        for history in (self.train, self.validate, *self.sets.values()):
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

    def add_validation(self, progress: Progress, figures: Mapping[str, float], final: bool = False, sources: Mapping[str, SourceLoss] = NO_SOURCES,
                       unit: str = NATS) -> None:
        """Add the raw values of a validation, see :meth:`add_train`.

        :param final: whether it is the one at the end of a stage; after another one at the same step it is that one, done again.
        :param unit: of the loss.
        """
        if final and self.validated_at(progress):
            self.validate.add(**progress._asdict(), **{name: figures[name] for name in ("lr", *_AT_END) if name in figures})
        else:
            self.validate.add(sources, **progress._asdict(), **figures)
            self.totals["total_validations"] += 1
        known = {name: value for name, value in values(_JUDGED, figures).items() if value is not None}
        result: Judged = {"samples": progress.samples, **known}  # type: ignore[typeddict-item]
        if unit != NATS or figures.get("n_bytes") == 0:
            result["unit"] = unit if unit != NATS else ""
        if final:
            self.final = result
        if self.best is None or result.get("unit") != self.best.get("unit") or result["loss"] < self.best["loss"]:
            self.best = result

    def validated_at(self, progress: Progress) -> bool:
        """Tell whether the newest validation was at this step."""
        return len(self.validate) > 0 and bool(self.validate.rows["step"][-1] == progress.step)

    def judge_anew(self) -> None:
        """Forget the best and the final validation: those to come are of other samples."""
        self.best = self.final = None

    def add_set(self, name: str, progress: Progress, figures: Mapping[str, float]) -> None:
        """Add the raw values of the evaluation of a named set, see :meth:`add_train`."""
        self.sets.setdefault(name, History(figures=self.figures)).add(**progress._asdict(), **figures)

    def keep_samples(self, name: str, progress: Progress, figures: Mapping[str, float], samples: Sequence[SampleLoss]) -> None:
        """Keep the newest losses of the samples of a set, by which two runs are compared, and its figures; see :meth:`add_train`.

        Where the loss is not one of tokens those of the samples are not kept: they would compare something else.
        """
        kept = samples[:MOST_SAMPLES] if figures["n_bytes"] else []
        identity, loss, tokens, n_bytes = ([one[part] for one in kept] for part in range(4))
        self.judged[name] = {"samples": progress.samples, "n_samples": len(samples), "n_tokens": int(figures["n_tokens"]),
                             "n_bytes": int(figures["n_bytes"]), **values(_OF_SET, figures),
                             "identity": identity, "loss_sum": [round(value, 4) for value in loss], "tokens": list(map(int, tokens)),
                             "bytes": list(map(int, n_bytes))}

    def evaluated_at(self, name: str, progress: Progress) -> bool:
        """Tell whether the newest evaluation of a set was at this step."""
        return name in self.sets and bool(self.sets[name].rows["step"][-1] == progress.step)

    def describe_set(self, name: str) -> dict[str, Any]:
        """Give the newest figures of a set."""
        return {key: value for key, value in self.judged[name].items() if not isinstance(value, list)}

    def describe_sets(self) -> dict[str, dict[str, Any]]:
        """List the newest figures of each set."""
        return {name: self.describe_set(name) for name in self.sets}

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
                "validate": self.validate.state(), "best": self.best, "final": self.final, "judged": {name: dict(one) for name, one in self.judged.items()},
                "sets": {name: history.state() for name, history in self.sets.items()}, **declared}

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
        self.judged = {name: dict(one) for name, one in state.pop("judged", {}).items()}  # files of version 0.1 have neither
        for name, rows in state.pop("sets", {}).items():
            self.sets[name] = History(figures=self.figures)
            self.sets[name].restore(rows)
        self.totals = Counter(state)


def add_save(saves: list[Mark], mark: Mark) -> None:
    """Append a save to the list, oldest first, which stays at most `MOST_SAVES` long."""
    if len(saves) >= MOST_SAVES:
        del saves[1::2]
    saves.append(mark)
