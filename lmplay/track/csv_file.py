"""`--track csv`: a row a step and a row a validation, in two files that any program reads.  Stats floor."""
from __future__ import annotations

import csv
from pathlib import Path
from typing import IO, Any

from ..files import write_text
from .callback import Callback, RunInfo


class CsvTracker(Callback):
    """Writes NAME_train.csv and NAME_validate.csv; when the run goes on, they are made to agree with its checkpoint first."""

    def start(self, run: RunInfo) -> None:
        """See :class:`Callback`."""
        self._paths = {kind: run.folder / f"{run.name}_{kind}.csv" for kind in ("train", "validate")}
        self._files: dict[str, tuple[IO[str], csv.DictWriter[str]]] = {}
        newest = {kind: _cut_back(path, run.step) for kind, path in self._paths.items()}
        past = [("train", row) for row in run.past.get("train", [])]
        past += [("validate", {**row, "final": int(kind != "validation")}) for kind in ("validation", "final_validation") for row in run.past.get(kind, [])]
        for kind, row in sorted(past, key=lambda entry: (entry[1]["step"], entry[1].get("final", 0))):
            if row["step"] > newest[kind]:
                self._write(kind, row)

    def train(self, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        self._write("train", figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """See :class:`Callback`."""
        self._write("validate", {**figures, "final": int(final)})

    def end(self, status: str, pictures: list[Path]) -> None:
        """See :class:`Callback`."""
        for file, _ in self._files.values():
            file.close()

    def _write(self, kind: str, figures: dict[str, Any]) -> None:
        """Append a row; the file is opened, and its header written, with the first."""
        if kind not in self._files:
            begun = self._paths[kind].exists() and self._paths[kind].stat().st_size > 0
            file = open(self._paths[kind], "a", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115 (stays open)
            self._files[kind] = file, csv.DictWriter(file, list(figures), extrasaction="ignore")
            if not begun:
                self._files[kind][1].writeheader()
        self._files[kind][1].writerow(figures)


def _cut_back(path: Path, step: int) -> int:
    """Leave the rows up to a step, and give the step of the last one; all of them go when the run starts anew."""
    if not step:
        path.unlink(missing_ok=True)
    if not path.exists():
        return -1
    with open(path, encoding="utf-8", newline="") as file:
        header, *lines = file.read().splitlines(keepends=True) or [""]
    place = header.strip().split(",").index("step")
    kept = [line for line in lines if line.endswith("\n") and int(float(line.split(",")[place])) <= step]
    write_text(path, header + "".join(kept))
    return int(float(kept[-1].split(",")[place])) if kept else -1
