"""The .lmp file: a dictionary of plain values and tensors.

It is the zip archive that `torch.save` writes, with a checksum of all bytes before it as the archive's comment: `torch.load(…, weights_only=True)` reads it.
A folder of shards (:mod:`.folder`) is read as if it were such a file.
"""
from __future__ import annotations

import errno
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import nn

from .. import __version__
from ..component import Component
from ..data.sentences import RULES
from ..errors import UserError
from ..files import STATE, NotAFile, check_free_bytes, check_is_file, check_is_state, is_state, put, sync_folder, temporary_name, write_atomic
from .folder import Divided, File, are_right, divide, files_of, is_noted, join, with_shards, write_own
from .hashed import Hashed, hash_file
from .pieces import memory_of
from .schema import check_archive, check_components, check_content

FORMAT = 1
COMPONENTS = ("curriculum", "model", "runner", "optimizers", "lr_schedulers")

# An archive ends with the length of its comment (2 bytes; 0 in what torch.save writes) and the comment: this mark and 32 hexadecimal digits.
_MARK = b"lmplay xxh3-128 "
_COMMENT = len(_MARK) + 32
_NO_COMMENT = b"\0\0"
# The last record of an archive without a comment.
_END, _END_SIZE = b"PK\5\6", 22
# A run replaces its states; one that is replaced while it is read is read again, so often.
_LOOKS, _PAUSE = 5, 0.05  # the pause is in seconds

Result = TypeVar("Result")

Write = Callable[[Path, dict[str, Any], Callable[[Path], None] | None, Callable[[], bool]], None]
"""Writes a state: takes what :func:`write` takes."""

Verify = Callable[[Path], bool | None]
"""Tells whether the checksums of a state are right: takes, returns and raises what :func:`verify` does."""
Verdict = bool | OSError | None
"""What :data:`Verify` gives of a state, or raises."""


@dataclass(frozen=True)
class Verified:
    """What a verification has found; a :data:`Verify`."""

    states: Mapping[Path, Verdict]
    bases: Set[Path]
    """The files of weights below adapters that are right."""

    def __call__(self, path: Path) -> bool | None:
        """Give what has been found of a state, or find it now."""
        found = self.states[path] if path in self.states else verify(path)
        if isinstance(found, OSError):
            raise found
        return found


@dataclass(frozen=True)
class ToVerify:
    """A file of a state."""

    path: Path
    bytes: int
    noted: File | None = None
    """What the state notes of it; None = its checksum is in the file itself."""


class Damaged(UserError):
    """A file is damaged; another one may be whole."""


def content_of(components: Sequence[Component]) -> dict[str, Any]:
    """Return what a checkpoint of these components holds; the tensors are not copied."""
    content: dict[str, Any] = {"format": FORMAT, "versions": versions()}
    return content | {component.name: {"state_args": component.state_args(), "state": component.state()} for component in components}


def versions() -> dict[str, str]:
    """Return the versions of lmplay, torch and Python, and of the rules by which texts are cut."""
    return {"lmplay": __version__, "torch": str(torch.__version__), "python": platform.python_version(), "cutting rules": str(RULES)}


def write(path: Path, content: dict[str, Any], before_rename: Callable[[Path], None] | None = None, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Write a file with its checksum: first under a temporary name, synced, then renamed.

    :param before_rename: called with the complete temporary file, while the old file still has its name.
    :param cancelled: called between chunks; True cancels the write.
    :raises OSError: when the file cannot be written; :class:`Cancelled` when the write was cancelled. The old file is untouched then.
    """
    write_atomic(path, lambda file: _write(content, file, cancelled), before_rename, check_is_state)


def write_folder(path: Path, divided: Divided, files: Mapping[str, File], before_rename: Callable[[Path], None] | None = None,
                 cancelled: Callable[[], bool] = lambda: False) -> None:
    """Complete a folder of shards under its temporary name, and rename it over the old state.

    :param files: the files of shards, which are in it and synced.
    :param before_rename: see :func:`write`; called with the complete folder.
    :raises OSError: see :func:`write`.
    """
    check_is_state(path)
    folder = temporary_name(path)
    write(folder / STATE, with_shards(divided, files), cancelled=cancelled)
    if before_rename is not None:
        before_rename(folder)
    put(folder, path)
    sync_folder(path.parent)


def write_shards(path: Path, content: dict[str, Any], shards: int) -> None:
    """Write a folder of shards by one process, tensor after tensor; raises OSError.

    :param shards: the number of its files.
    """
    check_free_bytes(path.parent, content_bytes(content))
    folder, files = temporary_name(path), dict[str, File]()
    try:
        for rank in range(shards):
            files |= write_own(folder, divide(content, rank, shards), rank, shards, lambda: False)
        write_folder(path, divide(content, 0, shards), files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(path: Path, parts: Sequence[str] = COMPONENTS, mmap: bool = False, verified: Verify | None = None) -> dict[str, Any]:
    """Read a checkpoint, tensors to the CPU; no code in it is executed.

    :param parts: the components that it must have.
    :param mmap: see :func:`read`.
    :param verified: see :func:`read`.
    :raises Damaged: when the file is damaged or not a checkpoint of lmplay.
    :raises UserError: when the file cannot be read, or its format version is unknown.
    """
    keep = "It is left as it is; choose another --model" + (", or --reset-history to start over beside it." if len(parts) > 1 else ".")
    content = read(path, keep, mmap, verified=verified)
    if content["format"] == FORMAT and set(content) == {"format", "versions", "model"} and len(parts) > 1:
        raise UserError(f"model {path}: holds only weights, so no run can be resumed from it; --initial-model {path} starts a new run with them.")
    if content["format"] != FORMAT or not all(name in content for name in parts):
        missing = ", ".join(name for name in parts if name not in content)
        raise UserError(f"model {path}: has format {content['format']}{f' without {missing}' if missing else ''}, and this lmplay ({__version__}) reads "
                        f"format {FORMAT} with {', '.join(parts)}. {keep}")
    return content


def read(path: Path, advice: str = "", mmap: bool = False, check: bool = True, verified: Verify | None = None) -> dict[str, Any]:
    """Read a checkpoint or a file of weights alone; the content has the key "format".

    Where a run replaces it meanwhile, it is read again: what is returned is one state.

    :param advice: appended to the message of :class:`Damaged`.
    :param mmap: leave the tensors on the disk until they are used.
    :param check: verify the checksum.
    :param verified: tells what a verification has found, where that has been done; None = it is done now.
    :raises Damaged: when the file is damaged, not a file of lmplay, or does not hold what a checkpoint holds.
    :raises UserError: when the file cannot be read.
    """
    return _steadily(path, lambda: _read(path, advice, mmap, (verified or _verify) if check else None))


def _read(path: Path, advice: str, mmap: bool, verify: Verify | None) -> dict[str, Any]:
    """Read a state once, see :func:`read`."""
    try:
        check_is_state(path)
        if verify is not None and verify(path) is False:
            raise Damaged(f"model {path}: damaged, or not a checkpoint of lmplay (its checksum is wrong). {advice}")
        is_folder = path.is_dir()
        content = _read_archive(path / STATE if is_folder else path, mmap)
        if is_folder:
            content = join(path, content, lazily=mmap)
        elif isinstance(content, dict) and "shards" in content:
            raise UserError(f"model {path}: is a part of a state in shards; give the folder, {path.parent}.")
        if isinstance(content, dict) and content.get("format") == FORMAT:
            check_components(content)
    except OSError as error:
        is_in_folder = path.is_dir() and is_state(path)  # what is missing, or is no file
        if isinstance(error, PermissionError) or (isinstance(error, (FileNotFoundError, NotAFile)) and not is_in_folder):
            raise UserError(f"model {path}: cannot be read ({error.strerror}).") from None
        raise Damaged(f"model {path}: cannot be read ({error.strerror or error}). {advice}") from None
    except UserError:
        raise
    except ValueError as error:
        raise Damaged(f"model {path}: damaged, or not a checkpoint of lmplay ({str(error).partition(chr(10))[0]}). {advice}") from None
    except Exception as error:  # damaged bytes can raise anything
        raise Damaged(f"model {path}: damaged, or not a checkpoint of lmplay ({type(error).__name__}). {advice}") from None
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise Damaged(f"model {path}: not a checkpoint of lmplay. {advice}")
    return content


def verify(path: Path) -> bool | None:
    """Tell whether the checksums of a state are right; None for an archive without one (written by torch.save or lmplay 0.1).

    :raises OSError: when a file cannot be read.
    """
    return _steadily(path, lambda: _verify(path))


def files_to_verify(path: Path) -> list[ToVerify]:
    """List the files of a state, which can be verified one by one; where it is a folder, :data:`STATE` is the first, and says what the others are.

    :raises OSError: when one cannot be read.
    """
    if not path.is_dir():
        return [ToVerify(path, path.stat().st_size)]
    state = path / STATE
    try:
        files = files_of(_read_archive(state, mmap=True))
    except OSError:
        raise
    except Exception:  # damaged bytes can raise anything; its own checksum is wrong then
        files = {}
    return [ToVerify(state, state.stat().st_size), *(ToVerify(path / name, file["bytes"], file) for name, file in files.items())]


def verify_file(one: ToVerify) -> bool | None:
    """Tell whether the checksum of a file is right, see :func:`verify`; raises OSError when it cannot be read."""
    return _verify_archive(one.path) if one.noted is None else is_noted(one.path, one.noted)


def _steadily(path: Path, look: Callable[[], Result]) -> Result:
    """Look at a state until it is the same one before and afterwards, and return what was found; raises what the look raises."""
    for _ in range(_LOOKS - 1):
        before = _seen(path)
        try:
            found = look()
        except (OSError, UserError):
            if _seen(path) == before:
                raise
        else:
            if _seen(path) == before:
                return found
        time.sleep(_PAUSE)
    return look()


def _seen(path: Path) -> tuple[int, int, int] | None:
    """Identify a state that a name leads to now; None where there is none."""
    try:
        stat = (path / STATE if path.is_dir() else path).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns  # the number of a file that is gone may be another's


def _verify(path: Path) -> bool | None:
    """Verify a state once, see :func:`verify`."""
    if not path.is_dir():
        return _verify_archive(path)
    try:
        return bool(_verify_archive(path / STATE)) and are_right(path, _read_archive(path / STATE, mmap=True))
    except ValueError:
        return False


def _read_archive(path: Path, mmap: bool) -> Any:
    """Read a file; raises all that damaged bytes can raise."""
    check_is_file(path)
    check_archive(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    check_content(content, path.stat().st_size)
    return content


def _verify_archive(path: Path) -> bool | None:
    """Verify a file, see :func:`verify`."""
    check_is_file(path)
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size < _END_SIZE + _COMMENT:
            return False
        file.seek(-_END_SIZE - _COMMENT, os.SEEK_END)
        tail = file.read()
        comment = tail[_END_SIZE:]
        if not comment.startswith(_MARK):
            return None if tail[-_END_SIZE:].startswith(_END) and tail.endswith(_NO_COMMENT) else False
        file.seek(0)
        checksum = hash_file(file, size - _COMMENT - len(_NO_COMMENT))
    checksum.update(_NO_COMMENT)  # as torch has written it
    return comment == _MARK + checksum.hexdigest().encode() and tail[:_END_SIZE].endswith(_COMMENT.to_bytes(2, "little"))


def stage_file(path: Path, stage: str) -> Path:
    """Return the path of the file with the newest state of a stage."""
    return path.with_name(f"{path.stem}.{stage}{path.suffix}")


def checkpoint_bytes(module: nn.Module, optimizer_bytes: int) -> int:
    """Estimate the size of a checkpoint before there is one, in bytes: weights and buffers (shared ones once), and the optimizer's state.

    :param module: the raw model; may be on "meta".
    """
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers())) + optimizer_bytes


def content_bytes(content: dict[str, Any]) -> int:
    """Estimate the size of the file of a content, in bytes: its tensors, about 9 bytes for each plain value, and 64 KiB."""
    def plain(value: Any) -> int:
        if isinstance(value, dict):
            return sum(map(plain, value.values()))
        return 9 * len(value) if isinstance(value, (str, list)) else 9

    return tensor_bytes(content) + plain(content) + (1 << 16)


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors in nested values; memory that several share counts once."""
    storages: dict[Any, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storages.update([memory_of(value)])
        elif isinstance(value, dict):
            list(map(visit, value.values()))
        elif isinstance(value, (list, tuple)) and not isinstance(next(iter(value), None), (int, float, str)):  # columns of numbers can be long
            list(map(visit, value))

    visit(value)
    return sum(storages.values())


def _write(content: dict[str, Any], file: IO[bytes], cancelled: Callable[[], bool]) -> None:
    """Write the content and the checksum; raises OSError, also where torch's writer turns one (such as a full disk) into a RuntimeError."""
    hashed = Hashed(file, cancelled)
    try:
        torch.save(content, hashed)  # type: ignore[arg-type]
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise cause or OSError(errno.EIO, str(error).splitlines()[0]) from error
    # The checksum is that of the archive as torch has written it; the comment and its length are added afterwards.
    file.seek(-len(_NO_COMMENT), os.SEEK_END)
    file.write(_COMMENT.to_bytes(2, "little") + _MARK + hashed.hash.hexdigest().encode())
