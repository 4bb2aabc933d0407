"""The model that a stage learns from: finding it, refusing one that does not fit, and asking it.  Engine floor."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from ..checkpoints.base import identify
from ..checkpoints.format import read
from ..checkpoints.trained import open_trained
from ..data.beginning import begun
from ..data.collate import Said
from ..data.continuation import Piece
from ..device.memory import is_out_of_memory
from ..device.model import DeviceModel
from ..device.runtime import Runtime
from ..errors import Faults, TrainingError, UserError
from ..objectives.base import Teaching
from ..objectives.distill import ask
from ..objectives.losses import CHUNK, hidden_states
from ..paths import expanded
from ..plan.settings import Settings
from ..tokenizer import Tokenizer
from ..tokenizer.matching import differing_ids
from .batches import Grouping
from .run import OpenStage

_FOREIGN = "hf:"


@dataclass(frozen=True)
class Teacher:
    """A teacher that has been found at `source`; `longest` is the most tokens that it reads (None = no limit), `begin_id` the token that everything begins with
    in a model of others (None = none), `build` gives it with its weights, on the CPU."""

    label: str
    source: str
    tokenizer: Tokenizer
    longest: int | None
    begin_id: int | None
    build: Callable[[], nn.Module]


@dataclass(frozen=True)
class OpenTeacher:
    """A teacher on the device; `grouping` says how its mini-batches are made."""

    found: Teacher
    model: DeviceModel
    grouping: Grouping

    @property
    def identity(self) -> str:
        """What decides what it says of texts."""
        weights, begin_id = identify(self.model.raw.state_dict()), self.found.begin_id
        return weights if begin_id is None else f"{weights} after {begin_id}"


def find_teacher(stage: OpenStage, settings: Settings) -> Teacher:
    """Find the teacher of a stage; its weights are not read yet.

    :raises UserError: when there is none of its name, or it cannot be read.
    """
    assert stage.objective.teaching is not None
    name, context_len = stage.objective.teaching.name, stage.settings.context_len
    label, path = f"stage '{stage.stage.name}': teacher {name}", settings.found(name)
    if name.startswith(_FOREIGN) or (expanded(name).is_dir() and not path.is_file()):
        from ..exp.imported import open_foreign

        source = name.removeprefix(_FOREIGN)
        foreign = open_foreign(source, label)
        return Teacher(label, source, foreign.tokenizer, foreign.longest, foreign.begin_id, lambda: foreign.build(context_len))
    if not path.exists():
        raise UserError(f"{label}: there is no such file as {path}, and no such folder; give a .lmp, a folder of transformers, or {_FOREIGN}NAME.")
    try:
        built = read(path, "It is left as it is.", mmap=True)["model"]["state_args"]
        return Teacher(label, str(path), Tokenizer(built["tokenizer"]), built["args"].get("context_len"), None, lambda: open_trained(path).module)
    except UserError as error:
        raise UserError(*(f"{label}: {fault}" for fault in error.faults)) from None


def check_fit(teacher: Teacher, stage: OpenStage, tokenizer: Tokenizer) -> None:
    """Refuse a teacher that reads other tokens than the model, or shorter texts; raises UserError."""
    own, context_len = teacher.tokenizer, stage.settings.context_len
    if others := differing_ids(tokenizer, own):
        raise UserError(f"{teacher.label}: of the {tokenizer.vocab_size:,} tokens of the model's tokenizer ({tokenizer.name}), {len(others):,} have another id "
                        f"or none in that of the teacher ({own.name}); give a new model the teacher's (--tokenizer {teacher.source}), or choose another "
                        "teacher.")
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


def open_teacher(teacher: Teacher, runtime: Runtime, grouping: Grouping) -> OpenTeacher:
    """Put a teacher on the device.

    :param grouping: how the mini-batches of the stage are made.
    :raises TrainingError: when there is no memory for it.
    """
    try:
        module = teacher.build().to(runtime.device).requires_grad_(False).eval()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"{teacher.label}: out of memory while it is put on {runtime.device} beside the model; the last checkpoint is intact. What may "
                            "help: a smaller teacher; or the same command with --device cpu --max-steps 1, which keeps what it says, and then "
                            "without.") from error
    packed = grouping.packed and "lengths" in inspect.signature(module.forward).parameters
    return OpenTeacher(teacher, DeviceModel(module, module, runtime), replace(grouping.alone(), packed=packed))


def ask_about(teacher: OpenTeacher, pieces: Sequence[Piece], token_budget: int, teaching: Teaching, tokenizer: Tokenizer) -> list[Said]:
    """Ask a teacher about the truth tokens of each piece.

    :param token_budget: the most tokens of a mini-batch, see :meth:`.batches.Grouping.mini_batches`.
    :param tokenizer: that the pieces were made with; a teacher may have more rows than this has tokens.
    :return: ids of at most `top_k` tokens, and the log-probabilities of :class:`lmplay.data.collate.Taught` in float32.
    :raises UserError: when the teacher has fewer rows.
    """
    model, vocab_size = teacher.model, tokenizer.vocab_size
    read = [begun(piece, teacher.found.begin_id, tokenizer) for piece in pieces]
    found: list[Said] = [(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))] * len(pieces)
    with torch.no_grad():
        for mini_batch in teacher.grouping.mini_batches(read, token_budget):
            mini_batch = mini_batch.to(model.runtime.device)
            ids, log_probs = [], []
            with model.runtime.autocast():
                hidden_ND = hidden_states(model.wrapped, mini_batch)
                for hidden, targets in zip(hidden_ND.split(CHUNK), mini_batch.targets_N.split(CHUNK), strict=True):
                    logits = model.head(hidden)[:, :vocab_size]
                    if logits.shape[1] < vocab_size:
                        raise UserError(f"{teacher.found.label}: it knows the first {logits.shape[1]:,} tokens only of the {vocab_size:,} of the tokenizer; "
                                        "choose another teacher.")
                    said = ask(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, teaching)
                    ids.append(said.ids_CK.cpu())
                    log_probs.append(said.log_probs_CR.float().cpu())
            ids_NK, log_probs_NR = torch.cat(ids).numpy(), torch.cat(log_probs).numpy()
            for number, where in mini_batch.rows:
                found[number] = ids_NK[where], log_probs_NR[where]
    return found
