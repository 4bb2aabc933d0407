"""Which ids of two tokenizers are the same token."""
import json

import pytest

from lmplay.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from lmplay.tokenizer.matching import differing_ids, matched_ids


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(["the cat sat down " * 40]), 280)


def changed(tokenizer, change, **spec):
    """The same tokenizer, with a change of its vocabulary, and written in another way."""
    content = json.loads(tokenizer.spec["json"])
    change(content["model"]["vocab"])
    return Tokenizer({**tokenizer.spec, "json": json.dumps(content, indent=1), **spec})


def test_a_tokenizer_is_the_same_by_another_name(tokenizer):
    assert differing_ids(tokenizer, Tokenizer({**tokenizer.spec, "name": "other"})) == []
    assert differing_ids(tokenizer, changed(tokenizer, lambda vocab: None)) == []
    assert differing_ids(load_tokenizer("bytes"), Tokenizer({"kind": "bytes", "name": "other"})) == []


def test_an_id_of_no_token_is_no_difference(tokenizer):
    """A vocabulary with a gap: the ids of its tokens are the same, though the gap has no token that could be found by its text."""
    def move_last(vocab):
        last = max(vocab, key=vocab.get)
        vocab[last] += 1

    gap, again = changed(tokenizer, move_last), changed(tokenizer, move_last, name="other")
    again.spec["json"] += " "
    assert None in matched_ids(gap, again)
    assert differing_ids(gap, again) == []
    assert differing_ids(gap, tokenizer) == [tokenizer.vocab_size]
    assert differing_ids(tokenizer, gap) == [tokenizer.vocab_size - 1]


def test_tokens_that_have_changed_places_are_listed(tokenizer):
    def swap(vocab):
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    vocab = json.loads(tokenizer.spec["json"])["model"]["vocab"]
    assert differing_ids(tokenizer, changed(tokenizer, swap)) == sorted([vocab["a"], vocab["b"]])
    assert differing_ids(load_tokenizer("bytes"), tokenizer)
