"""The Hugging Face hub from outside: whether it answers, and how long to wait when it doesn't."""
from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from .errors import StoppedWaiting, Unavailable, UserError
from .paths import expanded

_ANSWER_SECONDS = 15.0  # that the hub may take to answer; its addresses are tried one after the other
_TRUE = ("1", "ON", "YES", "TRUE")  # what the hub's own client takes for yes
# Seconds between tries: they double up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
# Seconds in all, from the first failure on: by default, and where the hub has said when to come back (its limits are counted over five minutes).
_DEFAULT_PATIENCE, _PATIENCE_WHEN_TOLD = 120.0, 600.0
_CHECK_SECONDS = 0.2  # between two checks whether to stop waiting


def hub_problem() -> str | None:
    """Ask the hub as its own client does, through the same proxies: None when it answers, even with a refusal, else the reason in one line."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        return "HF_HUB_OFFLINE is set"
    reasons = ["no answer"]

    def ask() -> None:
        from huggingface_hub.utils import build_hf_headers, get_session

        try:
            answer = get_session().get(f"{hub_endpoint()}/api/datasets?limit=1", headers=build_hf_headers(), timeout=_ANSWER_SECONDS)
            reasons[:] = _wrong_answer(answer)
        except Exception as error:
            reasons[:] = [first_line(error)]

    thread = threading.Thread(target=ask, daemon=True)  # the look-up of an address has no timeout
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return reasons[0] if reasons else None


def hub_endpoint() -> str:
    """Return the hub's address, as its own client finds it."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def shared_cache(kind: Literal["hub", "datasets"]) -> Path:
    """Return a cache that all programs of this user share, as the hub's own client finds it: of files of the hub, or of data sets that `datasets` has made."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return expanded(os.environ.get({"hub": "HF_HUB_CACHE", "datasets": "HF_DATASETS_CACHE"}[kind]) or Path(home) / kind)


class Outage(Exception):
    """The hub did not answer as it should, and may do so later; `asked` are the seconds after which it asks to be tried again, if it said so."""

    def __init__(self, reason: str, asked: float | None = None):
        super().__init__(reason)
        self.asked = asked


class Waiting:
    """What happens while waiting for the hub: `say` tells the user, `stopped` can end it."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
        self.stopped: Callable[[], bool] = lambda: False


waiting = Waiting()


class Patience:
    """Retries of what `label` names in messages and `who` is asked for: each wait is twice the one before, longer where that asks for it, up to a limit; a
    success starts over."""

    def __init__(self, label: str, who: str = "the hub"):
        self._label, self._who = label, who
        given = os.environ.get("LMP_HUB_PATIENCE", "")
        try:
            self._limit = float(given) if given else _DEFAULT_PATIENCE
        except ValueError:
            raise UserError(f"LMP_HUB_PATIENCE is '{given}'; it must be a number of seconds.") from None
        self.renew()

    def renew(self) -> None:
        """Start over: the hub has answered."""
        self._since: float | None = None
        self._next = _FIRST_WAIT
        self._told = False

    def wait(self, outage: Outage) -> None:
        """Wait before the next try; raises Unavailable when the limit is reached, or a stop is requested meanwhile."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        pause = max(self._next, outage.asked or 0.0)
        self._next = min(2 * self._next, _LONGEST_WAIT)
        self._told = self._told or outage.asked is not None
        limit = max(self._limit, _PATIENCE_WHEN_TOLD) if self._told and self._limit else self._limit
        if now - self._since + pause > limit:
            asks = f"; it asks to wait {outage.asked:.0f} s" if outage.asked else ""
            raise Unavailable(f"{self._label}: {self._who} does not answer ({outage}{asks}), after {now - self._since:.0f} s of trying.")
        waiting.say(f"{self._label}: {self._who} does not answer ({outage}), trying again in {pause:.0f} s; the position is kept")
        end = now + pause
        while (left := end - time.monotonic()) > 0:
            if waiting.stopped():
                raise StoppedWaiting(f"{self._label}: stopped while waiting for {self._who} ({outage}).")
            time.sleep(min(_CHECK_SECONDS, left))


def outage_of(error: BaseException) -> Outage | None:
    """Tell whether an error of the hub's client, or one of its causes, means that the hub may answer later; None where waiting is no use."""
    found: Outage | None = None
    seen: BaseException | None = error
    while seen is not None:
        response: Any = getattr(seen, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status >= 400:
            return outage_of_status(status, response.headers)
        # By name: which network library the client uses changes with its version.
        names = {kind.__name__ for kind in type(seen).__mro__}
        if names & {"ConnectionError", "TransportError", "Timeout", "TimeoutError", "IncompleteRead"} and "OfflineModeIsEnabled" not in names:
            found = Outage(first_line(seen))
        seen = seen.__cause__ or seen.__context__
    return found


def outage_of_status(status: int, headers: Any) -> Outage | None:
    """Tell whether an HTTP status means that the hub may answer later; `Retry-After` in seconds is followed. None where waiting is no use."""
    if status not in (408, 425, 429) and status < 500:
        return None
    asked = str(headers.get("Retry-After") or "").strip()
    return Outage(f"HTTP {status}", float(asked) if asked.isdigit() else None)


def _wrong_answer(answer: Any) -> list[str]:
    """Say why an answer is not the hub's, if it is a server's error, or the login page of a network."""
    if answer.status_code >= 500:
        return [f"HTTP {answer.status_code}"]
    if answer.status_code < 400 and "html" in answer.headers.get("Content-Type", ""):
        return [f"{urlsplit(str(answer.url)).netloc} answers with a web page; is there a login page before the network?"]
    return []


def first_line(error: BaseException) -> str:
    """Put an error of a library into one line."""
    return next(iter(str(error).strip().splitlines()), "").rstrip(".") or type(error).__name__
