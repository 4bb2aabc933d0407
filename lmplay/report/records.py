"""What the report is told of a run: small frozen records, made by :mod:`lmplay.engine.telling`.  Report floor, no torch."""
from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..stats.figures import Progress, SourceLoss
from ..stats.totals import Judged


@dataclass(frozen=True)
class RunFiles:
    """Where things are."""

    model: Path
    out_dir: str
    """As the user wrote it."""

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(self.out_dir).expanduser()

    @property
    def log(self) -> Path:
        """NAME.log."""
        return self.folder / f"{self.model.stem}.log"

    @property
    def plot_command(self) -> str:
        """How the statistics are drawn."""
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
    """A run that begins, or goes on."""

    files: RunFiles
    experiment: str
    parameters: int
    model_args: Mapping[str, Any]
    tokenizer: str
    vocabulary: int
    device: str
    precision: str
    compiled: bool
    batch_sizes: list[int]
    """Of the stages that are left, each once."""
    batch_size: int
    mini_batch_size: int | str
    mini_batch_tokens: int
    memory_needed: int
    """Bytes for weights, gradients and the optimizers' state."""
    memory_there: int | None
    stages: list[StageOutline]
    samples: int
    resumed: bool
    changes: list[str]
    """What is not as it was at the checkpoint."""
    hints: list[str]
    seconds_left: float | None
    """Until the time limit; None = there is none."""
    flags: Mapping[str, Any]
    """Those that were typed."""


@dataclass(frozen=True)
class StageStart:
    """A stage that begins, or goes on."""

    name: str
    progress: Progress
    """Of the run."""
    samples: int
    """Of the stage, trained on up to here."""
    total: int | None
    """Samples of the stage; None = unknown."""
    rows: Mapping[str, int | None]
    """Of each source; None = endless, or unknown."""
    batch_size: int
    context_len: int
    lr: float
    schedule: str
    frozen: int
    """Parameters that are not trained."""
    floor: float | None
    """The lowest loss that the texts allow, in nats per token."""
    floor_bits: float | None
    """The same in bits per byte."""
    has_validation: bool
    to_come: Mapping[str, int] | None
    """Samples and tokens of the stages after this one; None = unknown."""


@dataclass(frozen=True)
class StepDone:
    """A step whose figures are known."""

    progress: Progress
    """Of the run."""
    stage_samples: int
    """Of the stage, trained on up to here."""
    samples: int
    """That end in the batch."""
    share: float | None
    """Of the stage that has been read; None = unknown."""
    lr: float
    loss_sum: float
    """Of the batch, in nats."""
    n_truth: int
    """Its tokens to be learned."""
    sources: Mapping[str, SourceLoss]
    """What each source gave to it, where they are told apart."""
    own: Mapping[str, float | None]
    """The objective's own figures that are shown in the progress line."""


@dataclass(frozen=True)
class ValidationDone:
    """A validation: its figures, and one piece as the model sees it."""

    final: bool
    """It is the longer one that ends a stage."""
    loss: float
    bits_per_byte: float | None
    accuracy: float
    floor: float | None
    prompt: str
    truth: str
    predicted: str


@dataclass(frozen=True)
class EarlyEnd:
    """Why a stage ended early: validations without a better loss, the lowest loss, where it was reached, and the file of that state."""

    stale: int
    loss: float
    samples: int
    best: Path


@dataclass(frozen=True)
class StageEnd:
    """A stage that is done."""

    name: str
    totals: Mapping[str, int]
    sources: Mapping[str, Mapping[str, Any]]
    lost: list[str]
    """What of the rows did not become samples, in lines."""
    final: Judged | None
    best: Judged | None
    early: EarlyEnd | None


@dataclass(frozen=True)
class RunEnd:
    """A run that ends, its plan complete or not."""

    files: RunFiles
    progress: Progress
    best: Judged | None
    final: Judged | None
    peak_memory: int | None
    """Bytes."""
    graphs: tuple[int, int] | None
    """How often code was compiled, and how often of these again; None = it is not compiled."""


@dataclass(frozen=True)
class Stop:
    """Where a run stops on request: why, the stage's number (from 1) among all and its name, and what has been done in this process."""

    reason: str
    number: int
    stages: int
    stage: str
    samples: int
    steps: int
