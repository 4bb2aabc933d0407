"""Reading JSON and YAML that a stranger may have written: what it may cost is known before it is built."""
from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import UserError, printable, value_fault

# Far above any plan: bytes of a file, values in it (those behind YAML's aliases counted each time), and objects and lists within each other.
MOST_BYTES, MOST_VALUES, MOST_DEPTH = 4 << 20, 100_000, 100


def read_json_or_yaml(path: Path, what: str, most_bytes: int = MOST_BYTES) -> Any:
    """Read a JSON file, or a YAML one when its name ends in .yaml or .yml.

    :param path: the file.
    :param what: its name in the message ("plan", "settings file").
    :param most_bytes: longer files are refused; only in files of the default length are values counted.
    :return: the parsed value.
    :raises UserError: when it is missing, unreadable, too long or too deep, or not valid, with line and column.
    """
    text = _read(path, what, most_bytes)
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            return _parse_yaml(text)
        try:
            value = json.loads(text, object_pairs_hook=_refuse_twins)
        except json.JSONDecodeError as error:
            raise _Refused(f"not valid JSON ({error.msg})", error.lineno, error.colno) from None
        except RecursionError:
            raise _Refused(_TOO_DEEP) from None
        except ValueError as error:  # an integer of thousands of digits
            raise _Refused(f"not valid JSON ({value_fault(error)})") from None
        _check_size(value, MOST_VALUES if most_bytes == MOST_BYTES else most_bytes)
        return value
    except _Refused as refused:
        raise UserError(f"{what} {path}{refused.where}: {refused}.") from None


_TOO_DEEP = f"more than {MOST_DEPTH} objects and lists within each other; write it flat"
_TOO_MANY = f"more than {MOST_VALUES:,} values, aliases written out; cut it down"


class _Refused(Exception):
    """What is wrong with a document; the end of a message, with a line and a column from 1 where known."""

    def __init__(self, why: str, line: int = 0, column: int = 0):
        super().__init__(why)
        self.where = f", line {line}, column {column}" if line else ""


def _read(path: Path, what: str, most_bytes: int) -> str:
    """Read the text of a regular file; a pipe or a device could go on for ever."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{what} {path}: cannot be read ({'Is a directory' if stat.S_ISDIR(status.st_mode) else 'it is not a regular file'}).")
            if status.st_size > most_bytes:
                raise UserError(f"{what} {path}: has {status.st_size:,} bytes, allowed are {most_bytes:,}; cut it down.")
            return file.read(most_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{what} {path}: cannot be read ({reason}).") from None


def _check_size(value: Any, most_values: int) -> None:
    """Refuse a value that holds too many others, or too deep within each other."""
    level, count = [value], 1
    for _ in range(MOST_DEPTH + 1):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in (outer.values() if isinstance(outer, dict) else outer)]
        count += len(level)
        if count > most_values:
            raise _Refused(_TOO_MANY)
        if not level:
            return
    raise _Refused(_TOO_DEEP)


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict; a key that stands twice is refused (a stage would vanish silently)."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _Refused(_twice(key))
        result[key] = value
    return result


def _twice(key: str) -> str:
    """Say that a key stands twice."""
    return f"the key '{printable(key[:60])}' stands twice in one object; only the last would count. Rename one"


def _parse_yaml(text: str) -> Any:
    """Parse YAML with the safe loader, after its events have shown how large, how deep and how doubled it is."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, loader))
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise _Refused(f"not valid YAML ({getattr(error, 'problem', None) or error})", *where) from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:  # a scalar that is not what its tag or its look says
        raise _Refused(f"not valid YAML ({value_fault(error)})") from None


class _Open:
    """A list or an object whose end has not come: its anchor, the values in it, and, of an object, its keys and whether one comes next."""

    def __init__(self, anchor: str | None, keys: set[str] | None):
        self.anchor, self.keys = anchor, keys
        self.values, self.key_next = 1, keys is not None


def _check_events(events: Iterable[Any]) -> None:
    """Refuse YAML that is too large with its aliases written out, too deep, or has a key twice in one object.

    An alias counts as all that it stands for: nested ones can make billions of values of a few lines, and a merge (`<<`) copies them.
    """
    import yaml

    sizes: dict[str, int] = {}
    opened: list[_Open] = [_Open(None, None)]
    for event in events:
        if isinstance(event, yaml.events.CollectionEndEvent):
            closed = opened.pop()
            size = closed.values
            if closed.anchor:
                sizes[closed.anchor] = size
        elif isinstance(event, yaml.events.CollectionStartEvent):
            if len(opened) > MOST_DEPTH:
                raise _Refused(_TOO_DEEP, event.start_mark.line + 1, event.start_mark.column + 1)
            sizes.pop(event.anchor, None)
            opened.append(_Open(event.anchor, set() if isinstance(event, yaml.events.MappingStartEvent) else None))
            continue
        elif isinstance(event, yaml.events.AliasEvent):
            if event.anchor not in sizes:
                raise _Refused(f"the alias '{printable(event.anchor[:60])}' stands for nothing before it, or for what it is in",
                               event.start_mark.line + 1, event.start_mark.column + 1)
            size = sizes[event.anchor]
        elif isinstance(event, yaml.events.ScalarEvent):
            size = 1
            if event.anchor:
                sizes[event.anchor] = 1
        else:
            continue
        outer = opened[-1]
        if outer.keys is not None:
            if outer.key_next and isinstance(event, yaml.events.ScalarEvent):
                if event.value in outer.keys:
                    raise _Refused(_twice(event.value), event.start_mark.line + 1, event.start_mark.column + 1)
                outer.keys.add(event.value)
            outer.key_next = not outer.key_next
        outer.values += size
        if outer.values > MOST_VALUES:
            raise _Refused(_TOO_MANY, event.start_mark.line + 1, event.start_mark.column + 1)
