"""From the loop to a model's forward pass a reader opens four calls; the loop fits on a screen, the step on half of one."""
import ast
import inspect
from pathlib import Path

from helpers import TINY, sentences, write_rows

import lmplay
from lmplay.engine import loop, step
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.train.__main__ import main

PACKAGE = str(Path(lmplay.__file__).parent)


def test_four_calls_lead_from_the_loop_to_the_model(tmp_path, monkeypatch, capsys):
    forward, chains = GPT2ish.forward, set()

    def watched(self, *arguments, **named):
        frames = [frame.function for frame in inspect.stack(context=0) if frame.filename.startswith(PACKAGE)]
        chains.add((*reversed(frames[:frames.index("train")]), "forward") if self.training else ())
        return forward(self, *arguments, **named)

    monkeypatch.setattr(GPT2ish, "forward", watched)
    monkeypatch.setattr(GPT2ish.forward, "__signature__", inspect.signature(forward), raising=False)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(3)} for _ in range(12)])
    assert main([*TINY, "--dataset", str(tmp_path / "rows.jsonl"), "--out-dir", str(tmp_path / "out"), "--max-steps", "1"]) == 75
    assert chains - {()} == {("step", "train_step", "loss", "forward")}


def lines_of(function) -> int:
    """Count the lines of a function below its docstring."""
    [node] = ast.parse(inspect.getsource(function)).body
    return node.end_lineno - node.body[0].end_lineno


def test_loop_and_step_are_short():
    assert lines_of(loop.train) <= 45
    assert lines_of(step.train_step) <= 25
    assert len(inspect.signature(step.train_step).parameters) <= 6
