"""Loading a tokenizer from the hub's cache: without transformers, and the same."""
import json
import subprocess
import sys

import pytest
from helpers import ENVIRONMENT, sentences, train

from lmplay.tokenizer import load_tokenizer, train_tokenizer
from lmplay.tokenizer.loading import _from_cache

COMPARE = """
import sys, lmplay.tokenizer.loading as module
quick = module.load_tokenizer("some/tokenizer")
assert "transformers" not in sys.modules
module._from_cache = lambda name: None
same = module.load_tokenizer("some/tokenizer")
for tokenizer in (quick, same):
    tokenizer.told = tokenizer.encode("The cat number 12, 猫 <|endoftext|>  sat.").ids.tolist(), {**tokenizer.spec, "json": ""}
assert quick.told == same.told
assert "transformers" in sys.modules
"""


def in_cache(folder, **files) -> dict:
    """Put files where the hub's client keeps them; gives the environment in which it finds them."""
    place = folder / "models--some--tokenizer"
    snapshot = place / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    (snapshot / "tokenizer.json").write_text(train_tokenizer(iter([sentences(9)]), 300).spec["json"])
    for name, content in files.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    return {**ENVIRONMENT, "HF_HUB_CACHE": str(folder)}


@pytest.mark.parametrize("files", [
    {"config": {"model_type": "gpt2"}, "tokenizer_config": {"model_max_length": 1024}},
    {"config": {"model_type": "llama"},
     "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": "{{ messages[0] }}"}},
    {"config": {"model_type": "llama"},
     "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<new>", "pad_token": "<pad>", "added_tokens_decoder": {
         "300": {"content": "<new>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}}}}])
def test_a_tokenizer_in_the_cache_needs_no_transformers_and_is_the_same(tmp_path, files):
    done = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False, env=in_cache(tmp_path, **files))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("config", [{"tokenizer_class": "LlamaTokenizer", "eos_token": "<|endoftext|>"}, {"tokenizer_class": "PreTrainedTokenizerFast"},
                                    {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}])
def test_a_tokenizer_whose_file_does_not_say_all_is_left_to_transformers(tmp_path, monkeypatch, config):
    import huggingface_hub

    in_cache(tmp_path, tokenizer_config=config)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert _from_cache("some/tokenizer") is None
    assert _from_cache("no/tokenizer") is None
    assert _from_cache("not a name") is None


TEXTS = ["The cat number 12, 猫 <|endoftext|>  sat. </s>", " x", "  a\n"]


def folder_with(folder, config):
    (folder / "tokenizer.json").write_text(train_tokenizer(iter([sentences(9)]), 300).spec["json"])
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("config", [{"tokenizer_class": "UnheardOfTokenizer", "eos_token": "</s>"}, {"tokenizer_class": "UnheardOfTokenizerFast"}, {},
                                    {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}, {"tokenizer_class": "Qwen2Tokenizer"},
                                    {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}])
def test_a_folder_of_any_class_has_the_ids_that_transformers_gives(tmp_path, config):
    from transformers import AutoTokenizer

    folder = folder_with(tmp_path, config)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    for text in TEXTS:
        assert ours.encode(text).ids.tolist() == theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
    assert ours.note is None


@pytest.mark.parametrize("config", [{"tokenizer_class": "T5Tokenizer"}, {"auto_map": {"AutoTokenizer": ["its.Tokenizer", None]}}, {"tokenizer_class": 3}])
def test_a_folder_that_transformers_does_not_open_is_read_with_a_warning(tmp_path, monkeypatch, capsys, config):
    monkeypatch.chdir(tmp_path)
    folder = folder_with(tmp_path, config)
    assert load_tokenizer(folder).encode(TEXTS[0]).ids.tolist() == load_tokenizer(f"{folder}/tokenizer.json").encode(TEXTS[0]).ids.tolist()
    said = train(capsys, "--tokenizer", folder, "--dataset", "builtin:tales", "--max-steps", 1, code=75)
    assert f"WARNING: tokenizer {folder}: transformers does not open it as" in said
    assert "WARNING: tokenizer" not in train(capsys, "--dataset", "builtin:tales", "--tokenizer", folder, "--max-steps", 1, code=75)
