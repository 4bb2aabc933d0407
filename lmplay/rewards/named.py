"""The rewards that a plan names.  Rewards floor, no torch; imports nothing of lmplay.

Each is a function of the text that the model has written and of the answer that the row has; the settings are those of the plan.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

# A sign belongs to a number only where no other number is before it (3-5), a comma only where it divides thousands.
_NUMBER = re.compile(r"(?:(?<![\d.])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)")


def exact(text: str, answer: str) -> float:
    """Give 1 where the text is the answer, but for white space around both."""
    return float(text.strip() == answer.strip())


def number(text: str, answer: str) -> float:
    """Give 1 where the last number of the text is the last number of the answer; 1,000 and 1000.0 are the same."""
    expected = _last_number(answer)
    return float(expected is not None and _last_number(text) == expected)


def regex(text: str, answer: str, *, pattern: str) -> float:
    """Give 1 where a pattern of Python's `re` matches anywhere in the text; `.` matches line ends too."""
    return float(re.search(pattern, text, re.DOTALL) is not None)


def json_value(text: str, answer: str) -> float:
    """Give 1 where the text is JSON; where the answer is a JSON object or list, the text must be the same value."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    try:
        expected = json.loads(answer)
    except (ValueError, RecursionError):
        return 1.0
    if not isinstance(expected, (dict, list)):
        return 1.0
    try:
        return float(_typed(found) == _typed(expected))
    except RecursionError:
        return 0.0


def length(text: str, answer: str, *, least: int = 0, most: int | None = None) -> float:
    """Give 1 where the text has a number of words within the limits; outside them less, in proportion."""
    words = len(text.split())
    if words < least:
        return words / least
    return 1.0 if most is None or words <= most else most / words


FUNCTIONS: dict[str, Callable[..., float]] = {"exact": exact, "number": number, "regex": regex, "json": json_value, "length": length}
"""By the names of `lmplay.plan.names.REWARDS`."""


def _typed(value: Any) -> Any:
    """Tell true and 1 apart, which Python does not; 1 and 1.0 stay the same."""
    if isinstance(value, dict):
        return {key: _typed(one) for key, one in value.items()}
    return [_typed(one) for one in value] if isinstance(value, list) else (bool, value) if isinstance(value, bool) else value


def _last_number(text: str) -> Fraction | None:
    """Find the last number of a text; None where there is none, or it has thousands of digits."""
    found = _NUMBER.findall(text)
    try:
        return Fraction(found[-1].replace(",", "")) if found else None
    except ValueError:  # Python's limit on the digits of a number
        return None
