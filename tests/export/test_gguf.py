"""`lmp_export --gguf`: read back with the library, and as transformers reads such files: tensors, logits, tokens; what is refused."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exported import logits, model_file, stirred
from helpers import sentences

from lmplay.export.command import run
from lmplay.tokenizer import train_tokenizer

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
LLAMA = {"num_kv_heads": 2, "rope_base": 500.0}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def field(reader, name):
    return reader.fields[name].contents()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter([sentences(30)] * 3), 300)


@pytest.mark.parametrize(("experiment", "settings", "architecture"), [
    ("gpt2ish", {}, "gpt2"), ("llamaish", LLAMA, "llama"),
    ("llamaish", {**LLAMA, "tied_head": True}, "llama"), ("llamaish", {"query_key_norm": True}, "qwen3")])
def test_logits_and_ids_are_the_same_where_transformers_reads_it(tokenizer, experiment, settings, architecture):
    pytest.importorskip("accelerate")  # which transformers needs to read them
    model_file(Path("m.lmp"), experiment, tokenizer, **settings)
    assert run(["./m.lmp", "out", "--gguf", "m.gguf"]) == 0
    reader = gguf.GGUFReader("m.gguf")
    assert field(reader, "general.architecture") == architecture
    assert (field(reader, f"{architecture}.context_length"), field(reader, f"{architecture}.block_count")) == (32, 2)
    assert field(reader, "tokenizer.ggml.pre") == "gpt-2"
    assert field(reader, "tokenizer.ggml.add_bos_token") is False
    assert field(reader, "tokenizer.ggml.eos_token_id") == tokenizer.end_id
    config = transformers.AutoConfig.from_pretrained("out")  # of Qwen 3 transformers does not read the width of a head
    theirs = transformers.AutoModelForCausalLM.from_pretrained(".", gguf_file="m.gguf", config=config)
    tokens = torch.arange(30)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, logits(stirred(experiment, tokenizer.vocab_size, **settings), tokens), rtol=0, atol=1e-5)
    if architecture == "llama":  # transformers makes of it a tokenizer of the type of the model
        return
    read = transformers.AutoTokenizer.from_pretrained(".", gguf_file="m.gguf")
    for text in ("The cat number 7 sat down.", "Größe\n\n two  spaces", "日本"):
        assert read(text)["input_ids"] == tokenizer.encode(text).ids.tolist()


def test_tokens_and_merges_are_those_of_the_tokenizer(tokenizer):
    import json

    model_file(Path("m.lmp"), "modern", tokenizer, query_key_norm=False)
    assert run(["./m.lmp", "out", "--gguf", "m.gguf"]) == 0
    assert Path("out/config.json").is_file()
    reader = gguf.GGUFReader("m.gguf")
    said = json.loads(tokenizer.spec["json"])["model"]
    assert field(reader, "general.architecture") == "arcee"
    assert [field(reader, "tokenizer.ggml.tokens")[number] for number in sorted(said["vocab"].values())] == sorted(said["vocab"], key=said["vocab"].__getitem__)
    assert field(reader, "tokenizer.ggml.merges") == [" ".join(merge) for merge in said["merges"]]
    assert field(reader, "tokenizer.ggml.token_type")[tokenizer.end_id] == gguf.TokenType.CONTROL


def test_rows_of_queries_and_keys_are_in_the_order_of_llama_cpp():
    """Of each head the number i of the first half comes before that of the second."""
    model_file(Path("m.lmp"))
    assert run(["./m.lmp", "--gguf", "m.gguf"]) == 0
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader("m.gguf").tensors}
    query = stirred("llamaish", 257).blocks[0].attention.query_key_value.weight[:32].detach().numpy()
    for head in range(4):
        rows = [head * 8 + half * 4 + number for number in range(4) for half in range(2)]
        assert np.array_equal(tensors["blk.0.attn_q.weight"][head * 8:head * 8 + 8], query[rows])
    assert np.array_equal(tensors["blk.0.attn_v.weight"], stirred("llamaish", 257).blocks[0].attention.query_key_value.weight[64:].detach().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matrices_have_the_type_and_vectors_are_float32(dtype):
    model_file(Path("m.lmp"), "gpt2ish")
    assert run(["./m.lmp", "--gguf", "m.gguf", "--dtype", dtype]) == 0
    kinds = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader("m.gguf").tensors}
    wanted = {"float16": gguf.GGMLQuantizationType.F16, "bfloat16": gguf.GGMLQuantizationType.BF16}[dtype]
    assert {kinds["token_embd.weight"], kinds["blk.1.ffn_up.weight"]} == {wanted}
    assert {kinds["position_embd.weight"], kinds["output_norm.weight"], kinds["blk.0.attn_qkv.bias"]} == {gguf.GGMLQuantizationType.F32}


def refused(capsys, *arguments):
    assert run([*map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_what_llama_cpp_would_compute_otherwise_is_refused(capsys, tmp_path, word_pieces):
    model_file(Path("a.lmp"), "modern")
    assert "--gguf: ApertusForCausalLM is not among the models that can be written" in refused(capsys, "./a.lmp", "--gguf", "a.gguf")
    model_file(Path("a.lmp"), "gpt2ish", activation="gelu")
    assert "computes GPT2LMHeadModel with another activation than gelu" in refused(capsys, "./a.lmp", "--gguf", "a.gguf")
    model_file(Path("a.lmp"), query_key_norm=True, query_key_value_bias=True)
    assert "without the biases of query_key_value_bias" in refused(capsys, "./a.lmp", "--gguf", "a.gguf")
    model_file(Path("a.lmp"), tokenizer=word_pieces)
    assert "has no form in GGUF that is known to give the same ids" in refused(capsys, "./a.lmp", "--gguf", "a.gguf")
    assert run(["./a.lmp", "--gguf", "b.gguf", "--no-tokenizer"]) == 0
    assert "--gguf b.gguf: is there; give another name, or add --overwrite" in refused(capsys, "./a.lmp", "--gguf", "b.gguf", "--no-tokenizer")
    assert run(["./a.lmp", "--gguf", "b.gguf", "--no-tokenizer", "--overwrite"]) == 0
    assert "give a MODEL and a FOLDER" in refused(capsys, "./a.lmp", "--gguf", "b.gguf", "--push", "me/x")
    assert "--gguf .: it is a folder" in refused(capsys, "./a.lmp", "--gguf", ".")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lmp", "b.gguf", "tokenizer.json"]


def test_a_disk_without_room_is_said_before_anything_is_written(capsys, tmp_path, monkeypatch):
    model_file(Path("m.lmp"), "gpt2ish")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    assert "--gguf m.gguf: cannot be written (it needs " in (said := refused(capsys, "./m.lmp", "--gguf", "m.gguf"))
    assert "and 100 are free on the disk" in said
    assert [path.name for path in tmp_path.iterdir()] == ["m.lmp"]


def test_a_model_of_transformers_is_written_where_lmplay_has_it_too(capsys, tokenizer):
    import json

    from lmplay.checkpoints.format import FORMAT, versions, write
    from lmplay.exp import build_model, get_experiment

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 320}
    for rope, code in (({"rope_type": "default", "rope_theta": 1e4}, 0), ({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, 2)):
        config = transformers.AutoConfig.for_model("llama", **sizes, rope_parameters=rope)
        args = {"context_len": 32, "config": json.loads(config.to_json_string(use_diff=False))}
        model = build_model(get_experiment("hf:x"), vocab_size=tokenizer.vocab_size, **args)
        built = {"experiment": "hf:x", "args": args, "tokenizer": tokenizer.spec, "forms": {}}
        write(Path("m.lmp"), {"format": FORMAT, "versions": versions(), "model": {"state_args": built, "state": model.state_dict()}})
        assert run(["./m.lmp", "--gguf", "m.gguf", "--overwrite"]) == code
    assert "only models that lmplay has itself can be written, and llamaish lacks rope_type linear" in capsys.readouterr().err
    tokens = field(gguf.GGUFReader("m.gguf"), "tokenizer.ggml.tokens")
    assert (len(tokens), tokens[-1]) == (320, "[PAD319]")


def test_without_the_package_the_extra_is_named(capsys, monkeypatch):
    import sys

    model_file(Path("m.lmp"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert 'pip install "lmplay[gguf]"' in refused(capsys, "./m.lmp", "--gguf", "m.gguf")
