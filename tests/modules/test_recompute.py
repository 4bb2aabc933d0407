"""Activation checkpointing: less memory for the same result."""
import json
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, differences, load, train_two_blocks
from steps import step_on

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.device.random_state import torch_random_state
from lmplay.device.runtime import Runtime
from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.modules.recompute import recompute_blocks
from lmplay.optim.freeze import apply_freeze
from lmplay.optim.optimizers import build_optimizers
from lmplay.plan.settings import Settings
from lmplay.tokenizer import load_tokenizer
from lmplay.train.__main__ import main

BYTES = load_tokenizer("bytes")


def make_model(dropout=0.2, num_blocks=3):
    torch.manual_seed(1)
    return build_model(get_experiment("gpt2ish"), vocab_size=BYTES.vocab_size, context_len=64, num_blocks=num_blocks, embed_dim=16, num_heads=2,
                       dropout=dropout)


def make_pieces(lengths=(3, 9, 5, 7)):
    cutter = Cutter(BYTES, 64)
    return [piece for i, length in enumerate(lengths) for piece in cutter.cut(Sample("", "abcde. " * length, row=i))]


def do_steps(settings, frozen=(), packed=False, dropout=0.2, num_blocks=3):
    """Train for some steps; gives the losses, the gradients of the last, and the random numbers after it."""
    model, runtime = make_model(dropout, num_blocks), Runtime(settings)
    wrapped = runtime.wrap(model, 64, print)
    apply_freeze(model, frozen)
    optimizer = build_optimizers("adamw", model, 0.01)
    mini_batches = collate(make_pieces(), 2, runtime.length_multiple, 63, 0, packed)
    results = [step_on(model, optimizer, runtime, mini_batches, grad_clip=1, wrap=lambda _: wrapped) for _ in range(2)]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"losses": [result.loss_sum for result in results], "norms": [result.grad_norm for result in results], "gradients": gradients,
            "state": dict(model.state_dict()), "random": torch_random_state()}


@pytest.mark.parametrize(("every", "amp", "packed", "frozen"), [(1, False, False, ()), (1, True, True, ()), (2, False, True, ()), (3, False, False, ()),
                                                               (1, False, False, ("blocks.0.*", "token*"))])
def test_blocks_that_are_computed_again_change_no_bit(every, amp, packed, frozen):
    plain = do_steps(Settings(device="cpu", amp=amp), frozen, packed)
    again = do_steps(Settings(device="cpu", amp=amp, activation_checkpointing=every), frozen, packed)
    assert differences(plain, again) == []


def kept_by(every):
    """Give the bytes that a forward pass keeps for the backward pass, weights aside."""
    model = make_model()
    recompute_blocks(model, every)
    kept = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(torch.arange(60).view(2, 30))
        return sum(kept.values()), output


def test_less_is_kept_the_more_blocks_are_computed_again():
    (everything, _), (third, _), (second, _), (nothing, _) = map(kept_by, (0, 3, 2, 1))
    inside = (everything - nothing) / 3  # of a block
    assert everything > 3 * nothing
    assert third == second == pytest.approx(everything - inside, rel=0.1)  # of three blocks one is the second, one the third


def test_without_gradients_nothing_is_computed_again(monkeypatch):
    model = make_model()
    recompute_blocks(model, 1)
    monkeypatch.setattr("lmplay.modules.recompute.checkpoint", None)
    with torch.no_grad():
        model(torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(TypeError):
        model(torch.zeros(1, 5, dtype=torch.int64))


class Tower(torch.nn.Module):
    """A model of somebody else: other names, a block that takes more than it."""

    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)
        self.layers = torch.nn.ModuleDict({"a": torch.nn.Bilinear(4, 4, 4), "b": torch.nn.Bilinear(4, 4, 4)})

    def forward(self, tokens):
        hidden = self.table(tokens)
        for layer in self.layers.values():
            hidden = layer(hidden, input2=hidden.sin())
        return hidden


class OpenTower(Tower):
    @property
    def blocks(self):
        return self.layers.values()


def test_models_of_others_say_what_their_blocks_are():
    with pytest.raises(UserError, match=r"Tower has no `blocks`.*lmplay\.exp"):
        recompute_blocks(Tower(), 1)
    recompute_blocks(Tower(), 0)
    tower, tokens = OpenTower(), torch.arange(8).view(2, 4)
    names = list(tower.state_dict())
    found = []
    for _ in range(2):
        tower.zero_grad()
        tower.head(tower(tokens)).square().sum().backward()
        found.append({name: parameter.grad.clone() for name, parameter in tower.named_parameters()})
        recompute_blocks(tower, 1)
    assert differences(*found) == []
    assert list(tower.state_dict()) == names


@pytest.mark.slow
@pytest.mark.parametrize(("dropout", "changed"), [(0.2, {"activation_checkpointing": 1}), (0.0, {"activation_memory_budget": 0.5})])
def test_compiled_code_that_computes_again_trains_alike(dropout, changed):
    import torch._functorch.config

    compiled = {"device": "cpu", "compile_model": True, "compile_backend": "aot_eager"}
    plain = do_steps(Settings(**compiled), dropout=dropout, num_blocks=1)
    assert torch._functorch.config.activation_memory_budget == 1
    torch._dynamo.reset()
    again = do_steps(Settings(**compiled, **changed), dropout=dropout, num_blocks=1)
    assert torch._functorch.config.activation_memory_budget == changed.get("activation_memory_budget", 1)
    torch.testing.assert_close(again["losses"], plain["losses"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(again["gradients"], plain["gradients"], rtol=1e-3, atol=1e-6)


def test_a_run_that_computes_again_is_the_same_run_and_goes_on_exactly(small_corpus, capsys):
    train_two_blocks(capsys, "plain")
    train_two_blocks(capsys, "again", "--activation-checkpointing", "on")
    train_two_blocks(capsys, "stopped", "--activation-checkpointing", "on", "--max-steps", 3, code=75)
    text = train_two_blocks(capsys, "stopped", "--activation-checkpointing", "2")
    assert "--activation-checkpointing 1 -> 2 (bits may differ)" in text
    assert compare_runs(Path("plain"), Path("again")) == []
    state = [load(Path(out) / "gpt2ish_model.lmp")["model"]["state"] for out in ("plain", "stopped")]
    assert differences(*state) == []


@pytest.mark.parametrize(("arguments", "words"), [
    (["--activation-memory-budget", "0.5"], ["--activation-memory-budget 0.5", "--compile-model", "--activation-checkpointing on"]),
    (["--activation-memory-budget", "0.5", "--compile-model", "--activation-checkpointing", "on"], ["together"]),
    (["--activation-memory-budget", "0.5", "--compile-model"], ["dropout", "wrong gradients", "--dropout 0"]),
    (["--activation-memory-budget", "1.5"], ["from 0 to 1"]),
    (["--activation-checkpointing", "-1"], ["off, on, or a whole number from 0"]),
    (["--activation-checkpointing", "of"], ["off, on, or a whole number from 0"]),
])
def test_what_cannot_be_is_refused(small_corpus, capsys, arguments, words):
    text = train_two_blocks(capsys, "out", *arguments, code=2)
    assert all(word in text for word in words), text
    assert len(text.splitlines()) == 1
    assert not Path("out").exists()


def test_a_model_without_blocks_is_refused_before_anything_is_written(small_corpus, capsys, monkeypatch):
    from lmplay.exp.gpt2ish import GPT2ish

    monkeypatch.setattr(GPT2ish, "blocks", (), raising=False)
    monkeypatch.setattr(GPT2ish, "__setattr__", lambda self, name, value: torch.nn.Module.__setattr__(self, "layers" if name == "blocks" else name, value))
    assert "GPT2ish has no `blocks`" in train_two_blocks(capsys, "out", "--activation-checkpointing", "on", code=2)
    assert not Path("out").exists()


def test_words_and_numbers_in_settings_files(small_corpus, capsys):
    for written, read in (("off", 0), ("on", 1), ("3", 3), ("true", 1)):
        Path("c.yaml").write_text(f"activation_checkpointing: {written}\n")
        assert main(["--use-config", "c.yaml", "--dump-config", "d.json"]) == 0
        assert json.loads(Path("d.json").read_text()) == {"activation_checkpointing": read}
