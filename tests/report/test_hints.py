"""Hints at the start of a run: only flags that help here, and that the user has not decided on."""
import pytest
import torch
from helpers import TINY, sentences, write_rows

from lmplay.plan.settings import Settings
from lmplay.report import hints


def hints_of(device="cpu", parameters=30_000_000, steps=20_000, context_len=512, dropout=0.1, **settings):
    return hints.hints(Settings(**settings, explicit=frozenset(settings)), torch.device(device), parameters, {"dropout": dropout}, context_len, lambda: steps)


@pytest.mark.parametrize(("run", "flags"), [
    ({}, ["--amp", "--dropout"]),
    ({"parameters": 1000}, ["--dropout"]),
    ({"dropout": 0.0}, ["--amp"]),
    ({"context_len": 128}, ["--amp"]),
    ({"amp": True, "dropout": 0.1}, ["--dropout"]),
    ({"amp": False}, ["--dropout"]),  # --no-amp: decided
    ({"compile_model": True}, ["--amp"]),
    ({"device": "cuda"}, ["--amp", "--compile-model"]),
    ({"device": "cuda", "compile_model": False}, ["--amp", "--mini-batch-size"]),
    ({"device": "cuda", "compile_model": False, "mini_batch_tokens": 16_000}, ["--amp"]),
    ({"device": "cuda", "steps": 1000}, ["--amp", "--mini-batch-size"]),
    ({"device": "cuda", "steps": 0, "mini_batch_size": 4}, ["--amp"]),
    ({"device": "mps"}, [])])
def test_hints_name_flags_that_help_here_and_were_not_decided_on(monkeypatch, run, flags):
    monkeypatch.setattr(hints, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    monkeypatch.setattr(hints, "find_spec", lambda name: name == "triton")
    assert [hint.split()[0] for hint in hints_of(**run)] == flags


def test_no_hint_where_the_device_has_nothing_to_offer(monkeypatch):
    monkeypatch.setattr(hints, "cpu_flags", lambda: frozenset({"avx512f", "amx_tile"}))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(hints, "find_spec", lambda name: None)
    assert hints_of(dropout=0.0) == hints_of(device="cuda", mini_batch_size=8) == []
    assert "several times as long" in hints_of(dropout=0.0, amp=True)[0]


@pytest.mark.parametrize("quiet", [False, True])
def test_hints_are_said_at_the_start_but_not_when_quiet(tmp_path, monkeypatch, capsys, quiet):
    from lmplay.engine import telling
    from lmplay.train.__main__ import main

    monkeypatch.setattr(telling, "hints", lambda *_: ["--flag brings something"])
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    assert main([*TINY, "--dataset", str(tmp_path / "texts.jsonl"), "--out-dir", str(tmp_path / "out"), "--max-steps", "1", *["--quiet"] * quiet]) == 75
    assert ("hint        --flag brings something" in capsys.readouterr().out) is not quiet


def test_a_run_that_goes_on_gets_no_hints(tmp_path, monkeypatch, capsys):
    from lmplay.engine import telling
    from lmplay.train.__main__ import main

    monkeypatch.setattr(telling, "hints", lambda *_: ["--flag brings something"])
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    command = [*TINY, "--dataset", str(tmp_path / "texts.jsonl"), "--out-dir", str(tmp_path / "out"), "--max-steps", "1", "--batch-size", "2"]
    assert [main(command), "hint " in capsys.readouterr().out, main(command), "hint " in capsys.readouterr().out] == [75, True, 75, False]
