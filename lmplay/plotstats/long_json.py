"""Reading JSON with very long columns of numbers.  Plotstats floor: numpy, pyarrow on demand, and the ground.

Each column becomes an array before the next one is read: as Python numbers all of them would need five times the memory, and much more time.
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..documents import read_json_or_yaml

_LONG_FILE, _LONGEST_PLAIN = 4_000_000, 32 << 20  # bytes; of files below the first all is read by the plain reader, of those above the second nothing
_LONG_COLUMN = 2000  # bytes
_COLUMN = "\0column"


def read_long_json(path: Path, what: str) -> Any:
    """Read a JSON file; in a long file, long lists of numbers and nulls become float64 arrays with NaN for null.

    :param what: what the file is, for the message.
    :raises UserError: when it is missing, unreadable, or not valid.
    """
    try:
        if path.stat().st_size > _LONG_FILE:
            return _read(path.read_bytes())
    except (OSError, ValueError, TypeError):
        pass  # the plain reader says what is wrong, and where
    return read_json_or_yaml(path, what, _LONGEST_PLAIN)


def _read(text: bytes) -> Any:
    """Cut out the columns, parse the rest, and put the columns back; raises ValueError when it is not valid."""
    columns: list[NDArray[np.float64]] = []
    rest, done, after = [], 0, 0
    while (end := text.find(b"]", after)) >= 0:
        begin, after = text.rfind(b"[", after, end), end + 1
        if begin >= 0 and end - begin > _LONG_COLUMN and b'"' not in (inner := text[begin + 1 : end]):
            rest += [text[done:begin], json.dumps({_COLUMN: len(columns)}).encode()]
            columns.append(_numbers(inner))
            done = after
    plain = b"".join([*rest, text[done:]])
    if len(plain) > _LONGEST_PLAIN:
        raise ValueError("too much that is not columns")
    return json.loads(plain, object_hook=lambda value: columns[value[_COLUMN]] if _COLUMN in value else value)


def _numbers(text: bytes) -> NDArray[np.float64]:
    """Read numbers and nulls separated by commas; each becomes the nearest float64, as in Python."""
    import pyarrow
    from pyarrow import csv

    read = csv.read_csv(pyarrow.py_buffer(text.replace(b",", b"\n")), csv.ReadOptions(column_names=["x"]),
                        convert_options=csv.ConvertOptions(column_types={"x": pyarrow.float64()}, null_values=["null", " null"]))
    if len(read) != text.count(b",") + 1:
        raise ValueError("a number is missing")
    numbers: NDArray[np.float64] = read["x"].to_numpy()
    return numbers
