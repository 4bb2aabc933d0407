"""Files of tiktoken as tokenizers: the ids of tiktoken, by name or by the settings beside them, and what is refused."""
import base64
import json

import pytest
import tiktoken
from helpers import sentences, train, trainer
from hypothesis import given
from hypothesis import strategies as st

from lmplay.errors import UserError
from lmplay.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from lmplay.tokenizer.byte_pairs import bytes_of_letters

LEARNED = ("The cat's 12 dogs don't sleep; 日本語、中文。 Größe naïve Русский язык\n\n    def cat(x):\n        return x ** 2\t# ok\r\n" * 9)
# As tiktoken has them, with the old names of classes.
PATTERNS = {
    "r50k_base": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k_base": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k_base": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                  r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                  r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "mine": r"[a-z]+|[^a-z]+"}
TEXTS = st.one_of(st.text(max_size=60), st.text(st.sampled_from("aB'sld 12\n\r\t\u00a0.!/é日本x"), max_size=60),
                  st.lists(st.sampled_from(LEARNED.split(" "))).map(" ".join))


def ranks(odd=False):
    """Ranks as a byte-level BPE learns them; `odd` = with a gap, and a word that no merge leads to."""
    model = json.loads(train_tokenizer(iter([LEARNED]), 420).spec["json"])["model"]
    letters = bytes_of_letters()
    tokens = [bytes(map(letters.__getitem__, token)) for token in sorted(model["vocab"], key=model["vocab"].__getitem__) if token != "<|endoftext|>"]
    found = {token: number for number, token in enumerate(tokens)}
    return {**found, b"qzjx": len(found) + 3} if odd else found


def write(path, tokens):
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in tokens.items()))
    return path


@pytest.fixture(scope="module", params=[(name, odd) for name in PATTERNS for odd in (False, True)], ids=str)
def both(request, tmp_path_factory):
    name, odd = request.param
    folder = tmp_path_factory.mktemp("tiktoken")
    if name == "mine":
        (folder / "mine.json").write_text(json.dumps({"pattern": PATTERNS[name], "special_tokens": {"<s>": 1000, "<eos>": 1002}}))
    theirs = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks(odd), special_tokens={})
    return load_tokenizer(str(write(folder / f"{name}.tiktoken", ranks(odd)))), theirs


@given(TEXTS)
def test_ids_are_those_of_tiktoken_and_come_back(both, text):
    ours, theirs = both
    encoded = ours.encode(text)
    assert encoded.ids.tolist() == theirs.encode_ordinary(text)
    assert encoded.starts[-1] == len(text)
    assert ours.decode(encoded.ids) == text


@pytest.mark.parametrize("text", ["qzjx qzjx", "<|endoftext|> <s>", LEARNED, "\n\u00a0", "a  \n b"])
def test_what_looks_special_is_text_and_words_that_are_tokens_stay_whole(both, text):
    ours, theirs = both
    assert ours.encode(text).ids.tolist() == theirs.encode_ordinary(text)
    assert Tokenizer(ours.spec).encode(text).ids.tolist() == theirs.encode_ordinary(text)


def test_special_tokens_have_the_ids_of_their_name(tmp_path):
    ours = load_tokenizer(str(write(tmp_path / "cl100k_base.tiktoken", ranks())))
    assert (ours.end_text, ours.end_id, ours.vocab_size) == ("<|endoftext|>", 100257, 100277)
    assert ours.encode_markup("a<|fim_prefix|>").ids.tolist()[1:] == [100258]
    (tmp_path / "mine.json").write_text(json.dumps({"pattern": "cl100k_base", "special_tokens": {"</s>": 700}}))
    ours = load_tokenizer(str(write(tmp_path / "mine.tiktoken", ranks())))
    assert (ours.end_text, ours.end_id) == ("</s>", 700)
    (tmp_path / "mine.json").write_text(json.dumps({"pattern": "llama3", "special_tokens": {"<|x|>": 800}}))
    assert load_tokenizer(str(tmp_path / "mine.tiktoken")).end_id == 801


def test_a_folder_with_nothing_else_and_any_name_of_the_file(tmp_path):
    write(tmp_path / "tokenizer.model", ranks())  # as Llama 3 calls it
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eot_id|>", "chat_template": "{{ messages }}"}))
    with pytest.raises(UserError, match=r"nothing says how it splits a text into words.*tokenizer.json|nothing says"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.model").rename(tmp_path / "llama3.tiktoken")
    ours = load_tokenizer(str(tmp_path))
    assert (ours.end_id, ours.chat_template) == (128009, "{{ messages }}")


def damaged():
    good = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks().items())
    lines = good.splitlines(keepends=True)
    yield "cut", good[:len(good) // 2 - 3]
    yield "bytes", b"".join(lines[5:])
    yield "same rank", good + b"cXpqeA== 3\n"
    yield "twice", good + lines[300].split()[0] + b" 9999\n"
    yield "huge rank", good + b"cXpqeA== 99999999\n"
    yield "long", good + base64.b64encode(b"x" * 9999) + b" 9999\n"
    yield "no base64", good + b"cXpqe 9999\n"
    yield "words", good + b"hello there you\n"
    yield "zeros", bytes(99)
    yield "nothing", b""


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in damaged()])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "r50k_base.tiktoken").write_bytes(content)
    with pytest.raises(UserError, match=r"r50k_base.tiktoken: ") as caught:
        load_tokenizer(str(tmp_path / "r50k_base.tiktoken"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("said", ["[1]", "{", '{"pattern": "("}', '{"pattern": 3}', '{"pattern": "gpt2", "special_tokens": {"<s>": 5}}',
                                  '{"pattern": "gpt2", "special_tokens": {"<s>": "x"}}', '{"pattern": "gpt2", "special_tokens": {"<s>": 99999999999}}',
                                  r'{"pattern": "\\p{N}{1,3}+|[^0-9]+"}'])
def test_settings_that_are_wrong_are_refused_in_one_line(tmp_path, said):
    write(tmp_path / "mine.tiktoken", ranks())
    (tmp_path / "mine.json").write_text(said)
    with pytest.raises(UserError, match=r"mine.tiktoken: ") as caught:
        load_tokenizer(str(tmp_path / "mine.tiktoken"))
    assert len(str(caught.value).splitlines()) == 1


def test_a_pattern_that_makes_a_word_of_a_special_token_is_refused_where_words_stay_whole(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"pattern": r"\S+|\s+"}))
    load_tokenizer(str(write(tmp_path / "mine.tiktoken", ranks())))
    with pytest.raises(UserError, match="special token is a word"):
        load_tokenizer(str(write(tmp_path / "mine.tiktoken", ranks(odd=True))))


def test_a_run_goes_on_without_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n\n".join([sentences(4)] * 30), encoding="utf-8")
    file = write(tmp_path / "r50k_base.tiktoken", ranks())
    (tmp_path / "plan.json").write_text(json.dumps({"a": {"dataset": "text.txt", "samples": 10}}))
    arguments = ["--training-plan", "plan.json", "--tokenizer", "r50k_base.tiktoken"]
    train(capsys, *arguments)
    file.unlink()
    (tmp_path / "plan.json").write_text(json.dumps({"a": {"dataset": "text.txt", "samples": 10}, "b": {"dataset": "text.txt", "samples": 10}}))
    train(capsys, *arguments)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    done = trainer("--tokenizer", tmp_path / "no.tiktoken", "--dataset", "builtin:tales", "--out-dir", tmp_path, "--check-plan")
    assert done.returncode == 2
    assert "no.tiktoken: cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
