"""Supervised fine-tuning against plain float64, for any mini-batches, and in a run."""
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import TINY, compare_runs, sentences, write_plan, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import BYTES
from torch.nn import functional

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample, Turn
from lmplay.exp import build_model, get_experiment
from lmplay.objectives.next_token import NextToken
from lmplay.objectives.sft import Sft
from lmplay.train.__main__ import main

CHAT = (Turn("user", "ab?", False), Turn("assistant", "cd ef.", True), Turn("user", "and?", False), Turn("assistant", "g", True))


def make_model():
    torch.manual_seed(0)
    return build_model(get_experiment("gpt2ish"), vocab_size=BYTES.vocab_size, context_len=64, num_blocks=1, embed_dim=16, num_heads=2, dropout=0.0).double()


def units_of(objective, lengths):
    """Pieces of samples: pairs of a question and an answer, some in several pieces, and a chat of two answers."""
    cutter = Cutter(BYTES, 64)
    samples = [Sample("ask\n\n", "abcde. " * length, row=row) for row, length in enumerate(lengths)]
    return [objective.prepare(sample, cutter) for sample in (*samples, Sample("user: ab?", "x", row=99, turns=CHAT))]


def gradients(model, objective, mini_batches):
    count = sum(objective.count(mini_batch) for mini_batch in mini_batches)
    total = 0.0
    for mini_batch in mini_batches:
        result = objective.loss(model, mini_batch, model.head)
        (result.loss_sum / count).backward()
        total += float(result.loss_sum.detach())
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return total / count, found


def plain(model, units):
    """The mean over the tokens of each sample, then over the samples: piece by piece."""
    means = []
    for unit in units:
        losses = []
        for piece in unit:
            tokens = torch.tensor(piece.tokens, dtype=torch.int64)
            every = functional.cross_entropy(model.head(model(tokens[None, :-1]))[0, piece.n_prompt - 1:], tokens[piece.n_prompt:], reduction="none")
            losses.append(every if piece.learned is None else every[torch.from_numpy(piece.learned)])
        means.append(torch.cat(losses).mean())
    loss = torch.stack(means).mean()
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return float(loss.detach()), found


@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4), size=st.integers(1, 8), packed=st.booleans())
def test_by_sample_each_sample_counts_alike_for_any_mini_batches(lengths, size, packed):
    model, objective = make_model(), Sft("sample")
    units = units_of(objective, lengths)
    expected, wanted = plain(model, units)
    loss, found = gradients(model, objective, collate([piece for unit in units for piece in unit], size, packed=packed))
    assert loss == pytest.approx(expected, rel=1e-12)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)


def test_by_token_it_is_next_token_prediction_bit_for_bit():
    model = make_model()
    pieces = [piece for unit in units_of(Sft(), [1, 15, 3]) for piece in unit]
    assert all(piece.weight is None for piece in pieces)
    one, other = (gradients(model, objective, collate(pieces, 3)) for objective in (Sft("token"), NextToken()))
    assert one[0] == other[0]
    assert all(torch.equal(one[1][name], gradient) for name, gradient in other[1].items())


def test_weights_are_those_of_a_sample_and_stay_with_its_pieces():
    unit = units_of(Sft("sample"), [20])[0]
    assert len(unit) > 1
    assert sum(piece.weight * piece.n_truth for piece in unit) == pytest.approx(1.0)
    halves = [Sft("sample").count(collate([piece], 1)[0]) for piece in unit]  # in several batches it counts in parts
    assert sum(halves) == pytest.approx(1.0)
    assert Sft("token").count(collate([replace(unit[0], weight=None)], 1)[0]) == unit[0].n_truth


def test_a_run_by_sample_goes_on_exactly_and_reports_a_loss_of_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), [{"messages": [{"role": "user", "content": f"Say {i}."}, {"role": "assistant", "content": sentences(1 + i % 4)}]}
                                    for i in range(40)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "batch_size": 7, "objective": {"name": "sft", "per": "sample"}}})
    command = [*TINY, "--training-plan", "plan.json", "--validation-interval", "10", "--dropout", "0.1"]
    assert main([*command, "--out-dir", "whole"]) == 0
    codes = [75]
    while codes[-1] == 75:
        codes.append(main([*command, "--out-dir", "parts", "--max-steps", "2"]))
    assert codes[-1] == 0
    assert compare_runs(Path("whole"), Path("parts")) == []
    columns = json.loads(Path("whole/gpt2ish_model_validate_stats.json").read_text())["columns"]
    assert all(3 < loss < 8 for loss in columns["loss"])
    assert {*columns["perplexity"], *columns["bits_per_byte"], *columns["standard_error"]} == {None}
