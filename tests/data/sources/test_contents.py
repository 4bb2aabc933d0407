"""What a file is read as: its first bytes decide, not its name."""
from __future__ import annotations

import gzip
import json

import pytest
from files import few, lines, opened, refused, rows_of, write
from hypothesis import given
from hypothesis import strategies as st
from stages import open_data, truths

ROWS = [{"text": "one, two"}, {"text": "three\nfour", "n": 1}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def forms() -> dict[str, bytes]:
    """Write the same rows in every format."""
    import pyarrow

    table = pyarrow.Table.from_pylist([{"text": row["text"]} for row in ROWS])
    parquet, arrow, stream = pyarrow.BufferOutputStream(), pyarrow.BufferOutputStream(), pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, parquet)
    for sink, kind in ((arrow, pyarrow.ipc.new_file), (stream, pyarrow.ipc.new_stream)):
        with kind(sink, table.schema) as writer:
            writer.write_table(table)
    found = {"parquet": parquet, "arrow": arrow, "arrow stream": stream}
    packed = {"gzip": gzip.compress(LINES.encode()), "zstd": pyarrow.compress(LINES.encode(), codec="zstd", asbytes=True)}
    return {**{name: sink.getvalue().to_pybytes() for name, sink in found.items()}, **packed,
            "jsonl": LINES.encode(), "pretty array": json.dumps(ROWS, indent=2).encode(), "pretty object": json.dumps({"data": ROWS}, indent=2).encode(),
            "pretty objects": "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(), "array in a line": json.dumps(ROWS).encode()}


@pytest.fixture(scope="module")
def written():
    pytest.importorskip("pyarrow.parquet")
    return forms()


SUFFIXES = [".jsonl", ".json", ".parquet", ".csv", ".jsonl.gz", ".json.zst", ".bin", ""]

@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("form", ["parquet", "arrow", "arrow stream", "gzip", "zstd", "jsonl", "pretty array", "pretty object", "pretty objects",
                                  "array in a line"])
def test_a_file_under_any_name_is_read_as_what_it_holds(tmp_path, folder, written, form, suffix):
    if "array" in form and suffix == ".csv":
        pytest.skip("a list in brackets may be the header of a table")
    path = write(tmp_path / f"rows{suffix}", written[form])
    assert [row["text"] for row in rows_of(opened(path, folder))] == [row["text"] for row in ROWS]


REFUSED = {"zip": b"PK\x03\x04" + bytes(60), "PDF": b"%PDF-1.7\n", "bzip2": b"BZh91AY&SY" + bytes(9), "xz": b"\xfd7zXZ\x00\x00", "SQLite": b"SQLite format 3\0",
           "picture": b"\x89PNG\r\n\x1a\n"}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".parquet", ".txt.gz"])
def test_what_is_not_read_is_named(tmp_path, folder, kind, suffix):
    line = refused(write(tmp_path / f"a{suffix}", REFUSED[kind]), folder)
    assert kind in line.partition("which is not read")[0]


def test_messages_about_wrong_names_say_what_is_wrong(tmp_path, folder):
    assert "is not a Parquet file" in refused(write(tmp_path / "a.parquet", "Some words.\n"), folder)
    assert "damaged or cut off" in refused(write(tmp_path / "a.jsonl.gz", gzip.compress(LINES.encode() * 100)[:-9]), folder)
    assert "'.bin' files are not read" in refused(write(tmp_path / "a.bin", "Some words.\n"), folder)
    assert "packed twice" in refused(write(tmp_path / "b.jsonl.gz", gzip.compress(gzip.compress(LINES.encode()))), folder)
    write(tmp_path / "in" / "a.txt", LINES)
    write(tmp_path / "in" / "b.txt", "[Chapter 1]\n\nIt was night.")
    notes = opened(tmp_path / "in", folder).notes
    assert [note for note in notes if "seems to hold JSON" in note] == [note for note in notes if note.startswith("a.txt seems")] != []


@few
@given(separator=st.sampled_from(",;\t|"), suffix=st.sampled_from(["csv", "tsv"]), columns=st.integers(2, 5),
       records=st.lists(st.text("ab ,;|.\n\"é", max_size=12), min_size=1, max_size=30))
def test_the_separator_of_a_table_is_found(tmp_path, folder, separator, suffix, columns, records):
    import csv
    import io

    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator)
    writer.writerows([["text", *(f"c{i}" for i in range(1, columns))], *([record, *["x"] * (columns - 1)] for record in records)])
    source = opened(write(tmp_path / f"a.{suffix}", text.getvalue()), folder)
    assert [row["text"] for row in rows_of(source)] == records
    assert len(source.columns) == columns


def test_a_table_of_one_column_keeps_its_commas(tmp_path, folder):
    source = opened(write(tmp_path / "a.tsv", "text\nwell, yes; or | no\nnever, ever\n"), folder)
    assert [row["text"] for row in rows_of(source)] == ["well, yes; or | no", "never, ever"]


def test_numbers_of_any_size_and_deep_nesting(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    rows = ['{"text": "a", "n": ' + "9" * 5000 + "}", '{"text": "b", "x": ' + deep + "}", '{"text": "c", "n": 1e999}', '{"text": ' + "1" * 5000 + "}"]
    found, state = truths(open_data(write(tmp_path / "a.jsonl", "\n".join(rows))))
    assert found == ["a", "c"]
    assert state["skipped"] == {"nested too deeply": 1, "not text": 1}
    found, _ = truths(open_data(write(tmp_path / "b.json", f"[{rows[0]},{rows[2]}]")))
    assert found == ["a", "c"]


def test_a_bare_string_is_a_text_in_an_array_and_no_row_of_json_lines(tmp_path):
    assert truths(open_data(write(tmp_path / "a.json", '["one", "two"]')))[0] == ["one", "two"]
    found, state = truths(open_data(write(tmp_path / "a.jsonl", lines("one") + '"two"\n')))
    assert (found, state["skipped"]) == (["one"], {"no JSON object": 1})
