"""Local files as one source, and one clear line for what is wrong with them."""
from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from files import lines, opened, refused, rows_of, write
from stages import open_data, refused_data, truths

from lmplay.data.stream import describe_losses


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
    "deep.json": "deep.json: its JSON is nested too deeply to be read",
    "broken.json": "broken.json, line 2, column 1: not valid JSON",
    "none.json": "holds 0 arrays",
    "two.json": "holds 2 arrays",
    "number.json": "holds 0 arrays",
    "wide.csv": "wide.csv, line 4: 3 values under a header of 2",
    "twins.csv": "has the column 'a' twice",
    "sixteen.txt": "is UTF-16 text",
    "cut.parquet": "cut.parquet: cannot be read as Parquet",
    "cut.arrow": "cut.arrow: cannot be read as Arrow",
    "mixed": "one name in several formats (train.csv and train.jsonl)",
    "twice": "holds both a.jsonl and a.jsonl.gz",
    "onlytest": "has only test files",
    "ftp://example.org/a.txt": "addresses of this kind are not read",
    "a:b": "neither a file or folder that exists nor the name of a data set",
}


@pytest.mark.parametrize("path", BAD)
def test_what_cannot_be_read_is_refused_in_one_line(bad_files, folder, path):
    assert BAD[path] in refused(path, folder)


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


def test_empty_files_among_full_ones_are_fine(tmp_path):
    import pyarrow
    from pyarrow import parquet

    forms = {"jsonl": ("", '{"text": "a"}\n'), "csv": ("text\n", "text\na\n"), "txt": ("", "a"), "json": ("", '[{"text": "a"}]'), "tsv": ("", "text\na\n")}
    for form, (empty, full) in forms.items():
        for number, content in enumerate((empty, full, empty, full)):
            write(tmp_path / form / f"{number}.{form}", content)
        assert truths(open_data(tmp_path / form))[0] == ["a", "a"]
        write(tmp_path / f"empty-{form}" / f"a.{form}", empty)
        assert "holds no rows" in refused_data(tmp_path / f"empty-{form}")
    (tmp_path / "parquet").mkdir()
    for number, rows in enumerate(([], ["a"], [])):
        parquet.write_table(pyarrow.table({"text": pyarrow.array(rows, pyarrow.string())}), tmp_path / "parquet" / f"{number}.parquet")
    assert truths(open_data(tmp_path / "parquet"))[0] == ["a"]


def test_a_refused_source_leaves_no_folder(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["word " * 50] * 5000}), tmp_path / "whole.parquet")
    data = (tmp_path / "whole.parquet").read_bytes()
    write(tmp_path / "cut.parquet", data[:len(data) // 2])
    write(tmp_path / "middle.parquet", data[:60] + bytes(200) + data[260:])
    write(tmp_path / "cut.jsonl.gz", gzip.compress(os.urandom(9000))[:-50])
    for name in ("cut.parquet", "middle.parquet", "cut.jsonl.gz"):
        assert f"{name}: cannot be" in refused_data(tmp_path / name)
        assert not (tmp_path / "datasets").exists()


@pytest.mark.parametrize("name", ["with space", "new\nline", "bell\x07", "\u202eright", "x" * 240, os.fsdecode(b"caf\xe9")])
def test_names_of_any_characters(tmp_path, name):
    try:
        write(tmp_path / "in" / f"{name}.jsonl", '{"text": "a"}\nbroken\n')
        write(tmp_path / "in" / f"{name}2.jsonl.gz", gzip.compress(b'{"text": "b"}\n'))
    except OSError:
        pytest.skip("this disk has no such names")
    data = open_data(tmp_path / "in")
    found, state = truths(data)
    assert found == ["a", "b"]
    json.dumps([state, data.fingerprints()], ensure_ascii=False).encode()
    assert all(line.isprintable() for line in describe_losses(state))
