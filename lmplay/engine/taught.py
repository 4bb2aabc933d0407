"""What the teacher of a stage says of its tokens: asked once ahead of it, and kept in a file that is read while the stage is trained.  Engine floor.

The file is made and gone on with like that of :mod:`.reference`. It does not depend on the model that learns, so that runs of other models and learning rates
share it. It begins with a line that says what it is. Then follow chunks: each is a line with the keys and the numbers of tokens of its pieces, and bytes, which
are of each piece the ids, then the log-probabilities. At the end is a line that says what it was made for. All have checksums.
"""
from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ..data.collate import Said
from ..data.continuation import Piece
from ..errors import UserError
from ..files import check_free_bytes
from ..objectives.base import Teaching
from ..words import bytes_in_words, counted
from .reference import FOLDER, Growing, anew, chunks, key_of, made_for, missing, read_line, unknown
from .run import OpenStage, Run
from .teacher import Teacher, check_fit, find_teacher

_TELL_SECONDS = 60.0  # how often it is said how far the asking has come
_LOOKED = 1000  # pieces, from which the size of the file is estimated
_SURE = 0.8  # of that estimate this share must fit on the disk
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
        """See above; raises UserError where nothing is known of it."""
        assert self.path is not None
        if (key := key_of(piece)) not in self.places:
            raise unknown(piece, "what the teacher says of it is")
        if self._bytes is None:
            self._bytes = np.memmap(self.path, dtype=np.uint8, mode="r")
        begin, n_tokens = self.places[key]
        width, id_type = self.header["top_k"], np.dtype(self.header["ids"])
        middle = begin + n_tokens * width * id_type.itemsize
        end = middle + n_tokens * (width + 2) * 4
        ids, log_probs = self._bytes[begin:middle].tobytes(), self._bytes[middle:end].tobytes()
        return np.frombuffer(ids, id_type).reshape(n_tokens, width), np.frombuffer(log_probs, "<f4").reshape(n_tokens, width + 2)

    def answers(self, wanted: dict[str, Any]) -> bool:
        """Tell whether the file is whole, and was made for this."""
        return self.is_whole and self.made_for == wanted

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
    teaching, state, folder = stage.objective.teaching, stage.state, run.out_dir / FOLDER
    vocab_size = run.model.tokenizer.vocab_size
    wanted = {**made_for(run, stage), "top_k": teaching.top_k, "temperature": teaching.temperature, "vocabulary": vocab_size}
    kept = read_taught(folder / f"{state.reference}.taught") if state.reference else Taught()
    trained = state.position is not None
    if kept.answers(wanted) or (kept.is_whole and trained and not missing(pieces(), kept.places)):
        return kept
    teacher, identity, ask = _open_teacher(run, stage, asked, kept)
    said = blake2b(digest_size=16)
    said.update(json.dumps({"precision": run.runtime.precision, "made_for": wanted, "teacher": identity}, sort_keys=True).encode())
    if trained and said.hexdigest() != state.reference and kept.header.get("teacher") != identity:
        raise UserError(f"{teacher.label}: is not the one that the stage was begun with, or data or settings are others, and what that one has said of them is "
                        f"missing. Bring it back, or the file {folder / f'{state.reference}.taught'}, or {anew(run, stage)}.")
    path = folder / f"{said.hexdigest()}.taught"
    found = read_taught(path)
    if not found.answers(wanted):
        header = {"taught": path.stem, "teacher": identity, "precision": run.runtime.precision, "temperature": teaching.temperature,
                  "top_k": min(teaching.top_k, vocab_size), "ids": _id_type(vocab_size).str}
        found = _Asking(run, stage, teacher, header, kept).go(path, pieces, ask, wanted)
    state.reference = path.stem
    return found


def file_bytes(teaching: Teaching, vocab_size: int, n_tokens: int) -> int:
    """Give the bytes that what a teacher says of tokens takes, but for the keys of their pieces."""
    width = min(teaching.top_k, vocab_size)
    return n_tokens * (width * _id_type(vocab_size).itemsize + (width + 2) * 4)


def _id_type(vocab_size: int) -> np.dtype[Any]:
    """Give the type of the ids in a file."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _expected_bytes(stage: OpenStage, pieces: Iterable[Piece], vocab_size: int) -> int:
    """Estimate the size of a stage's file from its first pieces, each sample once; 0 where nobody knows how many samples there are."""
    assert stage.objective.teaching is not None
    looked = [*islice(pieces, _LOOKED)]
    n_samples = sum(piece.last for piece in looked)
    if not n_samples:
        return 0
    of_sample, stream = sum({key_of(piece): piece.n_truth for piece in looked}.values()) / n_samples, stage.data.open_samples()
    lengths = [stream.total, stream.rows_per_epoch]
    if stage.stage.tokens is not None:
        lengths.append(round(stage.stage.tokens / of_sample))
    if stage.stage.steps is not None:
        lengths.append(round(stage.stage.steps * stage.settings.batch_size * n_samples / len(looked)))
    return file_bytes(stage.objective.teaching, vocab_size, round(of_sample * min((length for length in lengths if length is not None), default=0)))


def _check_space(path: Path, folder: Path, teacher: Teacher, size: int, n_bytes: int) -> None:
    """Refuse to ask where a file of about this size will hardly fit on the disk of a folder that there is; it has some bytes already."""
    try:
        check_free_bytes(folder, round(_SURE * size) - n_bytes)
    except OSError as error:
        raise UserError(f"{teacher.label}: what it says of the stage's tokens takes about {bytes_in_words(size)} in {path}: {error.strerror}. Free some space, "
                        "choose an --out-dir on another disk, or a smaller top_k.") from None


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

    def __init__(self, run: Run, stage: OpenStage, teacher: Teacher, header: dict[str, Any], before: Taught):
        """
        :param header: the first line of the file.
        :param before: what the stage was begun with; of the same teacher it is taken over.
        """
        self._run, self._stage, self._teacher, self._header = run, stage, teacher, header
        self._before = before if {**before.header, "taught": header["taught"]} == header else Taught()
        self._known: dict[str, int] = {}
        self._told = time.monotonic()

    def go(self, path: Path, pieces: Callable[[], Iterable[Piece]], ask: Asked, wanted: dict[str, Any]) -> Taught:
        """Do it; gives what is in the file then."""
        teaching, say = self._stage.objective.teaching, self._run.report.say
        assert teaching is not None
        of, part = f"stage '{self._stage.stage.name}'", path.with_name(f"{path.stem}.{self._run.path.stem}.part")
        begun = read_taught(part)
        begun = begun if begun.header == self._header else Taught()
        self._known = {key: n_tokens for key, (_, n_tokens) in begun.places.items()}
        size = _expected_bytes(self._stage, pieces(), self._run.model.tokenizer.vocab_size)
        _check_space(path, self._run.out_dir, self._teacher, size, begun.n_bytes)
        about = f" (about {bytes_in_words(size)})" if size else ""
        say(f"{of}: {teaching.name} is asked about its tokens; what it says is kept in {path}{about}")
        with Growing(part, f"what {teaching.name} says of the tokens of {of}", self._header, begun.n_bytes) as file:
            self._ask(file, pieces(), ask)
            file.complete(wanted)
            if not (found := read_taught(path)).answers(wanted):  # else another run was faster
                file.rename(path)
                found = read_taught(path)
            file.tidy(self._run)
        if not found.answers(wanted):
            raise UserError(f"{path}: is not as it has just been written; something else writes to it, or its disk is damaged. Choose another --out-dir, or "
                            "remove the file and run the same command again.")
        say(f"{of}: {teaching.name} has been asked about {counted(sum(self._known.values()), 'token')} ({found.n_bytes / 1e6:,.1f} MB)")
        return found

    def _ask(self, file: Growing, pieces: Iterable[Piece], ask: Asked) -> None:
        """Write what is said of the pieces that nothing is known of."""
        known, before = self._known, self._before
        for chunk in chunks(self._followed(pieces)):
            keys = [key_of(piece) for piece in chunk]
            if all(key in known for key in keys):
                continue
            said = [before(piece) for piece in chunk] if all(key in before.places for key in keys) else ask(chunk)
            known.update((key, len(ids)) for key, (ids, _) in zip(keys, said, strict=True))
            content = b"".join(part for ids, log_probs in said for part in (ids.astype(self._header["ids"]).tobytes(), log_probs.astype("<f4").tobytes()))
            file.add({"keys": keys, "tokens": [known[key] for key in keys], "bytes": len(content), "crc": crc32(content)}, content)

    def _followed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Say now and then how far it is, also where pieces come again and nothing is asked, as in a second epoch."""
        for number, piece in enumerate(pieces):
            if time.monotonic() - self._told > _TELL_SECONDS:
                self._told = time.monotonic()
                self._run.report.say(f"asked about {counted(sum(self._known.values()), 'token')} so far, after {counted(number, 'piece')} of the stage's data")
            yield piece


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
