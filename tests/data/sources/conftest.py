"""Files that tests of local sources share."""
import gzip

import pytest
from files import lines, write


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
