"""JSON as users' files have it: numbers of any size, and the true reason where a value cannot be read.  Data floor, no torch."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from .base import BadRow

_VALUE = re.compile(r"[^ \t\r\n]")


class NotRead(Exception):
    """A text that is no JSON value that can be read: `reason` is what such rows are counted under, the message is the fault in words.

    `error` is that of the parser; None where the text may be valid.
    """

    def __init__(self, reason: str, fault: str, error: json.JSONDecodeError | None = None):
        super().__init__(fault)
        self.reason, self.error = reason, error


def parse(text: str) -> Any:
    """Parse a JSON text.

    :param text: the text.
    :return: its value; whole numbers of more digits than Python converts become floats.
    :raises NotRead: when it is not valid, or nested more deeply than Python's parser can follow.
    """
    try:
        return _parse(text, None)
    except json.JSONDecodeError as error:
        raise NotRead("not valid JSON", f"not valid JSON ({error.msg})", error) from None
    except RecursionError:
        raise NotRead("nested too deeply", "its JSON is nested too deeply to be read") from None


def parse_all(text: str) -> list[Any]:
    """Parse JSON values that follow one another, each on any number of lines; raises NotRead as :func:`parse` does."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while begin := _VALUE.search(text, position):
        try:
            value, position = decoder.raw_decode(text, begin.start())
        except json.JSONDecodeError as error:
            raise NotRead("not valid JSON", f"not valid JSON ({error.msg})", error) from None
        except (ValueError, RecursionError):
            raise NotRead("not valid JSON", "holds several JSON values, and one that is nested too deeply or has too long a number") from None
        found.append(value)
    return found


def as_row(text: str, location: Callable[[], str]) -> dict[str, Any]:
    """Parse a line of a JSON lines file.

    :param text: the line.
    :param location: says where it is.
    :return: the row.
    :raises BadRow: when it is no JSON object.
    """
    try:
        value = parse(text)
    except NotRead as fault:
        raise BadRow(fault.reason, location(), f"{fault}; each line must be one whole JSON object: mend or delete it.") from None
    if not isinstance(value, dict):
        raise no_object(location())
    return value


def no_object(location: str) -> BadRow:
    """Make the error for a value that is no row."""
    return BadRow("no JSON object", location, "is no JSON object; write {\"text\": …}, or delete it.")


def _parse(text: str, parse_int: Callable[[str], Any] | None) -> Any:
    """Parse a text; a second time, more slowly, where a number is too long for Python to convert."""
    try:
        return json.loads(text, parse_int=parse_int)
    except json.JSONDecodeError:
        raise
    except ValueError:
        if parse_int is not None:
            raise
        return _parse(text, float)
