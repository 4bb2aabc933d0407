"""JSON lines, JSON, CSV and TSV: the rows by number are what the plain parsers read one after the other."""
from __future__ import annotations

import csv
import io
import json

import pytest
from files import few, lines, opened, refused, row_or_reason, rows_of, write
from hypothesis import given
from hypothesis import strategies as st

from lmplay.errors import UserError

values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda part: st.lists(part, max_size=3), max_leaves=5)
objects = st.dictionaries(st.text(max_size=5), values, max_size=3)


@few
@given(records=st.lists(st.tuples(objects | st.text(max_size=5) | st.integers() | st.none(), st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n"])), min_size=1),
       lead=st.sampled_from(["", "\ufeff", "\n\n", " \n", "\ufeff\r\n"]), end=st.booleans(), ascii_only=st.booleans())
def test_json_lines_are_what_the_json_module_reads(tmp_path, folder, records, lead, end, ascii_only):
    text = lead + "".join(json.dumps(value, ensure_ascii=ascii_only) + newline for value, newline in records)
    path = write(tmp_path / "a.jsonl", (text if end else text.rstrip()).encode())
    plain = [json.loads(line) for line in path.read_text("utf-8-sig").split("\n") if line.strip(" \t\r")]
    expected = [value if isinstance(value, dict) else "no JSON object" for value in plain]
    if all(value == "no JSON object" for value in expected[:20]):
        assert "is no JSON object" in refused(path, folder)
        return
    source = opened(path, folder)
    assert source.n_rows == len(expected) == len(records)
    assert [row_or_reason(source, i) for i in reversed(range(source.n_rows))] == expected[::-1]


fields = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.sampled_from(["a,b", 'say "x"', "two\nlines", "a\tb", ""])


@few
@given(header=st.lists(st.text("abcdé", min_size=1, max_size=4), min_size=1, max_size=4, unique=True), data=st.data(), bom=st.booleans(),
       form=st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\n", csv.QUOTE_ALL)]), suffix=st.sampled_from(["csv", "tsv"]))
def test_csv_records_are_what_the_csv_module_reads(tmp_path, folder, header, data, bom, form, suffix):
    records = data.draw(st.lists(st.lists(fields, min_size=1, max_size=len(header)), min_size=1, max_size=12))
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="," if suffix == "csv" else "\t", lineterminator=form[0], quoting=form[1])
    writer.writerows([header, *records])
    path = write(tmp_path / f"a.{suffix}", ("\ufeff" if bom else "") + text.getvalue() + data.draw(st.sampled_from(["", "\n", "\n\r\n"])))
    with open(path, newline="", encoding="utf-8-sig") as file:
        expected = [dict(row) for row in csv.DictReader(file, delimiter="," if suffix == "csv" else "\t")]
    source = opened(path, folder)
    assert source.columns == tuple(header)
    assert [source[i] for i in reversed(range(source.n_rows))] == expected[::-1]


def test_a_csv_value_may_be_as_long_as_an_article(tmp_path, folder):
    article = "word " * 60_000
    assert rows_of(opened(write(tmp_path / "a.csv", f'title,text\none,"{article}"\n'), folder)) == [{"title": "one", "text": article}]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_quote_that_is_never_closed_is_refused_with_its_line(tmp_path, folder, separator):
    rows = [f"plain row {i}{separator}{i}" for i in range(200)]
    path = write(tmp_path / "a.csv", "\n".join([f"text{separator}label", *rows[:50], f'"tall row{separator}50', *rows[51:]]) + "\n")
    assert "line 52: a quote is opened here that is not closed" in refused(path, folder)
    assert "a quote is opened" in refused(write(tmp_path / "c.csv", 'a,b\n"Tom" said,"x\n2,y\n3,z\n'), folder)
    whole = opened(write(tmp_path / "b.csv", "\n".join([f"text{separator}label", *rows, f'5 " tall{separator}1', f'"two\nlines"{separator}2'])), folder)
    assert whole.n_rows == 202


@pytest.mark.parametrize(("text", "expected"), [
    ('[{"a": 1}, "b", 3]', [{"a": 1}, {"text": "b"}, "no JSON object"]),
    ('{"version": 2, "data": [{"a": 1}]}', [{"a": 1}]),
    ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
    ('\ufeff[{"a": "ä"}]', [{"a": "ä"}]),
])
def test_json_is_an_array_an_object_with_one_or_lines(tmp_path, folder, text, expected):
    source = opened(write(tmp_path / "a.json", text), folder)
    assert [row_or_reason(source, i) for i in range(source.n_rows)] == expected


def test_columns_are_those_of_the_first_rows(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", '{"a": 1}\n{"b": 1, "a": 2}\n' + '{"a": 3}\n' * 30 + '{"late": 1}\n')
    assert opened(path, folder).columns == ("a", "b")


def test_rows_outside_are_index_errors(tmp_path, folder):
    source = opened(write(tmp_path / "a.jsonl", lines("x", "y")), folder)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            source[index]


def test_a_broken_line_far_in_is_named_when_it_is_read(tmp_path, folder):
    source = opened(write(tmp_path / "a.jsonl", lines(*"x" * 50) + "\n{oops}\n" + lines("y")), folder)
    assert source[51] == {"text": "y"}
    with pytest.raises(UserError, match=r"a\.jsonl, line 52: not valid JSON"):
        source[50]


def test_a_table_of_one_column_may_have_commas_in_it(tmp_path, folder):
    texts = ["Hello, world", "one", 'He said "no", and went', "a, b, c"]
    source = opened(write(tmp_path / "a.csv", "text\n" + "".join(f"{text}\n" for text in texts)), folder)
    assert rows_of(source) == [{"text": text} for text in texts]
