"""Which fields of a row are read as what, in files whose rows are not alike."""
from __future__ import annotations

import random
from itertools import permutations

import pytest
from files import few, write
from helpers import write_rows
from hypothesis import given
from hypothesis import strategies as st
from stages import open_data, open_stage, refused_data, truths

from lmplay.data.samples import BREAK
from lmplay.data.stream import describe_losses

FORMS = [("text",), ("body",), ("Content",), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"), ("messages",)]


def make_row(form: tuple[str, ...], number: int) -> dict:
    """Make a row of a form, whose truth is its number."""
    if form == ("messages",):
        return {"messages": [{"role": "user", "content": "well?"}, {"role": "assistant", "content": f"truth {number}"}]}
    return {**dict.fromkeys(form[:-1], f"about {number}"), form[-1]: f"truth {number}"}


@few
@given(forms=st.lists(st.sampled_from(FORMS), min_size=1, max_size=60), shards=st.integers(1, 4), seed=st.integers(0, 99))
def test_rows_of_any_forms_in_any_shards_are_all_read(tmp_path_factory, forms, shards, seed):
    folder = tmp_path_factory.mktemp("mix") / "in"
    folder.mkdir()
    draw = random.Random(seed)
    parts: list[list[dict]] = [[] for _ in range(shards)]
    for number, form in enumerate(forms):
        row = {"id": number, **make_row(form, number), **draw.choice([{}, {"title": None}, {"url": "u"}])}
        keys = list(row)
        draw.shuffle(keys)
        parts[draw.randrange(shards)].append({key: row[key] for key in keys})
    for number, part in enumerate(parts):
        write_rows(folder / f"{number}.jsonl", part)
    found, state = truths(open_data(folder))
    assert sorted(found) == sorted(f"truth {number}" for number in range(len(forms)))
    assert describe_losses(state) == []


def test_a_field_that_comes_late_is_read(tmp_path):
    rows = [{"instruction": f"do {i}", "output": f"done {i}", **({"input": f"with {i}"} if i >= 500 else {})} for i in range(1000)]
    data = open_data(write_rows(tmp_path / "a.jsonl", rows))
    stream = data.open_samples()
    assert [sample.prompt for sample in iter(stream.next, None)] == [f"do {i}{BREAK}" + (f"with {i}{BREAK}" if i >= 500 else "") for i in range(1000)]
    assert data.reads in [["a.jsonl: " + "; ".join(forms) + " of 200 rows looked at"] for forms in permutations(
        ["'instruction' → 'output' in 100", "'instruction' + 'input' → 'output' in 100"])]
    rows = [{"text": f"{i}", **({"title": f"T{i}"} if i == 900 else {})} for i in range(1000)]
    stream = open_data(write_rows(tmp_path / "b.jsonl", rows)).open_samples()
    assert {sample.prompt for sample in iter(stream.next, None)} == {"", f"T900{BREAK}"}


def test_columns_that_a_plan_names_are_trusted_where_rows_differ(tmp_path):
    rows = [{"a": "x"} for _ in range(999)] + [{"b": "the one"}]
    data = open_data(write_rows(tmp_path / "a.jsonl", rows), columns={"text": "b"})
    found, state = truths(data)
    assert found == ["the one"]
    assert describe_losses(state)[0].startswith("999 rows skipped: without 'b'")
    assert len(data.warnings) == 1
    assert "\"columns\" names 'b', which none of the 200 rows looked at has (their columns: a)" in data.warnings[0]
    write_rows(tmp_path / "few.jsonl", rows[:50])
    assert "maps text to 'c', which is not there" in refused_data(tmp_path / "few.jsonl", columns={"text": "c"})
    write(tmp_path / "a.csv", "heading,body\n1,2\n")
    assert "Did you mean 'body'?" in refused_data(tmp_path / "a.csv", columns={"text": "bodi"})


def test_one_stray_row_does_not_decide_for_the_others(tmp_path):
    rows = [{"prompt": "stray", "completion": "truth 0"}] + [{"instruction": "do", "output": f"truth {i}"} for i in range(1, 100)]
    data = open_data(write_rows(tmp_path / "a.jsonl", rows))
    assert truths(data)[0] == [f"truth {i}" for i in range(100)]
    assert data.reads == ["a.jsonl: 'instruction' → 'output' in 99; 'prompt' → 'completion' in 1 of all 100 rows"]
    assert data.warnings == []


def test_where_several_forms_fit_most_rows_decide(tmp_path):
    both = {"text": "whole", "instruction": "do", "output": "done"}
    assert truths(open_data(write_rows(tmp_path / "a.jsonl", [both] * 9)))[0] == ["whole"] * 9
    pairs = [{key: both[key] for key in ("instruction", "output")}] * 9
    assert truths(open_data(write_rows(tmp_path / "b.jsonl", [both, *pairs])))[0] == ["done"] * 10
    blank = [both] * 8 + [{**both, "text": value} for value in (None, "", " ")]
    assert truths(open_data(write_rows(tmp_path / "c.jsonl", blank)))[0] == ["whole"] * 8 + ["done"] * 3


def test_a_table_of_several_forms_is_read_row_by_row(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [{"text": f"text {i}" if i % 2 else None, "question": None if i % 2 else "q", "answer": None if i % 2 else f"answer {i}"} for i in range(20)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    expected = [f"text {i}" if i % 2 else f"answer {i}" for i in range(20)]
    assert truths(open_data(tmp_path / "a.parquet"))[0] == expected
    write(tmp_path / "a.csv", "text,question,answer\n" + "".join(",".join(value or "" for value in row.values()) + "\n" for row in rows))
    assert truths(open_data(tmp_path / "a.csv"))[0] == expected


def test_the_reasons_are_true(tmp_path):
    rows = [{"text": "good"}] * 6 + [{"text": None}, {"id": 1}, {"prompt": "no answer"}, {"text": ""}, {"text": 5}]
    data = open_data(write_rows(tmp_path / "a.jsonl", rows))
    _, state = truths(data)
    assert state["skipped"] == {"null": 1, "without 'text'": 2, "empty": 1, "not text": 1}
    assert "5 of all 11 rows give no sample: 2 without 'text' (such as" in data.warnings[0]
    rows = [{"prompt": "p", "chosen": "c", "rejected": "r"}]
    assert '"columns": {"prompt": "prompt", "truth": "chosen"}' in refused_data(write_rows(tmp_path / "b.jsonl", rows))


@pytest.mark.parametrize("share", [0, 0.05, 0.5])
def test_a_warning_comes_where_many_rows_are_skipped(tmp_path, share):
    rows = [{"text": "good"} if i >= share * 400 else {"txt": "?"} for i in range(400)]
    data = open_data(write_rows(tmp_path / "a.jsonl", rows))
    assert bool(data.warnings) == (share > 0.1)


def test_the_start_names_the_fields_that_are_not_read(tmp_path):
    rows = [{"id": i, "question": f"Why {i}?", "context": "a long story", "answer": "Because."} for i in range(30)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert open_stage(tmp_path, {"dataset": str(path)}).reads[1:] == ["a.jsonl: not read: id, context"]
    many = write_rows(tmp_path / "b.jsonl", [{"text": "a text", **{f"field{i}": i for i in range(9)}}])
    assert open_stage(tmp_path, {"dataset": str(many)}).reads[1:] == ["b.jsonl: not read: field0, field1, field2, field3, field4, field5 and 3 more"]
    assert open_stage(tmp_path, {"dataset": "builtin:tales", "samples": 5}).reads[1:] == []
