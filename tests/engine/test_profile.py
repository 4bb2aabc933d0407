"""`--profile`: a trace that tools can read, a table that adds up, and a run that is not changed by it."""
import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import TINY, compare_runs

from lmplay.engine.profile import DATA, kind_of, table
from lmplay.train.__main__ import main

RUN = [*TINY, "--dataset", "builtin:tales", "--batch-size", "4", "--optimizer-warmup-steps", "2"]


def test_a_trace_is_written_the_table_adds_up_and_the_run_is_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--max-steps", "12", "--out-dir", "plain"]) == 75
    capsys.readouterr()
    assert main([*RUN, "--max-steps", "12", "--out-dir", "traced", "--profile", "trace.json.gz"]) == 75
    said = capsys.readouterr().out
    assert "trace.json.gz" not in said.rsplit("To go on:", 1)[1]
    assert compare_runs(tmp_path / "plain", tmp_path / "traced") == []
    with gzip.open("trace.json.gz", "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {DATA, "aten::mm"} <= names
    milliseconds = float(re.search(r"5 steps, ([\d.]+) ms each; the trace is in trace.json.gz", said)[1])
    table = re.findall(r"^ +([\d.]+) +(\d+)%  (.+)$", said.split("the operators with")[0], re.MULTILINE)
    rows = {part: (float(spent), int(share)) for spent, share, part in table}
    assert {"matrix products", "attention", "head and loss", "optimizer", "waiting for data"} <= rows.keys()
    assert sum(spent for spent, _ in rows.values()) == pytest.approx(milliseconds, abs=0.1)
    assert sum(share for _, share in rows.values()) == pytest.approx(100, abs=5)


def event(name, microseconds, parent=None):
    return SimpleNamespace(name=name, self_cpu_time_total=microseconds, self_device_time_total=0, is_async=False, cpu_parent=parent)


def test_each_part_has_its_time_and_python_the_rest():
    loss = event("_LinearCrossEntropy", 500)
    events = [loss, event("aten::mm", 1500, loss), event("aten::mm", 3000), event("aten::gelu", 1000), event(DATA, 2000)]
    rows = re.findall(r"^ +([\d.]+) +(\d+)%  (.+)$", table(events, 0.01, 2, False, Path("t.json")).split("the operators with")[0], re.MULTILINE)
    assert rows == [("1.50", "30", "matrix products"), ("1.00", "20", "head and loss"), ("1.00", "20", "waiting for data"),
                    ("1.00", "20", "Python, and waiting for the device"), ("0.50", "10", "other operators")]


def test_a_run_that_is_too_short_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--max-steps", "3", "--profile", "trace.json"]) == 75
    assert "nothing was recorded" in capsys.readouterr().out
    assert not (tmp_path / "trace.json").exists()
    assert main([*RUN, "--max-steps", "7", "--reset-history", "--profile", "new/trace.json"]) == 75
    assert "2 steps, " in capsys.readouterr().out
    assert json.loads((tmp_path / "new" / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(("file", "words"), [("trace.txt", "ends in .json"), ("a file/trace.json", "folder of --profile")])
def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path, monkeypatch, capsys, file, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    assert main([*RUN, "--max-steps", "3", "--profile", file]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


@pytest.mark.parametrize(("names", "kind"), [
    (["aten::linear", "aten::addmm"], "matrix products"), (["aten::scaled_dot_product_attention", "aten::bmm"], "matrix products"),
    (["_LinearCrossEntropyBackward", "aten::mm"], "head and loss"), (["Optimizer.step#AdamW.step", "aten::_fused_adamw_"], "optimizer"),
    (["aten::_scaled_dot_product_flash_attention_for_cpu"], "attention"), (["CompiledFunction"], "generated code"), (["aten::gelu"], "other operators")])
def test_operators_are_told_apart(names, kind):
    assert kind_of(names) == kind
