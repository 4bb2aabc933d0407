"""What becomes of a step whose loss or gradient is not finite: the run stops, or the batch is skipped.  Engine floor, no torch.

The step itself has left weights and optimizers as they were (:mod:`.update`); here it is known, on a GPU one step later.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ..data.batcher import Batch
from ..errors import TrainingError
from ..plan.settings import Settings

# With `--on-nonfinite skip` at most this many batches in a row are skipped. Damaged rows come one or a few at a time; when every batch of some is
# not finite, it is the weights that are ruined, and no later batch will be different.
MOST_SKIPPED = 10
# A first scale of 2^n of the gradient scaler takes n overflows in a row to come down to 1, where gradients are as large as without it; after this many
# more (the scale is then below 1e-4, which fairseq takes for the end, too) it is not the scale that makes them overflow.
MORE_OVERFLOWS = 14
# Rows of a source that are named.
_MOST_ROWS = 100
_KEPT = "It has updated nothing, and nothing has been saved since; the last checkpoint is intact."


class NonfiniteGuard:
    """Judges steps by their figures, and counts those in a row up to here that did not update the weights."""

    def __init__(self, settings: Settings, scaled: Callable[[], bool], say: Callable[[str], None]):
        """
        :param scaled: tells whether there is a gradient scaler, which skips a gradient that is not finite by itself.
        :param say: tells the user.
        """
        self._settings, self._scaled, self._say = settings, scaled, say
        self.skipped = 0  # batches whose loss or gradient was not finite
        self.overflows = 0  # steps of which the gradient scaler said so

    def is_usable(self, where: str, batch: Batch, names: Sequence[str], loss_sum: float, grad_norm: float, lost: tuple[int, int] = (0, 1)) -> bool:
        """Judge a step.

        :param where: stage and step, for messages.
        :param names: of the stage's sources.
        :param loss_sum: of the batch.
        :param grad_norm: of its gradient.
        :param lost: of several updates with the batch, whose sums these are: how many have changed nothing, and all.
        :return: False where the batch has been skipped; True where its loss counts, though a gradient scaler may have found the gradient too large.
        :raises TrainingError: where the run is to stop: by default at once, with `--on-nonfinite skip` after MOST_SKIPPED in a row; at overflows without end.
        """
        skips = self._settings.on_nonfinite == "skip"
        if not math.isfinite(loss_sum) or not (math.isfinite(grad_norm) or self._scaled()):
            self.skipped += 1
            fault = f"{where}: the loss ({loss_sum}) or the norm of its gradient ({grad_norm}) is not finite. The batch has {describe_rows(batch, names)}."
            if skips and self.skipped <= MOST_SKIPPED:
                self._say(f"{fault} It is skipped, {self.skipped} in a row (at most {MOST_SKIPPED}).")
                return False
            tried = f"{MOST_SKIPPED} batches before it were skipped, too. " if skips else ""
            advice = "" if skips else "; --on-nonfinite skip skips a batch that is to blame"
            raise TrainingError(f"{fault} {tried}{_KEPT} A lower --lr, --grad-clip 1, or training without --amp may help{advice}.")
        self.skipped = 0
        if 0 < lost[0] < lost[1] and not self._scaled():
            fault = (f"{where}: in {lost[0]} of its {lost[1]} updates the loss or the norm of its gradient is not finite, and they have changed nothing. "
                     f"The batch has {describe_rows(batch, names)}.")
            if not skips:
                raise TrainingError(f"{fault} Nothing has been saved since; the last checkpoint is intact. A lower --lr, --grad-clip 1, or training without "
                                    "--amp may help; --on-nonfinite skip goes on.")
            self._say(f"{fault} The others count.")
        self.overflows = 0 if math.isfinite(grad_norm) else self.overflows + 1
        if self.overflows > MORE_OVERFLOWS + max(0.0, math.log2(self._settings.amp_init_scale)):
            raise TrainingError(f"{where}: the gradient has overflowed float16 {self.overflows} times in a row, though its scale was lowered each time. "
                                f"The batch has {describe_rows(batch, names)}. {_KEPT} A lower --lr, or training without --amp may help.")
        return True

    def state(self) -> dict[str, int]:
        """Give the counts as plain values."""
        return {"skipped": self.skipped, "overflows": self.overflows}

    def restore(self, state: Mapping[str, int]) -> None:
        """Become what `state` says."""
        self.skipped, self.overflows = state.get("skipped", 0), state.get("overflows", 0)


def describe_rows(batch: Batch, names: Sequence[str]) -> str:
    """Say which rows a batch is made of: ``a.jsonl: rows 3, 8; b.jsonl: rows 1`` (counted from 0)."""
    rows: defaultdict[int, set[int]] = defaultdict(set)
    for piece in batch.pieces:
        rows[piece.sample.source].add(piece.sample.row)
    return "; ".join(f"{names[source]}: rows {', '.join(map(str, sorted(numbers)[:_MOST_ROWS]))}"
                     + (f" and {len(numbers) - _MOST_ROWS} more" if len(numbers) > _MOST_ROWS else "") for source, numbers in sorted(rows.items()))
