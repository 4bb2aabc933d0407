"""The sources: what yields rows.  Data floor, no torch; what opens a source, and the libraries that it needs, are imported on demand."""
from .base import BadRow, IndexedSource, Row, Source, SourceSpec, Stream, StreamedSource
from .registry import Opener, is_of_files, is_remote, open_source

__all__ = ["BadRow", "IndexedSource", "Opener", "Row", "Source", "SourceSpec", "Stream", "StreamedSource", "is_of_files", "is_remote", "open_source"]
