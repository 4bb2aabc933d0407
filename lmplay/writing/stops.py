"""Texts that end a text.  Writing floor, no torch."""
from __future__ import annotations

from collections.abc import Callable, Sequence


def cut_at_stops(text: str, stops: Sequence[str], is_whole: bool) -> tuple[str, bool]:
    """Cut a text before the stop text in it that ends first.

    :param is_whole: False = more of it may come, so what may be the beginning of a stop text is cut off as well.
    :return: the text, and whether there was a stop text in it.
    """
    found = [(text.find(stop) + len(stop), len(stop)) for stop in stops if stop in text]
    if found:
        end, length = min(found, key=lambda one: (one[0], -one[1]))
        return text[:end - length], True
    if is_whole:
        return text, False
    begun = max((length for stop in stops for length in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:length])), default=0)
    return text[:len(text) - begun], False


def has_stopped(decode: Callable[[Sequence[int]], str], ids: Sequence[int], stops: Sequence[str]) -> bool:
    """Tell whether the last token of a text has made a stop text whole, without decoding all of the text.

    Each token of a stop text has at least one byte of it. One token more is decoded, because some tokenizers leave out a space at the beginning of a text, and
    up to three more where the first of them is in the middle of a character, of which some make broken ones of all bytes that follow.
    """
    for stop in stops:
        fewest = len(stop.encode()) + 1
        for count in range(fewest, fewest + 4):
            text = decode(ids[-count:])
            if stop in text:
                return True
            if not text.startswith("\ufffd"):
                break
    return False
