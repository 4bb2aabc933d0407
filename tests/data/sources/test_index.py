"""The cache of what was computed from big files: never stale, and nothing depends on it."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
from files import write
from stages import open_data, truths

from lmplay.data.sources.index import Index
from lmplay.data.sources.spans import Spans
from lmplay.data.sources.tables import JsonLines


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


def indexed_rows(path: Path, folder: Path) -> list:
    table = JsonLines(path, path.name, Spans(Index(folder)))
    return [table[i] for i in range(len(table))]


@pytest.mark.usefixtures("long_ago")
def test_the_index_of_a_big_file_is_kept_and_never_stale(tmp_path, monkeypatch):
    path, folder = big(tmp_path / "a.jsonl"), tmp_path / "datasets"
    expected = [{"text": f"a{i}"} for i in range(2000)]
    assert indexed_rows(path, folder) == expected
    (kept,) = (folder / "index").iterdir()
    from lmplay.data.sources import tables

    with monkeypatch.context() as patch:
        patch.setattr(tables, "_line_bounds", None)  # a second scan would fail
        assert indexed_rows(path, folder) == expected
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
    before = indexed_rows(path, folder)
    for damage in (b"", kept.read_bytes()[:100], b"\x93NUMPY" + bytes(50)):
        kept.write_bytes(damage)
        assert indexed_rows(path, folder) == before


def test_a_file_written_just_now_is_not_indexed(tmp_path):
    path = big(tmp_path / "a.jsonl", n=60_000)
    assert len(JsonLines(path, "a.jsonl", Spans(Index(tmp_path / "datasets")))) == 60_000
    assert not (tmp_path / "datasets").exists()


@pytest.mark.usefixtures("long_ago")
def test_a_folder_that_cannot_be_written_goes_without_an_index(tmp_path):
    path = big(tmp_path / "a.jsonl")
    write(tmp_path / "datasets", "a file")
    assert len(indexed_rows(path, tmp_path / "datasets")) == 2000


@pytest.mark.usefixtures("long_ago")
@pytest.mark.parametrize("form", ["txt", "csv", "jsonl"])
def test_all_forms_read_the_same_with_an_index(tmp_path, form):
    line = {"txt": "paragraph %d\n\n", "csv": '"record\n%d",x\n', "jsonl": '{"text": "line %d"}\n'}[form]
    path = write(tmp_path / f"a.{form}", ("text,n\n" if form == "csv" else "") + "".join(line % i for i in range(3000)))
    first, second = open_data(path), open_data(path)
    assert list((tmp_path / "datasets" / "index").iterdir())
    assert truths(first) == truths(second)
    assert first.fingerprints() == second.fingerprints()
