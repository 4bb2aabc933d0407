"""What is left of an object without what is wrong in it, so that `--check-plan` can go on looking for faults.  Knows no keys of plans."""
from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any


def mended(raw: dict[str, Any], wrong: Callable[[dict[str, Any]], list[tuple[str, str]]]) -> tuple[dict[str, Any], set[str]]:
    """Copy an object without what is wrong in it; a misspelt key gets the name that is meant.

    :param raw: an object as written.
    :param wrong: finds what is wrong in it: pairs of a key, such as `dataset[1].path`, and its fault.
    :return: the copy, and the keys whose values it lacks.
    """
    raw, gone = copy.deepcopy(raw), set()
    while found := wrong(raw):  # one at a time: what then is found too may only follow from it
        key, fault = found[0]
        steps = _steps(raw, key)
        if not steps:
            break
        holder, step = steps[-1]
        value = holder.pop(step)
        meant = re.search(r"unknown key\. Did you mean '([^']*)'", fault)
        if meant and meant[1] not in holder:
            holder[meant[1]] = value
        else:
            gone.add(key)
    return raw, gone


def _steps(raw: Any, key: str) -> list[tuple[Any, Any]]:
    """Follow a key through an object as far as it has its parts: pairs of an object or list, and the key or number of what it holds."""
    steps: list[tuple[Any, Any]] = []
    while key:
        if isinstance(raw, list) and (number := re.match(r"\[([0-9]+)\]", key)):
            step, rest = int(number[1]), key[number.end():]
        elif isinstance(raw, dict) and (names := [name for name in raw if key == name or key.startswith((f"{name}.", f"{name}["))]):
            step = max(names, key=len)
            rest = key[len(step):]
        else:
            break
        steps.append((raw, step))
        raw, key = raw[step], rest.removeprefix(".")
    return steps
