"""Loading a tokenizer from the hub's cache: without transformers, and the same."""
import json
import subprocess
import sys

import pytest
from helpers import ENVIRONMENT, sentences

from lmplay.tokenizer import train_tokenizer
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
