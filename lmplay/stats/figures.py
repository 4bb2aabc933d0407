"""The table of figures: what is measured during a run, how it is added up, and where it is shown.  Stats floor, no torch."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

Values = list[float | None]

NATS = "nats per token"
"""The unit of a loss, unless an objective says otherwise."""
REWARD = "reward"
"""The unit of a loss that is a reward with a minus sign in validation, and in training something of no unit."""


class Progress(NamedTuple):
    """How far a run is: optimizer steps, samples and tokens learned, and seconds of training."""

    step: int
    samples: int
    tokens: int
    seconds: float


class SourceLoss(NamedTuple):
    """A source's part of a step or validation: sum of the losses (nats) and tokens to be learned."""

    loss_sum: float
    n_tokens: float


class SampleLoss(NamedTuple):
    """A sample's part of a validation: `identity` is a hash of its text; sum of the losses (nats), tokens to be learned, and bytes of their text."""

    identity: int
    loss_sum: float
    n_tokens: float
    n_bytes: float


class Mark(TypedDict):
    """Where a run was saved or resumed (seconds of training)."""

    samples: int
    tokens: int
    seconds: float


class StageEntry(TypedDict, total=False):
    """A stage in the statistics: where it begins, where it ends (or is now), and the lowest loss that its texts allow."""

    name: str
    done: bool
    from_samples: int
    from_tokens: int
    from_seconds: float
    to_samples: int
    to_tokens: int
    to_seconds: float
    floor_nats_per_token: float | None
    floor_bits_per_byte: float | None
    loss_unit: str  # of its loss, unless that is nats per token
    skipped: dict[str, int]  # rows that gave no sample, by reason
    replaced: dict[str, int]  # `rows` with replaced `characters`, and the number of both


def mark_of(progress: Progress) -> Mark:
    """Mark where a run is."""
    return {"samples": progress.samples, "tokens": progress.tokens, "seconds": progress.seconds}


def begin_entry(name: str, progress: Progress, floor_nats_per_token: float | None, floor_bits_per_byte: float | None, loss_unit: str = NATS) -> StageEntry:
    """Make the entry of a stage that begins."""
    _, samples, tokens, seconds = progress
    entry: StageEntry = {"name": name, "done": False, "from_samples": samples, "from_tokens": tokens, "from_seconds": seconds, "to_samples": samples,
            "to_tokens": tokens, "to_seconds": seconds, "floor_nats_per_token": floor_nats_per_token, "floor_bits_per_byte": floor_bits_per_byte}
    if loss_unit != NATS:
        entry["loss_unit"] = loss_unit
    return entry


@dataclass(frozen=True)
class Figure:
    """A figure of the statistics: a column in the files, computed from raw values that the rows of a history keep.

    An objective of another package declares its own figures with :meth:`lmplay.stats.totals.ModelStats.declare`.
    """

    name: str  # of the column
    title: str  # in lower case, as inside a sentence
    kind: Literal["newest", "sum", "mean"]  # the newest value, the sum over the steps of a row, or the ratio of two sums
    of: str = ""  # the raw value; "" = it has the figure's name
    per: str = ""  # of a mean: the sum to divide by
    unit: str = ""  # follows the title in parentheses; "share" = from 0 to 1, shown in percent
    higher_is_better: bool | None = None  # None = neither
    factor: float = 1.0  # a mean is multiplied by it
    exp: bool = False  # the figure is exp(mean)
    whole: str = ""  # a mean is known only where `per` equals this sum
    train: bool = True  # a column of training statistics
    validate: bool = True  # a column of validation statistics
    clock: bool = False  # depends on the clock: under "clock" in the files
    panel: bool = True  # has panels in the pictures
    chart: bool = True  # has charts in the HTML report
    log: bool = False  # a log axis where the values are far apart
    progress: bool = False  # a declared figure: the newest step's value is in the progress line

    def __post_init__(self) -> None:
        if self.kind not in ("newest", "sum", "mean") or (self.kind == "mean") != bool(self.per):
            raise ValueError(f"figure {self.name}: kind is newest or sum, or mean with a sum to divide by (per)")
        object.__setattr__(self, "of", self.of or self.name)

    @property
    def raw(self) -> tuple[str, ...]:
        """The names of the raw values that it is computed from."""
        return tuple(name for name in (self.of, self.per, self.whole) if name)

    def column(self, rows: Mapping[str, Sequence[Any]]) -> Values:
        """Compute the column from a column for each raw value; None where nothing was measured."""
        if self.kind != "mean":
            return list(rows[self.of])
        per, factor = rows[self.per], self.factor
        values: Values = [a / b * factor if b else None for a, b in zip(rows[self.of], per, strict=True)]
        if self.whole:
            values = [value if part == whole else None for value, part, whole in zip(values, per, rows[self.whole], strict=True)]
        return [None if value is None else math.exp(min(value, 700.0)) for value in values] if self.exp else values


@dataclass(frozen=True)
class StandardError(Figure):
    """The standard error of a loss per token: how far it would lie from that of other samples of the same kind.

    The samples, not the tokens, are independent. The loss is the ratio R = Σ loss / Σ tokens, whose variance is n / (n - 1) Σ (loss - R tokens)² / (Σ tokens)²
    (Cochran 1977, "Sampling Techniques", chapter 6). A row of several validations, all of the same n samples, has their mean.
    """

    @property
    def raw(self) -> tuple[str, ...]:
        return "loss_sum", "n_tokens", *SPREAD, "steps"

    def column(self, rows: Mapping[str, Sequence[Any]]) -> Values:
        return [_standard_error(*values) for values in zip(*(rows[name] for name in self.raw), strict=True)]


@dataclass(frozen=True)
class Perplexity(Figure):
    """The exponential of a loss per token; None where the loss is not one of tokens, so that their bytes have not been counted."""

    @property
    def raw(self) -> tuple[str, ...]:
        return "loss_sum", "n_tokens", "n_bytes"

    def column(self, rows: Mapping[str, Sequence[Any]]) -> Values:
        losses = super().column(rows)
        return [loss if n_bytes else None for loss, n_bytes in zip(losses, rows["n_bytes"], strict=True)]


# Sums over the samples of a validation: their number, the squares of their losses, of loss by tokens, and of their tokens.
SPREAD = ("judged", "loss_squares", "loss_by_tokens", "token_squares")


def _standard_error(loss_sum: float, n_tokens: float, judged: float, loss_squares: float, loss_by_tokens: float, token_squares: float,
                    validations: float) -> float | None:
    """Compute a standard error from the sums over some validations; None with fewer than two samples."""
    if not validations or judged < 2 * validations or not n_tokens:
        return None
    ratio, count = loss_sum / n_tokens, judged / validations
    squares = max(0.0, loss_squares - 2 * ratio * loss_by_tokens + ratio * ratio * token_squares) / validations
    return math.sqrt(count / (count - 1) * squares) / (n_tokens / validations)


_Column = partial(Figure, panel=False, chart=False)
_Chart = partial(Figure, panel=False)
# The order of the columns in the files, and of the raw values in a checkpoint: first the newest ones, then the sums.
FIGURES = (
    _Column("step", "optimizer step", "newest"),
    _Column("samples", "samples", "newest"),
    _Column("tokens", "tokens", "newest"),
    _Column("seconds", "training time", "newest", unit="seconds", clock=True),
    _Column("steps", "optimizer steps", "sum", train=False, validate=False),  # in the checkpoint only
    Figure("loss", "loss", "mean", "loss_sum", "n_tokens", NATS, False, log=True),
    Perplexity("perplexity", "perplexity", "mean", "loss_sum", "n_tokens", higher_is_better=False, exp=True, train=False, panel=False, chart=False),
    Figure("bits_per_byte", "bits per byte", "mean", "loss_sum", "n_bytes", "", False, 1 / math.log(2), train=False, log=True),
    _Column("nats", "information of the texts", "sum", "nats_sum", train=False, validate=False),  # in the checkpoint only, as is the next
    _Column("nats_tokens", "tokens of known information", "sum", train=False, validate=False),
    Figure("accuracy", "word accuracy", "mean", "words_right", "words", "share", True),
    Figure("edit_accuracy", "word accuracy by edit distance", "mean", "edits_right", "edit_words", "share", True, train=False),
    _Column("written_accuracy", "word accuracy by edit distance of texts that the model writes", "mean", "written_right", "written_words", "share", True,
            train=False),
    StandardError("standard_error", "standard error of the loss", "mean", "loss_sum", "n_tokens", "nats per token", train=False, panel=False, chart=False),
    _Column("floor", "floor", "mean", "nats_sum", "nats_tokens", "nats per token", whole="n_tokens", train=False),
    _Column("raw_loss", "loss of the weights that are not averaged", "mean", "raw_loss_sum", "raw_tokens", "nats per token", False, train=False),
    _Chart("lr", "learning rate", "newest", validate=False),
    _Chart("grad_norm", "gradient norm", "mean", "grad_norm_sum", "grad_norms", validate=False, log=True),
    _Chart("padding_share", "share of padding", "mean", "padding", "places", "share", validate=False),
    _Chart("tokens_per_second", "tokens per second", "mean", "n_tokens", "step_seconds", validate=False, clock=True),
    _Chart("data_wait_share", "share of time waiting for data", "mean", "data_seconds", "step_seconds", "share", validate=False, clock=True),
    _Column("skipped_batches", "skipped batches", "sum", validate=False),
    _Chart("forced_cuts", "pieces cut inside a sentence", "sum", validate=False),
    _Column("bytes_lost", "bytes that the tokenizer cannot write", "sum"),
)
BY_NAME = {figure.name: figure for figure in FIGURES}
NEWEST = tuple(figure.of for figure in FIGURES if figure.kind == "newest")
SUMS = tuple(dict.fromkeys(name for figure in FIGURES if figure.kind != "newest" for name in figure.raw))
CLOCK_COLUMNS = tuple(figure.name for figure in FIGURES if figure.clock)
_DESCRIBED = ("title", "unit", "higher_is_better", "log", "panel", "chart")


def columns_of(kind: str, declared: Iterable[Figure] = (), clock: bool = False) -> tuple[str, ...]:
    """Name the columns of a statistics file.

    :param kind: "train" or "validate".
    :param declared: figures of objectives.
    :param clock: True = the columns that depend on the clock, False = the others.
    """
    return tuple(figure.name for figure in (*FIGURES, *declared) if getattr(figure, kind) and figure.clock == clock)


def values(figures: Iterable[Figure], raw: Mapping[str, float]) -> dict[str, float | None]:
    """Compute figures from the raw values of one step; None where a raw value is missing."""
    return {figure.name: figure.column({name: [raw[name]] for name in figure.raw})[0] if raw.keys() >= {*figure.raw} else None for figure in figures}


def describe(figures: Iterable[Figure], kind: str) -> dict[str, dict[str, Any]]:
    """Describe declared figures in a statistics file of a kind ("train" or "validate"), for programs that do not know them."""
    return {figure.name: {key: getattr(figure, key) for key in _DESCRIBED} for figure in figures if getattr(figure, kind)}


def described(descriptions: Mapping[str, Mapping[str, Any]]) -> tuple[Figure, ...]:
    """Make the figures that a statistics file describes, with what is needed to draw them."""
    return tuple(Figure(str(name), str(one["title"]), "newest", unit=str(one["unit"]), **{key: one[key] for key in _DESCRIBED[2:]})
                 for name, one in descriptions.items())
