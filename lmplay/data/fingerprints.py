"""What has changed in the data of a stage since a checkpoint, in words.  Data floor, no torch."""
from __future__ import annotations

from itertools import zip_longest
from typing import Any

# Parts of a fingerprint that are for people only: a folder that was moved or a file that was renamed holds the same rows in the same order. How rows are
# read (`reads`, which older versions did not store) does not move them either.
_ASIDE = ("name", "listed", "reads")
# The most files that are named; the others are counted.
_NAMED = 5


def same_data(before: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
    """Tell whether two fingerprints are of the same rows in the same order."""
    return essence(before) == essence(now)


def describe_changes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Say which sources of a stage are not what they were, and how.

    :param before: their fingerprints at the checkpoint, in the stage's order.
    :param now: their fingerprints.
    :return: one text for each that has changed: "books (part-2.txt has changed, part-3.txt is new; 120 rows before, 130 now)".
    """
    return [_describe(old, new) for old, new in zip_longest(before, now) if not same_data(old, new)]


def describe_readings(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Say which sources have the same rows as at the checkpoint, and are read in another way.

    :param before: their fingerprints at the checkpoint; those of versions that read all rows of a source alike do not say how.
    :param now: their fingerprints.
    :return: a text for each.
    """
    found = []
    for old, new in zip(before, now, strict=False):
        was, reads = old.get("reads"), new.get("reads", "")
        if same_data(old, new) and was != reads and (was is not None or " of " in reads):  # "of": the rows looked at are not all alike
            found.append(f"source {new['name']}: its rows are read as {reads}; before the checkpoint "
                         f"{'all were read alike, and others skipped' if was is None else f'as {was}'}.")
    return found


def _describe(before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    """Say how one source has changed."""
    if before is None or now is None:
        there = now or before or {}
        return f"{there['name']} (validation rows of its own that {'were not there' if before is None else 'are not there any more'})"
    parts = _files(before.get("listed"), now.get("listed"))
    keys = [key for key in {**essence(before), **essence(now)} if before.get(key) != now.get(key) and not (parts and key in ("digest", "files"))]
    parts += [f"{key} was {before.get(key)}, is {now.get(key)}" for key in keys if key not in ("rows", "digest")]
    parts = parts or ["its text"]
    rows = f"{before.get('rows'):,} rows before, {now.get('rows'):,} now" if "rows" in before and "rows" in now else ""
    return f"{now['name']} ({'; '.join(filter(None, [', '.join(parts), rows]))})"


def _files(before: list[list[Any]] | None, now: list[list[Any]] | None) -> list[str]:
    """Say which files have come, gone and changed, where both fingerprints list them."""
    if not before or not now:
        return []
    old, new = ({name: digest for name, digest, _ in files} for files in (before, now))
    found = {"has changed": [name for name in new if name in old and old[name] != new[name]], "is new": [name for name in new if name not in old],
             "is gone": [name for name in old if name not in new]}
    named = [f"{name} {what}" for what, names in found.items() for name in names]
    if not named:
        return ["the files are in another order"] if list(old) != list(new) else []
    return named[:_NAMED] + ([f"and {len(named) - _NAMED:,} more"] if len(named) > _NAMED else [])


def essence(fingerprint: dict[str, Any] | None) -> dict[str, Any]:
    """Give the parts of a fingerprint that say something about the rows."""
    return {key: value for key, value in (fingerprint or {}).items() if key not in _ASIDE}
