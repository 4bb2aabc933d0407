"""`--show-samples` and `--show-batch`: what the model will see, or has seen, rebuilt from plan and seed, without a model."""
from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import Any

from ..data.batcher import Batch, Batcher
from ..data.continuation import Cutter, Piece
from ..data.samples import Sample
from ..data.stream import describe_losses, describe_skipped, nothing_to_train_on
from ..engine.batches import open_batcher
from ..engine.model_spec import tokenizer_name
from ..engine.opening import open_stages, outline
from ..engine.run import OpenStage
from ..errors import UserError, nearest
from ..plan.schema import Plan, Stage
from ..plan.settings import Settings
from ..tokenizer import Tokenizer, trained_size

_ENDS = {"end": "the end", "sentence": "a sentence end", "clause": "a clause end", "word": "a word end, inside a sentence",
         "character": "a character, inside a word"}
_END_SIGN = "⏹"
_BEGINNING = 60  # characters of a piece in a line of a batch
# Control characters, which could move the cursor or change colours, are replaced by Unicode's symbols for them.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "␡"} | dict.fromkeys(range(128, 160), "\ufffd")
_GREY, _PLAIN = "\033[90m", "\033[0m"


class StageView:
    """An open stage with the function that cuts its samples into pieces, as in training."""

    def __init__(self, settings: Settings, opened: OpenStage, tokenizer: Tokenizer):
        self.name, self.batch_size, self.tokenizer, self.data = opened.stage.name, opened.settings.batch_size, tokenizer, opened.data
        self.writes = opened.objective.writing if opened.objective.reads_tasks else None
        self.context_len, self._opened, self._steps = opened.settings.context_len, opened, opened.stage.steps
        self.cutter = Cutter(tokenizer, self.context_len, settings.continuation == "estimate")
        self.prepare: Callable[[Sample], list[Piece]] = partial(opened.objective.prepare, cutter=self.cutter)

    def batcher(self) -> Batcher:
        """Make the batches of the stage from its beginning."""
        return open_batcher(self._opened, self.data.open_samples(), self.cutter)

    def batch(self, number: int) -> Batch:
        """Return a batch of the stage, counted from 1, by making those before it; raises UserError when the stage has fewer batches."""
        batcher, made, progress = self.batcher(), 0, 0.0
        while made != self._steps and (batch := batcher.next(progress)) is not None:
            made += 1
            progress = batch.progress or 0.0 if self._steps is None else made / self._steps
            if made == number:
                return batch
        if not made:
            raise nothing_to_train_on(self.name, Counter(batcher.reached["skipped"]))
        raise UserError(f"--show-batch {number}: stage '{self.name}' has {made:,} batches of up to {self.batch_size} pieces "
                        f"({describe_skipped(batcher.reached['skipped'])}); give a number from 1 to {made:,}.")

    def origin(self, sample: Sample) -> dict[str, Any]:
        """Return source, row and location of a sample."""
        source = self.data.sources[sample.source]
        return {"source": source.name, "row": sample.row, "place": source.location(sample.row)}


def show(settings: Settings, plan: Plan, say: Callable[[str], None]) -> str:
    """Show what `--show-samples` or `--show-batch` asks for: lines, or, with `--json`, a list of samples or an object for the batch.

    :param settings: of the command line; with an existing model file, the data is shown as the run that resumes from it would read it.
    :param say: called with a line for each accepted change of the data.
    :raises UserError: when there is no such stage or batch, or the data has changed.
    """
    if settings.show_batch is None:
        views = _open(settings, plan, list(plan.stages), say)
        found = [sample_as_json(view, sample) for view in views for sample in _first_samples(view, settings.show_samples or 1, say)]
        if settings.json:
            return json.dumps(found, indent=1, ensure_ascii=False)
        return "\n".join(line for number, sample in enumerate(found, 1) for line in sample_in_words(f"sample {number}", sample))
    name, _, number = settings.show_batch.rpartition(":")
    by_name = {stage.name: stage for stage in plan.stages}
    if name and name not in by_name:
        raise UserError(f"--show-batch {settings.show_batch}: the plan has no stage '{name}'.{nearest(name, by_name)} Its stages: {', '.join(by_name)}.")
    view, = _open(settings, plan, [by_name[name] if name else plan.stages[0]], say)
    batch = view.batch(int(number))
    return json.dumps(_batch_as_json(view, int(number), batch), indent=1, ensure_ascii=False) if settings.json else _batch_in_words(view, int(number), batch)


def _first_samples(view: StageView, count: int, say: Callable[[str], None]) -> list[Sample]:
    """Read the first samples of a stage, and say which rows were skipped before them; raises UserError where there is none."""
    stream = view.data.open_samples()
    found = list(islice(iter(stream.next, None), count))
    if not found:
        raise nothing_to_train_on(view.name, stream.skipped)
    for line in describe_losses(stream.state()):
        say(f"stage {view.name}: {line}")
    return found


def _open(settings: Settings, plan: Plan, shown: list[Stage], say: Callable[[str], None]) -> list[StageView]:
    """Open stages as a run that begins, or resumes, with this model file would."""
    ahead = outline(settings, plan)
    all_needed = ahead.spec.tokenizer is None and trained_size(tokenizer_name(ahead.settings, plan)) is not None  # a tokenizer is trained on all stages
    names = [stage.name for stage in shown]
    stages = zip(ahead.plan.stages, ahead.curriculum.states, strict=True)
    opened = open_stages(ahead, [(stage, state) for stage, state in stages if all_needed or stage.name in names], say)
    tokenizer = ahead.tokenizer(stage.data for stage in opened.values())
    return [StageView(ahead.settings, opened[name], tokenizer) for name in names]


def _flags(piece: Piece) -> list[bool]:
    """Tell for each token whether it is learned."""
    n_rest = len(piece.tokens) - piece.n_prompt
    return [False] * piece.n_prompt + ([True] * n_rest if piece.learned is None else piece.learned.tolist())


def _spans(piece: Piece, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Split a piece into texts that are given and texts that are learned; each end token is a span of its own, without text."""
    ids = piece.tokens.tolist()
    spans = []
    begin = 0
    for (learned, end), group in groupby(zip(ids, _flags(piece), strict=True), key=lambda pair: (pair[1], pair[0] == tokenizer.end_id)):
        to = begin + len(list(group))
        # The text that these tokens add to the text before them: alone, some decoders drop its leading space.
        before, after = tokenizer.decode(ids[:begin]), tokenizer.decode(ids[:to])
        text = after[len(before):] if after.startswith(before) else tokenizer.decode(ids[begin:to])
        spans += [{"text": "", "learned": learned, "end": True}] * (to - begin) if end else [{"text": text, "learned": learned, "end": False}]
        begin = to
    return spans


def _counts(piece: Piece) -> dict[str, Any]:
    """Count a piece's tokens, and name what it ends at."""
    answer = {} if piece.preferred is None else {"answer": "chosen" if piece.preferred else "rejected"}
    return {"piece": piece.number + 1, **answer, "last": piece.last, "ends_at": piece.cut.name.lower(), "prompt_tokens": piece.n_prompt,
            "truth_tokens": len(piece.tokens) - piece.n_prompt, "learned_tokens": sum(_flags(piece))}


def sample_as_json(view: StageView, sample: Sample, most: int | None = None) -> dict[str, Any]:
    """Describe a sample and its pieces by plain values; with `most`, only that many of the first pieces."""
    pieces = view.prepare(sample)
    if view.writes:
        given = [replace(piece, tokens=piece.tokens[:piece.n_prompt]) for piece in pieces]
        return {"stage": view.name, **view.origin(sample), "context_len": view.context_len, "n_pieces": len(pieces), "answer": sample.truth,
                "pieces": [{"prompt_tokens": piece.n_prompt, "answer_tokens": view.writes.limit(view.context_len), "spans": _spans(piece, view.tokenizer),
                            "ids": piece.tokens.tolist()} for piece in given]}
    return {"stage": view.name, **view.origin(sample), "context_len": view.context_len, "n_pieces": len(pieces),
            "pieces": [{**_counts(piece), "spans": _spans(piece, view.tokenizer), "ids": piece.tokens.tolist()} for piece in pieces[:most]]}


def _batch_as_json(view: StageView, number: int, batch: Batch) -> dict[str, Any]:
    """Describe a batch by plain values."""
    pieces = [{**view.origin(piece.sample), **_counts(piece), "text": piece.truth, "ids": piece.tokens.tolist()} for piece in batch.pieces]
    return {"stage": view.name, "batch": number, "batch_size": view.batch_size, "tokens": sum(len(piece.tokens) for piece in batch.pieces),
            "learned_tokens": sum(sum(_flags(piece)) for piece in batch.pieces), "progress": batch.progress, "pieces": pieces}


def sample_in_words(title: str, sample: dict[str, Any]) -> Iterator[str]:
    """Write the result of :func:`sample_as_json` as lines below a title: its pieces, each with what is given (grey on a terminal) and what is learned."""
    yield f"== {title}, stage {sample['stage']}: {sample['place']}"
    for piece in sample["pieces"]:
        if "answer_tokens" in piece:
            yield (f"-- task: prompt {piece['prompt_tokens']} of at most {sample['context_len']} tokens, behind which the model writes answers of at most "
                   f"{piece['answer_tokens']}")
            yield from _spans_in_words(piece["spans"])
            yield from _spans_in_words([{"text": sample["answer"], "learned": True, "end": False}], "judged by")
            continue
        what = f"{piece['answer']} answer" if "answer" in piece else f"piece {piece['piece']} of {sample['n_pieces']}"
        yield (f"-- {what}: prompt {piece['prompt_tokens']} + truth {piece['truth_tokens']} = {len(piece['ids'])} "
               f"of at most {sample['context_len']} tokens, {piece['learned_tokens']} learned, ends at {_ENDS[piece['ends_at']]}")
        yield from _spans_in_words(piece["spans"])
    if sample["n_pieces"] > len(sample["pieces"]):
        yield f"-- and {sample['n_pieces'] - len(sample['pieces']):,} more pieces"
    yield ""


def _spans_in_words(spans: list[dict[str, Any]], name: str = "learned") -> Iterator[str]:
    """Write spans as lines: what is given, and what is learned, under another `name` if that is another."""
    for learned, group in groupby(spans, key=lambda span: span["learned"]):
        text = "".join(_END_SIGN if span["end"] else span["text"] for span in group).translate(_PICTURES)
        lines = text.replace("\n", "⏎\n").removesuffix("\n").split("\n")
        for line, head in zip(lines, [name if learned else "given", *[""] * len(lines)], strict=False):
            yield f"{head:>9} │ {line if learned else _grey(line)}"


def _batch_in_words(view: StageView, number: int, batch: Batch) -> str:
    """Write a batch as text: a line for each piece."""
    tokens, learned = sum(len(piece.tokens) for piece in batch.pieces), sum(sum(_flags(piece)) for piece in batch.pieces)
    share = "" if batch.progress is None else f"; {batch.progress:.1%} of the stage is done with it"
    lines = [f"batch {number:,} of stage {view.name}: {len(batch.pieces)} of at most {view.batch_size} pieces, {len(batch.samples)} samples end in it, "
             f"{tokens:,} tokens, {learned:,} learned{share}"]
    rows = [("", "from", "piece", "prompt", "truth", "learned", "ends at", "begins with")]
    for row, piece in enumerate(batch.pieces, 1):
        counts = _counts(piece)
        beginning = piece.truth[:_BEGINNING].replace("\n", "⏎").translate(_PICTURES)
        rows.append((str(row), view.origin(piece.sample)["place"], f"{counts['piece']}{'' if piece.last else ' …'}", str(counts["prompt_tokens"]),
                     str(counts["truth_tokens"]), str(counts["learned_tokens"]), counts["ends_at"], beginning))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _grey(text: str) -> str:
    """Make a line grey on a terminal, unless colours are switched off."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"{_GREY}{text}{_PLAIN}" if wanted and text else text
