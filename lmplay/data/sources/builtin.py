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


def open_builtin(spec: SourceSpec, split: str, folder: Path) -> IndexedSource | None:
    """Open `builtin:tales`, `builtin:tales/LEVEL` or `builtin:tales/LEVEL?seed=N`; level 1 and seed 0 where they are not given.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: not used.
    :return: the source; None for "validation", as the corpus is not split.
    :raises UserError: when there is no such corpus or level.
    """
    refuse_hub_keys(spec, *BUILTIN_KIND.without)
    found = re.fullmatch(BUILTIN_KIND.pattern, BUILTIN_KIND.locate(spec.path, folder))
    assert found is not None
    return TalesSource(int(found["level"] or 1), int(found["seed"] or 0)) if split == "train" else None


BUILTIN = Opener(open_builtin)
