"""Flags of packing, mini-batches and precision: they change how fast a run is and how much memory it takes, and not its result."""
import os
import sys
from pathlib import Path

import pytest
import torch
from helpers import TINY, load, sentences, write_plan, write_rows

from lmplay.device.runtime import Runtime
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.plan.settings import Settings
from lmplay.train.__main__ import main

CONTEXT = 48  # of TINY


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """A run with batches of 12 pieces; gives the weights, and for each forward pass its places and the lengths of joined pieces."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 3)} for i in range(40)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "validation": 0, "batch_size": 12}})
    forward, before = GPT2ish.forward, torch.get_float32_matmul_precision()

    def start(*arguments, code=0):
        passes = []

        def watched(self, tokens, cache=None, lengths=None):
            passes.append((tuple(tokens.shape), lengths))
            return forward(self, tokens, cache, lengths)

        monkeypatch.setattr(GPT2ish, "forward", watched)
        found = main([*TINY, "--dropout", "0", "--training-plan", "plan.json", "--reset-history", *arguments])
        assert found == code, capsys.readouterr().err
        return load(Path("out_gpt/gpt2ish_model.lmp"))["model"]["state"] if code == 0 else capsys.readouterr().err, passes

    yield start
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("pack", ["on", "off"])
def test_mini_batches_have_the_token_budget_that_is_asked_for_and_the_result_stays(train, pack):
    expected, _ = train("--mini-batch-size", "12", "--pack", "off")
    for room, arguments in ((150, ("--mini-batch-tokens", "150")), (4 * CONTEXT, ())):  # by default that of 4 full pieces
        found, passes = train("--pack", pack, *arguments)
        places = [rows * width for (rows, width), _ in passes]
        assert max(places) <= room
        assert max(places) > room - CONTEXT  # and is used
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-5)
    _, passes = train("--pack", pack, "--mini-batch-size", "2")  # what is typed goes by pieces
    assert {len(lengths) if lengths else shape[0] for shape, lengths in passes} == {1, 2} or pack == "off"


def test_pieces_are_joined_where_that_is_asked_for_or_by_themselves_on_a_cpu(train):
    for arguments, joined in (((), True), (("--pack", "auto"), True), (("--pack", "on"), True), (("--pack", "off"), False)):
        _, passes = train(*arguments)
        assert all((lengths is not None and shape == (1, sum(lengths))) == joined for shape, lengths in passes)


def test_a_size_in_pieces_and_one_in_tokens_are_refused(train):
    complaint, passes = train("--mini-batch-size", "2", "--mini-batch-tokens", "100", code=2)
    assert "--mini-batch-size and --mini-batch-tokens together" in complaint
    assert not passes


def test_a_model_that_takes_no_lengths_is_not_joined(train, monkeypatch, capsys):
    forward = GPT2ish.forward
    monkeypatch.setattr(GPT2ish, "forward", lambda self, tokens: forward(self, tokens))
    assert main([*TINY, "--training-plan", "plan.json"]) == 0
    assert main([*TINY, "--training-plan", "plan.json", "--pack", "on", "--model", "other.lmp"]) == 2
    assert "takes no `lengths`" in capsys.readouterr().err


def test_the_precision_of_matrix_products_is_set(train):
    train("--matmul-precision", "medium")
    assert torch.get_float32_matmul_precision() == "medium"
    train()
    assert torch.get_float32_matmul_precision() == "highest"


def test_deterministic_kernels_are_asked_for_and_change_nothing_on_a_cpu(train, monkeypatch):
    asked, judge = [], GPT2ish.forward

    def forward(self, *arguments, **options):
        asked.append((torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory))
        return judge(self, *arguments, **options)

    monkeypatch.setattr(GPT2ish, "forward", forward)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert main([*TINY, "--training-plan", "plan.json", "--deterministic", "--model", "same.lmp"]) == 0
    assert set(asked) == {(True, False)}
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
    asked.clear()
    assert main([*TINY, "--training-plan", "plan.json", "--model", "plain.lmp"]) == 0
    assert set(asked) == {(False, False)}
    one, two = (load(f"out_gpt/{name}.lmp")["model"]["state"] for name in ("same", "plain"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(("name", "flags"), [("PYTORCH_ALLOC_CONF", []), ("PYTORCH_CUDA_ALLOC_CONF", []), (None, []), (None, ["--no-tune-allocator"])])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are no such segments")
def test_the_allocator_of_a_gpu_may_let_segments_grow_unless_the_user_has_said_what_it_does(monkeypatch, name, flags):
    for known in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(known, raising=False)
    if name:
        monkeypatch.setenv(name, "max_split_size_mb:128")
    Runtime(Settings(device="cpu", tune_allocator=not flags))
    expected = None if flags else "expandable_segments:True" if name is None else "max_split_size_mb:128"
    assert os.environ.get(name or "PYTORCH_ALLOC_CONF") == expected
    assert len([known for known in os.environ if known.endswith("ALLOC_CONF")]) == (expected is not None)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
