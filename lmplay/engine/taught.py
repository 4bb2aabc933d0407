"""What the teacher of a stage says of its tokens: asked once ahead of it, and kept in a file that is read while the stage is trained.  Engine floor.

The file is made and gone on with like that of :mod:`.reference`. It does not depend on the model that learns, so that runs of other models and learning rates
share it. It begins with a line that says what it is. Then follow chunks: each is a line with the keys and the numbers of tokens of its pieces, and bytes, which
are of each piece the ids, then the log-probabilities. At the end is a line that says what it was made for. All have checksums.
"""
from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ..data.collate import Said
from ..data.continuation import Piece
from ..errors import UserError
from ..words import counted
from .reference import FOLDER, anew, chunks, keep, key_of, made_for, missing, read_line, write_line
from .run import OpenStage, Run
from .teacher import Teacher, check_fit, find_teacher

_TELL_SECONDS = 60.0  # how often it is said how far the asking has come
Asked = Callable[[list[Piece]], list[Said]]


@dataclass
class Taught:
    """Gives what a teacher says of a piece, from a file.  Empty until the stage has begun.

    `places` say by :func:`.reference.key_of` where a piece's bytes begin, and how many tokens it has; `header` is the first line, `made_for` the last one (None
    where the file is not complete), `n_bytes` are those that are whole, and `is_whole` says that these are all.
    """

    path: Path | None = None
    header: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    made_for: dict[str, Any] | None = None
    n_bytes: int = 0
    is_whole: bool = False
    _bytes: Any = None

    def __call__(self, piece: Piece) -> Said:
        """See above."""
        assert self.path is not None
        if self._bytes is None:
            self._bytes = np.memmap(self.path, dtype=np.uint8, mode="r")
        begin, n_tokens = self.places[key_of(piece)]
        width, id_type = self.header["top_k"], np.dtype(self.header["ids"])
        middle = begin + n_tokens * width * id_type.itemsize
        end = middle + n_tokens * (width + 2) * 4
        ids, log_probs = self._bytes[begin:middle].tobytes(), self._bytes[middle:end].tobytes()
        return np.frombuffer(ids, id_type).reshape(n_tokens, width), np.frombuffer(log_probs, "<f4").reshape(n_tokens, width + 2)

    def become(self, other: Taught) -> None:
        """Give from now on what another one gives."""
        self.__dict__.update(other.__dict__)


def find_taught(run: Run, stage: OpenStage, pieces: Callable[[], Iterable[Piece]], asked: Callable[[Teacher], tuple[str, Asked]]) -> Taught:
    """Find what the teacher of a stage says: in the file, or by asking it.

    :param pieces: gives the pieces that the stage is trained on and judged by, from its beginning.
    :param asked: opens the teacher; gives what identifies its weights, and what asks it.
    :return: what the file holds.
    :raises UserError: when the teacher is needed and is not there, does not fit, or is not the one that the stage was begun with, and when the file cannot be
        written.
    """
    assert stage.objective.teaching is not None
    teaching, state, folder, name = stage.objective.teaching, stage.state, run.out_dir / FOLDER, stage.stage.name
    vocab_size = run.model.tokenizer.vocab_size
    wanted = {**made_for(run, stage), "top_k": teaching.top_k, "temperature": teaching.temperature, "vocabulary": vocab_size}
    kept = read_taught(folder / f"{state.reference}.taught") if state.reference else Taught()
    trained = state.position is not None
    if kept.is_whole and (kept.made_for == wanted or (trained and not missing(pieces(), kept.places))):
        return kept
    teacher, identity, ask = _open_teacher(run, stage, asked, kept)
    said = blake2b(digest_size=16)
    said.update(json.dumps({"precision": run.runtime.precision, "made_for": wanted, "teacher": identity}, sort_keys=True).encode())
    if trained and said.hexdigest() != state.reference and kept.header.get("teacher") != identity:
        raise UserError(f"{teacher.label}: is not the one that the stage was begun with, or data or settings are others, and what that one has said of them is "
                        f"missing. Bring it back, or the file {folder / f'{state.reference}.taught'}, or {anew(run, stage)}.")
    path = folder / f"{said.hexdigest()}.taught"
    found = read_taught(path)
    if not (found.is_whole and found.made_for == wanted):
        part = path.with_name(f"{path.stem}.{run.path.stem}.part")
        header = {"taught": path.stem, "teacher": identity, "top_k": min(teaching.top_k, vocab_size), "ids": "<u2" if vocab_size <= 1 << 16 else "<u4"}
        run.report.say(f"stage '{name}': {teaching.name} is asked about its tokens; what it says is kept in {path}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            n_tokens = _Asking(run, part, header, kept).go(pieces(), ask, wanted)
            keep(run, part, path)
        except OSError as error:
            raise UserError(f"{part}: what {teaching.name} says of the tokens of stage '{name}' could not be written ({error.strerror or error}); the same "
                            "command goes on with it.") from error
        found = read_taught(path)
        run.report.say(f"stage '{name}': {teaching.name} has been asked about {counted(n_tokens, 'token')} ({found.n_bytes / 1e6:,.1f} MB)")
    state.reference = path.stem
    return found


def _open_teacher(run: Run, stage: OpenStage, asked: Callable[[Teacher], tuple[str, Asked]], kept: Taught) -> tuple[Teacher, str, Asked]:
    """Open the teacher; where the stage has been trained and it cannot be opened, say why it is needed."""
    try:
        teacher = find_teacher(stage, run.settings)
        check_fit(teacher, stage, run.model.tokenizer)
        return teacher, *asked(teacher)
    except UserError as error:
        if stage.state.position is None:
            raise
        file = run.out_dir / FOLDER / f"{stage.state.reference}.taught"
        wrong = "is not there" if not file.exists() else "is damaged" if not kept.is_whole else "is of other data or settings"
        raise UserError(f"{error} It is asked again because {file} {wrong}: bring one of them back, or {anew(run, stage)}.") from None


class _Asking:
    """Asks a teacher about what is not known yet, chunk by chunk, and writes what it says; what is in the file already is left there."""

    def __init__(self, run: Run, part: Path, header: dict[str, Any], before: Taught):
        """
        :param part: the file to write, or to go on with.
        :param before: what the stage was begun with; of the same teacher it is taken over.
        """
        self._run, self._part, self._header = run, part, header
        self._before = before if {**before.header, "taught": header["taught"]} == header else Taught()
        begun = read_taught(part)
        self._begun = begun if begun.header == header else Taught()
        self._told = time.monotonic()

    def go(self, pieces: Iterable[Piece], ask: Asked, wanted: dict[str, Any]) -> int:
        """Do it; gives the number of tokens of which something is known then."""
        known = {key: n_tokens for key, (_, n_tokens) in self._begun.places.items()}
        with open(self._part, "ab") as file:
            file.truncate(self._begun.n_bytes)
            if not self._begun.n_bytes:
                file.write(write_line(self._header))
            for chunk in chunks(pieces):
                keys = [key_of(piece) for piece in chunk]
                if all(key in known for key in keys):
                    continue
                said = [self._before(piece) for piece in chunk] if all(key in self._before.places for key in keys) else ask(chunk)
                known.update((key, len(ids)) for key, (ids, _) in zip(keys, said, strict=True))
                content = b"".join(part for ids, log_probs in said for part in (ids.astype(self._header["ids"]).tobytes(), log_probs.astype("<f4").tobytes()))
                file.write(write_line({"keys": keys, "tokens": [known[key] for key in keys], "bytes": len(content), "crc": crc32(content)}))
                file.write(content)
                file.flush()
                self._tell(known)
            file.write(write_line({"made_for": wanted}))
            file.flush()
            os.fsync(file.fileno())
        return sum(known.values())

    def _tell(self, known: dict[str, int]) -> None:
        """Say now and then how far it is."""
        if time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            self._run.report.say(f"asked about {counted(sum(known.values()), 'token')} so far")


def read_taught(path: Path) -> Taught:
    """Read what a file holds, up to the first part that is not whole; the bytes themselves are read when they are needed."""
    found = Taught(path)
    if not path.is_file():
        return found
    with open(path, "rb") as file:
        found.is_whole = True
        while line := file.readline():
            one = read_line(line)
            content = file.read(one.get("bytes", 0)) if one is not None else b""
            if one is None or (not found.header and "taught" not in one) or crc32(content) != one.get("crc", 0):
                found.is_whole = False
                break
            _add(found, one, found.n_bytes + len(line))
            found.n_bytes += len(line) + len(content)
    return found


def _add(found: Taught, one: dict[str, Any], begin: int) -> None:
    """Add what a line says; its bytes begin at a place in the file."""
    found.header = found.header or one
    found.made_for = one.get("made_for", found.made_for)
    if "keys" in one:
        of_token = found.header["top_k"] * np.dtype(found.header["ids"]).itemsize + (found.header["top_k"] + 2) * 4
        for key, n_tokens in zip(one["keys"], one["tokens"], strict=True):
            found.places[key] = begin, n_tokens
            begin += n_tokens * of_token
