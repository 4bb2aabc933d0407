"""Cutting: chats learn their answers and nothing else, no cut divides what a reader sees as one character, and hostile texts come through."""
from collections import Counter

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import BPE, BYTES, PARTS, TEXTS, WHO, sentence_ends

from lmplay.data.batcher import Batcher
from lmplay.data.chat import Part
from lmplay.data.collate import collate
from lmplay.data.continuation import SMALLEST_CONTEXT, Cutter
from lmplay.data.samples import Sample, Turn
from lmplay.data.sentences import Cut, last_cut, splits_character


def encode(tokenizer, part):
    if part.end:
        return [tokenizer.end_id]
    return (tokenizer.encode_markup if part.markup else tokenizer.encode)(part.text).ids.tolist()


def learned_of(piece):
    tokens = piece.tokens[piece.n_prompt:]
    return (tokens if piece.learned is None else tokens[piece.learned]).tolist()


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@given(given=PARTS | st.just([]), truth=PARTS, context=st.integers(SMALLEST_CONTEXT, 70))
@settings(max_examples=150)
def test_of_a_chat_the_answers_are_learned_once_and_nothing_else(tokenizer, given, truth, context):
    pieces = Cutter(tokenizer, context).cut_parts(WHO, given, truth)
    answers = [part for part in truth if part.learned]
    expected = [i for part in answers for i in encode(tokenizer, part)]
    ending = next((part.learned for part in reversed(truth) if encode(tokenizer, part)), False)
    expected += [tokenizer.end_id] * ending
    if not any(encode(tokenizer, part) for part in answers):
        assert pieces == []
        return
    assert [i for piece in pieces for i in learned_of(piece)]== expected
    assert sum(piece.n_truth for piece in pieces) == len(expected)
    assert "".join(piece.truth for piece in pieces) == "".join(part.text for part in answers)  # invariant 1
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    for piece in pieces:
        assert len(piece.tokens) <= context  # invariant 2
        assert piece.n_prompt >= 1
        assert piece.n_truth >= 1
        assert piece.learned is None or len(piece.learned) == len(piece.tokens) - piece.n_prompt
        assert piece.last == (piece is pieces[-1])


@given(st.lists(st.tuples(TEXTS.filter(str.strip), TEXTS.filter(str.strip)), min_size=1, max_size=4), st.integers(24, 90))
@settings(max_examples=60)
def test_the_end_stays_with_its_answer(exchanges, context):
    parts = [part for question, answer in exchanges for part in (Part(question, False), Part(answer), Part("", end=True))]
    for piece in Cutter(BYTES, context).cut_parts(WHO, parts[:1], parts[1:]):
        tokens, learned = piece.tokens.tolist(), [False] * piece.n_prompt + piece.learned.tolist() if piece.learned is not None else None
        for place in range(piece.n_prompt, len(tokens) - 1):
            if tokens[place] == BYTES.end_id and (learned is None or learned[place]):
                assert place > piece.n_prompt  # some of the answer is there
                assert learned is None or learned[place - 1]


@given(st.lists(st.tuples(TEXTS.filter(str.strip), TEXTS.filter(str.strip)), min_size=1, max_size=4), st.integers(SMALLEST_CONTEXT, 90), st.integers(1, 5))
@settings(max_examples=60)
def test_mini_batches_take_loss_on_what_is_learned(exchanges, context, mini_batch_size):
    turns = tuple(turn for question, answer in exchanges for turn in (Turn("user", question, False), Turn("assistant", answer, True)))
    pieces = Cutter(BPE, context).cut(Sample("", "", turns=turns))
    assert "".join(piece.truth for piece in pieces) == "".join(answer for _, answer in exchanges)
    seen = 0
    for mini in collate(pieces, mini_batch_size, 1, context - 1):
        flat = mini.tokens_BT.flatten()
        for number, where in mini.rows:
            piece = pieces[number]
            assert mini.targets_N[where].tolist() == learned_of(piece)
            inputs = piece.tokens[piece.n_prompt - 1:-1]
            assert flat[mini.positions_N[where]].tolist() == (inputs if piece.learned is None else inputs[piece.learned]).tolist()
            seen += piece.n_truth
        assert len(mini.targets_N) == len(mini.positions_N) == sum(pieces[number].n_truth for number, _ in mini.rows)
    assert seen == sum(piece.n_truth for piece in pieces)


def test_what_only_leads_to_an_answer_is_its_prompt():
    parts = [Part("I like cats. "), Part("", end=True), Part("Say more. " * 30, False), Part("They purr.")]
    pieces = Cutter(BYTES, 64).cut_parts(WHO, [Part("Cats? ", False)], parts)
    assert [piece.truth for piece in pieces] == ["I like cats. ", "They purr."]
    assert "Say more." in BYTES.decode(pieces[1].tokens[:pieces[1].n_prompt]) + BYTES.decode(pieces[1].tokens[pieces[1].n_prompt:])
    assert pieces[1].last


# --- visible characters

CLUSTERS = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "🇩🇪", "1️⃣", "🏴\U000e0067\U000e0062\U000e007f", "e\u0301", "o\u0308\u0323", "क्ष", "नि", "ക്ഷ", "각",
            "\u1112\u1161\u11ab", "กำ",
            "שָׁ", "بِّ", "か\u3099", "ｶﾞ", "\u0600١", "\r\n", "a", " ", "日", ".", "א", "ب", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"]


@given(st.lists(st.sampled_from([*CLUSTERS, *"".join(CLUSTERS)]), min_size=1, max_size=14).map("".join))
@settings(max_examples=400)
def test_no_cluster_of_unicode_is_divided(text):
    starts = {match.start() for match in regex.finditer(r"\X", text)}
    for position in range(1, len(text)):
        assert position in starts or splits_character(text, position)


def test_ordinary_text_may_be_cut_anywhere():
    text = "The cat, 12 times. 日本語の文。Größe שלום ไทย 🎉🎉 Ελλ"
    assert [i for i in range(1, len(text)) if splits_character(text, i)] == []


@given(st.lists(st.sampled_from([cluster for cluster in CLUSTERS if cluster not in ("\u200d", "\u0600١")]), min_size=20, max_size=120).map("".join),
       st.integers(80, 120))
@settings(max_examples=60)
def test_pieces_end_between_visible_characters(text, context):
    starts = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    position = 0
    for piece in Cutter(BYTES, context).cut(Sample("", text)):
        position += len(piece.truth)
        assert position in starts


# --- what is hard to cut

@given(st.text(st.sampled_from("ab .!?。,、\n\")\r\u0301"), max_size=60), st.integers(0, 60))
@settings(max_examples=200)
def test_where_a_search_starts_does_not_matter(text, start):
    ends = [end for end in sentence_ends(text) if end > start]
    found = last_cut(text, start, len(text)) if start < len(text) else None
    assert (found is not None and found[1] == Cut.SENTENCE) == bool(ends)
    assert not ends or found[0] == ends[-1]


@pytest.mark.parametrize("unit", ["a", ".", ",", "。", "...x", "\n", " ", "\u0301", "\u200d", "🇫", "👩‍", "\x00", "日本"])
@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_texts_of_one_thing_make_progress(tokenizer, unit):
    text = "x" + unit * (40_000 // len(unit))  # anything that takes squared time takes minutes here
    pieces = Cutter(tokenizer, 256).cut(Sample("", text))
    assert "".join(piece.truth for piece in pieces) == text
    assert all(len(piece.tokens) <= 256 for piece in pieces)


class Texts:
    progress = None

    def __init__(self, texts):
        self.texts, self.place, self.skipped = texts, 0, Counter()

    def next(self):
        self.place += 1
        return Sample("", self.texts[self.place - 1]) if self.place <= len(self.texts) else None

    def state(self):
        return self.place


def test_a_text_without_tokens_is_counted(word_pieces):
    samples = Texts(["cats", "\u200b\u200e", "cat \x00 cats", "\u200b"])
    batcher = Batcher(samples, Cutter(word_pieces, 16).cut, 2)
    batches = list(iter(batcher.next, None))
    assert [sample.truth for batch in batches for sample in batch.samples] == ["cats", "cat \x00 cats"]
    assert sum(batch.empty for batch in batches) + batcher.empty == 2
