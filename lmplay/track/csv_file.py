"""`--track csv`: a row for each step, each validation and each evaluation of a set, in three files that any program reads.  Stats floor."""
from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from ..files import no_link, write_text
from .callback import Callback, RunInfo


class CsvTracker(Callback):
    """Writes NAME_train.csv, NAME_validate.csv and NAME_evaluate.csv; on a resume it first makes them agree with the checkpoint."""

    def start(self, run: RunInfo) -> None:
        # Several sets are evaluated at one step, so the newest step does not tell which of them a killed run has written: that file is written anew.
        self._tables = {kind: _Table(run.folder / f"{run.name}_{kind}.csv", step) for kind, step in
                        (("train", run.step), ("validate", run.step), ("evaluate", 0))}
        newest = {kind: table.newest for kind, table in self._tables.items()}
        past = [("train", row) for row in run.past.get("train", [])] + [("evaluate", row) for row in run.past.get("evaluation", [])]
        past += [("validate", {**row, "final": int(kind != "validation")}) for kind in ("validation", "final_validation") for row in run.past.get(kind, [])]
        for kind, row in sorted(past, key=lambda entry: (entry[1]["step"], entry[1].get("final", 0))):
            if row["step"] > newest[kind]:
                self._tables[kind].add(row)

    def train(self, figures: dict[str, Any]) -> None:
        self._tables["train"].add(figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        self._tables["validate"].add({**figures, "final": int(final)})

    def evaluation(self, figures: dict[str, Any]) -> None:
        self._tables["evaluate"].add(figures)

    def end(self, status: str, pictures: list[Path]) -> None:
        for table in self._tables.values():
            table.close()


class _Table:
    """A CSV file; for a new column it is rewritten, with that column on the right, empty in the rows before."""

    def __init__(self, path: Path, step: int):
        """Keep the rows up to the checkpoint's step; 0 = a new run, which deletes the file."""
        self._path = path
        self._file: IO[str] | None = None
        self._columns: list[str] = []
        self.newest = -1  # the step of the last row
        if not step:
            path.unlink(missing_ok=True)
        if path.exists():
            self._columns, rows = self._read()
            column = self._columns.index("step") if self._columns else 0
            rows = [row for row in rows if int(float(row[column])) <= step]
            self._rewrite(rows)
            self.newest = int(float(rows[-1][column])) if rows else -1

    def add(self, row: dict[str, Any]) -> None:
        """Append a row."""
        new = [name for name in row if name not in self._columns]
        if new:
            self.close()
            rows = self._read()[1] if self._columns else []
            self._columns += new
            self._rewrite(rows)
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8", newline="", buffering=1, opener=no_link)  # noqa: SIM115 (stays open)
        self._file.write(_lines([[row.get(name) for name in self._columns]]))

    def close(self) -> None:
        """Close the file until the next row."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """Read columns and rows, without a last line that a kill has cut off."""
        with open(self._path, encoding="utf-8", newline="") as file:
            text = file.read()
        columns, *rows = [*csv.reader(io.StringIO(text[:text.rfind("\n") + 1], newline=""))] or [[]]
        return columns, rows

    def _rewrite(self, rows: Iterable[list[str]]) -> None:
        """Write columns and rows; rows may lack the last columns."""
        write_text(self._path, _lines([self._columns, *(row + [""] * (len(self._columns) - len(row)) for row in rows)] if self._columns else []))


def _lines(rows: Iterable[Iterable[Any]]) -> str:
    """Write rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()
