"""A server of `--serve`, run in a thread through its door, and requests to it."""
from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import signal
import threading
import time

import pytest

pytest.importorskip("uvicorn")
from lmplay.generate.__main__ import main as generator
from lmplay.web import serving


class Client:
    """Sends requests to a server."""

    def __init__(self, server, said: list[str]):
        self.server, self.said = server, said
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def send_only(self, path: str, body=None, method: str | None = None, headers: dict | None = None) -> http.client.HTTPConnection:
        """Send a request; gives the connection, on which the answer will come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data, {"Content-Type": "application/json", **(headers or {})})
        return connection

    def send(self, path: str, body=None, **options) -> http.client.HTTPResponse:
        """Send a request; gives the answer, whose body is yet to be read."""
        return self.send_only(path, body, **{**options, "headers": {"Connection": "close", **(options.get("headers") or {})}}).getresponse()

    def ask(self, path: str, body=None, **options) -> tuple[int, dict]:
        """Send a request; gives the status and the JSON of the answer."""
        with self.send(path, body, **options) as answer:
            return answer.status, json.loads(answer.read())

    def text(self, prompt, **options) -> str:
        """Ask for one text."""
        status, answer = self.ask("/v1/completions", {"prompt": prompt, **options})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def events(self, path: str, body: dict) -> list[dict]:
        """Ask for a stream; gives its events."""
        with self.send(path, {**body, "stream": True}) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.read().decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def stop(self) -> None:
        """Ask the server to stop, as SIGTERM does."""
        self.server.handle_exit(signal.SIGTERM, None)


@contextlib.contextmanager
def served(*arguments, door=generator):
    """Run a door with `--serve` until the end of the block."""
    started: queue.Queue = queue.Queue()

    class Watched(serving.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            started.put(self)

    def run():
        try:
            code.append(door(["--serve", "127.0.0.1:0", *map(str, arguments)]))
        finally:
            started.put(None)

    code: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "Server", Watched)
        thread = threading.Thread(target=run)
        thread.start()
        server = started.get(timeout=120)
        assert server is not None, "the server has not started"
        client = Client(server, [])
        try:
            yield client
        finally:
            client.stop()
            thread.join(60)
    assert not thread.is_alive()
    assert code == [0]


def until(condition, seconds: float = 30) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.01)


def port_of(line: str) -> int:
    return int(re.search(r"http://[^ ]*:(\d+)", line)[1])
