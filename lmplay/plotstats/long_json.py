"""Reading JSON with very long columns of numbers.  Plotstats floor: numpy, pyarrow on demand, and the ground.

A column that is read becomes an array before the next one is: as Python's numbers all of them would need five times the memory, and much more time.
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import read_json_or_yaml

_LONG_FILE = 4_000_000  # bytes; smaller files are read as they are
_LONG_COLUMN = 2000  # bytes
_PLACE = "\0column"


def read_long_json(path: Path, what: str) -> Any:
    """Read a JSON file, long lists of numbers and nulls as float64 arrays with NaN for null if the file is a long one.

    :param path: the file.
    :param what: what it is, for the message.
    :return: the parsed value.
    :raises UserError: when it is missing, unreadable, or not valid.
    """
    try:
        if path.stat().st_size > _LONG_FILE:
            return _read(path.read_bytes())
    except (OSError, ValueError, TypeError):
        pass  # the plain way says what is wrong, and where
    return read_json_or_yaml(path, what)


def _read(text: bytes) -> Any:
    """Take the columns out, read what is left, and put them back; raises ValueError where it is not valid."""
    columns: list[NDArray[np.float64]] = []
    rest, done, after = [], 0, 0
    while (end := text.find(b"]", after)) >= 0:
        begin, after = text.rfind(b"[", after, end), end + 1
        if begin >= 0 and end - begin > _LONG_COLUMN and b'"' not in (inner := text[begin + 1 : end]):
            rest += [text[done:begin], json.dumps({_PLACE: len(columns)}).encode()]
            columns.append(_numbers(inner))
            done = after
    return json.loads(b"".join([*rest, text[done:]]), object_hook=lambda value: columns[value[_PLACE]] if _PLACE in value else value)


def _numbers(text: bytes) -> NDArray[np.float64]:
    """Read numbers and nulls with commas between them; each is the float64 that is nearest to what is written, as Python reads it."""
    import pyarrow
    from pyarrow import csv

    read = csv.read_csv(pyarrow.py_buffer(text.replace(b",", b"\n")), csv.ReadOptions(column_names=["x"]),
                        convert_options=csv.ConvertOptions(column_types={"x": pyarrow.float64()}, null_values=["null", " null"]))
    if len(read) != text.count(b",") + 1:
        raise ValueError("a number is missing")
    numbers: NDArray[np.float64] = read["x"].to_numpy()
    return numbers
