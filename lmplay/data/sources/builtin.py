"""The built-in corpus as a source: endless rows that need no file and no network.  Data floor, no torch."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...plan.catalog import BUILTIN_KIND
from .base import IndexedSource, SourceSpec, refuse_hub_keys
from .registry import Opener


class TalesSource(IndexedSource):
    """Tales of one level: row `index` follows from level, seed and index alone."""

    columns = ("title", "text", "nats")
    n_rows = None
    has_nats = True

    def __init__(self, level: int, seed: int):
        """
        :param level: how hard the tales are.
        :param seed: which of the corpora of this level.
        """
        from ..tales import VERSION, Tales

        self._tales = Tales(level, seed=seed)
        self.name = f"tales-{level}" + (f" seed {seed}" if seed else "")
        self.fingerprint = {"kind": "tales", "level": level, "seed": seed, "version": VERSION}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`IndexedSource`."""
        if index < 0:
            raise IndexError(index)
        tale = self._tales[index]
        return {"title": tale.title, "text": tale.text, "nats": tale.nats}


class AskedSource(IndexedSource):
    """Rows about the tales, and sums: row `index` follows from kind, seed and index alone."""

    n_rows = None

    def __init__(self, kind: str, seed: int):
        """
        :param kind: one of `lmplay.data.tales.asked.COLUMNS`.
        :param seed: which of the corpora of this kind.
        """
        from ..tales.asked import COLUMNS, VERSION, Asked

        self._rows, self.columns = Asked(kind, seed), COLUMNS[kind]
        self.name = kind + (f" seed {seed}" if seed else "")
        self.fingerprint = {"kind": kind, "seed": seed, "version": VERSION}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`IndexedSource`."""
        if index < 0:
            raise IndexError(index)
        return dict(self._rows[index])


def open_builtin(spec: SourceSpec, split: str, folder: Path) -> IndexedSource | None:
    """Open `builtin:tales`, `builtin:tales/LEVEL`, or `builtin:questions`, `preferences` or `sums`, each with `?seed=N` or not; else level 1 and seed 0.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: not used.
    :return: the source; None for "validation", as the corpus is not split.
    :raises UserError: when there is no such corpus or level.
    """
    refuse_hub_keys(spec, *BUILTIN_KIND.without)
    found = re.fullmatch(BUILTIN_KIND.pattern, BUILTIN_KIND.locate(spec.path, folder))
    assert found is not None
    if split != "train":
        return None
    seed = int(found["seed"] or 0)
    return AskedSource(found["rows"], seed) if found["rows"] else TalesSource(int(found["level"] or 1), seed)


BUILTIN = Opener(open_builtin)
