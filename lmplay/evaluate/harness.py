"""Tasks of lm-evaluation-harness (the extra `lm-eval`), with our models as its models.  Imported only where tasks are asked for."""
from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ..data.chat import write_text_of
from ..data.permutation import hash64
from ..data.template import NotRendered
from ..errors import LmplayError, UserError, nearest, printable
from ..hub import first_line
from ..writing.scoring import Scores, Span, score
from .models import Judged
from .problems import write_texts
from .results import Figure, Measure, Result

# What lm-evaluation-harness takes where a task does not say how long a text may be.
_MAX_TOKENS = 256
# What a document has besides its metrics.
_NO_METRICS = {"doc_id", "filter"}


@dataclass(frozen=True)
class Prompts:
    """How the prompts of tasks are written, in the words of lm-evaluation-harness.

    `num_fewshot` are the solved examples before a question (None = as many as the task says); `apply_chat_template` writes prompts as chats, in which
    `fewshot_as_multiturn` makes each example a question and an answer; `system_instruction` comes first.
    """

    num_fewshot: int | None = None
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool = True
    system_instruction: str | None = None

    def settings(self) -> dict[str, str]:
        """List what was chosen, but for the examples."""
        chat = {"chat": "a turn for each example" if self.fewshot_as_multiturn else "one turn"} if self.apply_chat_template else {}
        return {**chat, **({} if self.system_instruction is None else {"system": self.system_instruction})}


class HarnessModel(TemplateLM):
    """A model of lmplay as a model of lm-evaluation-harness; special tokens in a text are special, as in its own."""

    def __init__(self, model: Judged, batch_size: int, is_chat: bool = False):
        """
        :param is_chat: prompts are chats, so a text also ends where an answer does.
        """
        super().__init__()
        self._model, self._batch_size = model, batch_size
        begin = model.tokenizer.begin_id
        self._prefix = model.tokenizer.end_id if begin is None else begin
        answers = replace(model.prompting, form="chat") if is_chat else model.prompting
        self._ends, self._end_texts = {self.eot_token_id, *answers.ends}, [*answers.stop_texts] if is_chat else []
        self._leaves_system_out = False

    @property
    def eot_token_id(self) -> int:
        """The end token."""
        return self._model.tokenizer.end_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without a beginning begins after."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """A name for caches."""
        return self._model.tokenizer.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Turn a text into token ids, after those that the tokenizer of a model of others puts before a text."""
        tokenizer = self._model.tokenizer
        ids: list[int] = tokenizer.encode_markup(string).ids.tolist()
        is_begun = bool(tokenizer.begin_text) and string.startswith(tokenizer.begin_text)
        return ids if is_begun or add_special_tokens is False or self._model.prompting.begin_id is None else [*tokenizer.added_before, *ids]

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Write a chat with the template of the model; without system messages where it takes none, as lm-evaluation-harness does with its own models."""
        model, template = self._model, self._model.chat_template
        assert template is not None
        while True:
            try:
                return write_text_of(chat_history, template, model.tokenizer.end_text, model.tokenizer.begin_text, add_generation_prompt)
            except NotRendered as error:
                kept = [message for message in chat_history if message["role"] != "system"]
                if len(kept) == len(chat_history):
                    roles = ", ".join(message["role"] for message in chat_history)
                    raise UserError(f"--apply-chat-template: the chat template of {model.label} does not write a chat of {roles} ({error}).") from None
                if not self._leaves_system_out:
                    _say(f"--apply-chat-template: the chat template of {model.label} takes no system message, so they are left out.")
                self._leaves_system_out, chat_history = True, kept

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template."""
        return self._model.chat_template if chat_template else None

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Compute ln p of whole texts, in windows of the context length, each token once."""
        found, spans = [], []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self._model.context_len, 1)
            pairs = [make_disjoint_window(pair) for pair in windows]
            found.append(len(pairs))
            spans += [self._span(given, wanted) for given, wanted in pairs]
        scores = iter(self._score(spans))
        return [sum(float(next(scores).log_probs.sum()) for _ in range(count)) for count in found]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue prompts up to stop texts, with the most probable tokens, or with a temperature where the task says `do_sample`."""
        texts: dict[int, str] = {}
        order = sorted(range(len(requests)), key=lambda number: repr(requests[number].args[1]))
        for _, group in groupby(order, key=lambda number: repr(requests[number].args[1])):
            numbers = list(group)
            for begin in range(0, len(numbers), self._batch_size):
                some = numbers[begin:begin + self._batch_size]
                said = requests[some[0]].args[1]
                most = int(said.get("max_gen_toks", said.get("max_new_tokens", _MAX_TOKENS)))
                if most >= self._model.context_len:
                    raise UserError(f"--tasks: a task asks for {most} new tokens, and {self._model.label} reads {self._model.context_len} in all; its "
                                    "max_gen_toks must be lower.")
                stops = said.get("until") or []
                prompts = [self.tok_encode(requests[number].args[0])[-(self._model.context_len - most):] or [self.prefix_token_id] for number in some]
                temperature = float(said.get("temperature", 1.0)) if said.get("do_sample") else 0.0
                written = write_texts(self._model, prompts, [hash64(number) >> 1 for number in some], self._ends,
                                      [*([stops] if isinstance(stops, str) else stops), *self._end_texts], temperature, most)
                texts.update(zip(some, written, strict=True))
        return [texts[number] for number in range(len(requests))]

    def _loglikelihood_tokens(self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        """Compute ln p of continuations, and whether each token of one is the most probable; of long contexts the end is read."""
        scores = self._score([self._span(given, wanted) for _, given, wanted in requests])
        return [(float(one.log_probs.sum()), bool(one.greedy.all())) for one in scores]

    def _span(self, given: Sequence[int], wanted: Sequence[int]) -> Span:
        """Put what is given and what is scored together, as much as the model reads."""
        tokens = np.array([*given, *wanted], dtype=np.int32)[-(self._model.context_len + 1):]
        return Span(tokens, max(1, len(tokens) - len(wanted)))

    def _score(self, spans: Sequence[Span]) -> list[Scores]:
        """Score spans."""
        return score(self._model.module, spans, self._batch_size)


def open_tasks(names: Sequence[str], folder: str | None, shots: int | None) -> TaskManager:
    """Find tasks, and load them once, so that what is wrong with them is known before a model is opened.

    :param folder: with task files (YAML) of the user's own.
    :param shots: how many examples were asked for; tasks that allow none are named.
    :raises UserError: when there is no such task, or one cannot be loaded.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # Its own tasks are thousands of files, which take half a minute to read.
    manager = TaskManager(include_path=folder, include_defaults=folder is None)
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown and folder is not None:
        manager = TaskManager(include_path=folder)
        unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise UserError(*(f"--tasks {name}: there is no such task of lm-evaluation-harness{f' or in {folder}' if folder else ''}."
                          f"{nearest(name, manager.all_tasks)}" for name in unknown))
    try:
        with redirect_stdout(sys.stderr):  # programs read what is printed by --json -
            tasks = manager.load(list(names))["tasks"]
    except Exception as error:  # a task file, and the data set that it names, can raise anything
        raise UserError(f"--tasks {','.join(names)}: cannot be loaded ({type(error).__name__}: {first_line(error)}).") from error
    without = [name for name, task in tasks.items() if task.get_config("num_fewshot") == 0] if shots else []
    if without:
        _say(f"--num-fewshot {shots}: is not for {', '.join(without)}, whose file{'s say' if len(without) > 1 else ' says'} num_fewshot 0, which "
             "lm-evaluation-harness keeps.")
    return manager


def judge_tasks(model: Judged, names: Sequence[str], manager: TaskManager, prompts: Prompts, most: int | None, batch_size: int) -> list[Result]:
    """Judge a model by tasks.

    :param most: the most documents of each.
    :raises UserError: when a task cannot be evaluated.
    """
    with redirect_stdout(sys.stderr):
        try:
            found = simple_evaluate(HarnessModel(model, batch_size, prompts.apply_chat_template), tasks=list(names), task_manager=manager, limit=most,
                                    bootstrap_iters=0, **vars(prompts))
        except Exception as error:  # a task is a program
            if isinstance(error, LmplayError) or _is_ours(error):
                raise
            raise UserError(f"--tasks {','.join(names)}: cannot be evaluated ({type(error).__name__}: {first_line(error)}).") from error
    assert found is not None
    settings = {**prompts.settings(), "most": most}
    return [_result(model, name, values, found, settings) for name, values in found["results"].items()]


def _is_ours(error: BaseException) -> bool:
    """Tell whether an error of the harness came out of a call to the model."""
    trace, modules = error.__traceback__, []
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return any(name.startswith("lmplay.") for name in modules[1:])


def _say(line: str) -> None:
    """Tell the user something; what is printed by --json - is for programs."""
    print(printable(line), file=sys.stderr)


def _result(model: Judged, name: str, values: dict[str, Any], found: dict[str, Any], chosen_settings: Mapping[str, Any]) -> Result:
    """Make the result of a task: a figure with its values by document gets an interval, others stand alone."""
    documents = found["samples"].get(name, [])
    better = found.get("higher_is_better", {}).get(name, {})
    measures, further = [], []
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or metric.endswith("_stderr") or not chosen:
            continue
        label = metric if chosen == "none" else f"{metric} ({chosen})"
        parts = [one.get(metric) for one in documents if one.get("filter", chosen) == chosen]
        measure = _measure(label, value, parts, bool(better.get(metric, True)))
        if measure is not None:
            measures.append(measure)
        else:
            further.append(Figure(label, float(value) if math.isfinite(value) else None, None, None, ""))
    counts = {"documents": len({one["doc_id"] for one in documents})} if documents else {}
    settings = {"task_version": found.get("versions", {}).get(name), "shots": found.get("n-shot", {}).get(name), **chosen_settings}
    return Result("task", name, model.label, "lm-evaluation-harness", settings, counts, tuple(measures), tuple(further))


def _measure(label: str, value: float, parts: Sequence[Any], higher: bool) -> Measure | None:
    """Make a measure of the values by document, where their mean is the figure; None where it is not."""
    if not parts or not all(isinstance(one, (int, float, np.number, bool)) for one in parts):
        return None
    measure = Measure(label, np.array(parts, dtype=np.float64), np.ones(len(parts)), "share" if 0 <= value <= 1 else "", higher)
    return measure if math.isclose(measure.value, value, rel_tol=1e-9, abs_tol=1e-12) else None
