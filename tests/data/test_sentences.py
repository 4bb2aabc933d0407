"""Where a text may be cut: at sentence ends of many languages, never within a visible character."""
from itertools import accumulate, pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import CLUSTERS, sentence_ends

from lmplay.data.sentences import Cut, last_cut, splits_character


@pytest.mark.parametrize("sentences", [
    ["Dr. Smith paid 3.5 dollars to J. R. Hall, e.g. in cash."," He left!", ' "Stop!" he said.', " Then he came back…", " Why?!"],
    ["我喜欢猫。", "你呢？", "「好。」", "他说完了！"],
    ["هل أنت بخير؟", " نعم أنا بخير.", " شكرا۔"],
    ["यह एक वाक्य है।", " यह दूसरा है॥"],
    ["Τι κάνεις;  Καλά.", " Ναι."],
    ["A heading\n\n", "1. First item of a list.\n\n", "The end."],
    ["The U.S. army came at 5 p.m. on Jan. 5.", " It cost No. 7 dearly."],
])
def test_sentence_ends(sentences):
    text, ends = "".join(sentences), [0, *accumulate(map(len, sentences))]
    for begin, end in pairwise(ends):
        assert last_cut(text, begin, end) == (end, Cut.SENTENCE)
        assert (last_cut(text, begin, end - 1) or (0, None))[1] != Cut.SENTENCE  # none within


def test_visible_characters_are_not_divided():
    family, flags = "👨‍👩‍👧", "🇫🇷🇩🇪"
    assert all(splits_character(family, i) for i in range(1, len(family)))
    assert [splits_character(flags, i) for i in (1, 2, 3)] == [True, False, True]
    assert splits_character("e\u0301", 1)
    assert splits_character("a\r\nb", 2)
    assert not splits_character("ab", 1)


@given(st.lists(st.sampled_from([*CLUSTERS, *"".join(CLUSTERS)]), min_size=1, max_size=14).map("".join))
@settings(max_examples=400)
def test_no_cluster_of_unicode_is_divided(text):
    starts = {match.start() for match in regex.finditer(r"\X", text)}
    for position in range(1, len(text)):
        assert position in starts or splits_character(text, position)


def test_ordinary_text_may_be_cut_anywhere():
    text = "The cat, 12 times. 日本語の文。Größe שלום ไทย 🎉🎉 Ελλ"
    assert [i for i in range(1, len(text)) if splits_character(text, i)] == []


@given(st.text(st.sampled_from("ab .!?。,、\n\")\r\u0301"), max_size=60), st.integers(0, 60))
@settings(max_examples=200)
def test_where_a_search_starts_does_not_matter(text, start):
    ends = [end for end in sentence_ends(text) if end > start]
    found = last_cut(text, start, len(text)) if start < len(text) else None
    assert (found is not None and found[1] == Cut.SENTENCE) == bool(ends)
    assert not ends or found[0] == ends[-1]
