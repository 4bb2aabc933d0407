"""Whether a tokenizer can write the texts of a stage: some go to tokens and back, and what is missing is counted.  Data floor, no torch."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import UserError
from ..tokenizer import Tokenizer
from .stage import StageData

# The samples of a stage that are tried at most, and the characters.
_SAMPLES, _CHARACTERS = 200, 100_000
# Below this share nothing is said: a normalizer may write a few characters another way. Above the other a new model is refused.
_UNSAID, _REFUSED = 0.001, 0.5


def check_round_trip(tokenizer: Tokenizer, stages: Iterable[tuple[str, StageData]], say: Callable[[str], None], refuse: bool) -> None:
    """Warn of a tokenizer that loses part of the text (one that has all bytes is not tried), or of how it was loaded.

    :param stages: names and data.
    :param say: called with a line for each stage of which more than 0.1 % is lost.
    :param refuse: whether a tokenizer that loses more than half of a stage is refused.
    :raises UserError: when it is.
    """
    if tokenizer.note:
        say(f"WARNING: {tokenizer.note}")
    for name, data in () if tokenizer.writes_all else stages:
        share = _lost_share(tokenizer, data)
        line = (f"stage '{name}': the tokenizer {tokenizer.name} cannot write {share:.1%} of the characters of its first samples; they are lost, and bits per "
                "byte count only the others.")
        if share > _REFUSED and refuse:
            raise UserError(f"{line} Choose one that has all bytes, such as --tokenizer train:8192 or --tokenizer bytes.")
        if share > _UNSAID:
            say(f"WARNING: {line}")


def _lost_share(tokenizer: Tokenizer, data: StageData) -> float:
    """Give the share of the visible characters of some samples that do not come back."""
    samples, seen, lost = data.open_samples(), 0, 0
    for _ in range(_SAMPLES):
        sample = samples.next() if seen < _CHARACTERS else None
        if sample is None:
            break
        text = (sample.prompt + sample.truth)[:_CHARACTERS]
        seen += len("".join(text.split()))
        lost += tokenizer.lost(text).total()
    return lost / seen if seen else 0.0
