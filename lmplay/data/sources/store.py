"""An object store or a web server, by fsspec: what is there, and its bytes, asked for until they have come.  Data floor, no torch.

fsspec and the package that speaks to a store are imported when it is first asked.
"""
from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...errors import LmplayError, UserError
from ...hub import Outage, Patience, first_line, hub_endpoint, outage_of_status

# What speaks to the stores of a prefix: the package, what it is called in an extra of ours, and where its credentials come from.
_SPEAKERS = {"s3": ("s3fs", "s3", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; FSSPEC_S3_ANON=true for a public bucket"),
             "gs": ("gcsfs", "gs", "'gcloud auth application-default login', or GOOGLE_APPLICATION_CREDENTIALS; FSSPEC_GS_TOKEN=anon for a public bucket"),
             "hf": ("huggingface_hub", "", "'hf auth login', or HF_TOKEN"),
             "https": ("aiohttp", "", "an address that needs none"), "http": ("aiohttp", "", "an address that needs none")}
# Bytes requested at a time: more after a success, fewer after a failure.
_LARGEST, _SMALLEST = 16 * 2**20, 2**18
# Names of errors of the network, by whichever library; and of the system where a store was only busy.
_NETWORK = {"ConnectionError", "ClientConnectionError", "ClientPayloadError", "TransportError", "HTTPClientError", "Timeout", "TimeoutError",
            "IncompleteRead", "IncompleteReadError"}
_BUSY = {errno.EBUSY, errno.EIO, errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE, getattr(errno, "EREMOTEIO", errno.EIO)}
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError", "RefreshError", "ProfileNotFound",
                   "TokenRetrievalError", "SSOTokenLoadError"}
# What a listing may say of a version, by store.
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "lfs", "generation", "LastModified", "last_modified", "mtime", "updated")
Answer = TypeVar("Answer")


class About(NamedTuple):
    """A file as the store knows it: what it calls it, its size in bytes, and what differs when its contents do."""

    address: str
    size: int
    version: str


class Found(NamedTuple):
    """What a path means: the address that all files are below, the files by their names there, and whether it is one single file."""

    root: str
    files: dict[str, About]
    is_file: bool


@dataclass
class Store:
    """The store of a source's path, such as `s3://bucket/folder/*.jsonl`."""

    path: str

    def __post_init__(self) -> None:
        self._protocol = self.path.partition(":")[0]
        self._fs: Any = None
        self.patience = Patience(f"source {self.path}", "the store")

    def find(self) -> Found:
        """List the files that the path means: one file, those in a folder, or those of a glob.

        :raises UserError: when there are none; says why.
        :raises Unavailable: when the store does not answer.
        """
        found = self.ask(self._find)
        if not found.files:
            raise UserError(f"source {self.path}: nothing is there; check the bucket and the path.")
        odd = next((name for name in found.files if _is_odd(name)), None)
        if odd is not None:
            raise UserError(f"source {self.path}: holds {odd!r}, which is no name for a file of this machine; choose files with a glob.")
        return found

    def read(self, address: str, start: int, end: int) -> bytes:
        """Ask once for the bytes [start, end) of a file; raises :class:`Outage` when fewer come."""
        data: bytes = self.fs.cat_file(address, start=start, end=end)
        if len(data) > end - start:  # a server that knows no ranges gives all of it
            data = data[start:end]
        if len(data) < end - start:
            raise Outage("the connection ended early")
        return data

    def ask(self, act: Callable[[], Answer], failed: Callable[[], None] = lambda: None) -> Answer:
        """Do something with the store, again where it does not answer.

        :param act: what to do.
        :param failed: is called before each wait.
        :return: what it gave.
        :raises UserError: when it cannot be done.
        :raises Unavailable: when the store does not answer, or somebody asks to stop.
        """
        while True:
            try:
                found = act()
            except LmplayError:
                raise
            except Exception as error:
                outage = error if isinstance(error, Outage) else _outage_of(error)
                if outage is None:
                    raise UserError(self._explain(error)) from None
                failed()
                self.patience.wait(outage)
            else:
                self.patience.renew()
                return found

    @property
    def fs(self) -> Any:
        """What speaks to the store."""
        if self._fs is None:
            import fsspec

            self._fs = fsspec.filesystem(self._protocol, **({"endpoint": hub_endpoint()} if self._protocol == "hf" else {}))
        return self._fs

    def _find(self) -> Found:
        """See :meth:`find`."""
        fs, path = self.fs, self.path.rstrip("/")
        fs.invalidate_cache()
        if not is_glob(path):
            info = fs.info(path)
            if info["type"] != "directory":
                if "html" in str(info.get("mimetype", "")):
                    raise UserError(f"source {self.path}: is a web page, not a file of data; give the address of the file itself.")
                root, _, name = (path.partition("?")[0] if self._protocol.startswith("http") else path).rpartition("/")
                return Found(root, {name: self._about(path, info)}, is_file=True)
            root, found = path, fs.find(path, detail=True)
        else:
            root, found = re.split(r"[*[]", path)[0].rpartition("/")[0], fs.glob(path.replace("?", "[?]"), detail=True)
        before = str(fs._strip_protocol(root)).rstrip("/")
        files = {name.removeprefix(before).lstrip("/"): self._about(name, info) for name, info in found.items() if info["type"] != "directory"}
        return Found(root, files, is_file=False)

    def _about(self, address: str, info: dict[str, Any]) -> About:
        """Take what is needed of what a store says about a file."""
        if info.get("size") is None:
            info = self.fs.info(address)
        if info.get("size") is None:
            raise UserError(f"source {self.path}: {address}: the server does not say how large it is; download the file.")
        return About(address, int(info["size"]), repr([str(info[key]) for key in _VERSIONS if info.get(key)]))

    def _explain(self, error: Exception) -> str:
        """Say in one line, with what to do, why the store does not give what it is asked for."""
        start, (package, extra, credentials) = f"source {self.path}: ", _SPEAKERS[self._protocol]
        chain = list(_causes(error))
        names = {kind.__name__ for one in chain for kind in type(one).__mro__}
        status = next(filter(None, map(_status, chain)), None)
        if isinstance(error, ImportError):
            wanted = f"'lmplay[{extra}]'" if extra else package
            return f"{start}needs the package {package}: pip install {wanted}."
        if names & _NO_CREDENTIALS:
            return f"{start}no credentials are found ({first_line(error)}); give {credentials}."
        if isinstance(error, PermissionError) or status in (401, 403):
            return f"{start}access is refused ({first_line(error)}); check the path, or give {credentials}."
        if isinstance(error, FileNotFoundError) or status == 404:
            return f"{start}there is no such bucket, folder or file; check the name."
        return f"{start}cannot be read ({type(error).__name__}: {first_line(error)}); check the path and the settings of {package}."


class StoredFile:
    """One file of a store, read in parts: each is asked for until it has come."""

    advice = "fetch or write it again"

    def __init__(self, store: Store, name: str, about: About):
        """
        :param store: where it is.
        :param name: what the user calls it.
        :param about: what the store says of it.
        """
        self.label, self.size, self.version = f"source {store.path}: {name}", about.size, about.version
        self._store, self._address, self._most = store, about.address, _LARGEST

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end), or those up to the end of the file.

        :raises UserError: when the file cannot be had.
        :raises Unavailable: when the store stays away, or somebody asks to stop.
        """
        return b"".join(self.parts(start, end))

    def parts(self, start: int, end: int) -> Iterator[bytes]:
        """Give the same bytes part by part."""
        end = min(end, self.size)
        while start < end:
            part = self._store.ask(partial(self._part, start, end), self._ask_for_less)
            self._most = min(_LARGEST, 2 * self._most)
            start += len(part)
            yield part

    def _part(self, start: int, end: int) -> bytes:
        """Ask for a part that begins at a byte."""
        return self._store.read(self._address, start, min(end, start + self._most))

    def _ask_for_less(self) -> None:
        """Ask for fewer bytes, as all of them did not come."""
        self._most = max(_SMALLEST, self._most // 4)


def is_glob(path: str) -> bool:
    """Tell whether a path of a store is a glob; a question mark is a part of many addresses, and no sign of one."""
    return "*" in path or "[" in path


def _is_odd(name: str) -> bool:
    """Tell whether an object's name cannot be that of a file below a folder: a stranger may have chosen it."""
    return "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error and what it comes from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    """Find the HTTP status that an error of any of these libraries stands for."""
    response: Any = getattr(error, "response", None)
    found = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else getattr(response, "status_code", None)
    found = found or getattr(error, "status", None) or getattr(error, "code", None)
    return found if isinstance(found, int) and found >= 400 else None


def _outage_of(error: BaseException) -> Outage | None:
    """Tell whether a store may answer later; None where waiting is no use."""
    for one in _causes(error):
        names = {kind.__name__ for kind in type(one).__mro__}
        if (names & _NETWORK and not names & _NO_CREDENTIALS) or (isinstance(one, OSError) and one.errno in _BUSY):
            return Outage(first_line(one))
        status = _status(one)
        if status is not None:
            response: Any = getattr(one, "response", None)
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}) if isinstance(response, dict) else getattr(response or one, "headers", None)
            return outage_of_status(status, headers or {})
    return None
