"""Stopping on request: Ctrl+C and SIGTERM.  Engine floor, no torch.

While the run is at work the first request only sets a flag, so that it stops between two mini-batches and saves; the second, or any
before the work begins, ends it at once.
"""
from __future__ import annotations

import signal
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Stopped(BaseException):
    """A request to end at once; not an Exception, so that no handler of errors takes it for one."""

    def __init__(self, exit_code: int):
        super().__init__(exit_code)
        self.exit_code = exit_code


class Interrupt:
    """Takes the requests, from `with` on until its end."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.at_work = False

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._take) for number in EXIT_CODES}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """Tell whether somebody has asked to stop."""
        return self.exit_code is not None

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        again = self.requested()
        self.exit_code = EXIT_CODES[signal.Signals(number)]
        if again or not self.at_work:
            raise Stopped(self.exit_code)
