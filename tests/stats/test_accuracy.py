"""Word accuracy: words of the truth that were predicted at their own places, in any script, however tokens divide them."""
import json
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from helpers import TINY, load, sentences, write_plan, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import BPE, BYTES, PARTS, TEXTS, WHO

from lmplay.data.chat import Part
from lmplay.data.continuation import SMALLEST_CONTEXT, Cutter
from lmplay.data.samples import Sample
from lmplay.engine.evaluate import add_words
from lmplay.stats.accuracy import count_edits, count_right, edit_distance
from lmplay.train.__main__ import main


def learned_ids(piece):
    ids = piece.tokens[piece.n_prompt:]
    return ids if piece.learned is None else ids[piece.learned]


def count(piece, predicted):
    sums = {}
    add_words(sums, piece, np.asarray(predicted))
    return sums["words_right"], sums["words"]


def words(text):
    """Divide a text character by character; gives the characters' numbers of each word."""
    found, inside = [], False
    for i, c in enumerate(text):
        alone = any(low <= ord(c) <= high for low, high in ((0xe00, 0xeff), (0x1780, 0x17ff), (0x3040, 0x30ff), (0x3400, 0x9fff), (0xf900, 0xfaff)))
        part = (c.isalnum() or c == "_") and not alone
        if not c.isspace():
            if part and inside:
                found[-1].append(i)
            else:
                found.append([i])
        inside = part
    return found


def slowly(tokenizer, piece, wrong):
    """Count by bytes: a word is right when none of its bytes belongs to a token that is wrong."""
    owners = []
    for number, i in enumerate(learned_ids(piece).tolist()):
        if i != tokenizer.end_id:
            owners += [number] * (1 if tokenizer is BYTES else len(tokenizer._fast.id_to_token(i)))
    ends = np.cumsum([0] + [len(c.encode()) for c in piece.truth])
    assert ends[-1] == len(owners)
    right = [not wrong & {owner for c in word for owner in owners[ends[c]:ends[c + 1]]} for word in words_of(tokenizer, piece, ends.tolist())]
    return sum(right), len(right)


def words_of(tokenizer, piece, ends):
    """Divide the answers of a piece into words: one ends where tokens that are given, or an end token, stand before the next."""
    learned = piece.learned if piece.learned is not None else [True] * (len(piece.tokens) - piece.n_prompt)
    cuts, place = {0, len(piece.truth)}, 0
    for token, is_learned in zip(piece.tokens[piece.n_prompt:].tolist(), learned, strict=True):
        if not is_learned or token == tokenizer.end_id:
            cuts.add(ends.index(place))
        else:
            place += 1 if tokenizer is BYTES else len(tokenizer._fast.id_to_token(token))
    return [[begin + c for c in word] for begin, end in pairwise(sorted(cuts)) for word in words(piece.truth[begin:end])]


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@given(text=TEXTS.filter(str.strip), parts=PARTS, context=st.integers(SMALLEST_CONTEXT, 70), draw=st.data())
@settings(max_examples=150)
def test_a_word_is_right_when_each_of_its_tokens_is(tokenizer, text, parts, context, draw):
    cutter = Cutter(tokenizer, context)
    for piece in cutter.cut(Sample("", text)) + cutter.cut_parts(WHO, [], [Part("", False), *(part for part in parts if not part.markup)]):
        ids = learned_ids(piece)
        wrong = draw.draw(st.sets(st.integers(0, len(ids) - 1), max_size=6))
        predicted = [(i + 1) % 256 if number in wrong else i for number, i in enumerate(ids.tolist())]
        assert count(piece, predicted) == slowly(tokenizer, piece, wrong)
        assert count(piece, ids) == slowly(tokenizer, piece, set())


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_a_model_that_repeats_its_input_is_wrong(tokenizer):
    [piece] = Cutter(tokenizer, 1024).cut(Sample("", "The cat sat on the mat, and the dog who was big ran away; 日本語の文。" * 8))
    right, of_all = count(piece, piece.tokens[piece.n_prompt - 1:-1])
    assert of_all == 8 * 22
    assert right <= 2


@pytest.mark.parametrize(("truth", "borders", "right", "expected"), [
    ("the cat sat.", [0, 6, 14, 22, 24], [1, 0, 1, 1], (3, 4)),  # a token has the space before its word
    ("the cat", [0, 6, 14], [1, 1, 0], (2, 2)),  # the end token is no word's
    ("111", [0, 4, 4, 6], [1, 0, 1, 0], (2, 2)),  # nor is one between two answers, which are words of their own
    ("111", [0, 4, 4, 6], [0, 1, 1, 1], (1, 2)),
    ("Don't 我喜歡 naïve, 3.5!", [0, 42], [0], (0, 12)),
    ("cats and", [0, 5, 8, 16], [0, 1, 1], (1, 2)),
    ("我喜", [0, 1, 3, 4], [1, 1, 0], (1, 2)),  # the second token has the end of one character and the beginning of the next
    ("我喜", [0, 1, 3, 4], [1, 0, 1], (0, 2)),
    ("a b", [0, 2, 4, 6], [1, 0, 1], (2, 2)),  # only white space is wrong
    ("", [0], [1], (0, 0)),
])
def test_what_is_counted(truth, borders, right, expected):
    assert count_right(truth, np.array(borders), np.array(right, dtype=bool)) == expected


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("end", [True, False])
def test_no_word_goes_on_from_one_answer_of_a_chat_to_the_next(tokenizer, end):
    parts = [Part("It is 42"), *[Part("", end=True)] * end, Part(" user: And? assistant: ", False), Part("7 or so")]
    [piece] = Cutter(tokenizer, 256).cut_parts(WHO, [], parts)
    assert piece.truth == "It is 427 or so"
    assert piece.answers == ["It is 42", "7 or so"]
    ids = learned_ids(piece)
    assert count(piece, ids) == (6, 6)
    wrong = np.where(np.arange(len(ids)) == piece.answer_starts[0], 5, ids)
    assert count(piece, wrong) == (5, 6)


def test_vocabularies_of_words(word_pieces):
    [piece] = Cutter(word_pieces, 16).cut(Sample("", "cat cats \x00 cats"))
    assert count(piece, learned_ids(piece))[0] == len(words(piece.truth))
    assert count(piece, [1, 1, 0, 1, 2, 0]) == (len(words(piece.truth)) - 1, len(words(piece.truth)))


def test_an_untrained_model_has_hardly_a_word_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(40)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "samples": 8}})
    assert main([*TINY, "--tied-head", "--lr", "1e-9", "--training-plan", "plan.json", "--batch-size", "4", "--validation-interval", "4"]) == 0
    for kind in ("train", "validate"):
        [path] = tmp_path.glob(f"out_gpt/*_model_{kind}_stats.json")
        accuracy = json.loads(path.read_text())["columns"]["accuracy"]
        assert accuracy
        assert max(accuracy) < 0.1


WORDS = st.lists(st.sampled_from(["a", "b", "c", "the", "."]), max_size=12)


@given(WORDS, WORDS)
def test_edit_distance_is_that_of_the_recursion(one, other):
    @lru_cache
    def distance(i, j):
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (one[i - 1] != other[j - 1]))

    expected = distance(len(one), len(other))
    assert edit_distance(one, other) == expected
    most = max(len(one), len(other))
    assert count_edits(" ".join(one), " ".join(other)) == (most - expected, most)


@given(WORDS, WORDS)
def test_the_package_and_its_replacement_agree(one, other):
    package = pytest.importorskip("editdistance")
    assert edit_distance(one, other) == package.eval(one, other)


def test_the_accuracy_of_training_goes_over_as_many_pieces_as_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for i in range(20)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "steps": 2, "validation": 0}})
    each = len(words(sentences(1)))
    for pieces, found in ((None, 4), (0, 0), (6, 6), (100, 8)):
        flags = [] if pieces is None else ["--accuracy-pieces", str(pieces)]
        assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "8", "--reset-history", *flags]) == 0
        rows = load(tmp_path / "out_gpt" / "gpt2ish_model.lmp")["runner"]["state"]["stats"]["train"]["rows"]
        assert rows["words"] == [each * found] * 2
