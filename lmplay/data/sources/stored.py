"""Files in object stores and on web servers as sources: copied to this disk once, or read over the network while training.  Data floor, no torch."""
from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from urllib.parse import quote

from ...errors import Unavailable, UserError
from ...files import check_free_bytes
from ...hub import waiting
from ..roles import needed_columns
from .base import AnySource, SourceSpec
from .local import open_selection
from .progress import shown
from .registry import Opener
from .selection import Selection, format_of, is_packed, select_among
from .shards import ShardedSource
from .store import Found, Store, StoredFile, check_names, is_glob

# Files that are copied at the same time.
_TOGETHER = 4
# Times that a file is copied which is replaced meanwhile.
_TRIES = 3
_STREAMED = {"parquet": "parquet", "jsonl": "lines"}


def open_stored(spec: SourceSpec, split: str, folder: Path) -> AnySource | None:
    """Open a file, a folder or a glob of a store.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: the data sets folder; `stored/` in it keeps copies.
    :return: the source; None where "validation" is asked for and there is none.
    :raises UserError: when nothing is there, nothing is readable, or there is no space for it.
    :raises Unavailable: when the store does not answer.
    """
    store = Store(spec.path)
    found = store.find()
    selection = _select(spec, found, split, _place_of(spec.path if found.is_file else found.root, folder))
    if selection is None:
        return None
    check_names(store.shown, selection.names)
    files = [StoredFile(store, name, found.files[name]) for name in selection.names]
    if spec.streaming:
        return _open_stream(spec, selection, files)
    copy_files(store.shown, selection.names, files, selection.root.parent)
    return open_selection(selection, folder, spec)


def copy_files(path: str, names: Sequence[str], files: Sequence[StoredFile], place: Path) -> None:
    """Copy files to this disk, but for those that are there already. What is interrupted goes on later; of several processes one copies a file.

    :param path: of the source, for messages.
    :param names: of the copies below `place/files`.
    :param files: of which they are.
    :param place: a folder for these copies.
    :raises UserError: when a file cannot be had, or there is no space.
    :raises Unavailable: when the store does not answer.
    """
    missing = [(name, file) for name, file in zip(names, files, strict=True) if not _is_there(place, name, file)]
    if not missing:
        return
    try:
        for name, _ in missing:
            for kind in ("files", "versions", "parts"):
                (place / kind / name).parent.mkdir(parents=True, exist_ok=True)
        check_free_bytes(place, sum(max(0, file.size - _size_of(place / "parts" / name)) for name, file in missing))
        stop = Event()
        with shown(f"copying {path}", sum(file.size for _, file in missing)) as count, ThreadPoolExecutor(_TOGETHER) as pool:
            copies = [pool.submit(_copy, place, name, file, count, stop) for name, file in missing]
            try:
                for copy in copies:
                    copy.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except OSError as error:
        raise UserError(f"source {path}: cannot be copied to {place} ({error.strerror or error}); free some space, choose another --out-dir, or write "
                        "\"streaming\": true.") from None


def _select(spec: SourceSpec, found: Found, split: str, place: Path) -> Selection | None:
    """Choose among the files of a path, as among those of this machine."""
    root = place / "files"
    if not found.is_file:
        title = spec.path.removeprefix(found.root.rpartition("/")[0]).strip("/")
        return select_among(spec.path, list(found.files), root, title, spec.split, split, is_glob(spec.path))
    if spec.split:
        raise UserError(f"source {spec.path}: 'split' chooses among the files of a folder, and this is one file; leave it out.")
    name, = found.files
    return Selection(name, root, [name]) if split == "train" else None


def _open_stream(spec: SourceSpec, selection: Selection, files: list[StoredFile]) -> ShardedSource:
    """Open files to be read while training."""
    if spec.encoding_errors is not None:
        raise UserError(f"source {spec.path}: 'encoding_errors' is for files on this disk; leave out 'streaming'.")
    forms = {None if is_packed(name) else _STREAMED.get(str(format_of(name))) for name in selection.names}
    form = forms.pop()
    if form is None or forms:
        raise UserError(f"source {spec.path}: only Parquet files, or only JSON lines, are read over the network; leave out 'streaming', or choose files with "
                        "a glob.")
    digest = hashlib.blake2b(repr([(name, file.size, file.version) for name, file in zip(selection.names, files, strict=True)]).encode(), digest_size=16)
    fingerprint = {"kind": f"stored {form}", "path": spec.path, "split": spec.split, "digest": digest.hexdigest()}
    source = ShardedSource(selection.title, form, files, None, fingerprint, partial(needed_columns, roles=spec.columns))
    source.may_have_own, source.notes = selection.has_validation, selection.notes
    return source


def _place_of(address: str, folder: Path) -> Path:
    """Say where the copies of what is at or below an address are kept."""
    last = quote(address.partition("?")[0].rpartition("/")[2], safe="")[-40:]
    return folder / "stored" / f"{last}-{hashlib.blake2b(address.encode(), digest_size=8).hexdigest()}"


def _size_of(file: Path) -> int:
    """Give a file's size in bytes, 0 where there is none."""
    return file.stat().st_size if file.exists() else 0


def _is_there(place: Path, name: str, file: StoredFile) -> bool:
    """Tell whether a file has been copied as it is now."""
    try:
        return (place / "versions" / name).read_text(encoding="utf-8") == file.version and (place / "files" / name).stat().st_size == file.size
    except OSError:
        return False


def _copy(place: Path, name: str, file: StoredFile, count: Callable[[int], object], stop: Event) -> None:
    """Copy a file, unless another process does; a part that an earlier run has left is gone on with. What is replaced meanwhile is copied again.

    :param count: is told the bytes that have come.
    :param stop: ends it early when set; the part is kept.
    """
    from filelock import FileLock

    copy, version, part = (place / kind / name for kind in ("files", "versions", "parts"))
    part_version = part.with_name(f"{part.name}.version")
    with FileLock(f"{part}.lock"):
        if _is_there(place, name, file):
            return
        for _ in range(_TRIES):
            _fetch(part, part_version, file, count, stop)
            if stop.is_set():
                return
            if not file.has_changed() and _size_of(part) == file.size:
                break
            part_version.unlink()  # the part is of no use
        else:
            raise UserError(f"{file.label}: has changed each time while it was copied; start again when nobody writes it.")
        version.unlink(missing_ok=True)
        os.replace(part, copy)
        version.write_text(file.version, encoding="utf-8")
        part_version.unlink()


def _fetch(part: Path, part_version: Path, file: StoredFile, count: Callable[[int], object], stop: Event) -> None:
    """Write a file's bytes to a part, behind those that are there where they are of the same version."""
    goes_on = file.version and part.exists() and part_version.exists() and part_version.read_text(encoding="utf-8") == file.version
    if not goes_on:
        part.unlink(missing_ok=True)
        part_version.write_text(file.version, encoding="utf-8")
    with open(part, "ab") as into:
        count(into.tell())
        for data in file.parts(into.tell(), file.size):
            into.write(data)
            count(len(data))
            if waiting.stopped():
                raise Unavailable(f"{file.label}: stopped while it was copied; the same command goes on.")
            if stop.is_set():
                break
        into.flush()
        os.fsync(into.fileno())


STORED = Opener(open_stored, of_files=True)
