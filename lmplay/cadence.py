"""When to save and to validate: a function of two counts, with no state that a resume could lose."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Every:
    """Due each time a running count crosses a multiple of `interval` (0 = never); once where it crosses several, as a batch may."""

    interval: int

    def due(self, before: int, after: int) -> bool:
        """Tell whether a multiple of the interval lies in (before, after], two values of the count."""
        return self.interval > 0 and after // self.interval > before // self.interval
