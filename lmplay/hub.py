"""Whether the Hugging Face hub answers, asked once and quickly: its own client would try for minutes.  Ground floor."""
from __future__ import annotations

import os
import threading

# How long the hub may take to answer at all, in seconds: addresses are looked up and tried one after the other.
_PATIENCE = 15.0
_TRUE = ("1", "ON", "YES", "TRUE")  # what the hub's own client takes for yes


def hub_problem() -> str | None:
    """Ask the hub for a sign of life, in the way its own client will, proxies and all.

    :return: None when it answers, whatever it says; else the reason why it doesn't, in one line.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        return "HF_HUB_OFFLINE is set"
    reasons = ["no answer"]

    def ask() -> None:
        from huggingface_hub.utils import get_session

        try:
            get_session().head(hub_endpoint(), timeout=_PATIENCE)
            reasons.clear()
        except Exception as error:
            reasons[:] = [next(iter(str(error).splitlines()), "") or type(error).__name__]

    thread = threading.Thread(target=ask, daemon=True)  # looking up an address knows no time limit
    thread.start()
    thread.join(_PATIENCE)
    return reasons[0] if reasons else None


def hub_endpoint() -> str:
    """Give the hub's address, as its own client finds it."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
