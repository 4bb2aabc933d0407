"""Every "is it time?" of the project, as a function of two counts: no state, so a resume cannot lose it.  Ground floor."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Every:
    """Due each time a running count crosses a multiple of `interval` (0 = never).

    A batch may jump over several multiples: that is one due time, not several.
    """

    interval: int

    def due(self, before: int, after: int) -> bool:
        """Tell whether a multiple of the interval lies in (before, after].

        :param before: the count before the event.
        :param after: the count after it, at least `before`.
        :return: True if it is time.
        """
        return self.interval > 0 and after // self.interval > before // self.interval
