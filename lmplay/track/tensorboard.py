"""`--track tensorboard`: event files that TensorBoard shows.  Stats floor; needs the package `tensorboard`."""
from __future__ import annotations

import json
import textwrap
import time
from pathlib import Path
from typing import Any

from .callback import RunInfo, Tracker, past_rows, samples_by_step


class TensorBoardTracker(Tracker):
    """Writes an event file under <out-dir>/tensorboard/NAME; a resume rewrites it up to the checkpoint, so that no step is in it twice."""

    wants_pictures = True

    def start(self, run: RunInfo) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = event_pb2.Event
        self._step = 0
        folder = run.folder / "tensorboard" / f"{self.naming.name or run.name}-{run.identity}"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = EventFileWriter(str(folder), flush_secs=10)
        # Makes a running TensorBoard forget what it has read from the older file.
        self._writer.add_event(self._event(wall_time=time.time(), session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)))
        self._text("settings", json.dumps(run.settings, indent=2))
        self._text("plan", json.dumps(run.plan, indent=2, ensure_ascii=False))
        if self.naming.tags:
            self._text("tags", ", ".join(self.naming.tags))
        self.samples(run.past.get("samples", []))
        for kind, row in sorted(past_rows(run), key=lambda entry: entry[1]["step"]):  # the newest comes last: plots belong to its step
            self._log(kind, row)

    def samples(self, rows: list[dict[str, Any]]) -> None:
        for self._step, text in samples_by_step(rows).items():
            self._text("samples", text)

    def end(self, status: str, pictures: list[Path]) -> None:
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        for picture in pictures:
            width, height = Image.open(picture).size
            image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=picture.read_bytes())
            self._add(Summary(value=[Summary.Value(tag=picture.stem, image=image)]))
        self._writer.close()

    def _log(self, kind: str, figures: dict[str, Any]) -> None:
        """Write figures as doubles, so that the values are exactly those of the statistics."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_DOUBLE

        self._step = int(figures["step"])
        scalars = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        self._add(Summary(value=[
            Summary.Value(tag=f"{kind}/{name}", metadata=scalars, tensor=TensorProto(dtype=DT_DOUBLE, double_val=[value]))
            for name, value in figures.items() if value is not None and name != "step"]))

    def _text(self, tag: str, text: str) -> None:
        """Write a text, indented: Markdown shows it unchanged."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(text_pb(tag, textwrap.indent(text, "    ", lambda line: True)))

    def _add(self, summary: Any) -> None:
        """Write a summary at the newest step."""
        self._writer.add_event(self._event(wall_time=time.time(), step=self._step, summary=summary))
