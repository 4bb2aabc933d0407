"""Reading JSON with very long columns of numbers.  Stats floor: numpy and the ground.

A column that is read becomes an array before the next one is: as Python's numbers all of them would need five times the memory, and much more time.
"""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_json_or_yaml

_LONG_FILE = 4_000_000  # bytes; smaller files are read as they are
_COLUMN = re.compile(rb"\[[-+.0-9eEnul,\s]{2000,}\]")
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
    columns: list[Any] = []

    def take_out(found: re.Match[bytes]) -> bytes:
        columns.append(np.array(json.loads(found[0]), dtype=np.float64))
        return json.dumps({_PLACE: len(columns) - 1}).encode()

    return json.loads(_COLUMN.sub(take_out, text), object_hook=lambda value: columns[value[_PLACE]] if _PLACE in value else value)
