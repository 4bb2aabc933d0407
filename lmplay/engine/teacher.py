"""The model that a stage learns from: finding it, refusing one that does not fit, and asking it.  Engine floor."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..checkpoints.format import read
from ..checkpoints.trained import open_trained
from ..data.collate import MiniBatch, Said
from ..data.continuation import Piece
from ..device.model import DeviceModel
from ..device.runtime import Runtime
from ..errors import Faults, UserError
from ..objectives.base import Teaching
from ..objectives.distill import ask
from ..objectives.losses import CHUNK, hidden_states
from ..plan.settings import Settings
from ..tokenizer import Tokenizer
from ..tokenizer.matching import matched_ids
from .batches import Grouping
from .run import OpenStage

_FOREIGN = "hf:"


@dataclass(frozen=True)
class Teacher:
    """A teacher that has been found; `longest` is the most tokens that it reads (None = no limit), `build` gives it with its weights, on the CPU."""

    label: str
    tokenizer: Tokenizer
    longest: int | None
    build: Callable[[], nn.Module]


def find_teacher(stage: OpenStage, settings: Settings) -> Teacher:
    """Find the teacher of a stage; its weights are not read yet.

    :raises UserError: when there is none of its name, or it cannot be read.
    """
    assert stage.objective.teaching is not None
    name, context_len = stage.objective.teaching.name, stage.settings.context_len
    label, path = f"stage '{stage.stage.name}': teacher {name}", settings.found(name)
    if name.startswith(_FOREIGN) or (Path(name).expanduser().is_dir() and not path.is_file()):
        from ..exp.imported import open_foreign

        foreign = open_foreign(name.removeprefix(_FOREIGN), label)
        return Teacher(label, foreign.tokenizer, foreign.longest, lambda: foreign.build(context_len))
    if not path.exists():
        raise UserError(f"{label}: there is no such file as {path}, and no such folder; give a .lmp, a folder of transformers, or {_FOREIGN}NAME.")
    try:
        built = read(path, "It is left as it is.", mmap=True)["model"]["state_args"]
        return Teacher(label, Tokenizer(built["tokenizer"]), built["args"].get("context_len"), lambda: open_trained(path).module)
    except UserError as error:
        raise UserError(*(f"{label}: {fault}" for fault in error.faults)) from None


def check_fit(teacher: Teacher, stage: OpenStage, tokenizer: Tokenizer) -> None:
    """Refuse a teacher that reads other tokens than the model, or shorter texts; raises UserError."""
    assert stage.objective.teaching is not None
    name, own, context_len = stage.objective.teaching.name, teacher.tokenizer, stage.settings.context_len
    if tokenizer.spec != own.spec and (known := matched_ids(tokenizer, own)) != [*range(tokenizer.vocab_size)]:
        n_other = sum(number != place for place, number in enumerate(known))
        raise UserError(f"{teacher.label}: of the {tokenizer.vocab_size:,} tokens of the model's tokenizer ({tokenizer.name}), {n_other:,} have another id or "
                        f"none in that of the teacher ({own.name}); give a new model the teacher's (--tokenizer {name.removeprefix(_FOREIGN)}), or choose "
                        "another teacher.")
    if teacher.longest is not None and teacher.longest < context_len:
        raise UserError(f"{teacher.label}: it reads {teacher.longest:,} tokens at most, and the stage's context_len is {context_len:,}; lower that, or choose "
                        "another teacher.")


def check_teachers(stages: Iterable[OpenStage], settings: Settings, tokenizer: Tokenizer) -> None:
    """Check the teachers of the stages that have not begun to learn from one: the others may have no need of it any more. Raises UserError."""
    faults = Faults()
    for stage in stages:
        if stage.objective.teaching is not None and stage.state.reference is None:
            with faults.collected():
                check_fit(find_teacher(stage, settings), stage, tokenizer)
    faults.refuse()


def open_teacher(teacher: Teacher, runtime: Runtime, grouping: Grouping) -> tuple[DeviceModel, Grouping]:
    """Put a teacher on the device; gives with it how its mini-batches are made."""
    module = teacher.build().to(runtime.device).requires_grad_(False).eval()
    packed = grouping.packed and "lengths" in inspect.signature(module.forward).parameters
    return DeviceModel(module, module, runtime), replace(grouping.alone(), packed=packed)


def ask_about(model: DeviceModel, pieces: Sequence[Piece], mini_batches: Sequence[MiniBatch], teaching: Teaching, vocab_size: int) -> list[Said]:
    """Ask a teacher about the truth tokens of each piece.

    :param model: the teacher.
    :param vocab_size: the tokens of the tokenizer: a model may have more rows than these.
    :return: ids of at most `top_k` tokens, and the log-probabilities of :class:`lmplay.data.collate.Taught` in float32.
    """
    found: list[Said] = [(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))] * len(pieces)
    with torch.no_grad():
        for mini_batch in mini_batches:
            mini_batch = mini_batch.to(model.runtime.device)
            ids, log_probs = [], []
            with model.runtime.autocast():
                hidden_ND = hidden_states(model.wrapped, mini_batch)
                for hidden, targets in zip(hidden_ND.split(CHUNK), mini_batch.targets_N.split(CHUNK), strict=True):
                    logits = model.head(hidden)[:, :vocab_size]
                    said = ask(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, teaching)
                    ids.append(said.ids_CK.cpu())
                    log_probs.append(said.log_probs_CR.float().cpu())
            ids_NK, log_probs_NR = torch.cat(ids).numpy(), torch.cat(log_probs).numpy()
            for number, where in mini_batch.rows:
                found[number] = ids_NK[where], log_probs_NR[where]
    return found
