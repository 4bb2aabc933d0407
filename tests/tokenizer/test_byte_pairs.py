"""The fast encoder gives the ids of the `tokenizers` library, or is not used."""
import json
import random

import pytest
import tiktoken
import tokenizers
from helpers import SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, trainers

from lmplay.tokenizer import END_TOKEN, byte_pairs, load_tokenizer, train_tokenizer

GPT2 = SHARED / "gpt2-tokenizer"
CORPUS = ["The cat's mat: 12345 cats, they'll've RUN!!  \n\n\tDon't. 日本語の文。 नमस्ते héllo wörld 🎉👨‍👩‍👧 x = [1, 2.5]; Ärger aaaaaaa ..... ——\r\n"] * 20
ODD = "the cat's 'S'LL'd19½²٣ aaaa....  \t\n\r\x00\x1c\x85\u00a0\u2028\u3000日語。नमस्ते्é\u0301🎉👨‍👩‍👧🇫\ufe0f\u200bſK<|endoftext|>\ue000\U0010ffff"
TEXTS = st.text(max_size=80) | st.text(st.sampled_from(ODD), max_size=120)


def split_like(pattern):
    """Train a tokenizer that splits as Llama 3 or Qwen 2 do."""
    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    fast.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=[END_TOKEN], show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return fast


def plain(vocab_size=420):
    return tokenizers.Tokenizer.from_str(train_tokenizer(iter(CORPUS), vocab_size).spec["json"])


def ids_of(fast, text):
    fast.encode_special_tokens = True
    return fast.encode(text, add_special_tokens=False).ids


FAST = {"trained": plain(), "larger": plain(600), "bytes alone": plain(257), "llama3": split_like(byte_pairs.SPLITS[3]),
        "qwen2": split_like(byte_pairs.SPLITS[1])}
if GPT2.is_dir():
    FAST["gpt2"] = tokenizers.Tokenizer.from_file(str(GPT2 / "tokenizer.json"))
for _fast in FAST.values():
    _fast.encode_special_tokens = True
PAIRS = {name: byte_pairs.same_as(fast) for name, fast in FAST.items()}


@pytest.mark.parametrize("name", FAST)
@given(text=TEXTS)
@settings(max_examples=150)
def test_the_ids_are_those_of_the_library(name, text):
    assert PAIRS[name].encode(text).tolist() == ids_of(FAST[name], text)


def made_of(merges, order=None, **settings):
    """Make a tokenizer by its merges, with its ids in any order."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = list(dict.fromkeys([*letters, *(a + b for a, b in merges)]))
    random.Random(order).shuffle(tokens)
    fast = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, **settings))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.encode_special_tokens = True
    return fast


@st.composite
def merge_lists(draw):
    """Lists of merges as no training would leave them: in any order, several for one token, tokens out of reach."""
    tokens, merges = ["a", "b", "c"], []
    for _ in range(draw(st.integers(1, 14))):
        pair = draw(st.tuples(st.sampled_from(tokens), st.sampled_from(tokens)))
        if pair not in merges and len("".join(pair)) < 9:
            merges.append(pair)
            tokens.append("".join(pair))
    return draw(st.permutations(merges)) if draw(st.booleans()) else merges


@given(merge_lists(), st.lists(st.text("abc", min_size=1, max_size=24), min_size=1, max_size=8), st.integers(0, 3), st.booleans())
@settings(max_examples=150)
def test_no_list_of_merges_gives_other_ids(merges, texts, order, ignore_merges):
    fast = made_of(merges, order, ignore_merges=ignore_merges)
    pairs = byte_pairs.same_as(fast)
    for text in texts:
        assert pairs is None or pairs.encode(text).tolist() == ids_of(fast, text)


def test_it_is_used_for_what_people_train():
    assert all(pairs is not None for pairs in PAIRS.values())
    assert byte_pairs.same_as(made_of([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")])) is not None  # two ways to a token, one of them never taken


def test_merges_out_of_order_are_left_to_the_library():
    assert byte_pairs.same_as(made_of([("ab", "c"), ("a", "b")])) is None


def change(**parts):
    settings = json.loads(plain().to_str())
    for part, value in parts.items():
        settings[part] = {**settings[part], **value} if part == "model" else value
    return tokenizers.Tokenizer.from_str(json.dumps(settings))


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ADDED = {"id": 9999, "content": "cat", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


@pytest.mark.parametrize("parts", [
    {"normalizer": {"type": "NFC"}}, {"model": {"dropout": 0.5}}, {"model": {"byte_fallback": True}},
    {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}}, {"pre_tokenizer": {**BYTE_LEVEL, "use_regex": False}},
    {"pre_tokenizer": None}, {"added_tokens": [ADDED]},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False}, {**BYTE_LEVEL, "use_regex": False}]}},
], ids=str)
def test_whatever_else_happens_to_a_text_is_left_to_the_library(parts):
    assert byte_pairs.same_as(change(**parts)) is None


def test_white_space_without_end_is_left_to_the_library():
    text = "a" + " " * 300_000 + "b"
    assert PAIRS["trained"].encode(text) is None
    tokenizer = load_tokenizer("bytes") if not GPT2.is_dir() else load_tokenizer(str(GPT2))
    assert tokenizer.encode(text).starts[-1] == len(text)
    assert PAIRS["trained"].encode("a b\n" * 50_000) is not None


@pytest.mark.parametrize("run", ["a", ".", "日", "1", "\U0001f389", "' ", "\n.", "é "])
def test_long_runs_have_the_same_ids(run):
    text = run * (60_000 // len(run))
    for name in ("trained", "llama3"):
        assert PAIRS[name].encode(text).tolist() == ids_of(FAST[name], text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", byte_pairs._CLASSES)
def test_all_characters_are_of_the_same_kind_to_both_libraries(kind):
    everything = "".join(map(chr, (code for code in range(0x110000) if not 0xD800 <= code < 0xE000)))
    single = {bytes([byte]): byte for byte in range(256)}
    ours = bytes(tiktoken.Encoding("x", pat_str=kind, mergeable_ranks=single, special_tokens={}).encode_ordinary(everything)).decode()
    theirs = pre_tokenizers.Split(Regex(f"(?:{kind})+"), "removed", invert=True).pre_tokenize_str(everything)
    assert ours == "".join(part for part, _ in theirs)
