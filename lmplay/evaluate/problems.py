"""Exact match and pass@k: whether the texts that a model writes have the right answer.  No tensors here."""
from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np

from ..data.permutation import hash64
from ..writing.stops import cut_at_stops
from .models import Judged
from .results import Measure, Result
from .rows import Problem
from .sets import DataSet, shown

EXTRACTS = ("auto", "number", "text")
# What stands before the answer in the solutions of GSM8K.
_MARK = "####"
# A minus is a sign directly before the number or its $, and not after what it may be subtracted from; else it is a dash.
_NUMBER = re.compile(r"(?:(?<![\w)])-(?=[$\d.]))?(?:\$\s?)?(\d[\d,]*(?:\.\d+)?|\.\d+)")
# A text is looked through for stop texts after this many tokens.
_LOOK_EVERY = 8


@dataclass(frozen=True)
class Writing:
    """How answers are written: `samples` of each, `ks` of pass@k, and `batch_size` texts side by side."""

    samples: int
    ks: tuple[int, ...]
    temperature: float
    most_tokens: int
    stops: tuple[str, ...]
    seed: int
    extract: str
    batch_size: int


def judge_problems(model: Judged, data: DataSet, problems: Sequence[Problem], writing: Writing) -> Result:
    """Judge a model by the answers that it writes."""
    extract = writing.extract if writing.extract != "auto" else _kind_of([problem.answer for problem in problems])
    jobs = [(number, sample) for number in range(len(problems)) for sample in range(writing.samples)]
    right = np.zeros(len(problems))
    batches = [jobs[begin:begin + writing.batch_size] for begin in range(0, len(jobs), writing.batch_size)]
    for batch in shown(batches, model.label, data, " batches"):
        prompts = [model.prompting.ids(problems[number].prompt) for number, _ in batch]
        seeds = [hash64(writing.seed, number, sample) >> 1 for number, sample in batch]
        stops = [*writing.stops, *model.prompting.stop_texts]
        texts = write_texts(model, prompts, seeds, model.prompting.ends, stops, writing.temperature, writing.most_tokens)
        for (number, _), text in zip(batch, texts, strict=True):
            right[number] += is_right(text, problems[number].answer, extract)
    ones = np.ones(len(problems))
    if writing.samples == 1:
        measures = [Measure("exact_match", right, ones)]
    else:
        measures = [Measure(f"pass@{k}", np.array([pass_at(writing.samples, int(count), k) for count in right]), ones) for k in writing.ks]
    settings = {"samples": writing.samples, "temperature": writing.temperature, "max_tokens": writing.most_tokens, "seed": writing.seed, "extract": extract,
                "stop": list(writing.stops), "form": model.prompting.form, "most": data.most}
    return Result("answers", data.name, model.label, data.source, settings, {"documents": len(problems)}, tuple(measures))


def pass_at(samples: int, right: int, k: int) -> float:
    """Estimate without bias how probable it is that at least one of k texts is right: Chen et al. 2021, "Evaluating Large Language Models Trained on Code".

    :param samples: texts that were written, at least k.
    :param right: those of them that are right.
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def is_right(text: str, answer: str, extract: str) -> bool:
    """Tell whether a text has the right answer.

    :param extract: "number": the number after `####`, else the last one, is compared; "text": all of it, or its first line where the answer has one
        line, white space aside.
    """
    if extract == "number":
        found, wanted = number_in(text), number_in(answer)
        return found is not None and found == wanted
    text, answer = text.strip(), answer.strip()
    return " ".join((text if "\n" in answer else text.partition("\n")[0]).split()) == " ".join(answer.split())


def number_in(text: str) -> Decimal | None:
    """Find the number that a text gives as its answer: the first after the last `####`, else the last one; None where there is none."""
    before, mark, after = text.rpartition(_MARK)
    numbers = list(_NUMBER.finditer(after)) if mark else list(_NUMBER.finditer(text))
    if not numbers:
        return number_in(before) if mark else None
    found = numbers[0] if mark else numbers[-1]
    sign = "-" if found[0].startswith("-") else ""
    try:
        return Decimal(sign + found[1].replace(",", ""))
    except InvalidOperation:
        return None


def _kind_of(answers: Collection[str]) -> str:
    """Choose how answers are compared: as numbers where each of them is one, or has the mark."""
    return "number" if all(_MARK in answer or _NUMBER.fullmatch(answer.strip()) for answer in answers) else "text"


def write_texts(model: Judged, prompts: Sequence[Sequence[int]], seeds: Sequence[int], ends: Collection[int], stops: Sequence[str], temperature: float,
                most_tokens: int) -> list[str]:
    """Continue prompts side by side, each up to an end token or to before a stop text.

    :param prompts: token ids, at least one each.
    :param seeds: one for each prompt.
    """
    from ..writing.generation import generate
    from ..writing.sampling import Sampling

    new: list[list[int]] = [[] for _ in prompts]
    steps = generate(model.module, prompts, ends, model.context_len, Sampling(temperature=temperature), seeds, most_tokens)
    for number, step in enumerate(steps, 1):
        for ids, token in zip(new, step, strict=True):
            if token is not None:
                ids.append(token)
        if stops and number % _LOOK_EVERY == 0 and all(token is None or any(stop in model.tokenizer.decode(ids) for stop in stops)
                                                       for ids, token in zip(new, step, strict=True)):
            break
    return [cut_at_stops(model.tokenizer.decode(ids), stops, is_whole=True)[0] for ids in new]
