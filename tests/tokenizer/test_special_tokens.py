"""Special tokens that stand in tokenizer_config.json alone, and chats in the templates of well-known models: the ids are those of transformers."""
import json

import pytest

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample, Turn
from lmplay.tokenizer import load_tokenizer, train_tokenizer

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LLAMA = """{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim
 + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""
GEMMA = """{{ bos_token }}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"""
QWEN = """{%- for message in messages %}{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + message.content }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"""
ZEPHYR = """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% else %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% endfor %}"""
# How most of these models split a text into words.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Template, token at the beginning, token at the end, further special tokens.
MODELS = {
    "chatml": (CHATML, None, "<|im_end|>", ["<|im_start|>"]), "llama": (LLAMA, "<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "mistral": (MISTRAL, "<s>", "</s>", ["[INST]", "[/INST]"]), "gemma": (GEMMA, "<bos>", "<end_of_turn>", ["<start_of_turn>"]),
    "qwen": (QWEN, None, "<|im_end|>", ["<|im_start|>", "<think>", "</think>"]), "zephyr": (ZEPHYR, "<s>", "</s>", ["<|user|>", "<|assistant|>"])}
CHAT = [("user", "What is 6 * 7?"), ("assistant", "It is 42.\nReally."), ("user", "Thanks, 日本!"), ("assistant", "Goodbye.")]


def folder_of(path, model):
    """A folder in which the special tokens stand in tokenizer_config.json alone."""
    template, begin, end, others = MODELS[model]
    fast = json.loads(train_tokenizer(iter(["What is it? It is a cat, user and assistant. Goodbye. Thanks!\n\n"] * 9), 330).spec["json"])
    fast["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    first = max(fast["model"]["vocab"].values()) + 1
    special = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    added = {str(first + number): {"content": token, **special} for number, token in enumerate([*others, *filter(None, (end, begin))])}
    (path / "tokenizer.json").write_text(json.dumps(fast), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added, "bos_token": begin, "eos_token": end, "chat_template": template}))
    return added


@pytest.mark.parametrize("model", MODELS)
def test_a_chat_has_the_ids_that_transformers_gives(tmp_path, model):
    from transformers import AutoTokenizer

    added = folder_of(tmp_path, model)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(str(tmp_path))
    expected = theirs.apply_chat_template([{"role": role, "content": content} for role, content in CHAT], return_dict=False)
    turns = tuple(Turn(role, content, role == "assistant") for role, content in CHAT)
    (piece,) = Cutter(ours, 512).cut(Sample("", "x", turns=turns))
    tokens = piece.tokens.tolist()
    assert ours.end_text == MODELS[model][2]
    last = len(tokens) - tokens[::-1].index(ours.end_id)
    assert tokens[:last] == expected[:last]
    assert theirs.decode(expected[last:]).strip() == ""
    assert {str(i): ours._fast.id_to_token(int(i)) for i in added} == {i: token["content"] for i, token in added.items()}
    end = [place for place, token in enumerate(tokens) if token == ours.end_id]
    learned = [False] * piece.n_prompt + piece.learned.tolist()
    assert sum(learned[place] for place in end) == 2  # both answers end in the end token, as one token


def test_special_tokens_without_an_entry_are_added_as_transformers_does(tmp_path):
    from transformers import AutoTokenizer

    fast = train_tokenizer(iter(["a cat"] * 9), 270).spec["json"]
    (tmp_path / "tokenizer.json").write_text(fast, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>",
                                                                "bos_token": "<s>", "additional_special_tokens": ["<x>"]}))
    ours, theirs = load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert {**ours._fast.get_vocab()} == theirs.get_vocab()
    assert ours.end_text == "</s>"
    assert ours.encode("</s>").ids.tolist() != [ours.end_id]


@pytest.mark.parametrize("content", ["{not json", "[1]", "3"])
def test_a_broken_config_is_refused_in_one_line(tmp_path, content):
    from lmplay.errors import UserError

    (tmp_path / "tokenizer.json").write_text(train_tokenizer(iter(["a cat"] * 9), 270).spec["json"], encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer_config.json: cannot be read") as caught:
        load_tokenizer(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1
