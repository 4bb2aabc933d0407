"""`--track wandb`: Weights & Biases, online or offline as its own settings say (WANDB_MODE=offline).  Stats floor; needs the package `wandb`."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import write_text
from .callback import Callback, RunInfo


class WandbTracker(Callback):
    """Logs to one run of project `lmplay`, which goes on over resumes; a step that it has got is not sent again."""

    def start(self, run: RunInfo) -> None:
        """See :class:`Callback`."""
        import wandb

        folder = run.folder / "wandb"
        folder.mkdir(exist_ok=True)
        self._mark = folder / f"{run.identity}.step"
        # After a kill the run goes on from an older step, and does the same steps again: what was sent of them stands.
        self._sent = int(self._mark.read_text()) if run.step and self._mark.exists() else run.step
        self._run = wandb.init(project="lmplay", id=run.identity, name=run.name, resume="allow", dir=str(run.folder),
                               config={"settings": run.settings, "plan": run.plan}, settings=wandb.Settings(silent=True, console="off"))
        self._row: dict[str, Any] = {}

    def train(self, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        self._log("train", figures)

    def validation(self, figures: dict[str, Any], final: bool) -> None:
        """See :class:`Callback`."""
        self._log("final_validation" if final else "validation", figures)

    def end(self, status: str, pictures: list[Path]) -> None:
        """See :class:`Callback`."""
        import wandb

        self._send()
        if pictures and status == "done":
            self._run.log({f"plots/{picture.stem}": wandb.Image(str(picture)) for picture in pictures}, step=self._sent + 1)
        self._run.finish(exit_code=1 if status == "failed" else 0, quiet=True)

    def _log(self, kind: str, figures: dict[str, Any]) -> None:
        """Put figures to those of the same step: a step is sent once it is complete."""
        step = int(figures["step"])
        if self._row and self._row["step"] != step:
            self._send()
        self._row |= {"step": step, **{f"{kind}/{name}": value for name, value in figures.items() if value is not None and name != "step"}}

    def _send(self) -> None:
        """Send the row at hand."""
        row, self._row = self._row, {}
        if row and row["step"] > self._sent:
            self._run.log(row, step=row["step"])
            self._sent = row["step"]
            write_text(self._mark, str(self._sent))
