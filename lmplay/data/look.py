"""A look at some rows of a source before it is read: which fields they have, how they will be read, and how many will be skipped.  Data floor, no torch."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..words import counted
from .permutation import hash64
from .samples import Reading
from .sources import AnySource, BadRow, IndexedSource
from .turns import Skipped

# Rows that are looked at, spread evenly over the source: of a stream, whose later rows cost a download, the first ones.
_LOOKED_AT = 200
# The share of rows that give no sample from which on the run warns.
_MANY = 0.1
# Forms and fields that are named; the others are counted.
_NAMED = 6


@dataclass
class Look:
    """Rows of a source by their numbers, those that could not be read, and whether these are all rows."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)
    whole: bool = False

    @property
    def fields(self) -> list[str]:
        """The names of the fields of all rows looked at, in the order of their first coming."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))


def look_at(source: AnySource) -> Look:
    """Look at some rows of a source.

    :param source: an open source; of an endless one, and of a stream that knows its columns, nothing is read.
    :return: what has been seen.
    """
    look = Look()
    if isinstance(source, IndexedSource):
        if source.n_rows is None:
            return look
        count = min(_LOOKED_AT, source.n_rows)
        look.whole = count == source.n_rows
        for number in range(count):
            begin, end = (at * source.n_rows // count for at in (number, number + 1))
            index = begin + hash64(number) % (end - begin)  # anywhere in its stretch: rows of a file often repeat in a rhythm
            try:
                look.rows[index] = source[index]
            except BadRow as bad:
                look.bad.append(bad)
    elif source.columns is None:
        look.rows.update(enumerate(islice(source.open(None), 1)))
    return look


def describe_reading(source: AnySource, reading: Reading, look: Look, named: Iterable[str] = ()) -> tuple[str, list[str]]:
    """Say how the rows of a source are read.

    :param source: the source.
    :param reading: of its rows.
    :param look: at its rows.
    :param named: the fields that the plan names.
    :return: the forms in which rows are read, and warnings.
    """
    forms: Counter[str] = Counter()
    skipped: Counter[str] = Counter(bad.reason for bad in look.bad)
    places = {bad.reason: bad.location for bad in reversed(look.bad)}
    for index, row in look.rows.items():
        try:
            form = reading.form(row)
            reading(row)
            forms[str(form)] += 1
        except Skipped as reason:
            skipped[str(reason)] += 1
            places.setdefault(str(reason), source.location(index))
    total = len(look.rows) + len(look.bad)
    if not total:
        return reading.describe(source.columns or look.fields), []
    seen = f"{'all ' if look.whole else ''}{counted(total, 'row')}{'' if look.whole else ' looked at'}"
    reads = next(iter(forms)) if [*forms.values()] == [total] else \
        f"{'; '.join(f'{form} in {count:,}' for form, count in forms.most_common(_NAMED)) or 'none'} of {seen}"
    lost = sum(skipped.values())
    missing = [name for name in named if look.rows and name not in look.fields]
    if missing:
        return reads, [f"source {source.name}: \"columns\" names '{missing[0]}', which none of the {counted(total, 'row')} looked at has "
                       f"(their columns: {', '.join(look.fields[:_NAMED])})."]
    if not lost or (lost <= _MANY * total and forms):
        return reads, []
    reasons = "; ".join(f"{count:,} {reason} (such as {places[reason]})" for reason, count in skipped.most_common(_NAMED))
    return reads, [f"source {source.name}: {lost:,} of {seen} give no sample: {reasons}."]


def unread_fields(reading: Reading, look: Look, columns: Iterable[str]) -> list[str]:
    """List the fields that no row looked at is read from.

    :param columns: those of all rows, for a source of which nothing has been looked at.
    """
    read: set[str] = set()
    for row in look.rows.values() or [dict.fromkeys(columns)]:
        with suppress(Skipped):
            read.update(reading.form(row).roles.values())
    return [name for name in (look.fields or columns) if name not in read]
