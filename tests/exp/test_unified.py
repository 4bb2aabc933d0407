"""Gpt2ish with predicted embeddings: the same model once it is folded, for all who use it."""
from pathlib import Path

import pytest
import torch
from helpers import TINY, load, sentences, write_plan, write_rows

from lmplay.errors import UserError
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.exp.unified import Unified
from lmplay.generate.__main__ import main as generator
from lmplay.modules.embeddings import UnifiedEmbedding
from lmplay.train.__main__ import main

SIZES = {"vocab_size": 5000, "context_len": 16, "num_blocks": 1, "embed_dim": 16, "num_heads": 2, "dropout": 0.0}


def test_folded_it_is_a_plain_model_that_computes_the_same():
    torch.manual_seed(0)
    model, tokens = Unified(**SIZES), torch.randint(5000, (2, 16))
    name, settings, weights = model.folded()
    plain = GPT2ish(**settings)
    plain.load_state_dict(weights)
    assert name == "gpt2ish"
    torch.testing.assert_close(plain.head(plain(tokens)), model.head(model(tokens)))
    assert sum(weight.numel() for weight in model.state_dict().values()) - sum(weight.numel() for weight in weights.values()) \
        == 5000 * 7 * 16 + (8 * 16 + 1) * 16 + (16 + 1) * 16


def test_fresh_embeddings_are_as_large_as_gpt2s():
    torch.manual_seed(0)
    for factor in (0.5, 8.0):
        embedding = UnifiedEmbedding(5000, 64, factor)
        assert embedding.table().std().item() == pytest.approx(0.02, rel=0.15)


def test_a_step_on_one_token_moves_others():
    torch.manual_seed(0)
    embedding = UnifiedEmbedding(100, 8)
    before = embedding.table()
    embedding(torch.tensor([[3, 3, 4]])).sum().backward()
    torch.optim.SGD(embedding.parameters(), lr=0.1).step()
    assert (embedding.table() - before).abs().amax(1).min() > 0


def test_tied_heads_and_empty_tables_are_refused():
    with pytest.raises(UserError, match="unified: the head cannot share the embeddings"):
        Unified(**SIZES, tied_head=True)
    with pytest.raises(UserError, match=r"front_factor 0.01: .* choose 0.0625 or more"):
        Unified(**SIZES, front_factor=0.01)


def test_weights_alone_are_those_of_a_plain_model_and_write_the_same_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("a.jsonl"), [{"text": sentences(3)} for _ in range(60)])
    write_plan(tmp_path, {"$model": {"settings": {"front_factor": 3}}, "a": {"dataset": "a.jsonl", "samples": 40, "lr": 0.01}})
    train = [*TINY, "--exp", "unified", "--training-plan", "plan.json", "--model", "m", "--batch-size", "5", "--validation-interval", "0"]
    assert main([*train, "--save-weights-only", "weights.lmp", "--max-steps", "4"]) == 75
    assert main([*train, "--save-weights-only", "weights.lmp"]) == 0
    whole, weights = (load(Path(f"out_gpt/{name}.lmp"))["model"] for name in ("m", "weights"))
    assert (whole["state_args"]["experiment"], weights["state_args"]["experiment"]) == ("unified", "gpt2ish")
    assert whole["state"]["token_embedding.front.weight"].shape == (257, 48)
    assert weights["state"]["token_embedding.weight"].shape == (257, 16)
    assert main([*train, "--save-weights-only", "weights.lmp"]) == 0  # the plan is complete; written once more
    capsys.readouterr()
    texts = []
    for name in ("m", "weights"):
        assert generator(["--model", name, "--prompt", "The", "--max-tokens", "30", "--greedy"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert len(texts[0]) > 20
    assert main(["--initial-model", "weights", "--model", "on", "--dataset", "a.jsonl", "--batch-size", "5", "--device", "cpu", "--max-steps", "1"]) == 75
    assert load(Path("out_gpt/on.lmp"))["model"]["state_args"]["experiment"] == "gpt2ish"
