"""Pieces: nothing lost, all of them fit, and of chats the answers are learned and nothing else.  Invariants 1 and 2."""
from itertools import accumulate

import pytest
import regex
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from texts import BPE, BYTES, CLUSTERS, FEW, PARTS, PIECES, TEXTS, WHO, learned_of

from lmplay.data.chat import Part
from lmplay.data.continuation import SMALLEST_CONTEXT, Cutter
from lmplay.data.samples import BREAK, Sample
from lmplay.data.sentences import Cut

LONG_TEXTS = st.text(st.sampled_from("abc .,!?\n日。本न।é🎉\u0301\u200d👩\r\t\"'ABC012"), min_size=1, max_size=400).filter(str.strip)


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("estimate", [False, True])
@given(text=LONG_TEXTS, title=st.sampled_from(["", "T\n\n", "A long title, longer than the context " * 3]), context=st.integers(SMALLEST_CONTEXT, 80))
@settings(max_examples=60)
def test_pieces_hold_the_text_and_fit(tokenizer, estimate, text, title, context):
    pieces = Cutter(tokenizer, context, estimate).cut(Sample(title, text))
    assert "".join(piece.truth for piece in pieces) == text  # invariant 1
    learned = [int(i) for piece in pieces for i in piece.tokens[piece.n_prompt:]]
    assert learned == [*tokenizer.encode(text).ids.tolist(), tokenizer.end_id]
    for piece in pieces:
        assert len(piece.tokens) <= context  # invariant 2
        assert piece.n_prompt >= 1
        assert piece.n_truth >= 1
        assert piece.last == (piece is pieces[-1])
    assert [piece.number for piece in pieces] == list(range(len(pieces)))


# Sentences, each with the white space behind it: prose, indented and bulleted text, code.
WORDS = st.lists(st.sampled_from(["the", "cat", "naïve", "don't", "(or so)", "x=f(y)", "3.5", "well-known", "日本語", "It"]),
                 min_size=2, max_size=7).map(" ".join)
SENTENCES = st.builds("{}{}{}".format, st.sampled_from(["The ", "“Say, ", "- A ", "* One ", "Def ", "    # To "]).flatmap(lambda head: WORDS.map(head.__add__)),
                      st.sampled_from([".", "!", "?", "...", ".)", "?”", "。"]),
                      st.sampled_from([" ", "  ", "\n", "\n    ", "\r\n\r\n", "\r", "\n\n\t\t", "\n \n  "]))


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, PIECES, FEW], ids=["bytes", "bpe", "pieces", "few"])
@given(sentences=st.lists(SENTENCES, min_size=6, max_size=14), context=st.integers(48, 130))
@settings(max_examples=80, deadline=None, phases=[Phase.generate])
def test_pieces_end_between_sentences_and_never_within_a_word(tokenizer, sentences, context):
    text = "".join(sentences)
    ends = list(accumulate(map(len, sentences)))
    gaps = [(len(text[:end].rstrip()), len(text) - len(text[end:].lstrip())) for end in ends]
    encoded = tokenizer.encode(text)
    whole = [start for start, cuttable in zip(encoded.starts.tolist(), encoded.cuttable.tolist(), strict=True)
             if cuttable and text[start - 1:start + 1] != "\r\n"]
    position = token = 0
    for piece in Cutter(tokenizer, context).cut(Sample("", text))[:-1]:
        begin, position = position, position + len(piece.truth)
        between = any(first <= position <= last for first, last in gaps)
        reach = encoded.starts[token + context - 1 - piece.n_prompt]
        borders = [start for start in whole if begin < start <= reach]
        if not encoded.cuttable[token + context - 1 - piece.n_prompt]:
            borders = [start for start in borders if start < reach]
        token += piece.n_truth
        fitting = [start for start in borders if any(begin < first <= start <= last for first, last in gaps[:-1])]
        assert piece.truth.strip()
        assert between == (piece.cut == Cut.SENTENCE) == bool(fitting)
        assert not fitting or position == max(fitting)
        if piece.cut in (Cut.CLAUSE, Cut.WORD):
            assert text[position - 1].isspace() or text[position].isspace() or not (text[position - 1] + text[position]).isalnum()


@pytest.mark.parametrize("text", ["Words go here. " * 30 + "\n\n", "   \n\n" + "Words go here. " * 30, ("One two\n" * 3 + "\n" * 9) * 9, "日本語" * 99 + "\n"])
@pytest.mark.parametrize("tokenizer", [BYTES, BPE, PIECES, FEW], ids=["bytes", "bpe", "pieces", "few"])
def test_no_piece_is_white_space_alone(tokenizer, text):
    pieces = Cutter(tokenizer, 64).cut(Sample("", text))
    assert "".join(piece.truth for piece in pieces) == text
    assert all(piece.truth.strip() for piece in pieces)


def test_a_continuation_is_told_what_came_before():
    text = "The cat sat on the mat. " * 20
    first, second, *_ = Cutter(BYTES, 100).cut(Sample("Cats" + BREAK, text))
    prompt = BYTES.decode(second.tokens[:second.n_prompt])
    assert prompt.startswith("Cats" + BREAK + "...")
    assert first.truth.endswith(prompt.removeprefix("Cats" + BREAK + "..."))
    assert first.cut == Cut.SENTENCE


@given(prompt=st.integers(1, 200), truth=st.integers(1, 200), context=st.integers(SMALLEST_CONTEXT, 200))
@example(prompt=80, truth=19, context=100)
@example(prompt=80, truth=20, context=100)
def test_a_prompt_is_whole_where_the_sample_fits(prompt, truth, context):
    given_text = ("word " * 40)[:prompt]
    first, *_ = Cutter(BYTES, context).cut(Sample(given_text, "x" * truth))
    shown = BYTES.decode(first.tokens[:first.n_prompt])
    assert given_text.endswith(shown)
    assert first.prompt_lost == prompt - len(shown)
    if prompt <= context // 2 or prompt + truth + 1 <= context:
        assert shown == given_text
    else:
        assert len(shown) >= min(context // 2 - 5, prompt)
        assert shown[0] == " " or len(shown) == context // 2  # the beginning of a word, where one is within reach


@pytest.mark.parametrize("end", ["\n\n", ""])
def test_a_long_prompt_without_spaces_keeps_half_of_the_context(end):
    first, *_ = Cutter(BYTES, 256).cut(Sample("日本語の長い文章です" * 20 + end, "x" * 300))
    assert 256 // 2 - 3 <= first.n_prompt <= 256 // 2
    assert BYTES.decode(first.tokens[:first.n_prompt]).replace("\ufffd", "").endswith("文章です" + end)


def test_a_long_answer_of_a_chat_is_divided_and_the_end_of_a_question_is_no_title():
    asked = "Why is that so, and not the other way about? "
    parts = [Part(asked, False), Part("Yes."), Part("", end=True), Part("More? ", False), Part("It goes on. " * 30), Part("", end=True)]
    first, second, *_ = Cutter(BYTES, 100).cut_parts(WHO, parts[:1], parts[1:])
    assert first.truth.startswith("Yes.It goes on.")  # it is longer than a piece with its question: what is left of the first one is filled
    assert BYTES.decode(second.tokens[:second.n_prompt]).startswith("...")


@given(turns=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8), context=st.integers(80, 160))
def test_an_answer_of_a_chat_comes_with_what_it_answers(turns, context):
    parts = [part for number, (asked, answered) in enumerate(turns) for part in
             (Part(f"<{number}" + "q" * asked, learned=False), Part(f"{number}>" + "a" * answered), Part("", end=True))]
    for piece in Cutter(BYTES, context).cut_parts(WHO, parts[:1], parts[1:]):
        shown = BYTES.decode(piece.tokens)
        for number in range(len(turns)):
            assert f"{number}>" not in piece.truth or f"<{number}" in shown
        assert piece.prompt_lost == 0


def test_the_estimate_counts_words():
    text = "the " * 400
    pieces = Cutter(BPE, 120, estimate=True).cut(Sample("", text))
    assert len(pieces[0].truth.split()) == int((120 - 1 - 1) / 1.5)


def ids_of(tokenizer, part):
    if part.end:
        return [tokenizer.end_id]
    return (tokenizer.encode_markup if part.markup else tokenizer.encode)(part.text).ids.tolist()


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@given(given=PARTS | st.just([]), truth=PARTS, context=st.integers(SMALLEST_CONTEXT, 70))
@settings(max_examples=150)
def test_of_a_chat_the_answers_are_learned_once_and_nothing_else(tokenizer, given, truth, context):
    pieces = Cutter(tokenizer, context).cut_parts(WHO, given, truth)
    answers = [part for part in truth if part.learned]
    expected = [i for part in answers for i in ids_of(tokenizer, part)]
    ending = next((part.learned for part in reversed(truth) if ids_of(tokenizer, part)), False)
    expected += [tokenizer.end_id] * ending
    if not any(ids_of(tokenizer, part) for part in answers):
        assert pieces == []
        return
    learned = [i for piece in pieces for i in learned_of(piece)]
    assert tokenizer.decode(learned) == tokenizer.decode(expected)  # a template's parts may share tokens
    assert learned.count(tokenizer.end_id) == expected.count(tokenizer.end_id)
    assert learned == expected or any(part.markup for part in given + truth)
    assert sum(piece.n_truth for piece in pieces) == len(learned)
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


def test_what_only_leads_to_an_answer_is_its_prompt():
    parts = [Part("I like cats. "), Part("", end=True), Part("Say more. " * 30, False), Part("They purr.")]
    pieces = Cutter(BYTES, 64).cut_parts(WHO, [Part("Cats? ", False)], parts)
    assert [piece.truth for piece in pieces] == ["I like cats. ", "They purr."]
    assert "Say more." in BYTES.decode(pieces[1].tokens[:pieces[1].n_prompt]) + BYTES.decode(pieces[1].tokens[pieces[1].n_prompt:])
    assert pieces[1].last


@given(st.lists(st.sampled_from([cluster for cluster in CLUSTERS if cluster not in ("\u200d", "\u0600١")]), min_size=20, max_size=120).map("".join),
       st.integers(80, 120))
@settings(max_examples=60)
def test_pieces_end_between_visible_characters(text, context):
    starts = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    position = 0
    for piece in Cutter(BYTES, context).cut(Sample("", text)):
        position += len(piece.truth)
        assert position in starts


@pytest.mark.parametrize("unit", ["a", ".", ",", "。", "...x", "\n", " ", "\u0301", "\u200d", "🇫", "👩‍", "\x00", "日本"])
@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_texts_of_one_thing_make_progress(tokenizer, unit):
    text = "x" + unit * (40_000 // len(unit))  # anything that takes squared time takes minutes here
    pieces = Cutter(tokenizer, 256).cut(Sample("", text))
    assert "".join(piece.truth for piece in pieces) == text
    assert all(len(piece.tokens) <= 256 for piece in pieces)
