"""What it would take a model to write the answers of a stage, and to learn from them (`--check-plan`): some are written, and timed."""
from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

from ..device.memory import wait_for
from ..device.model import DeviceModel
from ..engine.batches import Grouping, TrainBatch
from ..engine.run import OpenStage
from ..engine.thoughts import open_writer
from ..tokenizer import Tokenizer

# Prompts that the model answers.
_PROMPTS = 4


@dataclass(frozen=True)
class Answers:
    """Answers to some prompts as a batch, and what each prompt takes: seconds to answer it, slots of mini-batches, tokens that are learned."""

    batch: TrainBatch
    seconds: float
    slots: float
    tokens: float


def write_some(stage: OpenStage, model: DeviceModel, tokenizer: Tokenizer, seed: int, grouping: Grouping, batch: TrainBatch) -> Answers:
    """Let the model answer the first prompts of a batch.

    :raises UserError: when a reward fails.
    """
    prompts = batch.batch.pieces[:_PROMPTS]

    def attempts(longest: int) -> Iterator[AbstractContextManager[int]]:
        return iter([nullcontext(batch.token_budget)])

    writer = open_writer(stage, model, tokenizer, seed, grouping, attempts, lambda said: None, nullcontext)  # a teacher begins with the model's weights
    assert writer is not None
    with closing(writer):
        writer.write_groups(prompts[:1], 0, lambda: False)  # warms up
        wait_for(model.runtime.device)
        started = time.perf_counter()
        written = writer.write_groups(prompts, 0, lambda: False)
        wait_for(model.runtime.device)
        seconds = time.perf_counter() - started
    assert written is not None
    found = replace(batch, batch=replace(batch.batch, pieces=written), mini_batches=grouping.mini_batches(written, batch.token_budget), sources=[])
    return Answers(found, seconds / len(prompts), found.n_slots / len(prompts), found.batch.n_truth / len(prompts))
