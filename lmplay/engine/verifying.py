"""The verification of a run's states by several ranks: each verifies its share of the files, and all hear what has been found.  Engine floor."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..checkpoints.base import right_bases
from ..checkpoints.format import ToVerify, Verdict, Verified, files_to_verify, verify_file
from ..checkpoints.resume import states_to_choose
from ..files import is_state
from ..plan.settings import Settings
from .accord import Accord


def verify_states(settings: Settings, path: Path, stages: Sequence[str], accord: Accord) -> Verified | None:
    """Verify what a run of several ranks may begin with, up to the first state that is whole.

    :param path: the model file.
    :param stages: names of the plan's stages.
    :param accord: of the ranks.
    :return: tells what has been found, and of other states what a verification by this rank finds. None = there is one rank, which verifies what it reads.
    """
    if accord.ranks.size == 1:
        return None
    known, bases = dict[Path, Verdict](), set[Path]()
    for state in accord.from_main(lambda: _candidates(settings, path, stages)):
        known[state] = found = _verify_in_shares(state, accord)
        if found is None or found is True:
            bases.update(accord.from_main(lambda: right_bases(state)))  # noqa: B023  # called at once
            break
    return Verified(known, bases)


def _candidates(settings: Settings, path: Path, stages: Sequence[str]) -> list[Path]:
    """List the states that a run may begin with, in order."""
    initial = [settings.found(settings.initial_model)] if settings.initial_model is not None else []
    return [*states_to_choose(settings, path, stages), *filter(is_state, initial)]


def _verify_in_shares(state: Path, accord: Accord) -> Verdict:
    """Verify a state together; what any rank finds wrong is wrong for all."""
    files = accord.from_main(lambda: _listed(state))
    if isinstance(files, OSError):
        return files
    takers = accord.ranks.deal(files, lambda one: one.bytes)
    mine = [one for one, taker in zip(files, takers, strict=True) if taker == accord.ranks.rank]
    return _worst(found for part in accord.gather(lambda: [_verified(one) for one in mine]) for found in part)


def _listed(state: Path) -> list[ToVerify] | OSError:
    """List the files of a state, the largest first, so that ranks have about the same number of bytes."""
    try:
        return sorted(files_to_verify(state), key=lambda one: -one.bytes)
    except OSError as error:
        return error


def _verified(one: ToVerify) -> Verdict:
    """Verify a file."""
    try:
        return verify_file(one)
    except OSError as error:
        return error


def _worst(found: Iterable[Verdict]) -> Verdict:
    """Put together what has been found of the files of a state: an error, else a wrong checksum, else that there is none."""
    return max(found, key=lambda one: 3 if isinstance(one, OSError) else {False: 2, None: 1, True: 0}[one])
