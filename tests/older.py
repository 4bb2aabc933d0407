"""The data of `engine/older/model.lmp`, a checkpoint that the first version made within the first of two stages.

It was made by `lmp_trainer --training-plan plan.json --batch-size 16 --max-steps 50` with the flags `helpers.TINY`; `engine/older/batches.json` holds which
pieces that version then put into the next batches, and which rows it held out.
"""
from __future__ import annotations

from pathlib import Path

from helpers import write_plan, write_rows

OLDER = Path(__file__).parent / "engine" / "older"
PLAN = {"old": {"dataset": ["book.txt", "many.jsonl"], "samples": 40, "stopping": "first_exhausted"}, "next": {"dataset": "book.txt", "epochs": 1}}


def write_data(folder: Path) -> Path:
    """Write the files and the plan; gives the plan."""
    paragraphs = (f"Paragraph {i} of the book. " + "It goes on for a while, and then it ends. " * (1 + i * 7 % 11) for i in range(900))
    (folder / "book.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    write_rows(folder / "many.jsonl", [{"text": f"Row {i}."} for i in range(60_000)])
    return write_plan(folder, PLAN)


def pieces_of(batch) -> list[list[int]]:
    """Name the pieces of a batch."""
    return [[piece.sample.source, piece.sample.row, piece.number] for piece in batch.pieces]


def held_out_of(data) -> list[list[int]]:
    """Name the first held-out rows."""
    stream = data.open_validation()
    return [[sample.source, sample.row] for sample in (stream.next() for _ in range(40))]
