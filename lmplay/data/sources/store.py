"""An object store or a web server, by fsspec: what is there, and its bytes, asked for until they have come.  Data floor, no torch.

fsspec and the package that speaks to a store are imported when it is first asked.
"""
from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
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
_NOT_TRUSTED = {"SSLCertVerificationError", "CertificateError", "ClientConnectorCertificateError"}
# What a store may say of a file's version: marks of its contents, and dates where there is none (more exact in a listing than elsewhere).
_MARKS = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "blob_id", "lfs", "generation")
_DATES = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated")
Answer = TypeVar("Answer")


class About(NamedTuple):
    """A file as the store knows it: what it calls it, its size in bytes, and what differs when its contents do ("" where it does not say)."""

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
        self.shown = _without_queries(self.path) if self._protocol.startswith("http") else self.path
        self.patience = Patience(f"source {self.shown}", "the store")

    def find(self) -> Found:
        """List the files that the path means: one file, those in a folder, or those of a glob.

        :raises UserError: when there are none; says why.
        :raises Unavailable: when the store does not answer.
        """
        found = self.ask(self._find)
        if not found.files:
            raise UserError(f"source {self.shown}: nothing is there; check the bucket and the path.")
        return found

    def about(self, address: str) -> About:
        """Ask what a file is now; raises as :meth:`find`."""
        return self.ask(partial(self._about_now, address))

    def read(self, address: str, start: int, end: int) -> bytes:
        """Ask once for the bytes [start, end) of a file; raises :class:`Outage` when fewer come, UserError when it would be sent as a whole for each part."""
        data: bytes = self.fs.cat_file(address, start=start, end=end)
        if len(data) > end - start:  # a server that knows no ranges gives all of it
            if len(data) > _LARGEST:
                raise UserError(f"source {self.shown}: the server gives no parts of a file, and this one has {len(data):,} bytes; download the file.")
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
                    raise UserError(f"source {self.shown}: is a web page, not a file of data; give the address of the file itself.")
                root, _, name = (path.partition("?")[0] if self._protocol.startswith("http") else path).rpartition("/")
                return Found(root, {name: self._about(path, info)}, is_file=True)
            root, wanted = path, "**"
        else:
            root = re.split(r"[*[]", path)[0].rpartition("/")[0]
            wanted = path.removeprefix(f"{root}/").replace("?", "[?]")
        files = {name: self._about(info["name"], info) for name, info in sorted(self._list(root, wanted).items())}
        return Found(root, files, is_file=False)

    def _list(self, root: str, wanted: str) -> dict[str, dict[str, Any]]:
        """List the files below a folder that a glob means, by their names there. What a listing raises is raised: fsspec's own glob takes a folder that it
        cannot list for an empty one."""
        from fsspec.utils import glob_translate

        before, is_wanted, levels = f"{str(self.fs._strip_protocol(root)).rstrip('/')}/", re.compile(glob_translate(wanted)), wanted.split("/")
        is_web, files = self._protocol.startswith("http"), {}
        if "**" in levels and not is_web:  # one listing of all that is below
            entries = self.fs.find(root, detail=True).values()
            return {name: info for info in entries if is_wanted.match(name := info["name"].removeprefix(before)) and _is_file(name, info)}
        folders, seen = [""], {""}
        while folders:
            folder = folders.pop()
            try:
                entries = self.fs.ls(f"{root}/{folder}".rstrip("/") + "/" * is_web, detail=True)
            except FileNotFoundError:
                if not folder:
                    raise
                continue  # a link to nothing, or removed by now
            for info in entries:
                name = info["name"].removeprefix(before)
                if info["type"] == "directory":
                    name = name.rstrip("/")
                    if name not in seen and not _is_odd(name) and _leads_on(name, levels):
                        folders.append(name)
                        seen.add(name)
                elif is_wanted.match(name) and _is_file(name, info):
                    files[name] = info
        return files

    def _about_now(self, address: str) -> About:
        """See :meth:`about`."""
        self.fs.invalidate_cache(address)
        return self._about(address, self.fs.info(address))

    def _about(self, address: str, info: dict[str, Any]) -> About:
        """Take what is needed of what a store says about a file."""
        if info.get("size") is None:
            info = self.fs.info(address)
        if info.get("size") is None:
            raise UserError(f"source {self.shown}: {address}: the server does not say how large it is; download the file.")
        said = next(filter(None, ([str(info[key]) for key in keys if info.get(key)] for keys in (_MARKS, _DATES))), None)
        return About(address, int(info["size"]), repr(said) if said else "")

    def _explain(self, error: Exception) -> str:
        """Say in one line, with what to do, why the store does not give what it is asked for."""
        start, (package, extra, credentials) = f"source {self.shown}: ", _SPEAKERS[self._protocol]
        chain = list(_causes(error))
        names = {kind.__name__ for one in chain for kind in type(one).__mro__}
        status = next(filter(None, map(_status, chain)), None)
        if isinstance(error, ImportError):
            wanted = f"'lmplay[{extra}]'" if extra else package
            return f"{start}needs the package {package}: pip install {wanted}."
        if names & _NOT_TRUSTED:
            return f"{start}the server's certificate is not trusted ({_said(error)}); check the address, the clock and the certificates of this machine."
        if names & _NO_CREDENTIALS:
            return f"{start}no credentials are found ({_said(error)}); give {credentials}."
        if isinstance(error, PermissionError) or status in (401, 403):
            return f"{start}access is refused ({_said(error)}); check the path, or give {credentials}."
        if isinstance(error, FileNotFoundError) or status == 404:
            return f"{start}there is no such bucket, folder or file; check the name."
        return f"{start}cannot be read ({type(error).__name__}: {_said(error)}); check the path and the settings of {package}."


class StoredFile:
    """One file of a store, read in parts: each is asked for until it has come."""

    advice = "fetch or write it again"

    def __init__(self, store: Store, name: str, about: About):
        """
        :param store: where it is.
        :param name: what the user calls it.
        :param about: what the store says of it.
        """
        self.label, self.size, self.version = f"source {store.shown}: {name}", about.size, about.version
        self._store, self._address, self._most = store, about.address, _LARGEST

    def has_changed(self) -> bool:
        """Ask whether the file is another one by now, and take that one then; raises as :meth:`read`."""
        before, now = (self.size, self.version), self._store.about(self._address)
        self.size, self.version = now.size, now.version
        return before != (self.size, self.version)

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


def check_names(path: str, names: Iterable[str]) -> None:
    """Refuse names, of the source of a path, that cannot be those of files below a folder: a stranger may have chosen them."""
    odd = next(filter(_is_odd, names), None)
    if odd is not None:
        raise UserError(f"source {path}: holds {odd!r}, which is no name for a file of this machine; choose files with a glob.")


def _is_file(name: str, info: dict[str, Any]) -> bool:
    """Tell whether an object is a file, and no folder nor the empty object that stands for one."""
    return info["type"] != "directory" and name != "" and not name.endswith("/")


def _leads_on(folder: str, levels: list[str]) -> bool:
    """Tell whether files below a folder may be meant by a glob, given level by level."""
    from fsspec.utils import glob_translate

    parts = folder.split("/")
    for part, level in zip(parts, levels, strict=False):
        if level == "**":
            return True
        if not re.match(glob_translate(level), part):
            return False
    return len(parts) < len(levels)


def _is_odd(name: str) -> bool:
    """Tell whether an object's name cannot be that of a file below a folder."""
    return "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))


def _said(error: BaseException) -> str:
    """Put an error into one line."""
    return _without_queries(first_line(error))


def _without_queries(text: str) -> str:
    """Leave out the queries of addresses: they may hold a signature."""
    return re.sub(r"(\w+://[^\s?'\"]*)\?[^\s'\")]*", r"\1", text)


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
    chain = list(_causes(error))
    if any(kind.__name__ in _NOT_TRUSTED for one in chain for kind in type(one).__mro__):
        return None
    for one in chain:
        names = {kind.__name__ for kind in type(one).__mro__}
        if (names & _NETWORK and not names & _NO_CREDENTIALS) or (isinstance(one, OSError) and one.errno in _BUSY):
            return Outage(_said(one))
        status = _status(one)
        if status is not None:
            response: Any = getattr(one, "response", None)
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}) if isinstance(response, dict) else getattr(response or one, "headers", None)
            return outage_of_status(status, headers or {})
    return None
