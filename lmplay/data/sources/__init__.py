"""The sources: what yields rows.  Data floor, no torch; the libraries that a source needs are imported when it is opened."""
from __future__ import annotations

from pathlib import Path

from .base import BadRow, IndexedSource, Row, Source, SourceSpec, Stream, StreamedSource
from .builtin import PREFIX, open_builtin
from .hub import open_hub
from .local import open_local
from .selection import is_local

__all__ = ["BadRow", "IndexedSource", "Row", "Source", "SourceSpec", "Stream", "StreamedSource", "is_hub", "is_local", "open_source"]


def open_source(spec: SourceSpec, split: str, folder: Path) -> IndexedSource | StreamedSource | None:
    """Open a source: the built-in corpus, local files, or a data set of the hub.

    :param spec: the source asked for: `builtin:NAME`, an existing path or what looks like one, or else a name on the hub.
    :param split: "train" for the rows to train on, "validation" for the source's own validation rows.
    :param folder: the data sets folder; what has to be downloaded, unpacked or converted is kept there, and nothing is written elsewhere.
    :return: the source; None where "validation" is asked for and it has no such rows of its own.
    :raises UserError: one clear line for each thing that is wrong with it.
    """
    if spec.path.startswith(PREFIX):
        return open_builtin(spec, split)
    if is_local(spec.path):
        return open_local(spec, split, folder)
    return open_hub(spec, split, folder)


def is_hub(spec: SourceSpec) -> bool:
    """Tell whether a source is a data set of the hub, whether or not it has been saved."""
    return not spec.path.startswith(PREFIX) and not is_local(spec.path)
