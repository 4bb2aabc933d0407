"""The bytes of local files: unpacking, digests, and files that change while they are read."""
from __future__ import annotations

import gzip
import json
import os
import sys
from collections import namedtuple

import numpy as np
import pytest
from files import lines, opened, refused, rows_of, write
from stages import open_data, open_stage

from lmplay.data.sources.spans import content_digest
from lmplay.errors import UserError


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


@pytest.fixture(params=["isal", "gzip"])
def unpacker(request, monkeypatch):
    """Unpack with the package isal, or as where it is not installed."""
    if request.param == "gzip":
        monkeypatch.setitem(sys.modules, "isal", None)
    else:
        pytest.importorskip("isal")
    return request.param


DEFLATED = gzip.compress(b'{"text": "one of many rows"}\n' * 5000)
DAMAGED = {"cut off": DEFLATED[:-100], "no sum": DEFLATED[:-3], "wrong sum": DEFLATED[:-8] + bytes(4) + DEFLATED[-4:], "wrong length": DEFLATED[:-4] + bytes(4),
           "more behind": DEFLATED + b"xyz", "no block": DEFLATED[:12] + b"\xff\xff\xff" + DEFLATED[15:], "no header": DEFLATED[:5]}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_gzip_is_refused_by_both_ways_to_unpack(tmp_path, folder, unpacker, damage):
    path = write(tmp_path / "a.jsonl.gz", DAMAGED[damage])
    assert "a.jsonl.gz: cannot be unpacked: it is damaged or cut off (" in refused(path, folder)
    assert list(folder.rglob("*.*")) == []


def test_a_position_in_a_gzip_does_not_depend_on_what_unpacks_it(tmp_path, monkeypatch):
    pytest.importorskip("isal")
    rows = [gzip.compress(f"Row {number}. {'word ' * (number % 7)}\n\n".encode()) for number in range(300)]
    stage = {"dataset": {"path": str(write(tmp_path / "a.txt.gz", b"".join(rows) + bytes(40))), "row_bytes": 64}, "epochs": 2}
    with_isal = open_stage(tmp_path / "with", stage).open_samples()
    begun = [with_isal.next() for _ in range(100)]
    monkeypatch.setitem(sys.modules, "isal", None)  # as where it is not installed
    without = open_stage(tmp_path / "without", stage).open_samples()
    assert [without.next() for _ in range(100)] == begun
    assert without.state() == with_isal.state()
    resumed = open_stage(tmp_path / "without", stage).open_samples()
    resumed.restore(with_isal.state())
    assert [*iter(resumed.next, None)] == [*iter(with_isal.next, None)]
    made = [next((tmp_path / name / "datasets" / "unpacked").iterdir()).read_bytes() for name in ("with", "without")]
    assert made[0] == made[1] == gzip.decompress(b"".join(rows))


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
    data = open_data(path)
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


@pytest.mark.parametrize("form", ["gz", "zst", "parquet"])
def test_a_small_file_that_holds_very_much_is_refused_and_leaves_nothing(tmp_path, folder, monkeypatch, form):
    monkeypatch.setattr("lmplay.data.sources.spans.MADE", 1 << 20)
    data = b'{"text": "aaaa aaaa aaaa"}\n' * 100_000
    path = tmp_path / f"a.jsonl.{form}"
    if form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": ["aaaa aaaa aaaa"] * 300_000}), path, compression="zstd")
    else:
        path.write_bytes(gzip.compress(data) if form == "gz" else zstd_frame(data))
    assert "times its size; if that is intended, unpack it yourself." in refused(path, folder)
    assert list(folder.rglob("*.*")) == []


def test_unpacking_leaves_some_of_the_disk_free(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: namedtuple("usage", "total used free")(1 << 30, 0, 1 << 25))
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "aaaa aaaa aaaa"}\n'))
    assert "would fill the disk" in refused(path, folder)
    assert list(folder.rglob("*.*")) == []
