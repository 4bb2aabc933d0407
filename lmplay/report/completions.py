"""Texts while training: at each validation the model continues the same prompts (`--sample-prompts`).  Report floor.

NAME_samples.jsonl has a JSON object per line: step, samples, stage, prompt, text; where the prompt's file has the truth behind a tab, also truth and
edit_accuracy. Where an objective lets the model answer prompts of its data, the first answers of a validation are there too, with truth and reward.
On a resume, lines after the checkpoint's step are removed.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from ..data.permutation import hash64
from ..device.memory import is_out_of_memory
from ..errors import UserError
from ..files import check_is_file, json_line, no_link, write_text
from ..stats.accuracy import count_edits
from ..stats.figures import Progress
from ..writing.generation import generate
from ..writing.prompting import Prompting
from ..writing.sampling import Sampling

_AT_ONCE = 16  # prompts in a batch
_ANSWERS = 6  # of a validation, that are kept


def read_prompts(path: Path) -> list[str]:
    """Read the prompts of a text file (UTF-8), one per line, each once; an empty line is an empty prompt.

    :raises UserError: when it cannot be read or has no line.
    """
    try:
        check_is_file(path)
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--sample-prompts {path}: cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8 text'}).") from None
    if not lines:
        raise UserError(f"--sample-prompts {path}: is empty; write one prompt per line (an empty line = no prompt).")
    return list(dict.fromkeys(lines))


@dataclass
class CompletionWriter:
    """Lets the model continue prompts, and appends the completions to a file.

    :param prompts: an empty list = do nothing.
    :param tokens: the most for each text.
    :param count: texts for each prompt.
    :param seed: the run's; completions depend on it, the step and the prompt's number, and use none of the training's random numbers.
    :param say: warns the user.
    """

    prompts: list[str]
    path: Path
    tokens: int
    seed: int
    say: Callable[[str], None]
    count: int = 1
    temperature: float = 0.8
    newest: float = -1
    """The step of the newest lines."""
    _judged: float = -1  # that of the newest answers
    _warned: bool = False

    def begin(self, step: float) -> list[dict[str, Any]]:
        """Cut the file back to the checkpoint's step (0 = a new run), and return the rows that are left."""
        if not self.path.exists():
            return []
        kept, rows = [], []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a line that a kill has cut off
                row = json.loads(line)
                if step and row["step"] <= step:
                    kept.append(line)
                    rows.append(row)
                    if "reward" in row:
                        self._judged = row["step"]
                    else:
                        self.newest = row["step"]
        try:
            write_text(self.path, "".join(f"{line}\n" for line in kept))
        except OSError as error:
            self._warn(error)
        return rows

    def write(self, model: nn.Module, prompting: Prompting, context_len: int, step: float, interrupted: Callable[[], bool]) -> list[str] | None:
        """Continue the prompts.

        :param model: its mode (training or evaluation) is kept.
        :param prompting: how prompts become tokens.
        :param context_len: the most tokens that the model reads.
        :param step: the optimizer step that it has done.
        :param interrupted: asked before each token.
        :return: the completions, `count` for each prompt in a row; None when interrupted; empty without prompts, or when this step has completions already.
        """
        if not self.prompts or step == self.newest:
            return []
        lines = self._lines()
        ids = [prompting.ids(_split(line)[0]) for line in lines]
        seeds = [hash64(self.seed, int(step), number, *([sample] if sample else [])) >> 1
                 for number in range(len(self.prompts)) for sample in range(self.count)]
        new: list[list[int]] = [[] for _ in ids]
        was_training = model.training
        try:
            for part, sampling in self._parts(lines):
                for tokens in generate(model, [ids[number] for number in part], prompting.ends, context_len, sampling, [seeds[number] for number in part],
                                       self.tokens):
                    if interrupted():
                        return None
                    for number, token in zip(part, tokens, strict=True):
                        if token is not None:
                            new[number].append(token)
        except Exception as error:  # whatever a device or a model cannot do: a text that is not written must not end the run
            self._warn("out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {error}")
            return []
        finally:
            model.train(was_training)
        return [prompting.tokenizer.decode(text) for text in new]

    def keep(self, texts: list[str], progress: Progress, stage: str) -> list[dict[str, Any]]:
        """Append the completions that :meth:`write` returned, and return the rows; a file that cannot be written is one warning."""
        if not texts:
            return []
        self.newest = progress.step
        return self._append([_compared(line, text) for line, text in zip(self._lines(), texts, strict=True)], progress, stage)

    def keep_answers(self, answers: Iterable[dict[str, Any]], progress: Progress, stage: str) -> list[dict[str, Any]]:
        """Append the first of the answers that the model has written in a validation, with their rewards, once a step; returns the rows."""
        if progress.step == self._judged:
            return []
        self._judged = progress.step
        return self._append(list(islice(answers, _ANSWERS)), progress, stage)

    def _append(self, written: list[dict[str, Any]], progress: Progress, stage: str) -> list[dict[str, Any]]:
        """Append rows to the file; one that cannot be written is one warning."""
        rows = [{"step": progress.step, "samples": progress.samples, "stage": stage, **row} for row in written]
        try:
            check_is_file(self.path)
            with open(self.path, "ab", opener=no_link) as file:
                file.write("".join(json_line(row) for row in rows).encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._warn(error)
        return rows

    def _lines(self) -> list[str]:
        """Repeat each line of the prompts' file for each of its texts."""
        return [line for line in self.prompts for _ in range(self.count)]

    def _parts(self, lines: list[str]) -> list[tuple[list[int], Sampling]]:
        """Divide the lines into batches, by their numbers: those whose truth is known are continued with the most probable token each time."""
        parts = []
        for known, temperature in ((False, self.temperature), (True, 0.0)):
            numbers = [number for number, line in enumerate(lines) if (_split(line)[1] is not None) == known]
            parts += [(numbers[first:first + _AT_ONCE], Sampling(temperature=temperature)) for first in range(0, len(numbers), _AT_ONCE)]
        return parts

    def _warn(self, error: OSError | str) -> None:
        """Warn once."""
        if not self._warned:
            self.say(f"WARNING: --sample-prompts: {self.path} lacks what the model writes ({getattr(error, 'strerror', None) or error}); training goes on.")
        self._warned = True


def _split(line: str) -> tuple[str, str | None]:
    """Split a line of the prompts' file into the prompt and, behind a tab, the truth (None = unknown)."""
    prompt, tab, truth = line.partition("\t")
    return prompt, truth if tab else None


def _compared(line: str, text: str) -> dict[str, Any]:
    """Put prompt and text into a row; where the truth is known, with the word accuracy by edit distance."""
    prompt, truth = _split(line)
    if truth is None:
        return {"prompt": prompt, "text": text}
    right, words = count_edits(truth, text)
    return {"prompt": prompt, "text": text, "truth": truth, "edit_accuracy": right / words if words else 1.0}
