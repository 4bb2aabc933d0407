"""A small hub on 127.0.0.1 that the real client talks to: data sets and models from a local folder, which models are sent to, and faults on command."""
import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(r"/api/(?P<kind>datasets|models)/(?P<repo>[^/]+/[^/]+?)(?:/(?P<what>revision|paths-info|tree)/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?/?")
_FILE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_SENT = re.compile(r"/api/repos/create|/api/validate-yaml|/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>preupload|commit)/main")


@dataclass
class Fault:
    """What goes wrong with requests whose path has `match` in it: not with the next `after`, but `times` times then (None: for good)."""

    match: str
    status: int | None = None
    headers: dict = field(default_factory=dict)
    delay: float = 0.0  # seconds before the answer
    cut: int | None = None  # bytes of the body after which the connection ends; the whole body has been announced
    short: int = 0  # bytes that are left out at the end of the body, and of the length that is announced
    body: bytes | None = None  # given instead, as a web page
    times: int | None = 1
    method: str | None = None
    after: int = 0


class HubServer:
    """Serves each folder `root/OWNER/NAME` as a data set or a model, from `with` on until its end."""

    def __init__(self, root: Path):
        self.root = root
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, range
        self.away = False
        self.versions = "ETag"  # what tells a file's version: "ETag", "Last-Modified" or "" for nothing
        self.ranges = True  # whether parts of files can be asked for
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        hub = self

        class Handler(_Handler):
            server_hub = hub

        ThreadingHTTPServer.request_queue_size = 64
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self.away = False
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Be gone: nobody listens, and connections that are open end."""
        self.away = True
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def fault(self, match: str = "", **keys) -> Fault:
        """Add a fault; see :class:`Fault`."""
        made = Fault(match, **keys)
        with self._lock:
            self.faults.append(made)
        return made

    def asked(self, match: str) -> int:
        """Count the requests so far whose path has `match` in it."""
        return sum(match in path for _, path, _ in self.requests)

    def take_fault(self, method: str, path: str) -> Fault | None:
        """Give the first fault that is meant for a request, and count it."""
        with self._lock:
            for fault in self.faults:
                if fault.match in path and fault.times != 0 and fault.method in (None, method):
                    if fault.after:
                        fault.after -= 1
                        continue
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def files(self, repo: str) -> dict[str, Path] | None:
        """List a data set's files; None where there is no such data set."""
        folder = self.root / repo
        if not folder.is_dir():
            return None
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def commit(self, repo: str) -> str:
        """Name a data set's state by its contents."""
        digest = hashlib.sha1()
        for name, path in (self.files(repo) or {}).items():
            digest.update(name.encode() + b"\0" + _oid(path).encode())
        return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server_hub: HubServer

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def _answer(self) -> None:
        hub = self.server_hub
        if hub.away:
            return self._hang_up()
        split = urlsplit(self.path)
        path = unquote(split.path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        self._fault = hub.take_fault(self.command, path)
        if self._fault:
            time.sleep(self._fault.delay)
            if self._fault.status is not None:
                return self._send(self._fault.status, b"" if self._fault.body is None else self._fault.body, self._fault.headers)
            if self._fault.body is not None:
                return self._send(200, self._fault.body, {"Content-Type": "text/html", **self._fault.headers})
        if path in ("/", "/api/datasets"):
            return self._json([])
        if path.startswith("/store/"):
            return self._stored(hub.root / path[1:])
        if path == "/api/datasets/alone":  # a data set that had no owner, and has one now
            return self._send(307, b"", {"Location": "/api/datasets/o/plain"})
        if self.command == "POST" and (sent := _SENT.fullmatch(path)):
            return self._take(sent)
        found = _FILE.fullmatch(path) or _API.fullmatch(path)
        files = hub.files(found["repo"]) if found else None
        if not found or files is None:
            return self._send(404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        commit = hub.commit(found["repo"])
        if found["revision"] not in (None, "main", commit):
            return self._send(404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
        if found.re is _FILE:
            return self._file(files.get(found["path"]), commit)
        return self._api(found, files, commit, parse_qs(split.query))

    def _take(self, sent: re.Match) -> None:
        """Make a repository, or take files for it."""
        hub = self.server_hub
        if self.headers.get("Authorization") != "Bearer may-write":
            return self._send(401, b'{"error":"Invalid credentials"}', {"X-Error-Message": "Invalid credentials"})
        if sent[0].endswith("validate-yaml"):
            card = json.loads(self._body)["content"].split("---")[1]
            errors = [] if "license: " in card and "library_name: transformers" in card else [{"message": "a field is missing"}]
            return self._json({"errors": errors, "warnings": []})
        if sent["repo"] is None:
            said = json.loads(self._body)
            name = f"{said.get('organization') or 'me'}/{said['name']}"
            is_new = not (hub.root / name).is_dir()
            (hub.root / name).mkdir(parents=True, exist_ok=True)
            url = {"url": f"{hub.url}/{name}", "name": name, "id": name}
            return self._json(url) if is_new else self._send(409, json.dumps({"error": "You already created this model repo", **url}).encode(), {})
        folder = hub.root / sent["repo"]
        if sent["what"] == "preupload":
            asked = [one["path"] for one in json.loads(self._body)["files"]]
            return self._json({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for path in asked]})
        for line in self._body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                (folder / value["path"]).parent.mkdir(parents=True, exist_ok=True)
                (folder / value["path"]).write_bytes(base64.b64decode(value["content"]))
            elif entry["key"] == "deletedFile":
                (folder / value["path"]).unlink()
        commit = hub.commit(sent["repo"])
        self._json({"success": True, "commitOid": commit, "commitUrl": f"{hub.url}/{sent['repo']}/commit/{commit}", "hookOutput": ""})

    def _api(self, found: re.Match, files: dict[str, Path], commit: str, query: dict) -> None:
        if found["what"] in (None, "revision"):
            siblings = [{"rfilename": name} for name in files]
            return self._json({"_id": "1", "id": found["repo"], "sha": commit, "private": False, "gated": False, "disabled": False, "tags": [],
                               "downloads": 0, "likes": 0, "lastModified": "2024-01-01T00:00:00.000Z", "siblings": siblings})
        folders = {"/".join(name.split("/")[:i]) for name in files for i in range(1, name.count("/") + 1)}
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name} for name in sorted(folders)]
        entries += [{"type": "file", "oid": _oid(path), "size": path.stat().st_size, "path": name} for name, path in files.items()]
        if found["what"] == "paths-info":
            asked = json.loads(self._body)["paths"] if self._body[:1] == b"{" else parse_qs(self._body.decode())["paths"]
            asked = [asked] if isinstance(asked, str) else asked
            return self._json([entry for entry in entries if entry["path"] in asked])
        below = f"{found['path'].rstrip('/')}/" if found["path"] else ""
        if below and below.rstrip("/") not in folders:
            return self._send(404, b'{"error":"not found"}', {"X-Error-Code": "EntryNotFound"})
        deep = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        inside = [entry for entry in entries if entry["path"].startswith(below) and (deep or "/" not in entry["path"][len(below):])]
        return self._json(inside)

    def _stored(self, path: Path) -> None:
        """Answer as a web server: folders are pages of links."""
        if not path.is_dir():
            return self._file(path if path.is_file() else None, "")
        links = "".join(f'<a href="{one.name}{"/" * one.is_dir()}">{one.name}</a>' for one in sorted(path.iterdir()))
        self._send(200, f"<html>{links}</html>".encode(), {"Content-Type": "text/html"})

    def _file(self, path: Path | None, commit: str) -> None:
        if path is None:
            return self._send(404, b"Entry not found", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        data = path.read_bytes()
        hub = self.server_hub
        marks = {"ETag": f'"{_oid(path)}"', "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        headers |= {hub.versions: marks[hub.versions]} if hub.versions else {}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "") if hub.ranges else "")
        if not asked or not (asked[1] or asked[2]):
            return self._send(200, data, headers)
        start = int(asked[1]) if asked[1] else max(0, len(data) - int(asked[2]))
        end = min(len(data), int(asked[2]) + 1 if asked[1] and asked[2] else len(data))
        if start >= len(data):
            return self._send(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
        return self._send(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict) -> None:
        cut = self._fault.cut if self._fault else None
        body = body[:len(body) - self._fault.short] if self._fault else body
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body if cut is None else body[:cut])
                self.wfile.flush()
            if cut is not None and cut < len(body):
                self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _oid(path: Path) -> str:
    """Name a file by its contents, as git does."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
