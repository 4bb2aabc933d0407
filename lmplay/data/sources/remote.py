"""A file of the hub, read in parts: each part is requested until it has come.  Data floor, no torch; the hub's client is imported when a file is read."""
from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from ...errors import UserError
from ...hub import Outage, Patience, first_line, hub_endpoint, outage_of_status, shared_cache

# Bytes requested at a time: more after a success, fewer after a failure.
_LARGEST, _SMALLEST = 16 * 2**20, 2**18
_SIZES_ASKED = 200  # files whose sizes are asked for together
_URL = re.compile(r"hf://datasets/(?P<repo>[^@]+)@(?P<revision>[^/]+)/(?P<path>.+)")


class File(Protocol):
    """A file that is read in parts, from wherever it is; `label` names it in messages, `advice` says what to do when it is damaged."""

    label: str
    advice: str

    def __hash__(self) -> int:
        """What is known of a file is kept by it."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end), or those up to the end of the file; raises UserError or Unavailable."""


class RemoteFile:
    """One file of a data set of the hub, at one commit."""

    advice = "see the data set's page, or choose another 'revision'"

    def __init__(self, label: str, repo: str, revision: str, path: str, downloads: Path | None = None):
        """
        :param label: what the user calls the source.
        :param repo: the data set's name.
        :param revision: the commit.
        :param path: the file's path in the data set.
        :param downloads: a cache of the hub's client that may have the file; None = only that of all programs.
        """
        self.label = f"source {label}: {path}"
        self.address = self._repo, self._revision, self._path = repo, revision, path
        self._patience = Patience(f"source {label}")
        self._copy = _cached(repo, revision, path, shared_cache("hub")) or (_cached(repo, revision, path, downloads) if downloads else None)
        self._size: int | None = None if self._copy is None else self._copy.stat().st_size
        self._most = _LARGEST

    @property
    def is_cached(self) -> bool:
        """Whether another program has downloaded it, so that it is read from this disk."""
        return self._copy is not None

    @property
    def size(self) -> int:
        """The number of bytes; asks the hub the first time."""
        if self._size is None:
            self._ask(0, 1)
        assert self._size is not None
        return self._size

    def read(self, start: int, end: int) -> bytes:
        """Read bytes; waits for the hub where it does not answer.

        :param start: the first byte.
        :param end: one past the last; the end of the file where it is less.
        :return: the bytes.
        :raises UserError: when the file cannot be had.
        :raises Unavailable: when the hub stays away, or somebody asks to stop.
        """
        if self._copy is not None:
            with open(self._copy, "rb") as file:
                file.seek(start)
                return file.read(max(0, end - start))
        parts = []
        while start < (end if self._size is None else min(end, self._size)):
            part = self._ask(start, min(end, start + self._most))
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _ask(self, start: int, end: int) -> bytes:
        """Ask for bytes until some come: all of them, or those up to the end of the file; learns the file's size."""
        while True:
            try:
                found = self._try(start, end)
            except Outage as outage:
                self._most = max(_SMALLEST, self._most // 4)
                end = min(end, start + self._most)
                self._patience.wait(outage)
            else:
                self._patience.renew()
                self._most = min(_LARGEST, self._most * 2)
                return found

    def _try(self, start: int, end: int) -> bytes:
        """Ask once."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session

        url = hf_hub_url(self._repo, self._path, repo_type="dataset", revision=self._revision, endpoint=hub_endpoint())
        # A range counts the bytes as they are stored: they must not be compressed on the way.
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        try:
            answer = get_session().get(url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        except Exception as error:
            raise Outage(first_line(error)) from None
        return self._body(answer, start, end)

    def _body(self, answer: Any, start: int, end: int) -> bytes:
        """Take the bytes out of an answer, or raise what is wrong with it."""
        status, ranges = answer.status_code, answer.headers.get("Content-Range", "")
        if status == 416 and ranges.startswith("bytes */"):
            self._learn_size(int(ranges[8:]))
            if int(ranges[8:]) > start:
                raise Outage(f"no bytes from {start} of {ranges[8:]}")
            return b""
        if status == 200:  # the whole file: it is empty, or the server knows no ranges
            if "html" in answer.headers.get("Content-Type", ""):
                raise Outage("a web page came instead of the data")
            self._learn_size(len(answer.content))
            return bytes(answer.content[start:end])
        total = re.fullmatch(rf"bytes {start}-\d+/(\d+)", ranges)
        if status == 206 and total:
            self._learn_size(int(total[1]))
            if len(answer.content) != min(end, int(total[1])) - start:
                raise Outage("the connection ended early")
            return bytes(answer.content)
        raise outage_of_status(status, answer.headers) or self._refused(status)

    def _learn_size(self, size: int) -> None:
        """Take note of the size; it cannot change, as the commit is given."""
        if self._size not in (None, size):
            raise Outage(f"{size} bytes announced, {self._size} before")
        self._size = size

    def _refused(self, status: int) -> UserError:
        """Make the error for an answer that waiting cannot change."""
        if status in (401, 403):
            return UserError(f"{self.label}: access is refused (HTTP {status}); accept the data set's terms on {hub_endpoint()}/datasets/{self._repo}, "
                             "then log in with 'hf auth login' or set HF_TOKEN.")
        return UserError(f"{self.label}: the hub does not have it (HTTP {status}); see {hub_endpoint()}/datasets/{self._repo}.")


def _cached(repo: str, revision: str, path: str, cache: Path) -> Path | None:
    """Find a file that has been downloaded into a cache of the hub's client."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, path, cache_dir=cache, revision=revision, repo_type="dataset")
    return Path(found) if isinstance(found, str) else None


def remote_file(label: str, url: str, downloads: Path | None = None) -> RemoteFile | None:
    """Make the file that an address of the library means.

    :param label: what the user calls the source.
    :param url: `hf://datasets/OWNER/NAME@COMMIT/PATH`.
    :param downloads: see :class:`RemoteFile`.
    :return: the file; None where the address is of another kind.
    """
    found = _URL.fullmatch(url)
    return RemoteFile(label, found["repo"], found["revision"], found["path"], downloads) if found else None


def sizes(addresses: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    """Ask the hub for the sizes of files.

    :param addresses: data set, commit and path of each.
    :return: the size in bytes of each that is there.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    found: dict[tuple[str, str, str], int] = {}
    api = HfApi(endpoint=hub_endpoint())
    for (repo, revision), group in groupby(addresses, key=lambda address: address[:2]):
        paths = [address[2] for address in group]
        for start in range(0, len(paths), _SIZES_ASKED):
            infos = api.get_paths_info(repo, paths[start:start + _SIZES_ASKED], repo_type="dataset", revision=revision)
            found |= {(repo, revision, info.path): info.size for info in infos if isinstance(info, RepoFile)}
    return found
