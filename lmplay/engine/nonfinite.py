"""What becomes of a step whose loss or gradient is not finite: the run stops, or the batch is passed over.  Engine floor.

The step itself has left weights and optimizer as they were (:mod:`.step`); here it is known, on a GPU one step later.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from ..data.batcher import Batch
from ..errors import TrainingError
from .opening import Run

# With `--on-nonfinite skip`: so many batches in a row are passed over. Damaged rows come one or a few at a time; when every batch of some is
# not finite, it is the weights that are ruined, and no later batch will be different.
MOST_SKIPPED = 10
# A first scale of 2^n of the gradient scaler takes n overflows in a row to come down to 1, where gradients are as large as without it; so many
# more (the scale is then below 1e-4, which fairseq takes for the end, too) and it is not the scale that makes them overflow.
MORE_OVERFLOWS = 14
# So many rows of a source are named.
_MOST_ROWS = 100
_KEPT = "It has updated nothing, and nothing has been saved since; the last checkpoint is whole."


def is_usable(run: Run, where: str, batch: Batch, names: Sequence[str], loss_sum: float, grad_norm: float) -> bool:
    """Judge a step by its figures, and count those in a row that did not update the weights.

    :param run: has the counts, the gradient scaler, and what the user wants.
    :param where: stage and step, for messages.
    :param batch: the step's.
    :param names: of the stage's sources.
    :param loss_sum: of the batch.
    :param grad_norm: of its gradient.
    :return: False where the batch has been passed over; True where its loss counts, though a gradient scaler may have found the gradient too large.
    :raises TrainingError: where the run is to stop: by default at once, with `--on-nonfinite skip` after MOST_SKIPPED in a row; at overflows without end.
    """
    runner, scaler = run.runner, run.runner.runtime.scaler
    passes_over = run.settings.on_nonfinite == "skip"
    if not math.isfinite(loss_sum) or not (math.isfinite(grad_norm) or scaler.is_enabled()):
        runner.skipped_in_row += 1
        fault = f"{where}: the loss ({loss_sum}) or the norm of its gradient ({grad_norm}) is not finite. The batch has {describe_rows(batch, names)}."
        if passes_over and runner.skipped_in_row <= MOST_SKIPPED:
            run.report.say(f"{fault} It is passed over, {runner.skipped_in_row} in a row (at most {MOST_SKIPPED}).")
            return False
        tried = f"{MOST_SKIPPED} batches before it were passed over, too. " if passes_over else ""
        advice = "" if passes_over else "; --on-nonfinite skip passes over a batch that is to blame"
        raise TrainingError(f"{fault} {tried}{_KEPT} A lower --lr, --grad-clip 1, or training without --amp may help{advice}.")
    runner.skipped_in_row = 0
    runner.overflows_in_row = 0 if math.isfinite(grad_norm) else runner.overflows_in_row + 1
    if runner.overflows_in_row > MORE_OVERFLOWS + max(0.0, math.log2(run.settings.amp_init_scale)):
        raise TrainingError(f"{where}: the gradient has overflowed float16 {runner.overflows_in_row} times in a row, though its scale was lowered each time. "
                            f"The batch has {describe_rows(batch, names)}. {_KEPT} A lower --lr, or training without --amp may help.")
    return True


def describe_rows(batch: Batch, names: Sequence[str]) -> str:
    """Say which rows a batch is made of: ``a.jsonl: rows 3, 8; b.jsonl: rows 1`` (counted from 0)."""
    rows: defaultdict[int, set[int]] = defaultdict(set)
    for piece in batch.pieces:
        rows[piece.sample.source].add(piece.sample.row)
    return "; ".join(f"{names[source]}: rows {', '.join(map(str, sorted(numbers)[:_MOST_ROWS]))}"
                     + (f" and {len(numbers) - _MOST_ROWS} more" if len(numbers) > _MOST_ROWS else "") for source, numbers in sorted(rows.items()))
