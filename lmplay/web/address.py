"""Where a server listens, and the token that it asks for.  Ground floor; `--serve` and `--token` of all programs."""
from __future__ import annotations

import argparse
import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass

from ..errors import UserError

LOCAL = "127.0.0.1"
TOKEN_VARIABLE = "LMP_TOKEN"


@dataclass(frozen=True)
class Listening:
    """A socket that listens: on this machine alone (`is_local`) or on others' requests too; `token` is what a request must have, None = nothing."""

    socket: socket.socket
    host: str
    is_local: bool
    token: str | None

    @property
    def url(self) -> str:
        """What to type into a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.socket.getsockname()[1]}"


def add_flags(group: argparse._ArgumentGroup | argparse.ArgumentParser, port: int, what: str) -> None:
    """Describe `--serve` and `--token`.

    :param port: the default port.
    :param what: what is served, for the help.
    """
    group.add_argument("--serve", metavar="HOST:PORT", nargs="?", const=f"{LOCAL}:{port}", help=f"{what} (without an address: {LOCAL}:{port}, which only this "
                       "machine reaches; any other address needs --token)")
    group.add_argument("--token", metavar="TEXT", help=f"with --serve: what each request must have as its bearer token; better given as ${TOKEN_VARIABLE}, "
                       "as others on this machine can read a command line")


def listen(text: str, default_port: int, token: str | None) -> Listening:
    """Open the socket of `--serve`.

    :param text: HOST:PORT, HOST or PORT; port 0 is any that is free.
    :param token: of `--token`; None = that of the environment, if there is one.
    :raises UserError: when it cannot be opened, or a token is missing or cannot be one.
    """
    host, port = _read(text, default_port)
    token = (os.environ.get(TOKEN_VARIABLE) or None) if token is None else token
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise UserError(f"--token: allowed are letters, digits and signs of ASCII, without spaces; the value is {'empty' if not token else 'not so'}.")
    family, where = _resolve(text, host, port)
    is_local = ipaddress.ip_address(where[0].partition("%")[0]).is_loopback
    if not is_local and token is None:
        raise UserError(f"--serve {text}: others can reach this address, so it needs a token: set {TOKEN_VARIABLE} or --token to a long random text "
                        f"(python3 -c \"import secrets; print(secrets.token_urlsafe())\" prints one), or take {LOCAL}:{port}.")
    try:
        return Listening(socket.create_server(where, family=family), host, is_local, token)
    except OSError as error:
        raise UserError(f"--serve {text}: {_reason(error, port)}.") from None


def _read(text: str, default_port: int) -> tuple[str, int]:
    """Divide an address into host and port."""
    found = re.fullmatch(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>\d+))?|:?(?P<alone>\d+)", text, re.ASCII)
    if found is not None and found["host"] is not None and found["host"].isdecimal() and found["port"] is None:
        host, port = LOCAL, int(found["host"])
    elif found is not None:
        host, port = found["six"] or found["host"] or LOCAL, int(found["port"] or found["alone"] or default_port)
    if found is None or not 0 <= port <= 65535:
        raise UserError(f"--serve {text}: allowed is HOST:PORT with a port up to 65535, such as {LOCAL}:{default_port} or [::1]:{default_port}.")
    return host, port


def _resolve(text: str, host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Look a host up."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--serve {text}: there is no such address as {host}; give one of this machine, such as {LOCAL}.") from None
    return family, (str(where[0]), port)


def _reason(error: OSError, port: int) -> str:
    """Say why a socket cannot listen, and what to do."""
    reasons = {errno.EADDRINUSE: f"port {port} is in use by another program; give another port, or 0 for any that is free",
               errno.EADDRNOTAVAIL: "this machine has no such address; give one that it has",
               errno.EACCES: f"port {port} needs more rights than you have; take one from 1024"}
    return reasons.get(error.errno or 0, f"cannot listen ({error.strerror or error})")
