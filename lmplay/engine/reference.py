"""The log-probabilities that the model gives to the answers of a stage when it starts: computed once ahead of it, and kept in a file.  Engine floor.

A stage that compares with its beginning needs no second model then. The file is named by what decides its contents: weights, precision, data, and the settings
that decide which of it is read and in which order; so a run never changes what another one needs.
While it is made it has another name, and grows by chunks of answers, each a line with a checksum: what a kill leaves is continued, and a chunk is always
computed as a whole, so that the bits are those of a computation that was never stopped.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from ..checkpoints.base import hash_weights
from ..checkpoints.format import stage_file
from ..data.continuation import Piece
from ..data.fingerprints import essence
from ..errors import UserError
from ..files import sync_folder
from .run import OpenStage, Run

FOLDER = "references"
"""Where the files are, in the output folder."""
# Answers that are computed and written at once.
_CHUNK = 64
_READING = ("dataset", "validation", "epochs", "samples", "tokens", "steps", "pieces", "stopping", "shuffle")


@dataclass
class Reference:
    """Gives the log-probability of a piece's truth by the reference.  Empty until the stage has begun."""

    values: dict[str, float] = field(default_factory=dict)

    def __call__(self, piece: Piece) -> float:
        """See above; the values are sums in nats. Raises UserError where there is none."""
        value = self.values.get(key_of(piece))
        if value is None:
            raise unknown(piece, "its log-probability by the reference is")
        return value


def key_of(piece: Piece) -> str:
    """Identify what a piece's log-probability depends on, besides the model."""
    said = blake2b(piece.tokens.astype("<i4").tobytes(), digest_size=16)
    said.update(f"{piece.n_prompt}".encode())
    said.update(b"" if piece.learned is None else piece.learned.tobytes())
    return said.hexdigest()


@dataclass(frozen=True)
class _Kept:
    """What a file holds: values, what it was made for (None where it is not complete), how many of its bytes are whole, and whether they are all."""

    values: dict[str, float]
    made_for: dict[str, Any] | None
    n_bytes: int
    is_whole: bool


def find_values(run: Run, stage: OpenStage, pieces: Callable[[], Iterable[Piece]], judge: Callable[[list[Piece]], list[float]]) -> dict[str, float]:
    """Find the values of all answers of a stage: in the file, or by the model, which must be the one at the stage's start then.

    :param pieces: gives the pieces that the stage is trained on and judged by, from its beginning.
    :param judge: computes log-probabilities.
    :return: the values by :func:`key_of`.
    :raises UserError: when values are missing and the model has been trained since the start of the stage, and when the file cannot be written.
    """
    wanted, folder = made_for(run, stage), run.out_dir / FOLDER
    identity = _identify(run, wanted)
    name = stage.state.reference if stage.state.reference and stage.state.position is not None else identity
    path, part = folder / f"{name}.jsonl", folder / f"{name}.{run.path.stem}.part"
    kept = _read(path, name)
    if kept.made_for == wanted and kept.is_whole:
        stage.state.reference = name
        return kept.values
    begun = _read(part, name)
    known = {**kept.values, **begun.values}
    if name != identity:  # the model has been trained since: nothing can be computed
        if not (lacking := missing(pieces(), known)):
            return known
        wrong = "is not there" if not path.exists() else "is damaged" if not kept.is_whole else "is of other data or settings"
        back = "the data or the settings" if wrong.startswith("is of other") else "the file"
        raise UserError(f"stage '{stage.stage.name}': {path} {wrong}, and {lacking:,} log-probabilities of the model at the start of the stage are missing; "
                        f"it has been trained since. Bring {back} back, or {anew(run, stage)}.")
    run.report.say(f"stage '{stage.stage.name}': the log-probabilities of its answers by the model as it is now are computed, and kept in {path}")
    with Growing(part, f"the log-probabilities of stage '{stage.stage.name}'", {"reference": name}, begun.n_bytes) as file:
        values = _compute(file, begun, kept.values, pieces(), judge)
        file.complete(wanted)
        other = _read(path, name)  # of a run that was faster
        if other.is_whole and other.made_for == wanted:
            values = other.values
        else:
            file.rename(path)
        file.tidy(run)
    stage.state.reference = name
    return values


class Growing:
    """A file that is being made, a line with its checksum after the other: what a kill leaves of it is gone on with.

    Only what it does itself becomes a UserError that says what could not be written.
    """

    def __init__(self, path: Path, what: str, first: dict[str, Any], n_bytes: int):
        """Open it, and its folder; raises UserError where it cannot be written, as all methods do.

        :param path: its name while it is made.
        :param what: it holds, for messages.
        :param first: its first line.
        :param n_bytes: those of it that are whole.
        """
        self._path, self._what = path, what
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
            self._file.truncate(n_bytes)
        if not n_bytes:
            self.add(first)

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, line: dict[str, Any], content: bytes = b"") -> None:
        """Write a line, and bytes behind it."""
        left = memoryview(write_line(line) + content)
        with self._writing():
            while left:
                left = left[self._file.write(left):]

    def complete(self, wanted: dict[str, Any]) -> None:
        """Write what it was made for, at its end."""
        self.add({"made_for": wanted})
        with self._writing():
            os.fsync(self._file.fileno())
            self._file.close()  # an open file cannot be renamed everywhere

    def rename(self, path: Path) -> None:
        """Give it its name; one that is whole must not be there, another run may be reading it."""
        with self._writing():
            os.replace(self._path, path)
            sync_folder(path.parent)

    def tidy(self, run: Run) -> None:
        """Remove what the run has begun, this one too if it still has the name."""
        folder = self._path.parent
        with self._writing():
            for begun_before in folder.glob("*.part"):
                if begun_before.name.partition(".")[2] == f"{run.path.stem}.part":
                    begun_before.unlink()
            sync_folder(folder.parent)  # it may have been made just now

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what the system refuses into a UserError."""
        try:
            yield
        except OSError as error:
            raise UserError(f"{self._path}: {self._what} could not be written ({error.strerror or error}); the same command goes on with it.") from error


def unknown(piece: Piece, what: str) -> UserError:
    """Say that something is not known of a piece of a batch."""
    return UserError(f"row {piece.sample.row:,} of source {piece.sample.source + 1} of the stage: {what} not known, so it is not as it was when the stage "
                     "began: its data, or what turns it into tokens, has changed. Bring that back, or repeat the stage from its start.")


def anew(run: Run, stage: OpenStage) -> str:
    """Say how a stage is begun anew."""
    names = [one.name for one in run.curriculum.plan.stages]
    before = names[:names.index(stage.stage.name)]
    state = stage_file(run.path, before[-1]) if before else None
    if state is not None and state.exists():
        return f"repeat the stage from its start with --resume {state}"
    return "start the run over with --reset-history, which keeps the files of this one under other names"


def _compute(file: Growing, begun: _Kept, before: Mapping[str, float], pieces: Iterable[Piece], judge: Callable[[list[Piece]], list[float]]) \
        -> dict[str, float]:
    """Compute what is missing, chunk by chunk, and write all of it; what is in the file already is left there."""
    values = dict(begun.values)
    for chunk in chunks(pieces):
        keys = [key_of(piece) for piece in chunk]
        if all(key in values for key in keys):
            continue
        found = [before[key] for key in keys] if all(key in before for key in keys) else judge(chunk)
        values.update(zip(keys, found, strict=True))
        file.add({"values": dict(zip(keys, found, strict=True))})
    return values


def chunks(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Give different pieces in chunks, in the order in which they come first."""
    seen: set[str] = set()
    different = (piece for piece in pieces if (key := key_of(piece)) not in seen and not seen.add(key))  # type: ignore[func-returns-value]
    while chunk := list(islice(different, _CHUNK)):
        yield chunk


def missing(pieces: Iterable[Piece], known: Mapping[str, Any]) -> int:
    """Count the different pieces of which nothing is known, by :func:`key_of`."""
    return len({key for piece in pieces if (key := key_of(piece)) not in known})


def write_line(content: dict[str, Any]) -> bytes:
    """Write a line with its checksum."""
    text = json.dumps(content).encode()
    return b"%08x %s\n" % (crc32(text), text)


def read_line(line: bytes) -> dict[str, Any] | None:
    """Read a line; None where it is not whole."""
    text = line[9:-1]
    if not line.endswith(b"\n") or line[:9] != b"%08x " % crc32(text):
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def _read(path: Path, name: str) -> _Kept:
    """Read a file up to the first line that is not whole; nothing of one that is not there, or of another reference."""
    values: dict[str, float] = {}
    made_for, n_bytes, is_whole = None, 0, True
    try:
        content = path.read_bytes()
    except OSError:
        return _Kept({}, None, 0, is_whole=False)
    for number, line in enumerate(content.splitlines(keepends=True)):
        one = read_line(line)
        if one is None or (number == 0 and one.get("reference") != name):
            is_whole = False
            break
        values.update(one.get("values", {}))
        made_for = one.get("made_for", made_for)
        n_bytes += len(line)
    return _Kept(values, made_for, n_bytes, is_whole)


def _identify(run: Run, wanted: dict[str, Any]) -> str:
    """Hash what decides the values, the weights and how they are used, and of which pieces there are values."""
    said = blake2b(digest_size=16)
    said.update(json.dumps({"precision": run.runtime.precision, "made_for": wanted}, sort_keys=True).encode())
    hash_weights(run.device_model.raw.state_dict(), said.update)
    return said.hexdigest()


def made_for(run: Run, stage: OpenStage) -> dict[str, Any]:
    """List what decides which pieces a stage has, as JSON gives it back: where it is the same, they need not be made to know that none is missing."""
    said = stage.stage.model_dump(mode="json", include={*_READING}, exclude_none=True)
    used, settings = stage.settings, run.settings
    found = {**said, "batch_size": used.in_words("batch_size"), "context_len": used.in_words("context_len"), "validation_samples": used.validation_samples,
             "is_bounded": used.validation_is_bounded, "seed": settings.seed, "validation_seed": settings.validation_seed, "rules": stage.state.rules,
             "continuation": settings.continuation, "data": [essence(one) for one in stage.data.fingerprints()]}
    return dict(json.loads(json.dumps(found, default=str)))
