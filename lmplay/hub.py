"""Whether the Hugging Face hub can be reached, asked once and quickly.  Ground floor.

The hub's client retries for most of a minute before it gives up; people without network should not wait for that.
"""
from __future__ import annotations

import os
import socket
from functools import lru_cache
from urllib.parse import urlsplit

_SECONDS = 5.0


def hub_problem() -> str | None:
    """Say why the hub cannot be used now.

    :return: a reason, or None when its host answers (or a proxy stands between, whose business it then is).
    """
    if any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")):
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")):
        return None
    return _connect(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))


@lru_cache
def _connect(endpoint: str) -> str | None:
    """Open and close one connection to the endpoint's host."""
    address = urlsplit(endpoint)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=_SECONDS).close()
    except (OSError, ValueError) as error:
        return f"no connection to {endpoint}: {error.args[-1] if error.args else error}"
    return None
