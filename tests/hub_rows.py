"""The rows that the data sets of the test hub hold, and how they are opened."""
import json
from pathlib import Path
from types import SimpleNamespace

from lmplay.data.sources import open_source
from lmplay.data.sources.remote import RemoteFile

ROWS = [{"text": f"Row {i}: {'water ' * (i % 7)}ends.", "n": i} for i in range(200)]
PARTS = [ROWS[:60], [], ROWS[60:61], ROWS[61:200]]


def write_parquet(path: Path, rows: list[dict], group: int = 16) -> None:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pyarrow.schema([("text", pyarrow.string()), ("n", pyarrow.int64())])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path, row_group_size=group)


def as_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def hub_set(name: str, tmp_path: Path, role: str = "train", **keys):
    usual = {"path": name, "config": None, "split": None, "revision": None, "streaming": None, "columns": {"text": "text", "title": "n"}}
    spec = SimpleNamespace(**{**usual, **keys})
    return open_source(spec, role, tmp_path / "datasets")


class LocalFile(RemoteFile):
    """A file that is read from memory, as if from the hub."""

    def __init__(self, data: bytes):
        super().__init__("o/n", "o/n", "main", "file")
        self._size = len(data)
        self.data, self.read_bytes = data, 0

    def read(self, start, end):
        self.read_bytes += len(self.data[start:end])
        return self.data[start:end]
