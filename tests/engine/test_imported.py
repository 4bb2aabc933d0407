"""`--initial-model` with models of others: the same logits, other vocabularies, and what is refused in a line."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exported import logits, model_file, their_logits
from helpers import sentences, write_plan
from torch import nn

from lmplay.checkpoints.trained import open_trained
from lmplay.export.command import run as export
from lmplay.tokenizer import load_tokenizer, train_tokenizer
from lmplay.tokenizer.matching import matched_ids
from lmplay.tokenizer.writing import save_pretrained
from lmplay.train.__main__ import main

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
         "vocab_size": 320}
CONFIGS = {"gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 320}, "llama": SIZES,
           "qwen2": {**SIZES, "tie_word_embeddings": True},
           "qwen3": {**SIZES, "head_dim": 16}, "mistral": {**SIZES, "sliding_window": 48}}
EXPERIMENTS = {"gpt2": "gpt2ish"}


@pytest.fixture(autouse=True)
def plan(corpus):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 5}})


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter([sentences(30)] * 3), 300)


def folder_of(kind: str, tokenizer, folder="theirs", **more) -> Path:
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(kind, **{**CONFIGS[kind], "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0, **more})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    Path(folder).mkdir(exist_ok=True)
    save_pretrained(tokenizer, Path(folder), 64)
    model.save_pretrained(folder, max_shard_size="40KB" if kind == "llama" else "5GB")
    return Path(folder)


def begin(capsys, *flags, code=75) -> str:
    """Train for one step that changes nothing."""
    found = main(["--training-plan", "plan.json", "--batch-size", "3", "--device", "cpu", "--lr", "1e-30", "--weight-decay", "0", "--max-steps", "1",
                  "--model", "new", *map(str, flags)])
    said = "".join(capsys.readouterr())
    assert found == code, said
    return said


def refused(capsys, *flags) -> str:
    said = begin(capsys, *flags, code=2)
    lines = [line for line in said.splitlines() if line.startswith("lmp_trainer")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    assert not Path("out_gpt/new.lmp").exists()
    return lines[0]


def new() -> nn.Module:
    return open_trained(Path("out_gpt/new.lmp")).module


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_of_transformers_becomes_an_experiment_with_the_same_logits(capsys, tokenizer, kind):
    folder = folder_of(kind, tokenizer)
    begin(capsys, "--initial-model", folder)
    opened = open_trained(Path("out_gpt/new.lmp"))
    assert opened.experiment == EXPERIMENTS.get(kind, "llamaish")
    assert opened.context_len == (48 if kind == "mistral" else 64)
    tokens = torch.randint(tokenizer.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = their_logits(folder, tokens)[..., :tokenizer.vocab_size]
    torch.testing.assert_close(logits(opened.module, tokens), expected, rtol=0, atol=1e-5)
    assert opened.tokenizer.encode("The cat").ids.tolist() == tokenizer.encode("The cat").ids.tolist()


@pytest.mark.parametrize("experiment", ["gpt2ish", "llamaish", "modern"])
def test_what_was_exported_comes_back_with_the_same_logits(capsys, tokenizer, experiment):
    model_file(Path("m.lmp"), experiment, tokenizer, context_len=40)
    assert export(["./m.lmp", "out"]) == 0
    said = begin(capsys, "--initial-model", "out")
    assert "WARNING: --initial-model" not in said
    tokens = torch.arange(36)[None]
    torch.testing.assert_close(logits(new(), tokens), logits(open_trained(Path("m.lmp")).module, tokens), rtol=0, atol=1e-5)
    begin(capsys, "--max-steps", "2")  # goes on without the folder


def test_shorter_contexts_and_dropout_may_be_asked_for(capsys, tokenizer):
    folder = folder_of("gpt2", tokenizer)
    begin(capsys, "--initial-model", folder, "--context-len", 32, "--dropout", 0.3)
    opened = open_trained(Path("out_gpt/new.lmp"))
    assert (opened.context_len, opened.args["dropout"]) == (32, 0.3)
    tokens = torch.arange(32)[None]
    torch.testing.assert_close(logits(opened.module, tokens), their_logits(folder, tokens)[..., :tokenizer.vocab_size], rtol=0, atol=1e-5)
    said = begin(capsys, "--initial-model", folder, "--context-len", 65, "--model", "b", code=2)
    assert "--context-len 65 is more than its 64 positions; give 64 or less" in said


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_rows_of_another_vocabulary_are_found_by_their_text(capsys, tokenizer, kind):
    folder = folder_of(kind, tokenizer)
    said = begin(capsys, "--initial-model", folder, "--tokenizer", "bytes")
    assert "WARNING: --initial-model" not in said
    assert "of the 257 tokens of bytes, 257 are found in its own vocabulary by their text" in " ".join(said.split())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
    ours = new().token_embedding.weight
    assert all(torch.equal(ours[byte], theirs[tokenizer.encode(chr(byte)).ids[0]]) for byte in range(128))
    assert torch.equal(ours[256], theirs[tokenizer.end_id])


def test_rows_of_new_tokens_are_the_mean_and_said(capsys, tokenizer):
    folder = folder_of("llama", tokenizer)
    other = train_tokenizer(iter(["the zebra grazes " * 40]), 280)
    Path("other").mkdir()
    save_pretrained(other, Path("other"), 64)
    ids = matched_ids(load_tokenizer("other"), tokenizer)
    said = begin(capsys, "--initial-model", folder, "--tokenizer", "other")
    assert f"has no rows for {ids.count(None)} of the {other.vocab_size} tokens of other; they begin with the mean of all" in " ".join(said.split())
    assert 0 < ids.count(None) < 30
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for ours, weight in ((new().token_embedding.weight, theirs.model.embed_tokens.weight), (new().head.weight, theirs.lm_head.weight)):
        for number, source in enumerate(ids):
            torch.testing.assert_close(ours[number], weight[:tokenizer.vocab_size].mean(0) if source is None else weight[source])


def test_a_tokenizer_may_be_trained_for_it(capsys, tokenizer):
    folder = folder_of("llama", tokenizer)
    begin(capsys, "--initial-model", folder, "--tokenizer", "train:280")
    assert open_trained(Path("out_gpt/new.lmp")).tokenizer.name == "train:280"


def test_what_is_not_whole_or_needs_code_is_refused_in_a_line(capsys, tokenizer):
    Path("empty").mkdir()
    assert "--initial-model empty: has no config.json" in refused(capsys, "--initial-model", "empty")
    folder = folder_of("llama", tokenizer)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 2
    whole = shards[1].read_bytes()
    shards[1].unlink()
    assert f"is incomplete: of its {len(shards)} files of weights {shards[1].name} is missing" in refused(capsys, "--initial-model", folder)
    shards[1].write_bytes(whole[:len(whole) // 2])
    assert "--initial-model theirs: cannot be read (" in refused(capsys, "--initial-model", folder)
    shards[1].write_bytes(whole)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}))
    assert "its config names code of its own (auto_map), which lmplay does not run" in refused(capsys, "--initial-model", folder)
    (folder / "config.json").write_text("{")
    assert "its config.json or the index of its weights cannot be read" in refused(capsys, "--initial-model", folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").unlink()
    assert "has no weights (" in refused(capsys, "--initial-model", folder)


def test_missing_tensors_are_named(capsys, tokenizer):
    from safetensors.torch import load_file, save_file

    folder = folder_of("qwen3", tokenizer)
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "has no weights for model.layers.1.mlp.up_proj.weight" in refused(capsys, "--initial-model", folder)


def changed(folder, **tensors):
    """Write other tensors into a folder; None = it is left out."""
    from safetensors.torch import load_file, save_file

    weights = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors", {"format": "pt"})


BIAS = "transformer.h.0.mlp.c_fc.bias"
DAMAGES = [
    ({BIAS: None}, f"has no weights for {BIAS}"), ({BIAS: torch.zeros(7)}, f"its weight {BIAS} has the shape (7,), and by its config it would be (128,)"),
    ({BIAS: torch.full((128,), torch.inf)}, f"its weight {BIAS} is not finite"),
    ({BIAS: torch.full((128,), 1e300, dtype=torch.float64)}, f"its weight {BIAS} is not finite"),
    ({BIAS: torch.zeros(128, dtype=torch.int32)}, f"weights are floating-point numbers, and {BIAS} (I32) is not"),
    ({BIAS: torch.zeros(128, dtype=torch.complex64)}, f"weights are floating-point numbers, and {BIAS} (C64) is not"),
    ({"lm_head.weight": torch.ones(320, 32)}, "its config says that the head is the embedding (tie_word_embeddings), and its files have two that differ")]


@pytest.mark.parametrize(("tensors", "told"), DAMAGES)
def test_weights_that_are_not_those_of_the_config_are_one_line(capsys, tokenizer, tensors, told):
    folder = folder_of("gpt2", tokenizer)
    changed(folder, **tensors)
    for flags in (["--initial-model", folder], ["--exp", f"hf:{folder}"]):
        said = begin(capsys, *flags, code=2)
        assert len(said.splitlines()) == 1, said
        assert told in said


def test_a_head_of_its_own_is_read_where_the_config_says_so(capsys, tokenizer):
    folder = folder_of("gpt2", tokenizer, tie_word_embeddings=False)
    begin(capsys, "--initial-model", folder)
    tokens = torch.randint(tokenizer.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(logits(new(), tokens), their_logits(folder, tokens)[..., :tokenizer.vocab_size], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("config", "told"), [
    ({"n_layer": 10**9}, "its config says 1,000,000,000 layers; at most 10,000 are read"),
    ({"n_layer": 9_000}, "and its files have"), ({"n_embd": 8192, "n_head": 8}, "its config is that of a model with"),
    ({"model_type": "llama"}, "its config is that of a model with 6,738,415,616 parameters, and its files have ")])
def test_a_config_of_a_larger_model_is_one_line_before_that_is_built(capsys, tokenizer, config, told):
    folder = folder_of("gpt2", tokenizer)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config} if "model_type" not in config else config))
    assert told in refused(capsys, "--initial-model", folder)


def test_files_elsewhere_and_damaged_json_are_one_line(capsys, tokenizer):
    folder = folder_of("llama", tokenizer)
    index = folder / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    for name in ("../theirs/" + next(iter(whole["weight_map"].values())), str(Path("elsewhere.safetensors").resolve())):
        index.write_text(json.dumps({**whole, "weight_map": dict.fromkeys(whole["weight_map"], name)}))
        assert f"the index of its weights names {name}, which is not a file of this folder" in refused(capsys, "--initial-model", folder)
    index.write_text(json.dumps({"weight_map": whole["weight_map"]}))
    assert 'model.safetensors.index.json has no "metadata"' in refused(capsys, "--initial-model", folder)
    index.write_text(json.dumps(whole))
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_text("[" * 100_000)
        assert "cannot be read" in refused(capsys, "--initial-model", folder), name
        (folder / name).write_bytes(before)


def test_what_our_models_lack_or_contradicts_the_flags_is_refused(capsys, tokenizer):
    folder = folder_of("llama", tokenizer, hidden_act="gelu")
    assert "llamaish lacks hidden_act gelu of this model. --exp hf:theirs continues from it as it is" in refused(capsys, "--initial-model", folder)
    other = transformers.AutoConfig.for_model("gpt_neox", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=300)
    transformers.AutoModelForCausalLM.from_config(other).save_pretrained("other")
    assert "is a model of type gpt_neox, and read are gpt2, llama" in refused(capsys, "--initial-model", "other")
    folder = folder_of("llama", tokenizer, "right")
    said = refused(capsys, "--initial-model", folder, "--num-blocks", 3, "--exp", "modern")
    assert "does not fit experiment modern (it becomes a llamaish), --num-blocks 3 (the file's model has 2)" in said
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer; give the one that it was trained with by --tokenizer" in refused(capsys, "--initial-model", folder)
    assert "tokens of bytes are those of the same ids" in " ".join(begin(capsys, "--initial-model", folder, "--tokenizer", "bytes").split())


class _NanoBlock(nn.Module):
    """A block of nanoGPT, written from its description: a reference of our own."""

    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attn, self.mlp, self.heads = nn.Module(), nn.Module(), heads
        self.attn.c_attn, self.attn.c_proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attn.c_attn(self.ln_1(x)).chunk(3, 2))
        x = x + self.attn.c_proj(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp.c_proj(nn.functional.gelu(self.mlp.c_fc(self.ln_2(x))))


@pytest.mark.parametrize("bias", [False, True])
def test_a_checkpoint_of_nanogpt_has_the_same_logits(capsys, bias):
    torch.manual_seed(2)
    model = nn.Module()
    model.transformer = nn.ModuleDict({"wte": nn.Embedding(288, 32), "wpe": nn.Embedding(40, 32), "h": nn.ModuleList(_NanoBlock(32, 4, bias) for _ in range(2)),
                                       "ln_f": nn.LayerNorm(32, bias=bias)})
    model.lm_head = nn.Linear(32, 288, bias=False)
    model.lm_head.weight = model.transformer.wte.weight
    arguments = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 40, "bias": bias, "vocab_size": 288, "dropout": 0.0}
    state = {f"_orig_mod.{name}": weight for name, weight in model.state_dict().items()}
    torch.save({"model": state, "model_args": arguments, "iter_num": 5, "best_val_loss": torch.tensor(2.0), "config": {"device": "cpu"}}, "ckpt.pt")
    assert "has no tokenizer; give the one that it was trained with by --tokenizer" in refused(capsys, "--initial-model", "./ckpt.pt")
    begin(capsys, "--initial-model", "./ckpt.pt", "--tokenizer", "bytes")
    tokens = torch.arange(40)[None] + 60
    parts = model.transformer
    with torch.no_grad():
        hidden = parts.wte(tokens) + parts.wpe(torch.arange(40))
        for block in parts.h:
            hidden = block(hidden)
        expected = model.lm_head(parts.ln_f(hidden))[..., :257]
    torch.testing.assert_close(logits(new(), tokens), expected, rtol=0, atol=1e-5)


def test_what_is_no_checkpoint_of_nanogpt_is_refused(capsys):
    torch.save({"model": {}}, "a.pt")
    Path("b.pt").write_bytes(b"nothing")
    for name in ("a", "b"):
        assert f"--initial-model ./{name}.pt: is not a checkpoint of nanoGPT, or damaged" in refused(capsys, "--initial-model", f"./{name}.pt")
