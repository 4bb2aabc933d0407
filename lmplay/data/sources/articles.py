"""Sources whose rows are single lines, with the lines joined into articles at their headings.  Data floor, no torch; imports the ground only."""
from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .base import AnySource, BadRow, IndexedSource, Row, Stream, StreamedSource
from .index import Index

if TYPE_CHECKING:
    import numpy as np

# An article's heading as wikitext has it; those of its sections have more signs: "= = History = =".
_HEADING = re.compile(r"\s*= ([^=\n](?:[^\n]*[^=\n])?) =\s*")
# An article ends at the next line once it has this many characters, so that rows without headings do not fill the memory.
_LONGEST = 1 << 20
# Lines of a stream among which there has to be a heading.
_LOOKED_AT = 10_000
# About what a line takes, in bytes.
_LINE_BYTES = 100
# Lines that are read together.
_BLOCK = 1000
# A line: its text and how many of its characters were replaced, or why it cannot be read.
_Line = tuple[str, int] | BadRow


def join_articles(source: AnySource, field: str, index: Index | None = None) -> AnySource:
    """Make a source of articles from one of lines.

    A row that holds nothing but a heading, between blank rows, begins an article: it is the title, and what follows up to the next heading the text.

    :param source: the source of lines.
    :param field: the field that has a row's line.
    :param index: keeps where the articles of rows with numbers begin.
    :return: the source of articles, with the fields `title` (None where there is none) and `text`. Rows that cannot be read are rows of it, too.
    :raises UserError: when there is no heading.
    """
    return _IndexedArticles(source, field, index or Index()) if isinstance(source, IndexedSource) else _StreamedArticles(source, field)


class _IndexedArticles(IndexedSource):
    """Articles by number; after them come the lines that cannot be read, so that they are counted as any others."""

    n_rows: int

    def __init__(self, source: IndexedSource, field: str, index: Index):
        if source.n_rows is None:
            raise UserError(f"source {source.name}: never ends, so its rows cannot be joined into articles; leave 'rows' out.")
        self._source, self._field = source, field
        print_of = json.dumps({key: value for key, value in source.fingerprint.items() if key != "listed"}, sort_keys=True)
        stamp, changed_at = source.stamp()
        kept = index.keep(f"articles of {source.name} by {field}", f"{print_of} {stamp}", self._scan, source.n_rows * _LINE_BYTES, changed_at)
        n_articles = int(kept[0])
        self._starts, self._bad = [0, *accumulate(kept[1:n_articles + 1].tolist())], kept[n_articles + 1:].tolist()
        self.name, self.columns, self.notes, self.n_rows = source.name, ("title", "text"), source.notes, n_articles + len(self._bad)
        self.fingerprint = {**source.fingerprint, "joined": "articles", "rows": self.n_rows}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`IndexedSource`."""
        if not 0 <= index < self.n_rows:
            raise IndexError(index)
        line = self._first_line(index)
        if index >= len(self._starts) - 1:
            bad = next(self._lines(line, line + 1))
            assert isinstance(bad, BadRow)
            raise bad
        return _as_row(self._lines(line, self._starts[index + 1]))

    def location(self, index: int) -> str:
        """See :class:`Source`."""
        return self._source.location(self._first_line(index))

    def _scan(self) -> np.ndarray:
        """Give the number of articles, the lines of each, and the numbers of the lines that cannot be read."""
        import numpy as np

        assert self._source.n_rows is not None
        sizes, bad, titled, n_lines = array("q"), array("q"), False, 0
        for article in _split(self._lines(0, self._source.n_rows)):
            bad.extend(n_lines + i for i, line in enumerate(article) if isinstance(line, BadRow))
            n_lines += len(article)
            sizes.append(len(article))
            titled = titled or _as_row(article)["title"] is not None
        if not titled:
            raise _no_heading(self._source.name)
        return np.array([len(sizes), *sizes, *bad], dtype=np.int64)

    def _first_line(self, index: int) -> int:
        """Give the number of the first line of a row."""
        n_articles = len(self._starts) - 1
        return self._starts[index] if index < n_articles else self._bad[index - n_articles]

    def _lines(self, start: int, end: int) -> Iterator[_Line]:
        """Read the lines [start, end)."""
        for begin in range(start, end, _BLOCK):
            for number, row in enumerate(self._source.block(begin, min(begin + _BLOCK, end)), begin):
                yield _as_line(row, self._field, self._source.location, number)


class _StreamedArticles(StreamedSource):
    """Articles in order."""

    n_rows = None

    def __init__(self, source: StreamedSource, field: str):
        self._source, self._field = source, field
        self.name, self.columns, self.notes = source.name, ("title", "text"), source.notes
        self.fingerprint = {**source.fingerprint, "joined": "articles"}
        n_lines = 0
        for article in _split(_stream_lines(source.open(), field, source.name)):
            n_lines += len(article)
            if _as_row(article)["title"] is not None:
                return
            if n_lines > _LOOKED_AT:
                break
        raise _no_heading(source.name)

    def open(self, state: Any = None) -> Stream:
        """See :class:`StreamedSource`."""
        return _ArticleStream(self._source, self._field, state)


class _ArticleStream(Stream):
    """One reading: the position is one of the lines, the lines from there to the current article, and how many rows of that have been given."""

    def __init__(self, source: StreamedSource, field: str, state: Any):
        self._source, self._field = source, field
        position: tuple[Any, int, int] = state or (None, 0, 0)
        self._known, self._before, self._given = position
        self._rows: list[dict[str, Any] | BadRow] = []  # of the current article, which has `_size` lines
        self._size = 0
        self._articles: Iterator[list[_Line]] | None = None
        self._taken = 0  # lines, since the known position
        self._noted: tuple[Any, int] = (None, 0)  # a later position, and the lines up to it

    def __next__(self) -> dict[str, Any]:
        if self._given and not self._rows:  # the position is within an article
            self._read_article()
        while self._given == len(self._rows):
            self._before, self._size = self._before + self._size, 0
            self._rows, self._given = [], 0
            self._read_article()
        row = self._rows[self._given]
        self._given += 1
        if isinstance(row, BadRow):
            raise row
        return row

    def state(self) -> Any:
        """See :class:`Stream`."""
        done = self._given == len(self._rows)
        position = [self._known, self._before + done * self._size, 0 if done else self._given]
        return position if any(position) else None

    def _read_article(self) -> None:
        """Read the article at the position: first the lines that cannot be read, as rows of their own, then the article."""
        try:
            if self._articles is None:
                self._articles = self._open()
            elif self._before >= self._noted[1]:
                self._known, n_lines = self._noted
                self._before, self._taken = self._before - n_lines, self._taken - n_lines
                self._noted = (self._lines.state(), self._taken)
            article = next(self._articles)
        except StopIteration:
            raise
        except BaseException:
            self._articles = None  # the next try continues from the position, not from the end of a broken loop
            raise
        self._size = len(article)
        self._rows = [*(line for line in article if isinstance(line, BadRow)), _as_row(article)]

    def _open(self) -> Iterator[list[_Line]]:
        """Read lines from the known position on, those before the current article first."""
        self._lines, self._taken = self._source.open(self._known), 0
        lines = self._count(self._lines)
        for _ in range(self._before):
            next(lines)
        self._noted = (self._lines.state(), self._taken)
        return _split(lines)

    def _count(self, stream: Stream) -> Iterator[_Line]:
        """Read lines, and count them."""
        for line in _stream_lines(stream, self._field, self._source.name):
            self._taken += 1
            yield line


def _split(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    """Divide lines into articles; blank lines before the first heading belong to its article."""
    article: list[_Line] = []
    size, begun, blank_before = 0, False, True
    line = next(lines, None)
    while line is not None:
        following = next(lines, None)
        is_heading = blank_before and _title(line) is not None and (following is None or _is_blank(following))
        if begun and (is_heading or size > _LONGEST):
            yield article
            article, size, begun = [], 0, False
        blank_before = _is_blank(line)
        begun = begun or not blank_before
        size += 0 if isinstance(line, BadRow) else len(line[0])
        article.append(line)
        line = following
    if article:
        yield article


def _as_row(article: Iterable[_Line]) -> dict[str, Any]:
    """Make the row of an article: its title, if it begins with a heading, and its text, without blank lines around it."""
    read = [line for line in article if not isinstance(line, BadRow)]
    replaced = sum(count for _, count in read)
    texts = _without_blank_ends([text for text, _ in read])
    title = _HEADING.fullmatch(texts[0]) if texts else None
    if title is not None:
        texts = _without_blank_ends(texts[1:])
    row = {"title": title[1] if title is not None else None, "text": "".join(text if text.endswith("\n") else text + "\n" for text in texts).rstrip("\n")}
    return Row(row, replaced) if replaced else row


def _as_line(row: dict[str, Any] | BadRow, field: str, location: Callable[[int], str], number: int) -> _Line:
    """Take the line from a row."""
    if isinstance(row, BadRow):
        return row
    text = row.get(field)
    if isinstance(text, str):
        return text, row.replaced if isinstance(row, Row) else 0
    return BadRow("null" if text is None else "not text", location(number), f"'{field}' holds no text.")


def _stream_lines(stream: Stream, field: str, name: str) -> Iterator[_Line]:
    """Read the lines of a stream."""
    while True:
        try:
            row: dict[str, Any] | BadRow | None = next(stream, None)
        except BadRow as bad:
            row = bad
        if row is None:
            return
        yield _as_line(row, field, lambda _: f"{name}, a row of an article", 0)


def _title(line: _Line) -> str | None:
    """Give the title that a line is a heading of."""
    found = None if isinstance(line, BadRow) or "=" not in line[0][:8] else _HEADING.fullmatch(line[0])
    return found[1] if found is not None else None


def _is_blank(line: _Line) -> bool:
    """Tell whether a line has no text."""
    return not isinstance(line, BadRow) and not line[0].strip()


def _without_blank_ends(texts: list[str]) -> list[str]:
    """Leave out blank lines at the beginning and the end."""
    there = [number for number, text in enumerate(texts) if text.strip()]
    return texts[there[0]:there[-1] + 1] if there else []


def _no_heading(name: str) -> UserError:
    """Make the error for rows without headings."""
    return UserError(f"source {name}: \"rows\": \"articles\" joins rows at headings, and none is there; a heading is a row such as '= Title =' between "
                     "empty rows. Leave 'rows' out, or write \"lines\".")
