"""How much memory there is, and how much a run has used."""
import json
import os
import re
from pathlib import Path

import torch
from helpers import load, train_two_blocks

from lmplay.device.memory import peak_memory


def test_the_memory_that_is_needed_there_and_was_taken_is_said(small_corpus, capsys):
    text = train_two_blocks(capsys, "out", "--max-steps", 1, code=75)
    parameters = sum(value.numel() for name, value in load(Path("out/gpt2ish_model.lmp"))["model"]["state"].items() if name != "head.weight")
    assert f"memory      {parameters * 16 / 2**20:.1f} MiB for weights, gradients and the optimizer's state" in text
    there = int(re.search(r"there are ([0-9]+)\.[0-9]+ GiB", text)[1])
    assert 0 < there <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert re.search(r"^peak memory [0-9.]+ [MG]iB$", text, re.MULTILINE)
    peak = json.loads(Path("out/gpt2ish_model_train_stats.json").read_text())["clock"]["peak_memory_bytes"]
    assert 50 << 20 < peak <= there << 31


def test_the_peak_is_that_of_all_runs_together(small_corpus, capsys, monkeypatch):
    peaks = []
    for peak in (7 << 30, 3 << 30):
        for module in ("record", "save", "telling"):
            monkeypatch.setattr(f"lmplay.engine.{module}.peak_memory", lambda device, peak=peak: peak)
        assert "peak memory 7.00 GiB" in train_two_blocks(capsys, "out", "--max-steps", 1, code=75)
        peaks.append(json.loads(Path("out/gpt2ish_model_step_one_train_stats.json").read_text())["clock"]["peak_memory_bytes"])
    assert peaks == [7 << 30, 7 << 30]


def test_the_peak_grows_with_what_is_taken():
    before = peak_memory(torch.device("cpu"))
    taken = torch.ones(before // 4 + (64 << 20))  # as many floats: four times the bytes
    assert peak_memory(torch.device("cpu")) > taken.nbytes > before
