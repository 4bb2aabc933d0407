"""Running a server until it is asked to stop.  Ground floor; imported where a server is started."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

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
    config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
                            proxy_headers=False, server_header=False, timeout_graceful_shutdown=grace + _TO_TELL)
    asyncio.run(Server(config, on_stop).serve([listening.socket]))
