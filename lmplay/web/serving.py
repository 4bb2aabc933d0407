"""Running a server until it is asked to stop.  Ground floor; imported where a server is started."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from ..signals import SAVE, taken
from .address import Listening

# After the time that requests have to end, this many seconds to tell their clients.
_TO_TELL = 3


class Server(uvicorn.Server):
    """A server that says when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]):
        super().__init__(config)
        self._on_stop = on_stop
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take every request to stop that the project knows; uvicorn itself takes two, and raises again what has come when it has ended."""
        with super().capture_signals():
            further = [number for number in taken() if number not in (SAVE, signal.SIGINT, signal.SIGTERM)]
            before = {number: signal.signal(number, self.handle_exit) for number in further if threading.current_thread() is threading.main_thread()}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a request to stop; it may come at any moment."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_stop)


def run(app: ASGIApp, listening: Listening, grace: int = 0, on_stop: Callable[[], None] = lambda: None) -> None:
    """Answer requests until Ctrl+C or SIGTERM, which then has its usual effect.

    :param grace: seconds that requests then have to end; a second Ctrl+C ends at once.
    :param on_stop: called when the server is asked to stop, in its event loop.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
                            proxy_headers=False, server_header=False, timeout_graceful_shutdown=grace + _TO_TELL)
    asyncio.run(Server(config, on_stop).serve([listening.socket]))


def _is_fault(record: logging.LogRecord) -> bool:
    """Tell whether uvicorn complains of a fault; that an answer has been cut off at the end is none."""
    return not (record.msg.startswith("Cancel ") or (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)))
