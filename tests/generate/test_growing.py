"""A text that grows by a token at a time shows, in the end, what all its tokens are decoded to."""
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models

from lmplay.generate.writer import GrowingText
from lmplay.tokenizer.tokenizer import Tokenizer
from lmplay.writing.stops import has_stopped

BYTES = {f"<0x{number:02X}>": number + 3 for number in range(256)}
WORDS = ["\u2581Once", "\u2581upon", "\u2581a", "\u2581time", "s", ".", "\u2581"]


@pytest.fixture(scope="module")
def tokenizer():
    """One as of Llama 2: words with their space in front, and bytes for what is no word."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **BYTES, **{word: 259 + number for number, word in enumerate(WORDS)}}
    fast = Fast(models.BPE(vocabulary, [], byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    fast.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer({"kind": "fast", "name": "words", "json": fast.to_str(), "end_id": 2})


def ids_of(*parts):
    """Give words by their token, and other text by its bytes."""
    return [token for part in parts for token in ([259 + WORDS.index(part)] if part in WORDS else [BYTES[f"<0x{byte:02X}>"] for byte in part.encode()])]


def grow(tokenizer, ids, before=()):
    text = GrowingText(tokenizer, [], before)
    return [*(text.add(token) for token in ids), text.end()]


@pytest.mark.parametrize("parts", [["日本"], ["\u2581Once", "\n🙂", "\u2581time"], ["é", ".", "日"], ["\n", "\n"]])
def test_characters_of_several_tokens_are_shown_once(tokenizer, parts):
    ids = ids_of(*parts)
    shown = grow(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    assert not any("\ufffd" in part for part in shown)


@given(parts=st.lists(st.sampled_from([*WORDS, "日", "\n", " ", "é"]), max_size=12),
       stops=st.lists(st.sampled_from(["\n", " \n", "日日", "s.", "é\né", " a"]), min_size=1, max_size=2))
@example(parts=["日", "日"], stops=["日日"]).via("the window began in the middle of a character")
@example(parts=["日", "\n"], stops=["\n"]).via("a byte before the stop text")
@example(parts=["\u2581a", " ", "\n"], stops=[" \n"]).via("a space that is left out at the beginning")
def test_a_stop_text_is_seen_with_its_last_token(tokenizer, parts, stops):
    ids = ids_of(*parts)
    seen = [has_stopped(tokenizer.decode, ids[:count], stops) for count in range(1, len(ids) + 1)]
    there = [any(stop in tokenizer.decode(ids[:count]) for stop in stops) for count in range(1, len(ids) + 1)]
    assert seen[:there.index(True) + 1 if True in there else None] == there[:there.index(True) + 1 if True in there else None]


@given(parts=st.lists(st.sampled_from([*WORDS, "日", "本", "\n", "🙂", "é"]), max_size=12))
def test_what_is_shown_is_what_all_tokens_are(tokenizer, parts):
    assert "".join(grow(tokenizer, ids_of(*parts))) == tokenizer.decode(ids_of(*parts))


def test_the_space_between_a_prompt_and_its_text_is_shown(tokenizer):
    prompt = ids_of("\u2581Once", "\u2581upon")
    assert "".join(grow(tokenizer, ids_of("\u2581a", "\u2581time"), prompt)) == " a time"
    assert "".join(grow(tokenizer, ids_of("s", "\u2581a"), prompt)) == "s a"
    assert "".join(grow(tokenizer, ids_of("\u2581a", "\u2581time"), [tokenizer.end_id])) == "a time"
    assert "".join(grow(tokenizer, ids_of("語", "\u2581a"), ids_of("日本"))) == "語 a"
    assert "".join(grow(tokenizer, ids_of("語"), ids_of("日本")[:-1])) == "語"


def test_broken_characters_are_shown_when_nothing_follows(tokenizer):
    assert "".join(grow(tokenizer, ids_of("日")[:2])) == "\ufffd\ufffd"


def test_a_token_is_decoded_with_few_others(tokenizer, monkeypatch):
    longest = []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: (longest.append(len(ids)), decode(self, ids))[1])
    grow(tokenizer, ids_of("\u2581a", "日") * 100)
    assert max(longest) < 10
