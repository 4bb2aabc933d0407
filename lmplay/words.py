"""How names, counts, durations and bytes are written, and what counts as a word."""
from __future__ import annotations

import re

# Scripts that are written without spaces: Thai, Lao, Khmer, kana, Han.
_SPACELESS = r"\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
# A word or punctuation mark: one of their characters; a word of the other scripts; a mark.
WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+|[^\w\s]")
SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_NUMBER = re.compile(r"([0-9][0-9_]{0,30})(?:\.([0-9]{1,15}))?([kMB])?")


def compact(value: float) -> str:
    """Write a count shortly: ``950``, ``2k``, ``1.5M``, ``3B``."""
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def number(text: str) -> int | float | None:
    """Read a number as people write it: ``10k``, ``2M``, ``1.5B``, ``1_000``; None where it is none."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    whole, decimals, suffix = found.groups(default="")
    digits = int(whole + decimals) * {"k": 10**3, "M": 10**6, "B": 10**9, "": 1}[suffix]
    return digits / 10**len(decimals) if digits % 10**len(decimals) else digits // 10**len(decimals)


def counted(count: int, one: str, many: str | None = None) -> str:
    """Write a number of things, by default with an s: ``1 row``, ``2,000 rows``, ``0 batches``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def rows_in_words(trained: int | None, held_out: int | None) -> str:
    """Write how many rows of a source are trained on and held out: ``90 rows``, ``90 rows and 10 held out``; None = they are not counted, or have no end."""
    return "rows not counted" if trained is None else counted(trained, "row") + (f" and {held_out:,} held out" if held_out else "")


def plain(text: str) -> str:
    """Keep matplotlib from reading a name as a formula, or from hiding it in a legend for its leading underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def cut(text: str, most: int) -> str:
    """Shorten a long name in its middle, because names of runs often differ at their ends."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"


def seconds_of(text: str) -> int:
    """Read a duration such as ``1h30m``."""
    return sum(int(count) * {"h": 3600, "m": 60, "s": 1}[unit] for count, unit in re.findall(r"([0-9]+)([hms])", text))


def duration(seconds: float) -> str:
    """Write a duration with its two largest units: ``33.1s``, ``12m 05s``, ``3h 20m``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02}m"


def clock(seconds: float) -> str:
    """Write a time as h:mm:ss."""
    minutes, seconds = divmod(max(round(seconds), 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def bytes_in_words(n_bytes: int) -> str:
    """Write a number of bytes: ``3.5 MiB``, ``1.25 GiB``."""
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
