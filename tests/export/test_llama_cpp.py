"""GGUF files in llama.cpp: token ids of a hundred texts, logits, and the greedy texts of twenty prompts are those of the `.lmp`."""
from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import logits, model_file, stirred
from helpers import sentences
from texts import CLUSTERS
from tokenizers import Regex, models, pre_tokenizers, trainers

from lmplay.export.command import run
from lmplay.generate.command import run as generate
from lmplay.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from lmplay.tokenizer.byte_pairs import PROBE, SPLITS

xllamacpp = pytest.importorskip("xllamacpp")  # llama.cpp with its server
pytest.importorskip("gguf")
CASES = {"gpt2": ("gpt2ish", {}), "llama": ("llamaish", {"num_kv_heads": 2, "rope_base": 500.0}), "tied": ("llamaish", {"tied_head": True}),
         "mistral": ("llamaish", {"embed_dim": 36, "num_heads": 5, "head_dim": 8}),
         "qwen2": ("llamaish", {"query_key_value_bias": True, "embed_dim": 36, "num_heads": 5, "head_dim": 8}),
         "llama with biases": ("llamaish", {"query_key_value_bias": True}),
         "wide qwen3": ("llamaish", {"query_key_norm": True, "embed_dim": 36, "num_heads": 5, "head_dim": 8}),
         "qwen3": ("llamaish", {"query_key_norm": True}), "arcee": ("modern", {"query_key_norm": False})}
PROMPTS = ["The cat", "A dog", "Größe", "日本", "12 + 3", "once upon", "x", "It", "\"No\"", "we are", "Zürich", "sat on", "number 7", "I", "day", "then",
           "slept.", "but", "he said", "…"]
TEXTS = [*PROMPTS, *PROBE.split("\n"), *(sentences(1 + number % 4, word) for number in range(20) for word in ("cat", "Öl")), *CLUSTERS,
         "<|endoftext|>", "a<|endoftext|> b", "", " ", "\n\n", "  x", "x  ", "\t\ty", "1234567 89", "don't DON'T we'LL", "a" * 300, "é" * 50]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class LlamaCpp:
    """A server of llama.cpp with one model, with all numbers in float32 as far as it can."""

    def __init__(self, path: str):
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = path, 32, 1, False, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = params.n_threads_http = 1
        params.cache_type_k = params.cache_type_v = params.flash_attn_type = 0
        self._server = xllamacpp.Server(params)

    def ask(self, path: str, **body):
        """Ask its API."""
        request = urllib.request.Request(self._server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def ids(self, text: str) -> list[int]:
        """Turn a prompt into token ids as it does before it continues it."""
        return self.ask("/tokenize", content=text, add_special=True, parse_special=True)["tokens"]

    def continued(self, prompt: str, **body) -> dict:
        """Continue a prompt with the most probable tokens."""
        return self.ask("/completion", prompt=prompt, temperature=0, return_tokens=True, cache_prompt=False, **body)


def split_as(pattern: str) -> Tokenizer:
    """Train a tokenizer that splits words as others do."""
    import tokenizers

    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.train_from_iterator([*TEXTS, *[sentences(30)] * 3] * 2, trainers.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False,
                                                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return Tokenizer({"kind": "fast", "name": "split", "json": fast.to_str(), "end_id": 0})


@pytest.mark.parametrize("case", CASES)
def test_logits_and_twenty_greedy_texts_are_the_same(capsys, case):
    experiment, settings = CASES[case]
    tokenizer = load_tokenizer("bytes") if case == "llama" else train_tokenizer(iter([sentences(30)] * 3), 300)
    model_file(Path("m.lmp"), experiment, tokenizer, **settings)
    assert run(["./m.lmp", "--gguf", "m.gguf"]) == 0
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    capsys.readouterr()
    assert generate(["--model", "./m.lmp", "--prompts", "prompts.txt", "--greedy", "--json", "--max-tokens", "12", "--device", "cpu"]) == 0
    ours = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    theirs, model = LlamaCpp("m.gguf"), stirred(experiment, tokenizer.vocab_size, **settings)
    told = 0
    for prompt in PROMPTS:
        answer = theirs.continued(f"<|endoftext|>{prompt}", n_predict=1, n_probs=tokenizer.vocab_size)
        if "completion_probabilities" in answer:  # of a token that is half a character there are none
            found = answer["completion_probabilities"][0]["top_logprobs"]
            expected = logits(model, torch.tensor([tokenizer.encode_markup(f"<|endoftext|>{prompt}").ids.tolist()]))[0, -1].log_softmax(-1)
            assert len(found) == tokenizer.vocab_size
            np.testing.assert_allclose([one["logprob"] for one in found], expected[[one["id"] for one in found]], rtol=0, atol=5e-3)  # GELU is a table there
            told += 1
    assert told > 3
    tokens = [theirs.continued(f"<|endoftext|>{prompt}", n_predict=12)["tokens"] for prompt in PROMPTS]
    assert [tokenizer.decode(ids) for ids in tokens] == ours
    assert len({*ours}) > 5


@pytest.mark.parametrize("split", ["bytes", "gpt-2", "qwen2", "llama-bpe"])
def test_the_ids_of_a_hundred_texts_are_the_same(split):
    tokenizer = {"bytes": lambda: load_tokenizer("bytes"), "gpt-2": lambda: train_tokenizer(iter([*TEXTS, *[sentences(30)] * 3] * 2), 500),
                 "qwen2": lambda: split_as(SPLITS[1]), "llama-bpe": lambda: split_as(SPLITS[3])}[split]()
    model_file(Path("m.lmp"), "llamaish", tokenizer)
    assert run(["./m.lmp", "--gguf", "m.gguf"]) == 0
    theirs = LlamaCpp("m.gguf")
    assert len(TEXTS) > 100
    for text in TEXTS:
        ids = tokenizer.encode_markup(text).ids.tolist()
        assert theirs.ids(text) == ids, text
        assert theirs.ask("/detokenize", tokens=ids)["content"] == text


def test_a_chat_is_written_as_in_training():
    from lmplay.writing.prompting import recorded

    template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" \
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    spec = train_tokenizer(iter([sentences(30)] * 3), 300).spec
    for chat in ("plain", "tokenizer"):
        tokenizer, forms = Tokenizer({**spec, "chat_template": template}), {"one": [{"source": "a", "form": "chat", "chat": chat}]}
        model_file(Path("m.lmp"), "llamaish", tokenizer, forms)
        assert run(["./m.lmp", "--gguf", "m.gguf", "--overwrite"]) == 0
        theirs = LlamaCpp("m.gguf")
        written = theirs.ask("/apply-template", messages=[{"role": "user", "content": "The cat?"}])["prompt"]
        assert tokenizer.decode(theirs.ids(written)) == tokenizer.decode(recorded(tokenizer, forms).ids("The cat?"))
