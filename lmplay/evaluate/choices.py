"""Multiple choice and preferences: which of several answers is the most probable.  No tensors here."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .models import Judged
from .results import Measure, Result
from .rows import Pair, Question
from .sets import DataSet, shown
from .windows import Reading, Text, log_probs


def judge_choices(model: Judged, data: DataSet, questions: Sequence[Question], reading: Reading) -> Result:
    """Judge a model by multiple choice: the choice with the highest probability, or with the highest per character, is its answer; the first of equals."""
    given = [model.prompting.ids(question.text) for question in shown(questions, model.label, data)]
    texts = [_text(model, data, ids, question.text, choice, end=False) for ids, question in zip(given, questions, strict=True) for choice in question.choices]
    found = _by_row(log_probs(model, texts, reading), [len(question.choices) for question in questions])
    lengths = [np.array([len(choice) for choice in question.choices]) for question in questions]
    acc = [_is_highest(one, question.answer) for one, question in zip(found, questions, strict=True)]
    by_length = [_is_highest(one / length, question.answer) for one, length, question in zip(found, lengths, questions, strict=True)]
    return _result("choices", model, data, {"acc": acc, "acc_norm": by_length}, reading)


def judge_pairs(model: Judged, data: DataSet, pairs: Sequence[Pair], reading: Reading) -> Result:
    """Judge a model by preferences: how often the better answer, with its end token, is the more probable one, or that per character; equals count as half."""
    texts = []
    for pair in shown(pairs, model.label, data):
        given, before = _given(model, data, pair)
        texts += [_text(model, data, given, before, answer, end=True) for answer in (pair.chosen, pair.rejected)]
    found = _by_row(log_probs(model, texts, reading), [2] * len(pairs))
    lengths = [np.array([max(1, len(pair.chosen)), max(1, len(pair.rejected))]) for pair in pairs]
    acc = [_share_of_first(one) for one in found]
    return _result("preferences", model, data, {"acc": acc, "acc_norm": [_share_of_first(one / length) for one, length in zip(found, lengths, strict=True)]},
                   reading)


def _given(model: Judged, data: DataSet, pair: Pair) -> tuple[list[int], str]:
    """Turn a prompt into token ids; and its text, where a space may be needed between it and the answer."""
    if isinstance(pair.prompt, str):
        return (replace(model.prompting, form="text").ids(pair.prompt), "") if pair.goes_on else (model.prompting.ids(pair.prompt), pair.prompt)
    try:
        return model.prompting.turn_ids(pair.prompt), ""
    except UserError as error:
        raise UserError(*(f"{data.label}: {fault}" for fault in error.faults)) from None


def _text(model: Judged, data: DataSet, given: Sequence[int], before: str, answer: str, end: bool) -> Text:
    """Put a prompt and an answer together; where a text goes on, a space is between the two.

    :raises UserError: when the answer has no tokens, so that there is nothing to judge.
    """
    goes_on = model.prompting.form == "text" and before and not before[-1].isspace() and not answer[:1].isspace()
    ids = model.tokenizer.encode(f" {answer}" if goes_on else answer).ids
    if answer and not len(model.tokenizer.encode(answer).ids):
        raise UserError(f"{data.label}: the answer {answer!r} has no tokens in the tokenizer of {model.label}; leave its row out.")
    tokens = np.concatenate([np.array(given, dtype=np.int32), ids, np.array([model.tokenizer.end_id] * end, dtype=np.int32)])
    return Text(tokens, np.arange(len(tokens)) >= len(given))


def _by_row(values: Sequence[float], counts: Sequence[int]) -> list[NDArray[np.float64]]:
    """Divide values among rows."""
    return np.split(np.array(values), np.cumsum(counts)[:-1])


def _is_highest(values: NDArray[np.float64], number: int) -> float:
    """Give 1 where a value is the highest, the first of equals, else 0; NaN where one of them is no number."""
    return math.nan if np.isnan(values).any() else float(values.argmax() == number)


def _share_of_first(values: NDArray[np.float64]) -> float:
    """Give 1 where the first of two values is the higher one, a half where they are equal."""
    return 0.5 + 0.5 * float(np.sign(values[0] - values[1]))


def _result(kind: str, model: Judged, data: DataSet, columns: dict[str, list[float]], reading: Reading) -> Result:
    """Make the result of shares."""
    count = len(next(iter(columns.values())))
    measures = tuple(Measure(name, np.array(values), np.ones(count)) for name, values in columns.items())
    return Result(kind, data.name, model.label, data.source, {"context": reading.context, "form": model.prompting.form, "most": data.most},
                  {"documents": count}, measures)
