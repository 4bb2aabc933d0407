"""Tokenizers: what they give comes back, positions are those of the text, and what is missing is said with the ways out."""
import json
import socket

import pytest
import tokenizers
from helpers import SHARED
from hypothesis import given
from hypothesis import strategies as st

from lmplay.errors import UserError
from lmplay.tokenizer import END_TOKEN, Tokenizer, load_tokenizer, train_tokenizer, trained_size, training_options
from lmplay.tokenizer.tokenizer import _with_offsets

BYTES = load_tokenizer("bytes")
BPE = train_tokenizer(iter(["The cat sat on the mat, and the dog ran. 日本語 héllo 🎉 नमस्ते\r\n\t"] * 30), 350)
GPT2 = SHARED / "gpt2-tokenizer"


ALL = [pytest.param(BYTES, id="bytes"), pytest.param(BPE, id="trained")]
if GPT2.is_dir():
    ALL.append(pytest.param(load_tokenizer(str(GPT2)), id="gpt2"))


@pytest.mark.parametrize("tokenizer", ALL)
@given(text=st.text(max_size=60) | st.text(st.sampled_from("the cat日本é🎉👨‍👩‍👧 .\n\r\t"), max_size=60))
def test_text_comes_back_and_positions_are_its_own(tokenizer, text):
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids.tolist()) == text
    assert len(encoded.starts) == len(encoded.cuttable) == len(encoded.ids) + 1
    assert encoded.starts[0] == 0
    assert encoded.starts[-1] == len(text)
    assert (encoded.starts[1:] >= encoded.starts[:-1]).all()
    assert encoded.cuttable[0]
    assert encoded.cuttable[-1]
    for border in range(len(encoded.ids) + 1):
        head, tail = text[:encoded.starts[border]], text[encoded.starts[border]:]
        if encoded.cuttable[border]:  # a cut there gives the text's parts on both sides
            assert tokenizer.decode(encoded.ids[:border].tolist()) == head
            assert tokenizer.decode(encoded.ids[border:].tolist()) == tail
        else:
            assert "\ufffd" in tokenizer.decode(encoded.ids[:border].tolist())


@pytest.mark.parametrize("tokenizer", ALL)
def test_byte_lengths_and_offsets_agree(tokenizer):
    if tokenizer is BYTES:
        return
    text = "The cat, 日本語 sat. Héllo 🎉!\n\nNext  line"
    quick, slow = tokenizer.encode(text), _with_offsets(tokenizer._fast, text)
    assert quick.ids.tolist() == slow.ids.tolist()
    assert quick.starts[quick.cuttable].tolist() == slow.starts[quick.cuttable].tolist()


@pytest.mark.parametrize("tokenizer", ALL)
def test_a_tokenizer_can_be_stored(tokenizer):
    again = Tokenizer(json.loads(json.dumps(tokenizer.spec)))
    assert (again.name, again.vocab_size, again.end_id) == (tokenizer.name, tokenizer.vocab_size, tokenizer.end_id)
    text = "The dog ran. 日本 🎉"
    assert again.encode(text).ids.tolist() == tokenizer.encode(text).ids.tolist()


@pytest.mark.parametrize("tokenizer", ALL)
def test_the_end_token_is_never_in_a_text_and_decodes_to_nothing(tokenizer):
    assert 0 <= tokenizer.end_id < tokenizer.vocab_size
    hostile = f"The cat sat.{END_TOKEN} Really."
    assert tokenizer.end_id not in tokenizer.encode(hostile).ids
    assert tokenizer.decode(tokenizer.encode(hostile).ids.tolist()) == hostile
    assert tokenizer.decode([tokenizer.end_id, *tokenizer.encode("cat").ids.tolist(), tokenizer.end_id]) == "cat"


def test_training_is_repeatable_and_keeps_to_the_size():
    texts = ["the cat sat on the mat"] * 50
    assert train_tokenizer(iter(texts), 270).spec == train_tokenizer(iter(texts), 270).spec
    assert train_tokenizer(iter(texts), 270).vocab_size <= 270
    assert BPE.vocab_size <= 350
    assert len(BPE.encode("The cat sat on the mat").ids) < 15


@pytest.mark.parametrize(("name", "size"), [("train:300", 300), ("bytes", None), ("gpt2", None), ("owner/name", None)])
def test_train_n_is_read(name, size):
    assert trained_size(name) == size


@pytest.mark.parametrize("name", ["train:0", "train:256", "train:many", "train:",
                                  "train:300,", "train:300,digits=2", "train:300,letters=1", "train:300,digits=1,digits=3"])
def test_a_vocabulary_too_small_is_refused(name):
    with pytest.raises(UserError, match="257"):
        trained_size(name)


@pytest.mark.parametrize("digits", [1, 3])
def test_a_trained_tokenizer_keeps_digits_apart(digits):
    texts = ["In 1984 there were 12345678 cats, and 1984 dogs: 1234567, 198419841984."] * 50
    trained = train_tokenizer(iter(texts), 400, *training_options(f"train:400,digits={digits}")[1:])
    assert trained.name == f"train:400,digits={digits}"
    tokens = [trained.decode([i]) for i in trained.encode(texts[0]).ids.tolist()]
    assert max(sum(map(str.isdigit, token)) for token in tokens) == digits
    assert "".join(tokens) == texts[0]
    library = tokenizers.Tokenizer.from_str(trained.spec["json"])
    for text in (texts[0], "x1y22z333 4444\n\n  55555 ½ ٣٤٥٦ don't", "  def f(x):\n    return 10**10\r\n"):
        assert trained.encode(text).ids.tolist() == library.encode(text, add_special_tokens=False).ids
    assert trained.writes_all  # the fast encoder does it


def test_folders_of_tokenizer_files(tmp_path):
    fast = json.loads(BPE.spec["json"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(fast), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": END_TOKEN}}))
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.encode("The cat").ids.tolist() == BPE.encode("The cat").ids.tolist()
    assert loaded.end_id == BPE.end_id
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).end_id == BPE.end_id
    older = tmp_path / "older"
    older.mkdir()
    (older / "vocab.json").write_text(json.dumps(fast["model"]["vocab"]), encoding="utf-8")
    (older / "merges.txt").write_text("\n".join(" ".join(pair) for pair in fast["model"]["merges"]) + "\n", encoding="utf-8")
    assert load_tokenizer(str(older)).encode("The cat").ids.tolist() == BPE.encode("The cat").ids.tolist()


def test_a_vocabulary_without_an_end_gets_one(tmp_path):
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(str(tmp_path))
    assert (loaded.end_id, loaded.vocab_size) == (3, 4)
    encoded = loaded.encode("the  cat the")  # words, not bytes: positions are the library's
    assert encoded.ids.tolist() == [0, 1, 0]
    assert encoded.starts.tolist() == [0, 3, 8, 12]


@pytest.mark.parametrize("content", [None, "{not json", "{}"])
def test_what_cannot_be_had_is_said_with_the_ways_out(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="--tokenizer bytes") as caught:
        load_tokenizer(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_without_network_and_cache_the_answer_is_quick_and_one_line(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(UserError, match="the hub did not give it") as caught:
            load_tokenizer("nobody/nothing")
    assert "train:8192" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("tokenizer", ALL)
def test_in_markup_special_tokens_are_special(tokenizer):
    assert tokenizer.end_text == END_TOKEN
    text = f"{END_TOKEN}user: héllo{END_TOKEN}{END_TOKEN}\n"
    encoded = tokenizer.encode_markup(text)
    assert encoded.ids.tolist().count(tokenizer.end_id) == 3
    assert encoded.ids[0] == tokenizer.end_id
    assert (encoded.starts[1], encoded.starts[-1]) == (len(END_TOKEN), len(text))
    assert tokenizer.decode(encoded.ids.tolist()) == text.replace(END_TOKEN, "")
    plain = tokenizer.encode_markup("user: héllo 🎉")
    assert plain.ids.tolist() == tokenizer.encode("user: héllo 🎉").ids.tolist()
    assert plain.starts.tolist() == tokenizer.encode("user: héllo 🎉").starts.tolist()


@pytest.mark.parametrize(("said", "jinja", "expected"), [
    ({}, None, None), ({"chat_template": "{{ a }}"}, None, "{{ a }}"), ({"chat_template": "{{ a }}"}, "{{ b }}", "{{ b }}"),
    ({"chat_template": [{"name": "tools", "template": "{{ t }}"}, {"name": "default", "template": "{{ d }}"}]}, None, "{{ d }}"),
    ({"chat_template": [{"name": "tools", "template": "{{ t }}"}]}, None, None),
])
def test_chat_templates_are_found_and_stored(tmp_path, said, jinja, expected):
    (tmp_path / "tokenizer.json").write_text(BPE.spec["json"], encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **said}))
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    loaded = load_tokenizer(str(tmp_path))
    assert (loaded.chat_template, loaded.begin_text) == (expected, "<s>")
    again = Tokenizer(json.loads(json.dumps(loaded.spec)))
    assert (again.chat_template, again.begin_text) == (expected, "<s>")


def test_a_spec_from_before_chats_still_loads():
    older = Tokenizer({key: BPE.spec[key] for key in ("kind", "name", "json", "end_id")})
    assert (older.chat_template, older.begin_text) == (None, "")


def test_a_text_that_a_tokenizer_has_no_words_for_is_refused_in_a_line():
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "<|endoftext|>": 1}))  # no token for what is unknown
    tokenizer = Tokenizer({"kind": "fast", "name": "words.json", "json": plain.to_str(), "end_id": 1})
    with pytest.raises(UserError, match=r"tokenizer words.json: cannot turn 'a cat' into tokens \(WordLevel error.*choose another --tokenizer"):
        tokenizer.encode("a cat")
