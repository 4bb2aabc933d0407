"""What the report is told of a run: small frozen records.  Report floor, no torch."""
from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..paths import expanded
from ..stats.figures import Progress, SourceLoss
from ..stats.totals import Judged


@dataclass(frozen=True)
class RunFiles:
    """Paths: the model file, and the output folder as the user wrote it."""

    model: Path
    out_dir: str

    @property
    def folder(self) -> Path:
        """The output folder."""
        return expanded(self.out_dir)

    @property
    def log(self) -> Path:
        """NAME.log."""
        return self.folder / f"{self.model.stem}.log"

    @property
    def write_command(self) -> str:
        """The command that lets the model write."""
        return f"lmp_generator --model {shlex.quote(str(self.model))}"

    @property
    def plot_command(self) -> str:
        """The command that draws the statistics."""
        return f"lmp_plotstats --out-dir {shlex.quote(self.out_dir)}"


@dataclass(frozen=True)
class StageOutline:
    """A stage of the plan: its name, `state` (done, begun, to do), `length` in words, samples (None = unknown or done), and data sets."""

    name: str
    state: str
    length: str
    samples: int | None
    dataset: list[str]


@dataclass(frozen=True)
class RunStart:
    """A run that begins, or goes on.

    `batch_sizes` are those of the stages that are left, each once. `memory_needed` are the bytes for weights, gradients and the optimizers' state,
    `memory_there` those of the device (None = unknown). `changes` say what has changed since the checkpoint, `seconds_left` is the time until the time limit
    (None = there is none), and `flags` are those that were typed.
    """

    files: RunFiles
    experiment: str
    parameters: int
    model_args: Mapping[str, Any]
    tokenizer: str
    vocabulary: int
    device: str
    precision: str
    compiled: bool
    batch_sizes: list[int | str]
    batch_size: int
    mini_batch_size: int | str
    mini_batch_tokens: int
    memory_needed: int
    memory_there: int | None
    stages: list[StageOutline]
    samples: int
    resumed: bool
    changes: list[str]
    hints: list[str]
    seconds_left: float | None
    flags: Mapping[str, Any]
    recipe: str | None = None


@dataclass(frozen=True)
class StageStart:
    """A stage that begins, or goes on.

    `progress` is the run's. `samples` of the stage's `total` (None = unknown) are done. `rows` are those of each source that are trained on, `held_out` those
    that are not (None = endless or unknown). `frozen` counts parameters. `floor` and `floor_bits` are the lowest loss that the texts allow, in nats per token
    and bits per byte (None = unknown). `validation_samples` are those of a validation (None = all held-out ones). `to_come` are samples, tokens and steps of
    the stages after this one (None = unknown). `saved` and `validated` say in words when that will be done; `warnings` are about what never will. `reads` are
    lines: which columns are read as what, and which files. `sets` are lines: the named sets, how long they are, and when the model is judged by them.
    `adapter` says what is trained and what is frozen where that is an adapter.
    """

    name: str
    progress: Progress
    samples: int
    total: int | None
    rows: Mapping[str, int | None]
    held_out: Mapping[str, int | None]
    batch_size: int | str
    context_len: int | str
    lr: float
    schedule: str
    frozen: int
    floor: float | None
    floor_bits: float | None
    has_validation: bool
    validation_samples: int | None
    to_come: Mapping[str, int] | None
    saved: str
    validated: str
    warnings: list[str]
    reads: Sequence[str] = ()
    sets: Sequence[str] = ()
    adapter: str = ""


@dataclass(frozen=True)
class StepDone:
    """A step whose figures are known.

    `progress` is the run's after it, `stage_samples` the stage's. `samples` end in the batch. `share` of the stage has been read (None = unknown). `loss_sum`
    (nats) is over the `n_truth` tokens to be learned; `sources` are the same by source, if there are several. `own` are the objective's own figures for the
    progress line.
    """

    progress: Progress
    stage_samples: int
    samples: int
    share: float | None
    lr: float
    loss_sum: float
    n_truth: float
    sources: Mapping[str, SourceLoss]
    own: Mapping[str, float | None]


@dataclass(frozen=True)
class ValidationDone:
    """A validation (`final` = that at the end of a stage): its figures, None where unknown, and one piece as the model sees it.

    `unit` is that of the loss; `own` are figures of the objective, by name: title, value and unit.
    """

    final: bool
    loss: float
    unit: str
    standard_error: float | None
    bits_per_byte: float | None
    accuracy: float | None
    edit_accuracy: float | None
    written_accuracy: float | None
    floor: float | None
    prompt: str
    truth: str
    predicted: str
    own: Mapping[str, tuple[str, float, str]]


@dataclass(frozen=True)
class EarlyEnd:
    """Why a stage ended early: validations without a better loss, the lowest loss and its unit, the run's samples then, and the file of that state."""

    stale: int
    loss: float
    unit: str
    samples: int
    best: Path


@dataclass(frozen=True)
class StageEnd:
    """A stage that is done: its totals, the share of each source, lines about rows that gave no sample (`lost`), and what was found on sets of samples that
    are not trained on."""

    name: str
    totals: Mapping[str, int]
    sources: Mapping[str, Mapping[str, Any]]
    lost: list[str]
    final: Judged | None
    best: Judged | None
    early: EarlyEnd | None
    sets: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RunEnd:
    """A run that ends: `peak_memory` in bytes (None = unknown), `graphs`, the compilations and recompilations (None = not compiled), and the newest figures
    of each named set."""

    files: RunFiles
    progress: Progress
    best: Judged | None
    final: Judged | None
    peak_memory: int | None
    graphs: tuple[int, int] | None
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """A stop on request: the reason, the stage's number (from 1) among all and its name, and the samples and steps of this process."""

    reason: str
    number: int
    stages: int
    stage: str
    samples: int
    steps: int
