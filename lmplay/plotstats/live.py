"""`lmp_plotstats --serve`: the report of an output folder, which follows the runs.  Plotstats floor; imported where a server is started."""
from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ..errors import UserError, printable, tell
from ..web import serving
from ..web.address import Listening
from ..web.guard import HANDLERS, Guard, Refused, page
from .report import live_page, report_page, to_json
from .watch import look

# What a report is made of.
_FILES = ("*_stats.json", "*_settings.json", "*_samples.jsonl", "*_eval.json")


class Live:
    """The answers of the server.

    :param collect: collects the content of a report (:func:`lmplay.plotstats.report.report_content`) of the named models, or of all where there are no
        names, and a line for each file that cannot be used; raises UserError when there is nothing to show.
    :param seconds: between two looks of a page.
    """

    def __init__(self, folder: Path, collect: Callable[[Sequence[str]], tuple[dict[str, Any], list[str]]], theme: str | None, seconds: float):
        self._folder, self._collect = folder, collect
        self._page = page(live_page(theme, seconds), inline_styles=True)
        self._lock = threading.Lock()  # the folder is read by one thread at a time, however many pages ask
        self._seen, self._answer, self._said = "", b"", list[str]()

    def app(self) -> Starlette:
        """Build the application."""
        return Starlette(exception_handlers=HANDLERS, routes=[
            Route("/", self.get_page), Route("/report.json", self.get_content), Route("/report.html", self.get_file)])

    async def get_page(self, request: Request) -> Response:
        """Answer with the page, which then asks for what it shows."""
        return self._page

    async def get_content(self, request: Request) -> Response:
        """Answer with what there is to show, or that nothing has changed."""
        seen, answer = await asyncio.to_thread(self._newest)
        if request.headers.get("if-none-match") == seen:
            return Response(status_code=304, headers={"ETag": seen})
        return Response(answer, media_type="application/json", headers={"ETag": seen})

    async def get_file(self, request: Request) -> Response:
        """Answer with the report in one file, of the models that are named or of all."""
        names = request.query_params.getlist("models")
        try:
            content, _ = await asyncio.to_thread(self._collected, names)
        except UserError as error:
            raise Refused(404, str(error), "models") from None
        text = await asyncio.to_thread(report_page, content, "--serve")
        return HTMLResponse(text, headers={"content-disposition": 'attachment; filename="report.html"'})

    def _collected(self, names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        with self._lock:
            return self._collect(names)

    def _newest(self) -> tuple[str, bytes]:
        """Give the content as JSON, collected anew where a file has changed, with what stands for this state of the files."""
        with self._lock:
            found = f'"{hashlib.sha256(repr(look(self._folder, _FILES)).encode()).hexdigest()[:32]}"'
            if found != self._seen:
                try:
                    content, faults = self._collect(())
                except UserError as error:
                    content, faults = {}, list(error.faults)
                for fault in faults if faults != self._said else ():
                    print(f"lmp_plotstats: {fault}", file=sys.stderr, flush=True)
                self._seen, self._said, self._answer = found, faults, to_json({**content, "faults": [printable(fault) for fault in faults]}).encode()
            return self._seen, self._answer


def serve(listening: Listening, live: Live) -> None:
    """Answer until Ctrl+C or SIGTERM."""
    tell(f"{listening.url} shows the report{'' if listening.token is None else ', with a token'}; Ctrl+C ends")
    serving.run(Guard(live.app(), listening), listening)
