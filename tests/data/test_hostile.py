"""Hostile data: whatever is in the files, every row that can be read comes, what cannot is counted or named, and changed data is never taken for the old."""
from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers import TINY, compare_runs, load, sentences, write_plan, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import Flow
from texts import BYTES

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter
from lmplay.data.fingerprints import describe_changes, same_data
from lmplay.data.sources import BadRow
from lmplay.data.sources.index import Index
from lmplay.data.sources.spans import Spans, content_digest
from lmplay.data.sources.tables import JsonLines
from lmplay.data.stage import StageData
from lmplay.data.stream import describe_losses
from lmplay.errors import UserError
from lmplay.plan.schema import Stage

few = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(path: Path, **keys) -> StageData:
    stage = {"name": "one", "dataset": {"path": str(path), **keys}, "validation": 0, "shuffle": False}
    return StageData(Stage.model_validate(stage), path.parent / "datasets", 0)


def truths(data: StageData) -> tuple[list[str], dict]:
    stream = data.open_samples()
    return [sample.truth for sample in iter(stream.next, None)], stream.state()


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refused(path: Path, **keys) -> str:
    with pytest.raises(UserError) as caught:
        truths(opened(path, **keys))
    assert all(fault.isprintable() for fault in caught.value.faults)
    return str(caught.value)


# --- any bytes

junk = st.one_of(st.binary(max_size=12), st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b'"', b"{", b"}", b"\xff\xfe", b"\xef\xbb\xbf", b",", b"\\u00", b"[1]",
                                                          b'{"text": null}', b'{"text": 3}', b'{"other": "x"}', b"null", b'{"text": "\xc3"}']))


@few
@given(parts=st.lists(junk, max_size=12))
def test_any_bytes_are_a_text(tmp_path, parts):
    path = write(tmp_path / "a.txt", b"".join(parts))
    try:
        found, state = truths(opened(path))
    except UserError as error:
        said = str(error)
        assert "UTF-16" in said or "no rows" in said
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
        found, state = truths(opened(path))
    except UserError:
        assert not valid or rows[0][:2] in (b"\xff\xfe", b"\xfe\xff") or all(isinstance(part, bytes) for part in parts if part)
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
    expected = [record[0] for record in records[1:] if len(record) == 1 and record[0].strip()]
    try:
        found, state = truths(opened(path))
    except UserError:
        assert not expected or all(len(record) > 1 for record in records[1:21])
        return
    assert found == expected
    assert state["skipped"].get("too many values", 0) == sum(len(record) > 1 for record in records[1:])


@pytest.mark.parametrize("text", ["a\r\nb\r\n", "nul\0 here", "\u200bzero\u200d width\u2060",
                                  "\u202eright to left\u202c שלום \u200fمرحبا", "👩‍👩‍👧‍👦🇫🇷e\u0301", "\x1a\x1b[0m\x7f",
                                  "\ufffd was there", "\u2028line\u2029"])
@pytest.mark.parametrize("form", ["txt", "jsonl", "csv", "json"])
def test_strange_text_comes_as_it_is(tmp_path, text, form):
    content = io.StringIO(newline="")
    csv.writer(content).writerows([["text"], [text]])
    written = {"txt": text, "csv": content.getvalue(), "jsonl": json.dumps({"text": text}, ensure_ascii=False), "json": json.dumps([{"text": text}])}[form]
    for mark in ("", "\ufeff"):
        found, state = truths(opened(write(tmp_path / f"a.{form}", mark + written)))
        assert (found, state["skipped"], state["replaced"]) == ([text], {}, {})


def test_a_line_of_five_megabytes(tmp_path):
    text = "word and wörd " * 400_000
    for name, data in {"a.jsonl": json.dumps({"text": text}) + "\n" + json.dumps({"text": "next"}), "b.csv": f"text\n{text}\nnext\n"}.items():
        assert truths(opened(write(tmp_path / name, data)))[0] == [text, "next"]
    assert "".join(truths(opened(write(tmp_path / "c.txt", text)))[0]) == text


# --- bytes that are not UTF-8

def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    rows = [b'{"text": "caf\xe9 \xef\xbf\xbd \xff\xff"}', b'{"text": "plain"}', b'{"text": "\xc3"}']
    found, state = truths(opened(write(tmp_path / "a.jsonl", b"\n".join(rows))))
    assert found == ["caf\ufffd \ufffd \ufffd\ufffd", "plain", "\ufffd"]
    assert state["replaced"] == {"rows": 2, "characters": 4}  # one was meant
    assert describe_losses(state) == ["2 rows with bytes that are not UTF-8 (4 characters replaced)"]
    found, state = truths(opened(write(tmp_path / "b.csv", b"text\ncaf\xe9\nb\n")))
    assert (found, state["replaced"]) == (["caf\ufffd", "b"], {"rows": 1, "characters": 1})
    found, state = truths(opened(write(tmp_path / "c.json", b'[{"text": "caf\xe9"}, {"text": "b"}]')))
    assert (found, state["replaced"]) == (["caf\ufffd", "b"], {"rows": 1, "characters": 1})


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.json", "a.txt.gz"])
def test_bytes_that_are_not_utf8_can_be_refused_before_anything_is_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr("lmplay.data.sources.spans._LOOK", 1001)  # cuts inside characters
    good = "text\n" + "wörd\n" * 5000
    for data, line in ((good.encode()[:9] + b"\xe9 x", 2), (good.encode() + b"x\xc3", 5002)):
        path = write(tmp_path / name, gzip.compress(data, 1) if name.endswith("gz") else data)
        with pytest.raises(UserError, match=rf"{name}, line {line}: byte .* is not UTF-8"):
            opened(path, encoding_errors="refuse")
    write(tmp_path / name, gzip.compress("text\nwörd".encode()) if name.endswith("gz") else "text\nwörd")
    if "txt" in name:
        assert truths(opened(tmp_path / name, encoding_errors="refuse"))[0] == ["text\nwörd"]


def test_parquet_with_bytes_that_are_not_utf8(tmp_path):
    import pyarrow
    from pyarrow import parquet

    array = pyarrow.array([b"caf\xe9", b"good", None]).cast(pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": array, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    found, state = truths(opened(tmp_path / "a.parquet"))
    assert (found, state["replaced"], state["skipped"]) == (["caf\ufffd", "good"], {"rows": 1, "characters": 1}, {"null": 1})
    assert "a.parquet, row 1: holds bytes that are not UTF-8" in refused(tmp_path / "a.parquet", encoding_errors="refuse")


def test_encodings_are_for_local_files():
    with pytest.raises(UserError, match="'encoding_errors' is for local files"):
        StageData(Stage.model_validate({"name": "one", "dataset": {"path": "builtin:tales", "encoding_errors": "refuse"}, "samples": 1}), Path("nowhere"), 0)


# --- rows that give no sample

BAD_ROWS = '{"text": "a"}\n\n{"text": "b"\n[1, 2]\n{"text": null}\n{"text": 7}\n{"text": " "}\n{"words": "x"}\n\n\n"c"\nnonsense\n{"text": "d"}\n'


def test_bad_rows_are_skipped_counted_by_reason_and_the_first_are_named(tmp_path):
    path = write(tmp_path / "a.jsonl", BAD_ROWS)
    found, state = truths(opened(path))
    assert found == ["a", "c", "d"]
    assert state["skipped"] == {"not valid JSON": 2, "no JSON object": 1, "null": 2, "not text": 1, "empty": 1}
    places = {reason: [int(place.removeprefix(f"{path}, line ")) for place in named] for reason, named in state["places"].items()}
    assert places == {"not valid JSON": [3, 12], "no JSON object": [4], "null": [5, 8], "not text": [6], "empty": [7]}
    many = truths(opened(write(tmp_path / "many.jsonl", '{"text": "a"}\n' + "x\n" * 50)))[1]
    assert describe_losses(many) == [f"50 rows skipped: not valid JSON ({'; '.join(f'{tmp_path}/many.jsonl, line {n}' for n in (2, 3, 4))}; …)"]


@pytest.mark.parametrize(("row", "says"), [('{"text": "b"', "not valid JSON (Expecting"), ("[1]", "is no JSON object"),
                                           ('{"text": null}', "gives no sample (null)"),
                                           ('{"text": 5}', "gives no sample (not text)"), ('{"other": 1}', "gives no sample (null)")])
@pytest.mark.parametrize("line", [2, 60])
def test_a_bad_row_can_end_the_run(tmp_path, row, says, line):
    good = '{"text": "a"}\n'
    path = write(tmp_path / "a.jsonl", good * (line - 1) + row + "\n" + good)
    text = refused(path, on_bad_row="stop")
    assert f"a.jsonl, line {line}: {says}" in text
    assert len(truths(opened(path, on_bad_row="skip"))[0]) == line


def test_bad_rows_of_csv_are_named_by_their_line(tmp_path):
    path = write(tmp_path / "a.csv", 'text,n\n"two\nlines",1\na,b,c\nlast,2\n')
    found, state = truths(opened(path))
    assert (found, state["places"]) == (["two\nlines", "last"], {"too many values": [f"{path}, line 4"]})
    assert "a.csv, line 4: 3 values under a header of 2" in refused(path, on_bad_row="stop")


@given(stop=st.integers(0, 60), weights=st.sampled_from([None, (1.0, 3.0)]), shuffle=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bad_rows_change_nothing_of_resuming_and_of_shares(tmp_path, stop, weights, shuffle):
    write(tmp_path / "a.jsonl", "".join(f'{{"text": "a{i}"}}\n' if i % 3 else "broken\n" for i in range(30)))
    write(tmp_path / "b.jsonl", b"".join(b'{"text": "b%d\xff"}\n' % i if i % 4 else b"7\n" for i in range(20)))
    sources = [{"path": str(tmp_path / name), **({"weight": weight} if weight else {})}
               for name, weight in zip(("a.jsonl", "b.jsonl"), weights or (None, None), strict=True)]
    data = StageData(Stage.model_validate({"name": "one", "dataset": sources, "epochs": 2, "shuffle": shuffle}), tmp_path / "datasets", 0)
    untouched, stopped, resumed = data.open_samples(), data.open_samples(), data.open_samples()
    for _ in range(stop):
        assert untouched.next() == stopped.next()
    resumed.restore(json.loads(json.dumps(stopped.state())))
    assert list(iter(resumed.next, None)) == list(iter(untouched.next, None))
    assert resumed.state() == untouched.state()
    assert resumed.state()["replaced"]["rows"] == resumed.state()["replaced"]["characters"] > 10
    if not weights:  # each row of both epochs came, or was counted: 27 and 18 are not held out
        assert resumed.state()["samples"] + sum(resumed.state()["skipped"].values()) == 2 * (27 + 18)
        assert resumed.progress == 1
        assert resumed.state()["mix"]["rows"] == [2 * 27, 2 * 18]


# --- files

def test_empty_files_among_full_ones_are_fine(tmp_path):
    import pyarrow
    from pyarrow import parquet

    forms = {"jsonl": ("", '{"text": "a"}\n'), "csv": ("text\n", "text\na\n"), "txt": ("", "a"), "json": ("", '[{"text": "a"}]'), "tsv": ("", "text\na\n")}
    for form, (empty, full) in forms.items():
        for number, content in enumerate((empty, full, empty, full)):
            write(tmp_path / form / f"{number}.{form}", content)
        assert truths(opened(tmp_path / form))[0] == ["a", "a"]
        write(tmp_path / f"empty-{form}" / f"a.{form}", empty)
        assert "holds no rows" in refused(tmp_path / f"empty-{form}")
    (tmp_path / "parquet").mkdir()
    for number, rows in enumerate(([], ["a"], [])):
        parquet.write_table(pyarrow.table({"text": pyarrow.array(rows, pyarrow.string())}), tmp_path / "parquet" / f"{number}.parquet")
    assert truths(opened(tmp_path / "parquet"))[0] == ["a"]


def test_a_refused_source_leaves_no_folder(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["word " * 50] * 5000}), tmp_path / "whole.parquet")
    data = (tmp_path / "whole.parquet").read_bytes()
    write(tmp_path / "cut.parquet", data[:len(data) // 2])
    write(tmp_path / "middle.parquet", data[:60] + bytes(200) + data[260:])
    write(tmp_path / "cut.jsonl.gz", gzip.compress(os.urandom(9000))[:-50])
    for name in ("cut.parquet", "middle.parquet", "cut.jsonl.gz"):
        assert f"{name}: cannot be" in refused(tmp_path / name)
        assert not (tmp_path / "datasets").exists()


@pytest.mark.parametrize("change", ["shrinks", "is written over", "is replaced", "grows", "goes"])
@pytest.mark.parametrize("form", ["txt", "jsonl", "arrow"])
def test_a_file_that_changes_while_it_is_read_is_an_error_and_no_wrong_text(tmp_path, form, change):
    import pyarrow

    path = tmp_path / f"a.{form}"
    if form == "arrow":
        table = pyarrow.table({"text": [f"text number {i}" for i in range(5000)]})
        with pyarrow.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=100)
    else:
        write(path, "".join(f"text number {i}\n\n" if form == "txt" else json.dumps({"text": f"text number {i}"}) + "\n" for i in range(5000)))
    os.utime(path, ns=(0, 0))
    data = opened(path)
    stream = data.open_samples()
    first = stream.next()
    assert first is not None
    assert first.truth.startswith("text number 0")
    content = path.read_bytes()
    if change in ("is replaced", "goes"):
        path.unlink()
    if change != "goes":
        write(path, {"shrinks": content[:50], "grows": content + b"\n"}.get(change, content))
    if change in ("is replaced", "goes") and form != "arrow":  # what is open stays whole
        assert stream.next() is not None
        return
    with pytest.raises(UserError, match=rf"a\.{form}: (has changed while it was being read|cannot be read)"):
        stream.next()


def test_links_that_lead_in_circles_are_walked_once(tmp_path):
    folder = tmp_path / "in"
    write(folder / "a.jsonl", '{"text": "a"}\n')
    write(tmp_path / "elsewhere" / "b.jsonl", '{"text": "b"}\n')
    (folder / "round").symlink_to(folder)
    (folder / "far").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(folder)
    assert truths(opened(folder))[0] == ["a", "b"]
    found = StageData(Stage.model_validate({"name": "one", "dataset": f"{folder}/**/*.jsonl", "validation": 0, "shuffle": False}), tmp_path / "datasets", 0)
    assert truths(found)[0] == ["a", "b"]
    (folder / "self.jsonl").symlink_to(folder / "self.jsonl")
    assert "self.jsonl: cannot be read" in refused(folder)
    (folder / "self.jsonl").unlink()
    (folder / "nowhere.jsonl").symlink_to(folder / "nothing")
    assert "nowhere.jsonl: cannot be read" in refused(folder)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.jsonl", '{"text": "a"}\n')
    write(tmp_path / "in" / "closed" / "b.jsonl", '{"text": "b"}\n')
    scan = os.scandir

    def forbidding(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    assert "closed: cannot be read (Permission denied)" in refused(tmp_path / "in")


@pytest.mark.parametrize("name", ["with space", "new\nline", "bell\x07", "\u202eright", "x" * 240, os.fsdecode(b"caf\xe9")])
def test_names_of_any_characters(tmp_path, name):
    try:
        write(tmp_path / "in" / f"{name}.jsonl", '{"text": "a"}\nbroken\n')
        write(tmp_path / "in" / f"{name}2.jsonl.gz", gzip.compress(b'{"text": "b"}\n'))
    except OSError:
        pytest.skip("this disk has no such names")
    data = opened(tmp_path / "in")
    found, state = truths(data)
    assert found == ["a", "b"]
    json.dumps([state, data.fingerprints()], ensure_ascii=False).encode()
    assert all(line.isprintable() for line in describe_losses(state))


# --- the index of big files

def big(path: Path, first: str = "a", n: int = 2000) -> Path:
    write(path, "".join(f'{{"text": "{first}{i}"}}\n' + ("\n" if i % 100 == 0 else "") for i in range(n)))
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.fixture
def long_ago(monkeypatch):
    """A clock by which all files were written long ago."""
    import time

    from lmplay.data.sources import index

    class Clock:
        time = staticmethod(lambda: time.time() + 3600)

    monkeypatch.setattr(index, "time", Clock)
    monkeypatch.setattr(index, "_LEAST_BYTES", 5000)  # what is big


def rows(path: Path, folder: Path) -> list:
    table = JsonLines(path, path.name, Spans(Index(folder)))
    return [table[i] for i in range(len(table))]


@pytest.mark.usefixtures("long_ago")
def test_the_index_of_a_big_file_is_kept_and_never_stale(tmp_path, monkeypatch):
    path, folder = big(tmp_path / "a.jsonl"), tmp_path / "datasets"
    expected = [{"text": f"a{i}"} for i in range(2000)]
    assert rows(path, folder) == expected
    (kept,) = (folder / "index").iterdir()
    from lmplay.data.sources import tables

    with monkeypatch.context() as patch:
        patch.setattr(tables, "_line_bounds", None)  # a second scan would fail
        assert rows(path, folder) == expected
        table = JsonLines(path, "a.jsonl", Spans(Index(folder)))
    assert [table.location(i) for i in (0, 1, 101, 1999)] == ["a.jsonl, line 1", "a.jsonl, line 3", "a.jsonl, line 104", "a.jsonl, line 2020"]
    old = path.read_bytes()
    moved = old.replace(b'"a0"', b'"longer a0"').replace(b'{"text": "a1999"}\n', b"")
    for content in (old.replace(b'"a0"', b'"b0"'), moved.ljust(len(old)), old + b'{"text": "more"}\n', old[:old.index(b'{"text": "a900"}')]):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))  # even with the time of writing put back
        fresh = JsonLines(path, "a.jsonl", Spans())
        found = JsonLines(path, "a.jsonl", Spans(Index(folder)))
        assert (len(found), found._starts.tolist()) == (len(fresh), fresh._starts.tolist())
        before, (kept,) = kept, (folder / "index").iterdir()
        assert kept != before  # which is gone
    before = rows(path, folder)
    for damage in (b"", kept.read_bytes()[:100], b"\x93NUMPY" + bytes(50)):
        kept.write_bytes(damage)
        assert rows(path, folder) == before


def test_a_file_written_just_now_is_not_indexed(tmp_path):
    path = big(tmp_path / "a.jsonl", n=60_000)
    assert len(JsonLines(path, "a.jsonl", Spans(Index(tmp_path / "datasets")))) == 60_000
    assert not (tmp_path / "datasets").exists()


@pytest.mark.usefixtures("long_ago")
def test_a_folder_that_cannot_be_written_goes_without_an_index(tmp_path):
    path = big(tmp_path / "a.jsonl")
    write(tmp_path / "datasets", "a file")
    assert len(rows(path, tmp_path / "datasets")) == 2000


@pytest.mark.usefixtures("long_ago")
@pytest.mark.parametrize("form", ["txt", "csv", "jsonl"])
def test_all_forms_read_the_same_with_an_index(tmp_path, form):
    line = {"txt": "paragraph %d\n\n", "csv": '"record\n%d",x\n', "jsonl": '{"text": "line %d"}\n'}[form]
    path = write(tmp_path / f"a.{form}", ("text,n\n" if form == "csv" else "") + "".join(line % i for i in range(3000)))
    first, second = opened(path), opened(path)
    assert list((tmp_path / "datasets" / "index").iterdir())
    assert truths(first) == truths(second)
    assert first.fingerprints() == second.fingerprints()


# --- fingerprints

def test_a_digest_is_of_all_bytes_of_a_file_and_of_many_stretches_of_a_huge_one(tmp_path, monkeypatch):
    from lmplay.data.sources import spans

    path = write(tmp_path / "a", bytes(300_000))
    before = content_digest(path)
    for place in (0, 65_536, 150_000, 299_999):
        data = bytearray(300_000)
        data[place] = 1
        assert content_digest(write(path, bytes(data))) != before
    monkeypatch.setattr(spans, "_WHOLE", 1000)
    monkeypatch.setattr(spans, "_STRETCH", 100)
    before = content_digest(write(path, bytes(300_000)))
    found = []
    for place in range(0, 300_000, 4999):
        data = np.zeros(300_000, dtype=np.uint8)
        data[place:place + 5000] = 1
        found.append(content_digest(write(path, data.tobytes())) != before)
    assert all(found)


def test_what_has_changed_is_said_file_by_file(tmp_path):
    for name in ("a", "b", "c"):
        write(tmp_path / "in" / f"{name}.jsonl", f'{{"text": "{name}"}}\n')
    before = opened(tmp_path / "in").fingerprints()
    shutil.move(tmp_path / "in", tmp_path / "moved")
    assert same_data(before[0], opened(tmp_path / "moved").fingerprints()[0])
    write(tmp_path / "moved" / "a.jsonl", '{"text": "other"}\n{"text": "a"}\n')
    (tmp_path / "moved" / "b.jsonl").unlink()
    write(tmp_path / "moved" / "d.jsonl", '{"text": "d"}\n')
    (change,) = describe_changes(before, opened(tmp_path / "moved").fingerprints())
    assert change == "moved (a.jsonl has changed, d.jsonl is new, b.jsonl is gone; 3 rows before, 4 now)"
    for i in range(1001):
        write(tmp_path / "many" / f"{i}.jsonl", '{"text": "x"}\n')
    before = opened(tmp_path / "many").fingerprints()
    assert len(json.dumps(before)) < 300
    write(tmp_path / "many" / "7.jsonl", '{"text": "y"}\n')
    assert describe_changes(before, opened(tmp_path / "many").fingerprints()) == ["many (its text; 1,001 rows before, 1,001 now)"]


@pytest.mark.parametrize("change", ["fewer", "more", "shorter", "a stream", "from a stream"])
@pytest.mark.parametrize("stop", range(1, 9))
def test_a_position_carries_over_to_other_data(tmp_path, change, stop):
    """Also while samples wait for a batch with room for them, which the other data does not have."""
    texts = [{"text": "abc def ghi. " * (1 + i * 7 % 5)} for i in range(40)]
    path = write_rows(tmp_path / "a.jsonl", texts)
    data = opened(path, on_bad_row="skip")
    if change == "from a stream":
        data.sources[0] = Flow(texts)
    before, batcher = data.fingerprints(), Batcher(data.open_samples(), Cutter(BYTES, 30).cut, 4)
    batch = None
    for _ in range(stop):
        batch = batcher.next()
    assert batch is not None
    write_rows(path, {"fewer": texts[:2], "more": texts * 3, "shorter": [{"text": "abc."}] * 40}.get(change, texts))
    data = opened(path)
    if change == "a stream":
        data.sources[0] = Flow(texts)
    batcher = Batcher(data.open_samples(), Cutter(BYTES, 30).cut, 4)
    batcher.restore(data.carry_over(batch.position, before))
    pieces = [piece for found in iter(batcher.next, None) for piece in found.pieces]
    ended = [piece.sample.row for piece in pieces if piece.last]
    read = batch.position["samples"]["mix"]["readers"][0]
    first = {"a stream": 0, "from a stream": batch.position["read"]}.get(change, read["offset"])
    assert sorted(ended) == list(range(first, data.sources[0].n_rows or 40))
    assert "".join(piece.truth for piece in pieces).count("abc") == sum(data_row["text"].count("abc") for data_row in _rows_of(data)[first:])


def _rows_of(data: StageData) -> list[dict]:
    source = data.sources[0]
    return source.all if isinstance(source, Flow) else [source[i] for i in range(source.n_rows)]


# --- whole runs

@pytest.fixture
def corpus(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    write_rows(tmp_path / "texts" / "a.jsonl", [{"text": sentences(1 + i % 3, f"cat{i}")} for i in range(60)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def train(capsys, *arguments, code=0):
    from lmplay.train.__main__ import main

    found = main([*TINY, "--batch-size", "5", "--validation-interval", "20", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.out + captured.err
    return captured.out + captured.err


def stop_after(monkeypatch, steps):
    """Interrupt the next run after so many steps."""
    from lmplay.engine import stage

    original, left = stage.train_step, iter(range(steps - 1, -1, -1))

    def step_and_signal(*arguments, **options):
        result = original(*arguments, **options)
        if next(left, None) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(stage, "train_step", step_and_signal)


def test_a_folder_that_was_moved_is_gone_on_with_to_the_same_bits(corpus, capsys, monkeypatch):
    def plan(path):
        return write_plan(corpus, {"one": {"dataset": path, "epochs": 1.5}, "two": {"dataset": path, "samples": 9}})

    plan("texts")
    train(capsys, "--training-plan", "plan.json", "--out-dir", "untouched")
    stop_after(monkeypatch, 7)
    train(capsys, "--training-plan", "plan.json", "--out-dir", "stopped", code=130)
    shutil.move("texts", "texts elsewhere")
    plan("texts elsewhere")
    train(capsys, "--training-plan", "plan.json", "--out-dir", "stopped")

    def but_names(line):
        return not any(word in line for word in (".plan.stages.", ".fingerprints.", ".path"))

    assert list(filter(but_names, compare_runs(corpus / "untouched", corpus / "stopped"))) == []


@pytest.mark.parametrize("change", ["more", "fewer", "other"])
def test_data_that_changed_is_refused_and_can_be_accepted(corpus, capsys, monkeypatch, change):
    write_plan(corpus, {"one": {"dataset": "texts", "epochs": 3, "validation": {"samples": 2}}})
    stop_after(monkeypatch, 15)
    train(capsys, "--training-plan", "plan.json", code=130)
    position = load(Path("out_gpt/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][0]["position"]
    if change == "other":
        write_rows(corpus / "texts" / "a.jsonl", [{"text": sentences(10)}] * 20 + [{"text": "short"}] * 40)
    else:
        write_rows(corpus / "texts" / "a.jsonl", [{"text": sentences(1 + i % 3, f"cat{i}")} for i in range(90 if change == "more" else 4)])
    text = train(capsys, "--training-plan", "plan.json", code=2)
    said = {"more": "60 rows before, 90 now", "fewer": "60 rows before, 4 now", "other": "60 rows before, 60 now"}[change]
    assert f"the data of texts (a.jsonl has changed; {said}) has changed" in text
    assert "--accept-changed-data" in text
    text = train(capsys, "--training-plan", "plan.json", "--accept-changed-data")
    assert "accepted: stage 'one': the data of texts (a.jsonl has changed" in text
    samples = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"]
    read = position["read"]
    per_epoch = {"more": 81, "fewer": 4, "other": 54}[change]  # a tenth is held out, of 4 rows none
    epoch, rows_before = position["samples"]["mix"]["epoch"], position["samples"]["mix"]["readers"][0]["offset"]
    assert epoch < 3
    left = (3 - epoch) * per_epoch - rows_before
    assert samples == pytest.approx(max(left, (2 - epoch) * per_epoch) + read, abs=32 + rows_before * 0.1)
    assert "accepted" not in train(capsys, "--training-plan", "plan.json")


def test_a_bad_row_ends_the_run_with_its_state_saved_and_is_counted_otherwise(corpus, capsys):
    lines = (corpus / "texts" / "a.jsonl").read_text().splitlines()
    lines[40] = "{broken"
    (corpus / "texts" / "a.jsonl").write_text("\n".join(lines))
    source = {"path": "texts", "on_bad_row": "stop"}
    write_plan(corpus, {"one": {"dataset": source, "validation": 0, "shuffle": False}})
    text = train(capsys, "--training-plan", "plan.json", "--mini-batch-size", 5, code=2)
    assert "a.jsonl, line 41: not valid JSON" in text
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] > 20
    write_plan(corpus, {"one": {"dataset": {**source, "on_bad_row": "skip"}, "validation": 0, "shuffle": False}})
    text = train(capsys, "--training-plan", "plan.json", "--reset-history")
    assert "1 row skipped: not valid JSON (" in text
    stage = json.loads(Path("out_gpt/gpt2ish_model_train_stats.json").read_text())["stages"][0]
    assert (stage["skipped"], stage["replaced"]) == ({"not valid JSON": 1}, {})


@pytest.mark.parametrize("nats", ["three", 3.5])
def test_a_column_that_is_called_as_ours_is_no_floor(corpus, capsys, nats):
    write_rows(corpus / "own.jsonl", [{"text": f"A cat {i}.", "nats": nats} for i in range(30)])
    assert "floor" not in train(capsys, "--dataset", "own.jsonl")


def test_bad_rows_are_user_errors_of_one_line():
    assert issubclass(BadRow, UserError)
    assert UserError("a\nb\x1b[0m").faults == ("a\\nb\\x1b[0m",)
