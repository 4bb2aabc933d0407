"""`--track wandb`: Weights & Biases, online or offline as its own settings say (WANDB_MODE=offline).  Stats floor; needs the package `wandb`."""
from __future__ import annotations

import shutil
from html import escape
from pathlib import Path
from typing import Any

from .callback import RunInfo, Tracker, past_rows, rewound, samples_by_step


class WandbTracker(Tracker):
    """Logs to one run of project `lmplay`, also over resumes.

    Online, a step that the server has is not sent again. Offline, files of a killed run may be cut off, so what has not been synced is written again.
    """

    wants_pictures = True

    def start(self, run: RunInfo) -> None:
        import wandb

        parts = list((run.folder / "wandb").glob(f"offline-run-*-{run.identity}*"))
        synced = [part for part in parts if any(part.glob("*.synced"))]
        for part in parts:
            if part not in synced:
                shutil.rmtree(part, ignore_errors=True)
        self._run = wandb.init(project="lmplay", id=run.identity, name=run.name, resume="allow", dir=str(run.folder),
                               config={"settings": run.settings, "plan": run.plan}, settings=wandb.Settings(silent=True, console="off"))
        # Parts that were synced by hand end at a checkpoint or later; the rest is sent.
        self._sent = run.step if synced else self._run.step - 1
        if rewind := rewound(self._sent, run.step):
            self._run.config.update({"rewinds": [*self._run.config.get("rewinds", []), rewind]}, allow_val_change=True)
        self._row: dict[str, Any] = {}
        past = past_rows(run)
        past += [("samples", {"step": step, "text": text}) for step, text in samples_by_step(run.past.get("samples", [])).items()]
        for kind, row in sorted(past, key=lambda entry: entry[1]["step"]):
            if row["step"] > self._sent:
                self._log(kind, row)

    def samples(self, rows: list[dict[str, Any]]) -> None:
        for step, text in samples_by_step(rows).items():
            self._log("samples", {"step": step, "text": text})

    def end(self, status: str, pictures: list[Path]) -> None:
        import wandb

        self._send()
        if pictures and status == "done":
            self._run.log({f"plots/{picture.stem}": wandb.Image(str(picture)) for picture in pictures}, step=self._sent + 1)
        self._run.finish(exit_code=1 if status == "failed" else 0)

    def _log(self, kind: str, figures: dict[str, Any]) -> None:
        """Collect the figures of a step, which is sent when the next one begins."""
        step = int(figures["step"])
        if self._row and self._row["step"] != step:
            self._send()
        self._row |= {"step": step, **{f"{kind}/{name}": _page(value) if name == "text" else value
                                       for name, value in figures.items() if value is not None and name != "step"}}

    def _send(self) -> None:
        """Send the collected row."""
        row, self._row = self._row, {}
        if row and row["step"] > self._sent:
            self._run.log(row, step=row["step"])
            self._sent = row["step"]


def _page(text: str) -> Any:
    """Make the object with which wandb shows a text."""
    import wandb

    return wandb.Html(f"<pre>{escape(text)}</pre>", inject=False)
