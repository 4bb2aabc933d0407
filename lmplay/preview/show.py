"""`--show-samples` and `--show-batch`: what the model will see, or has seen, rebuilt from plan and seed, without a model.  Engine floor."""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from ..checkpoints import rotation
from ..data.batcher import Batch, Batcher
from ..data.continuation import Cutter, Piece
from ..data.fingerprints import describe_changes
from ..data.samples import Sample
from ..data.stage import StageData
from ..data.stream import describe_skipped
from ..engine.model_spec import make_tokenizer, plan_model, tokenizer_name
from ..engine.opening import keep_settings
from ..errors import UserError, nearest
from ..plan.curriculum import Curriculum, StageState
from ..plan.schema import Plan, Stage
from ..plan.settings import Settings, resolve_stage
from ..tokenizer import Tokenizer, trained_size

_ENDS = {"end": "the end", "sentence": "a sentence end", "clause": "a clause end", "word": "a word end, inside a sentence",
         "character": "a character, inside a word"}
_END_SIGN = "⏹"
# Of each piece of a batch, so many characters are shown.
_BEGINNING = 60
# What would move the cursor or change colours is shown by Unicode's pictures of control characters.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "␡"} | dict.fromkeys(range(128, 160), "\ufffd")
_GREY, _PLAIN = "\033[90m", "\033[0m"


@dataclass(frozen=True)
class Look:
    """A stage as a run would read it."""

    stage: Stage
    batch_size: int
    data: StageData
    tokenizer: Tokenizer
    cutter: Cutter

    def place(self, sample: Sample) -> dict[str, Any]:
        """Say where a sample comes from."""
        source = self.data.sources[sample.source]
        return {"source": source.name, "row": sample.row, "place": source.location(sample.row)}


def show(settings: Settings, plan: Plan) -> str:
    """Show what `--show-samples` or `--show-batch` asks for.

    :param settings: the run's; with an existing model file it is looked at as the run that goes on with it would.
    :param plan: the plan.
    :return: lines for people, or, with `--json`, a list of samples or an object for the batch.
    :raises UserError: when stage or batch is not there, or the data cannot be read as it was.
    """
    if settings.show_batch is None:
        looks = _open(settings, plan, list(plan.stages))
        samples = ((look, sample) for look in looks for sample in islice(iter(look.data.open_samples().next, None), settings.show_samples))
        found = [sample_as_json(look, sample) for look, sample in samples]
        if settings.json:
            return json.dumps(found, indent=1, ensure_ascii=False)
        return "\n".join(line for number, sample in enumerate(found, 1) for line in sample_in_words(f"sample {number}", sample))
    name, _, number = settings.show_batch.rpartition(":")
    by_name = {stage.name: stage for stage in plan.stages}
    if name and name not in by_name:
        raise UserError(f"--show-batch {settings.show_batch}: the plan has no stage '{name}'.{nearest(name, by_name)} Its stages: {', '.join(by_name)}.")
    look, = _open(settings, plan, [by_name[name] if name else plan.stages[0]])
    batch = _make_batch(look, int(number))
    return json.dumps(_batch_as_json(look, int(number), batch), indent=1, ensure_ascii=False) if settings.json else _batch_in_words(look, int(number), batch)


def _open(settings: Settings, plan: Plan, stages: list[Stage]) -> list[Look]:
    """Open stages as a run that begins, or goes on, with this model file would."""
    path = settings.model_file(plan)
    found = None if settings.reset_history else rotation.find(path, [stage.name for stage in plan.stages])
    stored = found.content if found is not None else None
    curriculum = Curriculum(plan)
    if stored is not None:
        settings = keep_settings(settings, path, stored["runner"]["state_args"]["settings"])
        curriculum.check_past(stored["curriculum"]["state_args"]["plan"], stored["curriculum"]["state"])
        curriculum.restore(stored["curriculum"]["state"])
    model_plan = plan_model(settings, plan, path, stored)
    trains = model_plan.tokenizer is None and trained_size(tokenizer_name(settings, plan)) is not None
    resolved = {stage.name: resolve_stage(settings, stage, model_plan.args["context_len"]) for stage in stages}
    data: dict[str, StageData] = {}
    faults: list[str] = []
    for stage, state in zip(plan.stages, curriculum.states, strict=True):
        if trains or stage.name in resolved:  # a tokenizer learns from the text of all stages
            try:
                data[stage.name] = StageData(stage, settings.datasets_folder, settings.seed)
                if stage.name in resolved:
                    faults += _changes(settings, state, data[stage.name], resolved[stage.name].context_len)
            except UserError as error:
                faults += error.faults
    if faults:
        raise UserError(*faults)
    tokenizer = model_plan.tokenizer or make_tokenizer(settings, plan, data)
    return [Look(stage, resolved[stage.name].batch_size, data[stage.name], tokenizer,
                  Cutter(tokenizer, resolved[stage.name].context_len, settings.continuation == "estimate")) for stage in stages]


def _changes(settings: Settings, state: StageState, data: StageData, context_len: int) -> Iterator[str]:
    """Say why what would be shown of a begun stage is not what was trained on."""
    if state.fingerprints is not None and not settings.accept_changed_data:
        for change in describe_changes(state.fingerprints, data.fingerprints()):
            yield (f"stage '{state.name}': the data of {change} has changed since the checkpoint, so this is not what was trained on; "
                   "--accept-changed-data shows it all the same.")
    if state.context_len not in (None, context_len):
        yield f"stage '{state.name}' was begun with context_len {state.context_len}, and now it is {context_len}; change it back."


def _make_batch(look: Look, number: int) -> Batch:
    """Make the batches of a stage up to one of them, counted from 1."""
    stream = look.data.open_samples()
    batcher = Batcher(stream, look.cutter.cut, look.batch_size, look.stage.tokens)
    made = 0
    while (batch := batcher.next()) is not None:
        made += 1
        if made == number:
            return batch
    raise UserError(f"--show-batch {number}: stage '{look.stage.name}' has {made:,} batches of up to {look.batch_size} pieces "
                    f"({describe_skipped(stream.skipped)}); give a number from 1 to {made:,}.")


def _flags(piece: Piece) -> list[bool]:
    """Tell of each token whether it is learned."""
    n_rest = len(piece.tokens) - piece.n_prompt
    return [False] * piece.n_prompt + ([True] * n_rest if piece.learned is None else piece.learned.tolist())


def _spans(piece: Piece, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Divide a piece's tokens into texts that are given and texts that are learned; an end token stands alone, with no text."""
    ids = piece.tokens.tolist()
    spans = []
    begin = 0
    for (learned, end), group in groupby(zip(ids, _flags(piece), strict=True), key=lambda pair: (pair[1], pair[0] == tokenizer.end_id)):
        to = begin + len(list(group))
        # By what it adds to the text before it: some decoders take a text's first blank away.
        before, after = tokenizer.decode(ids[:begin]), tokenizer.decode(ids[:to])
        text = after[len(before):] if after.startswith(before) else tokenizer.decode(ids[begin:to])
        spans += [{"text": "", "learned": learned, "end": True}] * (to - begin) if end else [{"text": text, "learned": learned, "end": False}]
        begin = to
    return spans


def _counts(piece: Piece) -> dict[str, Any]:
    """Count a piece's tokens, and say what it ends at."""
    return {"piece": piece.number + 1, "last": piece.last, "ends_at": piece.cut.name.lower(), "prompt_tokens": piece.n_prompt,
            "truth_tokens": len(piece.tokens) - piece.n_prompt, "learned_tokens": sum(_flags(piece))}


def sample_as_json(look: Look, sample: Sample, most: int | None = None) -> dict[str, Any]:
    """Give a sample with its pieces as plain values.

    :param look: its stage.
    :param sample: the sample.
    :param most: so many pieces of it; None = all.
    :return: what can be written as JSON.
    """
    pieces = look.cutter.cut(sample)
    return {"stage": look.stage.name, **look.place(sample), "context_len": look.cutter.context_len, "n_pieces": len(pieces),
            "pieces": [{**_counts(piece), "spans": _spans(piece, look.tokenizer), "ids": piece.tokens.tolist()} for piece in pieces[:most]]}


def _batch_as_json(look: Look, number: int, batch: Batch) -> dict[str, Any]:
    """Give a batch as plain values."""
    pieces = [{**look.place(piece.sample), **_counts(piece), "text": piece.truth, "ids": piece.tokens.tolist()} for piece in batch.pieces]
    return {"stage": look.stage.name, "batch": number, "batch_size": look.batch_size, "tokens": sum(len(piece.tokens) for piece in batch.pieces),
            "learned_tokens": sum(sum(_flags(piece)) for piece in batch.pieces), "progress": batch.progress, "pieces": pieces}


def sample_in_words(title: str, sample: dict[str, Any]) -> Iterator[str]:
    """Write a sample for people: its pieces, each with what is given (greyed on a terminal) and what is learned.

    :param title: what it is called.
    :param sample: what :func:`sample_as_json` gave.
    :return: lines.
    """
    yield f"== {title}, stage {sample['stage']}: {sample['place']}"
    for piece in sample["pieces"]:
        yield (f"-- piece {piece['piece']} of {sample['n_pieces']}: prompt {piece['prompt_tokens']} + truth {piece['truth_tokens']} = {len(piece['ids'])} "
               f"of at most {sample['context_len']} tokens, {piece['learned_tokens']} learned, ends at {_ENDS[piece['ends_at']]}")
        for learned, spans in groupby(piece["spans"], key=lambda span: span["learned"]):
            text = "".join(_END_SIGN if span["end"] else span["text"] for span in spans).translate(_PICTURES)
            lines = text.replace("\n", "⏎\n").removesuffix("\n").split("\n")
            for line, head in zip(lines, ["learned" if learned else "given", *[""] * len(lines)], strict=False):
                yield f"{head:>9} │ {line if learned else _grey(line)}"
    if sample["n_pieces"] > len(sample["pieces"]):
        yield f"-- and {sample['n_pieces'] - len(sample['pieces']):,} more pieces"
    yield ""


def _batch_in_words(look: Look, number: int, batch: Batch) -> str:
    """Write a batch for people: a line for each piece."""
    tokens, learned = sum(len(piece.tokens) for piece in batch.pieces), sum(sum(_flags(piece)) for piece in batch.pieces)
    share = "" if batch.progress is None else f"; {batch.progress:.1%} of the stage are done with it"
    lines = [f"batch {number:,} of stage {look.stage.name}: {len(batch.pieces)} of at most {look.batch_size} pieces, {len(batch.samples)} samples end in it, "
             f"{tokens:,} tokens, {learned:,} learned{share}"]
    rows = [("", "from", "piece", "prompt", "truth", "learned", "ends at", "begins with")]
    for place, piece in enumerate(batch.pieces, 1):
        counts = _counts(piece)
        beginning = piece.truth[:_BEGINNING].replace("\n", "⏎").translate(_PICTURES)
        rows.append((str(place), look.place(piece.sample)["place"], f"{counts['piece']}{'' if piece.last else ' …'}", str(counts["prompt_tokens"]),
                     str(counts["truth_tokens"]), str(counts["learned_tokens"]), counts["ends_at"], beginning))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _grey(text: str) -> str:
    """Grey a line on a terminal, unless its user wants no colours."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"{_GREY}{text}{_PLAIN}" if wanted and text else text
