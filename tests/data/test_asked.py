"""Rows about the tales: the same ones each time, and their answers are true."""
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.data.sources import open_source
from lmplay.data.tales.asked import COLUMNS, Asked
from lmplay.plan.schema import SourceSpec

INDEX = st.integers(0, 10**12)


@given(st.sampled_from([*COLUMNS]), st.integers(0, 9), INDEX)
def test_a_row_follows_from_kind_seed_and_number(kind, seed, index):
    row = Asked(kind, seed)[index]
    assert row == Asked(kind, seed)[index]
    assert tuple(row) == COLUMNS[kind]


@given(INDEX)
def test_the_answer_stands_in_the_story(index):
    row = Asked("questions")[index]
    story, question = row["prompt"].rsplit("\n\n", 1)
    named = re.fullmatch(r"(?:The story is about (\w+)|(\w+))\.|(?:It was t|T)he (\w[\w -]*)\.", row["answer"])
    name = next(filter(None, named.groups()))
    assert name in story
    assert question.endswith("?")


@given(INDEX)
def test_of_a_pair_the_sentence_is_chosen(index):
    row = Asked("preferences")[index]
    assert row["chosen"] != row["rejected"]
    assert row["chosen"].endswith(row["rejected"][0].lower() + row["rejected"][1:]) or row["chosen"].endswith(row["rejected"])


@given(INDEX)
def test_sums_are_right(index):
    row = Asked("sums")[index]
    one, other = map(int, re.findall(r"\d+", row["prompt"]))
    assert row["answer"] == str(one + other)


def test_rows_differ_and_both_styles_of_answers_come():
    rows = [Asked("questions")[index] for index in range(200)]
    assert len({row["prompt"] for row in rows}) == 200
    assert 60 < sum(len(row["answer"].split()) > 2 for row in rows) < 140
    assert len({Asked("sums")[index]["prompt"] for index in range(1000)}) == 100
    assert Asked("sums")[0] != Asked("sums", 1)[0]


@pytest.mark.parametrize("kind", COLUMNS)
def test_they_are_sources(kind, tmp_path):
    source = open_source(SourceSpec(path=f"builtin:{kind}?seed=3"), "train", tmp_path)
    assert source[5] == Asked(kind, 3)[5]
    assert source.columns == COLUMNS[kind]
    assert source.fingerprint != open_source(SourceSpec(path=f"builtin:{kind}"), "train", tmp_path).fingerprint
    assert open_source(SourceSpec(path=f"builtin:{kind}"), "validation", tmp_path) is None
    with pytest.raises(IndexError):
        source[-1]
