"""Bytes and characters of any kind: every row that can be read comes, and what is replaced is counted."""
from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from files import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stages import open_data, refused_data, truths

from lmplay.data.stage import StageData
from lmplay.data.stream import describe_losses
from lmplay.errors import UserError
from lmplay.plan.schema import Stage

few = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
junk = st.one_of(st.binary(max_size=12), st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b'"', b"{", b"}", b"\xff\xfe", b"\xef\xbb\xbf", b",", b"\\u00", b"[1]",
                                                          b'{"text": null}', b'{"text": 3}', b'{"other": "x"}', b"null", b'{"text": "\xc3"}']))


@few
@given(parts=st.lists(junk, max_size=12))
def test_any_bytes_are_a_text(tmp_path, parts):
    path = write(tmp_path / "a.txt", b"".join(parts))
    try:
        found, state = truths(open_data(path))
    except UserError as error:
        said = str(error)
        begins_as_another_kind = "which is not read" in said or path.read_bytes().startswith((b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
        assert "UTF-16" in said or "no rows" in said or begins_as_another_kind
        return
    text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    assert "".join(found) == (text if text.strip() else "")
    replaced = text.count("\ufffd") - path.read_bytes().count("\ufffd".encode())
    assert not text.strip() or state["replaced"] == ({"rows": 1, "characters": replaced} if replaced else {})


@few
@given(parts=st.lists(st.one_of(junk, st.text(max_size=6)), min_size=1, max_size=30))
def test_lines_of_any_bytes_lose_no_row_that_is_valid(tmp_path, parts):
    """Texts become valid rows; what stands between them is anything that has no line end."""
    rows = [json.dumps({"text": part}, ensure_ascii=False).encode() if isinstance(part, str) else part.replace(b"\n", b" ") for part in parts]
    path = write(tmp_path / "a.jsonl", b"\n".join(rows))
    valid = [part for part in parts if isinstance(part, str) and part.strip()]
    try:
        found, state = truths(open_data(path))
    except UserError as error:
        another_kind = any(words in str(error) for words in ("which is not read", "UTF-16", "cannot be unpacked"))
        assert not valid or another_kind or all(isinstance(part, bytes) for part in parts if part)
        return
    remaining = iter(found)
    assert all(text in remaining for text in valid)  # all of them, in order
    n_lines = sum(bool(line.strip(b" \t\r\n")) for line in path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    assert len(found) + sum(state["skipped"].values()) == n_lines


@few
@given(parts=st.lists(st.one_of(junk, st.sampled_from([b"text", b"one two", b",", b"\n", b"a\tb", "é".encode()])), max_size=30))
def test_any_bytes_are_records_as_the_csv_module_reads_them(tmp_path, parts):
    path = write(tmp_path / "a.csv", b"text\n" + b"".join(parts))
    records = [record for record in csv.reader(io.StringIO(path.read_bytes().decode("utf-8", "replace"), newline="")) if record]
    expected = [text for record in records[1:] if (text := ",".join(record)).strip()]  # the only column has the whole line
    try:
        found, state = truths(open_data(path))
    except UserError as error:
        said = str(error)
        assert not expected or "UTF-16" in said or "a quote is opened here" in said
        return
    assert found == expected
    assert "too many values" not in state["skipped"]


@pytest.mark.parametrize("text", ["a\r\nb\r\n", "nul\0 here", "\u200bzero\u200d width\u2060",
                                  "\u202eright to left\u202c שלום \u200fمرحبا", "👩‍👩‍👧‍👦🇫🇷e\u0301", "\x1a\x1b[0m\x7f",
                                  "\ufffd was there", "\u2028line\u2029"])
@pytest.mark.parametrize("form", ["txt", "jsonl", "csv", "json"])
def test_strange_text_comes_as_it_is(tmp_path, text, form):
    content = io.StringIO(newline="")
    csv.writer(content).writerows([["text"], [text]])
    written = {"txt": text, "csv": content.getvalue(), "jsonl": json.dumps({"text": text}, ensure_ascii=False), "json": json.dumps([{"text": text}])}[form]
    for mark in ("", "\ufeff"):
        found, state = truths(open_data(write(tmp_path / f"a.{form}", mark + written)))
        assert (found, state["skipped"], state["replaced"]) == ([text], {}, {})


def test_a_line_of_five_megabytes(tmp_path):
    text = "word and wörd " * 400_000
    for name, data in {"a.jsonl": json.dumps({"text": text}) + "\n" + json.dumps({"text": "next"}), "b.csv": f"text\n{text}\nnext\n"}.items():
        assert truths(open_data(write(tmp_path / name, data)))[0] == [text, "next"]
    assert "".join(truths(open_data(write(tmp_path / "c.txt", text)))[0]) == text


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    rows = [b'{"text": "caf\xe9 \xef\xbf\xbd \xff\xff"}', b'{"text": "plain"}', b'{"text": "\xc3"}']
    found, state = truths(open_data(write(tmp_path / "a.jsonl", b"\n".join(rows))))
    assert found == ["caf\ufffd \ufffd \ufffd\ufffd", "plain", "\ufffd"]
    assert state["replaced"] == {"rows": 2, "characters": 4}  # one was meant
    assert describe_losses(state) == ["2 rows with bytes that are not UTF-8 (4 characters replaced)"]
    found, state = truths(open_data(write(tmp_path / "b.csv", b"text\ncaf\xe9\nb\n")))
    assert (found, state["replaced"]) == (["caf\ufffd", "b"], {"rows": 1, "characters": 1})
    found, state = truths(open_data(write(tmp_path / "c.json", b'[{"text": "caf\xe9"}, {"text": "b"}]')))
    assert (found, state["replaced"]) == (["caf\ufffd", "b"], {"rows": 1, "characters": 1})


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.json", "a.txt.gz"])
def test_bytes_that_are_not_utf8_can_be_refused_before_anything_is_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr("lmplay.data.sources.spans._LOOK", 1001)  # cuts inside characters
    good = "text\n" + "wörd\n" * 5000
    for data, line in ((good.encode()[:9] + b"\xe9 x", 2), (good.encode() + b"x\xc3", 5002)):
        path = write(tmp_path / name, gzip.compress(data, 1) if name.endswith("gz") else data)
        with pytest.raises(UserError, match=rf"{name}, line {line}: byte .* is not UTF-8"):
            open_data(path, encoding_errors="refuse")
    write(tmp_path / name, gzip.compress("text\nwörd".encode()) if name.endswith("gz") else "text\nwörd")
    if "txt" in name:
        assert truths(open_data(tmp_path / name, encoding_errors="refuse"))[0] == ["text\nwörd"]


def test_parquet_with_bytes_that_are_not_utf8(tmp_path):
    import pyarrow
    from pyarrow import parquet

    array = pyarrow.array([b"caf\xe9", b"good", None]).cast(pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": array, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    found, state = truths(open_data(tmp_path / "a.parquet"))
    assert (found, state["replaced"], state["skipped"]) == (["caf\ufffd", "good"], {"rows": 1, "characters": 1}, {"null": 1})
    assert "a.parquet, row 1: holds bytes that are not UTF-8" in refused_data(tmp_path / "a.parquet", encoding_errors="refuse")


def test_encodings_are_for_local_files():
    with pytest.raises(UserError, match="'encoding_errors' is for local files"):
        StageData(Stage.model_validate({"name": "one", "dataset": {"path": "builtin:tales", "encoding_errors": "refuse"}, "samples": 1}), Path("nowhere"), 0)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.json"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_utf_16_is_refused_with_and_without_a_mark(tmp_path, name, encoding):
    content = {"a.txt": "hello world " * 20, "a.csv": "text\n" + "hello world\n" * 20}.get(name, '{"text": "hello world, no mark"}\n' * 9)
    assert "is UTF-16 text; save it as UTF-8" in refused_data(write(tmp_path / name, content.encode(encoding)))


def test_a_few_zeros_are_no_other_encoding(tmp_path):
    found, _ = truths(open_data(write(tmp_path / "a.txt", b"hello\0world\0\0\0 " * 20)))
    assert "".join(found).startswith("hello\0world")
