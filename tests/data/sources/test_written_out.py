"""Small Parquet files that stand for very much: refused, or read in parts, within memory."""
from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from files import opened, rows_of
from helpers import ENVIRONMENT, ROOT
from hub_rows import LocalFile

from lmplay.data.sources import written_out
from lmplay.data.sources.shards import ShardedSource

BIG = 30_000_000
# What reads a file as training does, from this disk and as a stream of the hub; prints what it was refused with, and the most memory in MB.
READ = """
import sys
from pathlib import Path
from files import Spec
from lmplay.data.sources import open_source
from lmplay.data.sources.shards import ShardedSource
from lmplay.errors import UserError
from hub_rows import LocalFile
path, how = sys.argv[1:]
try:
    if how == "local":
        open_source(Spec(path), "train", Path(path).parent / "datasets")
    else:
        for number, row in enumerate(ShardedSource("o/n", "parquet", [LocalFile(Path(path).read_bytes())], None, {}).open()):
            if number == 20:
                break
    print("read")
except UserError as error:
    print(error)
print(int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) // 1024)
"""


def texts(length: int, count: int):
    """One text, `count` times."""
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array(["x" * length]))


def bomb(kind: str):
    import pyarrow

    if kind == "texts":
        return texts(BIG, 1000), {}
    if kind == "chats":
        turns = pyarrow.StructArray.from_arrays([texts(BIG, 2000), pyarrow.array(["user"] * 2000)], ["content", "role"])
        return pyarrow.ListArray.from_arrays(pyarrow.array(range(0, 2001, 2), pyarrow.int32()), turns), {}
    if kind == "one row":
        return pyarrow.ListArray.from_arrays(pyarrow.array([0, 100_000], pyarrow.int32()), texts(BIG, 100_000)), {}
    if kind == "differences":
        return pyarrow.array(["x" * 3_000_000] * 300), {"use_dictionary": False, "column_encoding": {"c": "DELTA_BYTE_ARRAY"}}
    return pyarrow.array(["x" * 3_000_000] * 100), {"use_dictionary": False, "column_encoding": {"c": "PLAIN"}}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["local", "stream"])
@pytest.mark.parametrize("kind", ["texts", "chats", "one row", "differences", "plain"])
def test_a_small_file_that_stands_for_very_much_takes_little_memory(tmp_path, kind, how):
    import pyarrow
    from pyarrow import parquet

    column, options = bomb(kind)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"c": column}), path, compression="zstd", store_schema=False, dictionary_pagesize_limit=2**30, **options)
    del column
    assert path.stat().st_size < 2**20
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", READ, str(path), how], capture_output=True, text=True, env=environment, check=True)
    said, megabytes = done.stdout.strip().rsplit("\n", 1)
    assert int(megabytes) < 1200, said  # twice what a refused file may hold would be more
    if kind == "differences" or (how == "stream" and kind in ("texts", "chats")):
        assert said == "read"
    else:
        assert "holds more than" in said


@pytest.mark.parametrize("part", [1, 50, 10**6])
def test_rows_are_those_of_the_file_in_whatever_parts_they_are_written_out(tmp_path, monkeypatch, part):
    import pyarrow
    from pyarrow import parquet

    draw = random.Random(1)
    words = ["", "a", "bc" * 20, "d\u00e9" * 9, None]
    rows = [{"text": draw.choice(words), "n": draw.choice([None, 1, 2]), "kind": draw.choice(["x", "y", None]),
             "messages": draw.choice([None, [], [{"role": "user", "content": draw.choice(words)}] * draw.randrange(4)]),
             "named": draw.choice([None, [("k", draw.choice(words))]])} for _ in range(200)]
    text = pyarrow.string()
    schema = pyarrow.schema([("text", text), ("n", pyarrow.int64()), ("kind", pyarrow.dictionary(pyarrow.int32(), text)),
                             ("messages", pyarrow.list_(pyarrow.struct([("role", text), ("content", text)]))), ("named", pyarrow.map_(text, text))])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), tmp_path / "a.parquet", row_group_size=70)
    monkeypatch.setattr(written_out, "_PART_BYTES", part)
    found = rows_of(opened(tmp_path / "a.parquet", tmp_path / "datasets"))
    assert found == [{name: row[name] for name in found[0]} for row in rows]
    source = ShardedSource("o/n", "parquet", [LocalFile((tmp_path / "a.parquet").read_bytes())], None, {})
    stream = source.open()
    assert [next(stream) for _ in range(100)] == rows[:100]
    assert list(source.open(stream.state())) == rows[100:]
