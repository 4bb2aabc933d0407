"""The sources: every row there, by number or in order, as the plain parsers give it; and one clear line for what is wrong."""
from __future__ import annotations

import csv
import gzip
import io
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmplay.data.save import save_sources
from lmplay.data.sources import BadRow, IndexedSource, StreamedSource, hub, open_source
from lmplay.data.sources.spans import Spans
from lmplay.data.sources.text import BLOCK, TextTable
from lmplay.errors import TrainingError, Unavailable, UserError

few = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Spec:
    """What a plan's source object gives."""

    path: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    streaming: bool | None = None
    encoding_errors: str | None = None
    on_bad_row: str | None = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data sets folder, not made yet."""
    return tmp_path / "datasets"


def opened(path: Path | str, folder: Path, role: str = "train", /, **keys: Any) -> Any:
    return open_source(Spec(str(path), **keys), role, folder)


def rows_of(source: Any) -> list[dict[str, Any]]:
    return [source[i] for i in range(source.n_rows)]


def row_or_reason(source: Any, index: int) -> dict[str, Any] | str:
    try:
        return source[index]
    except BadRow as bad:
        return bad.reason if bad.row == index else f"row {bad.row}"


def refused(path: Path | str, folder: Path, **keys: Any) -> str:
    """Give the one line that a source is refused with."""
    with pytest.raises(UserError) as caught:
        opened(path, folder, **keys)
    assert len(caught.value.faults) == 1
    assert "\n" not in caught.value.faults[0]
    return caught.value.faults[0]


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


# Plain text

pieces = st.lists(st.one_of(st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n", "\n \t\n", "\r", " ", "𝄞", "é", "ไทย"]), st.text(max_size=12)), max_size=40)


@few
@given(parts=pieces, bom=st.booleans(), limit=st.integers(1, 40))
def test_the_rows_of_a_text_joined_are_the_text(tmp_path, parts, bom, limit):
    data = "".join(parts).encode()
    path = write(tmp_path / "a.txt", (b"\xef\xbb\xbf" if bom else b"") + data)
    table = TextTable(path, "a.txt", Spans(), limit)
    texts = [table[i]["text"] for i in range(len(table))]
    start = 3 if not bom and data.startswith(b"\xef\xbb\xbf") else 0
    assert "".join(texts).encode() == data[start:]
    assert all(0 < len(text.encode()) <= max(limit, 4) for text in texts)
    assert len(table) == 1 or len(data) - start > limit or not data[start:]


@few
@given(data=st.binary(max_size=60), limit=st.integers(1, 12))
def test_bytes_that_are_not_utf8_become_the_same_text_in_rows_as_in_one_piece(tmp_path, data, limit):
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return
    table = TextTable(write(tmp_path / "a.txt", data), "a.txt", Spans(), limit)
    assert "".join(table[i]["text"] for i in range(len(table))) == data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_big_text_is_cut_at_blank_lines(tmp_path, folder, newline):
    text = "".join(f"paragraph {i} ".ljust(37 * (i % 90), "x") + newline * 2 for i in range(200))
    source = opened(write(tmp_path / "book.md", text.encode()), folder)
    texts = [row["text"] for row in rows_of(source)]
    assert "".join(texts) == text
    assert source.n_rows > 5
    assert all(one.endswith(newline * 2) and len(one) <= BLOCK for one in texts)
    assert source.columns == ("text",)
    assert not folder.exists()


def test_a_long_paragraph_is_cut_at_a_line_end_and_a_long_line_between_characters(tmp_path, folder):
    verses = "".join(f"verse {i}\n" for i in range(4000))
    assert all(row["text"].endswith("\n") for row in rows_of(opened(write(tmp_path / "verses.txt", verses), folder)))
    line = "é" * BLOCK
    texts = [row["text"] for row in rows_of(opened(write(tmp_path / "line.txt", line), folder))]
    assert (len(texts), "".join(texts)) == (2, line)


# Tables: by number as one after the other

values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda part: st.lists(part, max_size=3), max_leaves=5)
objects = st.dictionaries(st.text(max_size=5), values, max_size=3)


@few
@given(records=st.lists(st.tuples(objects | st.text(max_size=5) | st.integers() | st.none(), st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n"])), min_size=1),
       lead=st.sampled_from(["", "\ufeff", "\n\n", " \n", "\ufeff\r\n"]), end=st.booleans(), ascii_only=st.booleans())
def test_json_lines_are_what_the_json_module_reads(tmp_path, folder, records, lead, end, ascii_only):
    text = lead + "".join(json.dumps(value, ensure_ascii=ascii_only) + newline for value, newline in records)
    path = write(tmp_path / "a.jsonl", (text if end else text.rstrip()).encode())
    plain = [json.loads(line) for line in path.read_text("utf-8-sig").split("\n") if line.strip(" \t\r")]
    expected = [value if isinstance(value, dict) else {"text": value} if isinstance(value, str) else "no JSON object" for value in plain]
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


TABLE = [{"text": f"row {i} ü", "n": i, "more": {"tags": ["a", None]} if i % 2 else None} for i in range(2500)]


@pytest.mark.parametrize("form", ["parquet", "arrow stream", "arrow file"])
def test_parquet_and_arrow_rows(tmp_path, folder, form):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(TABLE)
    path = tmp_path / f"a.{form.split()[0]}"
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=700)
    else:
        make = pyarrow.ipc.new_stream if "stream" in form else pyarrow.ipc.new_file
        with make(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=300)
    source = opened(path, folder)
    assert (source.columns, source.n_rows) == (("text", "n", "more"), 2500)
    assert [source[i] for i in range(2499, -1, -7)] == TABLE[2499::-7]
    assert folder.exists() == (form == "parquet")


def test_a_parquet_file_is_converted_once_and_again_when_it_changes(tmp_path, folder):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    for count, files in ((3, 1), (3, 1), (4, 2)):
        if count == 4 or not path.exists():
            parquet.write_table(pyarrow.Table.from_pylist(TABLE[:count]), path)
        assert rows_of(opened(path, folder)) == TABLE[:count]
        assert len(list((folder / "converted").iterdir())) == files


# Packed files

def zstd_frame(data: bytes) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(data)
    return sink.getvalue().to_pybytes()


PLAIN = {"txt": b"first\r\n\r\nsecond", "md": b"# first", "jsonl": lines("a", "b").encode(), "ndjson": lines("a").encode(), "json": b'[{"text": "a"}]',
         "csv": b'text\n"a\nb"\n', "tsv": b"text\tn\na\t1\n"}


@pytest.mark.parametrize("pack", [gzip.compress, zstd_frame])
@pytest.mark.parametrize("suffix", PLAIN)
def test_packed_files_have_the_rows_of_the_plain_ones(tmp_path, folder, suffix, pack):
    ending = "gz" if pack is gzip.compress else "zst"
    data = PLAIN[suffix]
    packed = write(tmp_path / f"a.{suffix}.{ending}", pack(data[:4]) + pack(data[4:]))  # two members, or frames
    source = opened(packed, folder)
    assert rows_of(source) == rows_of(opened(write(tmp_path / f"b.{suffix}", data), folder))
    made = list((folder / "unpacked").iterdir())
    before = made[0].stat().st_mtime_ns
    assert rows_of(opened(packed, folder)) == rows_of(source)
    assert [made[0].stat().st_mtime_ns] == [file.stat().st_mtime_ns for file in (folder / "unpacked").iterdir()] == [before]
    write(packed, pack(data.replace(b"a", b"other").replace(b"first", b"other")))
    assert rows_of(opened(packed, folder)) != rows_of(source)


@pytest.mark.parametrize("pack", [gzip.compress, zstd_frame])
def test_a_packed_file_that_is_cut_off_is_named_and_leaves_nothing(tmp_path, folder, pack):
    ending = "gz" if pack is gzip.compress else "zst"
    path = write(tmp_path / f"a.jsonl.{ending}", pack(os.urandom(5000))[:-20])
    assert f"a.jsonl.{ending}: cannot be unpacked" in refused(path, folder)
    assert list(folder.rglob("*.*")) == []


# Many files

def test_many_files_are_one_source_and_few_stay_open(tmp_path, folder):
    for i in range(150):
        write(tmp_path / "in" / f"{i:03}.jsonl", lines(f"{i} a", f"{i} b"))
    source = opened(tmp_path / "in", folder)
    expected = [{"text": f"{i} {part}"} for i in range(150) for part in "ab"]
    assert rows_of(source) == expected
    if Path("/proc/self/fd").exists():
        links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        assert sum(str(tmp_path) in link for link in links) <= 64
    with ThreadPoolExecutor(4) as pool:
        order = [(i * 77) % 300 for i in range(1200)]
        assert list(pool.map(source.__getitem__, order)) == [expected[i] for i in order]


FILES = {
    "train.jsonl validation.jsonl test.jsonl": ("train", "validation"),
    "train-00000-of-00002.jsonl train-00001-of-00002.jsonl": ("train-00000-of-00002 train-00001-of-00002", None),
    "data/train/a.jsonl data/train/b.jsonl data/val/c.jsonl": ("a b", "c"),
    "train.jsonl dev.jsonl": ("train", "dev"),
    "train_2.jsonl valid.x.jsonl": ("train_2", "valid.x"),
    "b.jsonl a.jsonl c/d.jsonl": ("a b d", None),
    "a.jsonl validation.jsonl test.jsonl": ("a", "validation"),
    "trainers.jsonl testimony.jsonl valley.jsonl train dreams.jsonl": ("testimony train dreams trainers valley", None),
    "a.jsonl README.md notes.txt .hidden.jsonl .git/x.jsonl dataset_infos.json": ("a", None),
    "train.txt validation.txt data.jsonl": ("train", "validation"),
}


@pytest.mark.parametrize("names", FILES)
def test_the_splits_of_a_folder(tmp_path, folder, names):
    for name in names.replace("train dreams", "train~dreams").split():
        name = name.replace("~", " ")
        stem = Path(name).name.rsplit(".", 1)[0]
        write(tmp_path / "in" / name, stem if name.endswith("txt") else lines(stem))
    for split, expected in zip(("train", "validation"), FILES[names], strict=True):
        source = opened(tmp_path / "in", folder, split)
        assert (source and " ".join(row["text"] for row in rows_of(source))) == expected


def test_which_split_is_trained_on_can_be_said(tmp_path, folder):
    for name in ("train", "validation", "test"):
        write(tmp_path / "in" / f"{name}.jsonl", lines(name))
    for wanted, train, own in (("test", "test", "validation"), ("validation", "validation", None), ("dev", "validation", None)):
        assert opened(tmp_path / "in", folder, split=wanted)[0] == {"text": train}
        source = opened(tmp_path / "in", folder, "validation", split=wanted)
        assert (source and source[0]["text"]) == own
    assert opened(tmp_path / "in", folder).name == "in"
    assert opened(tmp_path / "in", folder, "validation").name == "in validation"


def test_what_is_named_is_read_whatever_its_name(tmp_path, folder):
    write(tmp_path / "test.jsonl", lines("one"))
    write(tmp_path / "test-2.jsonl", lines("two"))
    write(tmp_path / "in" / "train.jsonl", lines("three"))
    assert rows_of(opened(tmp_path / "test.jsonl", folder)) == [{"text": "one"}]
    assert opened(tmp_path / "test.jsonl", folder, "validation") is None
    assert [row["text"] for row in rows_of(opened(tmp_path / "test*.jsonl", folder))] == ["two", "one"]
    assert [row["text"] for row in rows_of(opened(f"{tmp_path}/**/*.jsonl", folder))] == ["three"]
    assert opened(tmp_path / "in" / "tr*n.jsonl", folder)[0] == {"text": "three"}


def test_home_is_expanded_and_an_existing_folder_goes_before_the_hub(tmp_path, folder, monkeypatch):
    write(tmp_path / "owner" / "name" / "a.txt", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in ("~/owner/name", "owner/name", "owner", "owner/*/a.txt"):
        assert rows_of(opened(path, folder)) == [{"text": "here"}]


# Fingerprints

def test_a_fingerprint_tells_changes_and_is_the_same_without(tmp_path, folder):
    data = bytearray(b'{"text": "some words"}\n' * 20_000)
    path = tmp_path / "in" / "a.jsonl"
    seen = [opened(write(path, bytes(data)).parent, folder).fingerprint]
    assert opened(path.parent, folder).fingerprint == seen[0]
    assert json.loads(json.dumps(seen[0])) == seen[0]
    assert len(json.dumps(seen[0])) < 300
    for where in (11, len(data) // 2 // 23 * 23 + 11, len(data) - 10):
        changed = bytearray(data)
        changed[where] ^= 1
        seen.append(opened(write(path, bytes(changed)).parent, folder).fingerprint)
    seen.append(opened(write(path, bytes(data) + b"{}\n").parent, folder).fingerprint)
    write(path, bytes(data))
    seen.append(opened(write(path.with_name("b.jsonl"), "{}\n").parent, folder).fingerprint)
    path.with_name("b.jsonl").unlink()
    path.rename(path.with_name("c.jsonl"))
    seen.append(opened(path.parent, folder).fingerprint)
    assert all(seen[i] != seen[j] for i in range(len(seen)) for j in range(i))


# What is refused

BAD = {
    "no/such/file.jsonl": "no such file or folder",
    "./nothing": "no such file or folder",
    "trian.jsonl": "Did you mean 'train.jsonl'?",
    "nothing-*.txt": "nothing there can be read (0 files found)",
    "book.pdf": "'.pdf' files are not read; what is read is .txt, .md,",
    "pictures": "nothing there can be read (1 files found); what is read is .txt",
    "empty.txt": "holds no rows",
    "empty.jsonl": "holds no rows",
    "header.csv": "holds no rows",
    "broken.jsonl": "broken.jsonl, line 2: not valid JSON",
    "numbers.jsonl": "numbers.jsonl, line 1: is no JSON object",
    "deep.json": "deep.json: not JSON that can be read",
    "broken.json": "broken.json, line 2, column 1: not valid JSON",
    "none.json": "holds 0 arrays",
    "two.json": "holds 2 arrays",
    "number.json": "holds 0 arrays",
    "wide.csv": "wide.csv, line 4: 3 values under a header of 2",
    "twins.csv": "has the column 'a' twice",
    "sixteen.txt": "is UTF-16 text",
    "cut.parquet": "cut.parquet: cannot be read as Parquet",
    "cut.arrow": "cut.arrow: cannot be read as Arrow",
    "mixed": "several formats (train.csv and train.jsonl)",
    "twice": "holds both a.jsonl and a.jsonl.gz",
    "onlytest": "has only test files",
    "https://example.org/a.txt": "addresses are not read",
    "a:b": "neither a file or folder that exists nor the name of a data set",
}


@pytest.fixture
def bad_files(tmp_path, monkeypatch):
    """Files that are wrong in one way each."""
    monkeypatch.chdir(tmp_path)
    contents: dict[str, str | bytes] = {
        "train.jsonl": lines("x"), "book.pdf": b"%PDF", "pictures/a.png": b"x", "empty.txt": "", "empty.jsonl": "\n \n", "header.csv": "a,b\n",
        "broken.jsonl": "\n{'a': 1}\n{'a': 2}\n", "numbers.jsonl": "1\n2\n", "deep.json": "[" * 100_000,
        "broken.json": '[{"a": 1},\n', "none.json": '{"a": 1}', "two.json": '{"a": [], "b": []}',
        "number.json": "3", "wide.csv": 'a,b\n\n\n1,2,3\n', "twins.csv": "a,b,a\n1,2,3\n", "sixteen.txt": "text".encode("utf-16"),
        "cut.parquet": b"PAR1" + b"x" * 40, "cut.arrow": b"ARROW1" + b"x" * 40, "mixed/train.csv": "a\n1\n", "mixed/train.jsonl": lines("x"),
        "twice/a.jsonl": lines("x"), "twice/a.jsonl.gz": gzip.compress(lines("x").encode()), "onlytest/test.jsonl": lines("x"),
    }
    for name, data in contents.items():
        write(tmp_path / name, data)


@pytest.mark.parametrize("path", BAD)
def test_what_cannot_be_read_is_refused_in_one_line(bad_files, folder, path):
    assert BAD[path] in refused(path, folder)


def test_a_glob_that_is_proposed_works(bad_files, folder, tmp_path):
    line = refused("mixed", folder)
    assert "'mixed/**/*.csv' or 'mixed/**/*.jsonl'" in line
    assert rows_of(opened("mixed/**/*.csv", folder)) == [{"a": "1"}]


@pytest.mark.parametrize(("keys", "says"), [
    ({"split": "tset"}, "has no split 'tset'; it has test, train. Did you mean 'test'?"),
    ({"split": "train[:10]"}, "split 'train[:10]' is a slice or a sum, which only data sets of the hub have"),
    ({"config": "en"}, "'config' is for data sets of the hub; leave it out"),
    ({"revision": "v1"}, "'revision' is for data sets of the hub; leave it out"),
    ({"streaming": True}, "'streaming' is for data sets of the hub; leave it out"),
])
def test_keys_that_local_files_do_not_have(tmp_path, folder, keys, says):
    write(tmp_path / "in" / "train.jsonl", lines("x"))
    write(tmp_path / "in" / "test.jsonl", lines("x"))
    assert says in refused(tmp_path / "in", folder, **keys)
    if "split" in keys:
        assert "leave it out" in refused(tmp_path / "in" / "train.jsonl", folder, **keys)


def test_a_broken_line_far_in_is_named_when_it_is_read(tmp_path, folder):
    source = opened(write(tmp_path / "a.jsonl", lines(*"x" * 50) + "\n{oops}\n" + lines("y")), folder)
    assert source[51] == {"text": "y"}
    with pytest.raises(UserError, match=r"a\.jsonl, line 52: not valid JSON"):
        source[50]


# Saved by the library

@pytest.mark.parametrize("split", [True, False])
def test_a_folder_of_save_to_disk(tmp_path, folder, split):
    import datasets

    parts = {name: datasets.Dataset.from_list([{"text": f"{name} {i}"} for i in range(4)]) for name in ("train", "valid", "test")}
    saved = datasets.DatasetDict(parts) if split else parts["train"]
    saved.save_to_disk(str(tmp_path / "in"))
    source = opened(tmp_path / "in", folder)
    assert rows_of(source) == [{"text": f"train {i}"} for i in range(4)]
    own = opened(tmp_path / "in", folder, "validation")
    assert (own[0]["text"] if split else own) == ("valid 0" if split else None)
    if split:
        assert opened(tmp_path / "in", folder, split="test")[0] == {"text": "test 0"}
        assert source.fingerprint != own.fingerprint
    assert "split" in refused(tmp_path / "in", folder, split="nothing")


# Built in

def test_builtin_tales(folder):
    source = opened("builtin:tales", folder)
    assert isinstance(source, IndexedSource)
    assert (source.n_rows, source.columns, source.name) == (None, ("title", "text", "nats"), "tales-1")
    assert set(source[10**9]) == set(source.columns)
    assert source[3] == opened("builtin:tales/1?seed=0", folder)[3] != opened("builtin:tales?seed=5", folder)[3]
    assert source.fingerprint == opened("builtin:tales/1", folder).fingerprint
    others = [opened(f"builtin:{path}", folder) for path in ("tales/2", "tales/1?seed=5", "tales/2?seed=5")]
    assert [other.name for other in others] == ["tales-2", "tales-1 seed 5", "tales-2 seed 5"]
    assert len({json.dumps(one.fingerprint) for one in (source, *others)}) == 4
    assert opened("builtin:tales", folder, "validation") is None
    with pytest.raises(IndexError):
        source[-1]


@pytest.mark.parametrize(("path", "says"), [("builtin:tails", "Did you mean 'builtin:tales'?"), ("builtin:tales/99", "builtin:tales/4, with ?seed=NUMBER"),
                                            ("builtin:tales/x", "builtin:tales/4"), ("builtin:tales?seed=x", "?seed=NUMBER")])
def test_unknown_corpora_are_refused(folder, path, says):
    refusal = refused(path, folder)
    assert f'found "{path}", allowed: builtin:tales, builtin:tales/1' in refusal
    assert says in refusal


def test_a_corpus_has_no_splits_and_no_configs(folder):
    for keys in ({"split": "train"}, {"config": "en"}, {"revision": "v1"}):
        assert f"'{next(iter(keys))}' is for data sets of the hub" in refused("builtin:tales", folder, **keys)


# The hub, with the library's own loaders of local files in its place

@pytest.fixture
def stand_in(tmp_path, folder, monkeypatch):
    """A hub that has one data set, `owner/name`: three Parquet files to train on, and its own validation rows."""
    import datasets
    import pyarrow
    from pyarrow import parquet

    sizes = {"train-0": 7, "train-1": 25, "train-2": 3, "dev": 4}
    start = 0
    for name, size in sizes.items():
        rows = [{"text": f"row {i}", "n": i} for i in range(start, start + size)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet", row_group_size=4)
        start += size
    files = {"train": [str(tmp_path / f"train-{i}.parquet") for i in range(3)], "dev": [str(tmp_path / "dev.parquet")]}
    real = datasets.load_dataset_builder

    def load(path: str, config: str | None, revision: str | None, cache_dir: str) -> Any:
        if path != "owner/name":
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub or cannot be accessed.")
        builder = real("parquet", data_files=files, cache_dir=cache_dir)
        builder.repo_id = path
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    monkeypatch.setattr(hub, "hub_problem", lambda: None)
    hub._builder.cache_clear()
    yield
    hub._builder.cache_clear()


TRAIN = [{"text": f"row {i}", "n": i} for i in range(35)]
OWN = [{"text": f"row {i}", "n": i} for i in range(35, 39)]


def test_a_stream_goes_on_with_the_very_next_row_after_any(stand_in, folder):
    source = opened("owner/name", folder)
    assert isinstance(source, StreamedSource)
    assert (source.name, source.columns) == ("owner/name", ("text", "n"))
    assert list(source.open()) == TRAIN
    running = source.open()
    for count in range(len(TRAIN) + 1):
        state = json.loads(json.dumps(running.state()))
        again = source.open(state)
        assert again.state() == state
        assert [next(again, None) for _ in range(5)] == [*TRAIN[count:count + 5], *[None] * 5][:5]  # other readings, and resuming twice, disturb nothing
        assert list(source.open(again.state())) == TRAIN[count + 5:]
        assert next(running, None) == (TRAIN[count] if count < len(TRAIN) else None)
    assert len(json.dumps(running.state())) < 1000
    assert list(source.open(running.state())) == []


def test_a_sum_of_splits_streams_too(stand_in, folder):
    source = opened("owner/name", folder, split="train+dev")
    for count in (0, 7, 34, 35, 37, 39):
        stream = source.open()
        assert [next(stream) for _ in range(count)] == (TRAIN + OWN)[:count]
        assert list(source.open(stream.state())) == (TRAIN + OWN)[count:]
    assert opened("owner/name", folder, "validation", split="train+dev") is None


def test_the_validation_split_of_the_hub(stand_in, folder):
    assert list(opened("owner/name", folder, "validation").open()) == OWN
    assert rows_of(opened("owner/name", folder, "validation", streaming=False)) == OWN
    assert opened("owner/name", folder, "validation", split="dev") is None


def test_without_streaming_rows_have_numbers(stand_in, folder):
    source = opened("owner/name", folder, streaming=False)
    assert isinstance(source, IndexedSource)
    assert rows_of(source) == TRAIN
    assert rows_of(opened("owner/name", folder, split="train[5:9]")) == TRAIN[5:9]
    with pytest.raises(IndexError):
        source[-1]


def test_fingerprints_of_the_hub_differ_with_what_is_asked_for(stand_in, folder):
    asked = [{}, {"streaming": False}, {"split": "dev"}, {"split": "train[:5]"}, {"revision": "v1"}, {"config": "en"}]
    prints = [json.dumps(opened("owner/name", folder, **keys).fingerprint) for keys in asked]
    prints += [json.dumps(opened("owner/name", folder, "validation", streaming=streaming).fingerprint) for streaming in (True, False)]
    assert len(set(prints)) == len(asked) + 2
    assert prints[0] == json.dumps(opened("owner/name", folder).fingerprint)


@pytest.mark.parametrize(("keys", "says"), [
    ({"split": "tran"}, "has no split 'tran'; 'split' can be train, dev. Did you mean 'train'?"),
    ({"split": "train[:5]", "streaming": True}, "is a slice, which cannot be streamed"),
])
def test_splits_that_the_hub_does_not_have(stand_in, folder, keys, says):
    assert says in refused("owner/name", folder, **keys)


def test_a_stream_that_breaks_off_stops_training(stand_in, tmp_path, folder):
    source = opened("owner/name", folder)
    stream = source.open()
    assert next(stream) == TRAIN[0]
    (tmp_path / "train-1.parquet").write_bytes(b"gone")
    with pytest.raises(TrainingError, match="source owner/name: reading stopped"):
        list(stream)


def library_error(name: str, text: str) -> Exception:
    import datasets

    known = getattr(datasets.exceptions, name, None) or getattr(datasets.data_files, name, None)
    return (known or {"ValueError": ValueError, "RuntimeError": RuntimeError, "ConnectionError": ConnectionError}[name])(text)


@pytest.mark.parametrize(("name", "text", "says"), [
    ("DatasetNotFoundError", "Dataset 'o/delegated' doesn't exist on the Hub or cannot be accessed.", "there is no such data set on"),
    ("DatasetNotFoundError", "Dataset 'o/n' is a gated dataset on the Hub. You must be authenticated to access it.", "is gated; accept its terms on"),
    ("DatasetNotFoundError", "Revision 'v9' doesn't exist for dataset 'o/n' on the Hub.", "Revision 'v9' doesn't exist for dataset 'o/n' on the Hub; leave"),
    ("ValueError", "Config name is missing.\nPlease pick one among the available configs: ['en', 'de']\nExample:\n\t`x`", "configs in 'config': en, de."),
    ("ValueError", "BuilderConfig 'x' not found. Available: ['en', 'de']", "configs in 'config': en, de."),
    ("RuntimeError", "Dataset scripts are no longer supported, but found n.py", "needs a loading script"),
    ("EmptyDatasetError", "The directory at hf://datasets/o/n@main doesn't contain any data files", "holds no files"),
    ("RuntimeError", "something else\nwith details", "cannot be opened (RuntimeError: something else)"),
])
def test_each_error_of_the_library_becomes_one_line(stand_in, folder, monkeypatch, name, text, says):
    import datasets

    def fail(*_: Any, **__: Any) -> None:
        raise library_error(name, text)

    monkeypatch.setattr(datasets, "load_dataset_builder", fail)
    line = refused("o/n", folder)
    assert line.startswith("source o/n: ")
    assert says in line


@pytest.mark.parametrize("streaming", [None, True, False])
def test_without_a_network_the_answer_says_so_and_nothing_is_written(folder, monkeypatch, streaming):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"source owner/name: the hub cannot be reached for it \(.*--training-plan quickstart"):
        opened("owner/name", folder, streaming=streaming)
    assert not folder.exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "(HF_HUB_OFFLINE is set)" in refused("owner/name", folder, streaming=streaming)
    assert not folder.exists()


@pytest.mark.parametrize("streaming", [None, False])
def test_a_hub_that_says_nothing_is_asked_once(folder, monkeypatch, streaming):
    import datasets
    import huggingface_hub

    def load(*_: Any, **__: Any) -> None:
        offline = datasets.config.HF_HUB_OFFLINE and huggingface_hub.constants.HF_HUB_OFFLINE
        asked.append("the cache" if offline else "the hub")
        raise FileNotFoundError

    asked: list[str] = []
    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("lmplay.hub._ANSWER_SECONDS", 0.3)
        with pytest.raises(Unavailable, match="the hub cannot be reached for it"):
            opened("owner/name", folder, streaming=streaming)
        silent.settimeout(20)
        silent.accept()[0].close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert asked == (["the cache"] if streaming is False else [])
    assert not datasets.config.HF_HUB_OFFLINE
    assert not folder.exists()


def test_offline_what_was_downloaded_is_read_but_no_stream_begun(tmp_path, folder, monkeypatch):
    import datasets

    write(tmp_path / "a.jsonl", lines("x", "y"))
    builder = datasets.load_dataset_builder("json", data_files=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "elsewhere"))
    builder.dataset_name, builder.info.config_name = "name", "default"
    builder.download_and_prepare(str(folder / "hub" / "owner___name" / "default" / "0.0.0" / ("a" * 40)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rows_of(opened("owner/name", folder, streaming=False)) == [{"text": "x"}, {"text": "y"}]
    assert "(HF_HUB_OFFLINE is set)" in refused("owner/name", folder)


# Saving

def test_saved_data_sets_need_no_network(stand_in, tmp_path, folder, monkeypatch):
    write(tmp_path / "a.txt", "local")
    specs = [Spec("owner/name"), Spec("owner/name", split="train[:5]"), Spec("owner/name"), Spec(str(tmp_path / "a.txt")), Spec("builtin:tales")]
    said: list[str] = []
    save_sources(specs, folder, said.append)
    said = [line for line in said if "saved in" in line or "rows in" in line or "saving" in line]
    assert ["saved 39 rows in" in said[0], "saved 9 rows in" in said[1], "is already saved in" in said[2]] == [True] * 3
    assert all("needs no saving" in line for line in said[3:])
    assert len(said) == 5
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["owner--name", "owner--name--train%5B%3A5%5D"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub._builder.cache_clear()
    for keys in ({}, {"streaming": True}, {"split": "train"}):
        assert rows_of(opened("owner/name", folder, **keys)) == TRAIN
    assert rows_of(opened("owner/name", folder, "validation")) == OWN
    assert rows_of(opened("owner/name", folder, split="train[:5]")) == TRAIN[:5]
    assert opened("owner/name", folder).fingerprint != opened("owner/name", folder, split="train[:5]").fingerprint


def test_a_save_that_fails_leaves_nothing_that_would_be_opened(stand_in, folder, monkeypatch):
    import datasets

    def full(self: Any, path: str, **_: Any) -> None:
        write(Path(path) / "part", "x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.DatasetDict, "save_to_disk", full)
    with pytest.raises(UserError, match="No space left on device"):
        save_sources([Spec("owner/name")], folder, print)
    assert list((folder / "saved").iterdir()) == []


# Imports

def test_heavy_libraries_are_imported_only_by_the_sources_that_need_them(tmp_path):
    path = write(tmp_path / "a.jsonl", lines("x"))
    code = f"""
import sys
import lmplay.data.save
from lmplay.data.sources import open_source
heavy = {{"numpy", "pyarrow", "datasets", "huggingface_hub", "torch", "transformers"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from types import SimpleNamespace
from pathlib import Path
spec = SimpleNamespace(path={str(path)!r}, config=None, split=None, revision=None, streaming=None, encoding_errors=None, on_bad_row=None)
assert open_source(spec, "train", Path("nowhere"))[0] == {{"text": "x"}}
assert heavy & set(sys.modules) <= {{"numpy"}}, heavy & set(sys.modules)
"""
    root = str(ROOT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
