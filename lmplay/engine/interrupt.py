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
    """Takes the requests."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.at_work = False

    def install(self) -> None:
        """Listen to the signals from now on."""
        for number in EXIT_CODES:
            signal.signal(number, self._take)

    def requested(self) -> bool:
        """Tell whether somebody has asked to stop."""
        return self.exit_code is not None

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        again = self.requested()
        self.exit_code = EXIT_CODES[signal.Signals(number)]
        if again or not self.at_work:
            raise Stopped(self.exit_code)
