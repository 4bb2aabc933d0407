"""When to save and to validate: a function of how far the run is, and of where that was done last."""
from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .words import counted, number

AUTO = "auto"
# What `auto` means: the first of these that comes. A `tenth` is one of the stage's length.
AUTO_SAVES = {"samples": 10_000.0, "seconds": 300.0}
AUTO_VALIDATIONS = {"samples": 100.0, "tenths": 1.0}
# The most that saves may take of the time, and validations of the work of training, where a token that is only read costs a third of one that is also learned
# from: the backward pass takes twice as long as the forward pass (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1).
SAVE_SHARE, VALIDATION_SHARE, VALIDATION_TOKEN = 0.02, 0.05, 1 / 3

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])")
_COUNT = re.compile(r"([0-9][0-9_.]*[kMB]?) ?(samples?|tokens?|steps?)?")
MOST = 10**15
ALLOWED = "auto, 0 (never), or N with a unit: 10k (samples), 500steps, 1Mtokens, 10m (s, m, h)"


@dataclass(frozen=True)
class Cadence:
    """Due where a count has crossed a multiple of its interval since the last time, for whichever unit that comes first.

    Counts and intervals are by unit: samples, tokens, steps, seconds, tenths. An interval of 0 never comes. From one time to the next it is at least as far as
    `apart` says.
    """

    every: Mapping[str, float]
    apart: Mapping[str, float] = field(default_factory=dict)

    def due(self, last: Mapping[str, float], now: Mapping[str, float]) -> bool:
        """Tell whether it is time.

        :param last: the counts when it was done last, or at the start.
        :param now: the counts now.
        """
        return any(every and now[unit] // every > last[unit] // every for unit, every in self.every.items()) and \
            all(now[unit] - last[unit] >= least for unit, least in self.apart.items())

    def times(self, start: Mapping[str, float], end: Mapping[str, float | None]) -> int | None:
        """Count how often it will be time between two counts; None where a unit is needed that nobody knows at the end."""
        known = {unit: value for unit, value in end.items() if value is not None}
        if not {unit for unit, every in self.every.items() if every} | set(self.apart) <= known.keys():
            return None
        most = min((int((known[unit] - start[unit]) / least) for unit, least in self.apart.items() if least), default=math.inf)
        return int(min(most, max((known[unit] // every - start[unit] // every for unit, every in self.every.items() if every), default=0)))

    def in_words(self) -> str:
        """Say how often: "every 10,000 samples or 5 minutes"; "never"."""
        return " or ".join(_in_words(unit, every) for unit, every in self.every.items() if every).join(("every ", "")) if any(self.every.values()) else "never"


def check_interval(value: object) -> int | str:
    """Take the interval of a flag: a number of samples, `auto`, or a text with a unit; raises ValueError, saying what is allowed."""
    if value == AUTO:
        return AUTO
    unit, every = _read(value)
    return int(every) if unit == "samples" else str(value)


def intervals(value: int | str, auto: Mapping[str, float]) -> Mapping[str, float]:
    """Read what :func:`check_interval` has taken.

    :param auto: what `auto` means.
    :return: by unit, see :class:`Cadence`.
    """
    return auto if value == AUTO else dict([_read(value)])


def _read(value: object) -> tuple[str, float]:
    """Read an interval: its unit and how many of it."""
    text = str(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(ALLOWED)
    if found := _TIME.fullmatch(text):
        return "seconds", float(found[1]) * _SECONDS[found[2]]
    found = _COUNT.fullmatch(text)
    every = number(found[1]) if found else None
    if found is None or every is None or every != int(every) or every > MOST:
        raise ValueError(ALLOWED)
    return f"{(found[2] or 'samples').removesuffix('s')}s", float(every)


def _in_words(unit: str, every: float) -> str:
    """Write an interval."""
    if unit == "tenths":
        return "tenth of the stage"
    if unit == "seconds":
        minutes = every / 60
        return counted(int(minutes), "minute") if minutes == int(minutes) else f"{every:g} seconds"
    return counted(int(every), unit.removesuffix("s"))
