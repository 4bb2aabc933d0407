"""Whom a server answers, and its answers to what it does not take.  Ground floor; imported where a server is started.

Errors have the shape of OpenAI's: ``{"error": {"message", "type", "param", "code"}}``.
"""
from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .address import LOCAL, Listening

# Of what is too large this many times the limit is read before the answer: a client that has not sent all would not see it.
_READ_ANYWAY = 64
_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cross-origin-resource-policy": "same-origin", "cache-control": "no-store"}


class Refused(Exception):
    """A request that is not answered: HTTP status, a sentence, the parameter that is at fault, and OpenAI's code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def to_json(self) -> dict[str, object]:
        """Return the error in OpenAI's shape."""
        kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the answer."""
        return JSONResponse(self.to_json(), self.status, self.headers)


class Guard:
    """Lets pass what has the token and, where the server is for this machine alone, what was meant for it.

    A page of a stranger, open in a browser on this machine, can send requests to addresses of this machine: directly (the browser says so in `Origin`) or
    after its own name has been given such an address (DNS rebinding: the name is in `Host`).
    """

    def __init__(self, app: ASGIApp, listening: Listening, open_paths: tuple[str, ...] = ("/",)):
        """
        :param open_paths: what is answered without a token, as a browser cannot send one when it opens a page; it must tell nothing.
        """
        self._app, self._token, self._is_local, self._open = app, listening.token, listening.is_local, open_paths
        self._hosts = {"localhost", LOCAL, "[::1]", listening.host.lower(), f"[{listening.host.lower()}]"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._check(Headers(scope=scope), scope["path"])
        await (self._app if refused is None else refused.response())(scope, receive, send_with_headers)

    def _check(self, headers: Headers, path: str) -> Refused | None:
        """Say why a request is refused, if it is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._is_local and re.sub(r":\d*$", "", host).lower() not in self._hosts:
            return Refused(403, f"This server is for this machine alone; it does not answer to the name {host!r}.", code="wrong_host")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return Refused(403, "This server accepts no requests from pages of another origin.", code="wrong_origin")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), (self._token or "").encode())
        if self._token is not None and path not in self._open and not is_right:
            what = "The token is wrong." if given else "The token is missing: send it as the header `Authorization: Bearer TOKEN`."
            return Refused(401, what, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return None


async def answer_refused(request: Request, error: Exception) -> Response:
    """Answer what a handler has refused, and paths and methods that there are not."""
    if isinstance(error, HTTPException):
        hint = {404: f"There is no {request.url.path} here.", 405: f"{request.url.path} does not take {request.method}."}
        error = Refused(error.status_code, hint.get(error.status_code, error.detail), headers=error.headers)
    assert isinstance(error, Refused)
    return error.response()


async def answer_fault(request: Request, error: Exception) -> Response:
    """Answer where the program has a fault; its traceback goes to the errors' stream."""
    return Refused(500, "The server has a fault; it has written it out where it runs.").response()


HANDLERS = {Refused: answer_refused, HTTPException: answer_refused, Exception: answer_fault}


async def read_json(request: Request, most_bytes: int, seconds: float = 60) -> dict[str, object]:
    """Read the body of a request, which must be a JSON object.

    :raises Refused: 413 when it is larger than `most_bytes`, 408 when it does not come, 400 when it is none.
    """
    try:
        body = await asyncio.wait_for(_read(request, most_bytes), seconds)
    except asyncio.TimeoutError:
        raise Refused(408, f"The request has not come within {seconds:g} seconds.") from None
    except ClientDisconnect:
        raise Refused(400, "The request is incomplete.") from None
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()  # a text with half a surrogate pair is none
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) if isinstance(error, json.JSONDecodeError) else \
            "a text or a number in it cannot be read"
        raise Refused(400, f"The request is not valid JSON ({reason}).", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Refused(400, "The request must be a JSON object.", code="invalid_json")
    return value


def _no_number(text: str) -> None:
    """Refuse NaN and the infinities, which Python takes for JSON."""
    raise ValueError(text)


async def _read(request: Request, most_bytes: int) -> bytes:
    """Read a body; of one that is too large some more, but keep nothing."""
    if int(request.headers.get("content-length", 0)) > most_bytes * _READ_ANYWAY:
        raise _too_large(most_bytes)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= most_bytes:
            parts.append(part)
        elif size > most_bytes * _READ_ANYWAY:
            break
    if size > most_bytes:
        raise _too_large(most_bytes)
    return b"".join(parts)


def _too_large(most_bytes: int) -> Refused:
    return Refused(413, f"The request is larger than {most_bytes:,} bytes.", code="request_too_large")


def page(text: str, inline_styles: bool = False) -> Response:
    """Answer with a page that may run the scripts it has itself, and load nothing from elsewhere.

    :param inline_styles: its scripts make styles, as those of plotly do.
    """
    def hashes(tag: str) -> str:
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()}'"
                        for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S))

    styles = "'unsafe-inline'" if inline_styles else hashes("style")
    policy = (f"default-src 'none'; script-src {hashes('script')}; style-src {styles}; img-src data:{' blob:' if inline_styles else ''}; connect-src 'self'; "
              "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
    return HTMLResponse(text, headers={"content-security-policy": policy})
