"""The sources: what yields rows.  Data floor, no torch; what opens a source, and the libraries that it needs, are imported on demand."""
from .base import AnySource, BadRow, IndexedSource, Row, Source, SourceSpec, Stream, StreamedSource
from .registry import Opener, open_source, opener_of

__all__ = ["AnySource", "BadRow", "IndexedSource", "Opener", "Row", "Source", "SourceSpec", "Stream", "StreamedSource", "open_source", "opener_of"]
