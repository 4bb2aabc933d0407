"""The parser of the command lines, and how programs end."""
from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from . import __version__
from .errors import LmplayError, UserError, long_names_refused, nearest
from .signals import Stop, raise_stop
from .streams import drop_output, put

# What a write to the output fails with where the disk, a quota or a terminal has gone.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Parser(argparse.ArgumentParser):
    """An argument parser whose faults are one clear line each, and that takes `_` for `-` in the name of a flag.

    Every program has --help, --help-all and --version. `further` holds the destinations of flags that --help leaves out.
    """

    def __init__(self, **options: Any):
        super().__init__(**options, allow_abbrev=False, add_help=False)
        self.further: set[str] = set()
        about = self.add_argument_group("help")
        about.add_argument("-h", "--help", action=_Help, help="the flags that are needed most, and what they do")
        about.add_argument("--help-all", action=_Help, help="all flags")
        about.add_argument("--version", action=_Version, help="the version")

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UserError(f"{message}. `{self.prog} --help-all` lists the flags.")

    def read(self, argv: list[str] | None = None) -> argparse.Namespace:
        """Read a command line; None = that of the process. Raises UserError when a flag is unknown or its value is not allowed."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a character that it cannot write is written as its number, and ends nothing
                stream.reconfigure(errors="backslashreplace")
        if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow
            with suppress(ImportError):
                import argcomplete

                argcomplete.autocomplete(self)
        known, unknown = self.parse_known_intermixed_args([_with_hyphens(word) for word in (sys.argv[1:] if argv is None else argv)])
        if unknown:
            flags = [option for action in self._actions for option in action.option_strings]
            wrong = [word for word in unknown if word.startswith("-")] or unknown  # the value behind an unknown flag is unknown too
            raise UserError(*(
                f"{word}: {'there is no such flag' if word.startswith('-') else 'is not the value of any flag'}.{nearest(word, flags)} "
                f"`{self.prog} --help-all` lists them." for word in wrong))
        return known

    def actions_by_group(self) -> dict[str, list[argparse.Action]]:
        """List the flags by the titles of their groups."""
        return {str(group.title): group._group_actions for group in self._action_groups}

    def help_text(self, whole: bool) -> str:
        """Write the help, without the flags in `further` unless it is the whole."""
        left_out = [] if whole else [action for action in self._actions if action.dest in self.further and action.help != argparse.SUPPRESS]
        before = [action.help for action in left_out]
        for action in left_out:
            action.help = argparse.SUPPRESS
        try:
            more = f"\n--help-all has {len(left_out)} flags more.\n" if left_out else ""
            return self.format_help() + more
        finally:
            for action, text in zip(left_out, before, strict=True):
                action.help = text


class _Help(argparse.Action):
    """Prints the help and ends."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        assert isinstance(parser, Parser)
        put(parser.help_text(whole=option_string == "--help-all"), end="")
        parser.exit()


class _Version(argparse.Action):
    """Prints the version and ends."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        put(f"{parser.prog} {__version__}")
        parser.exit()


def run_program(parser: Parser, argv: list[str] | None, check: Callable[[argparse.Namespace], None], work: Callable[[argparse.Namespace], int | None],
                stopped: str) -> int:
    """Run a program that saves nothing: read its flags, check them, do what they ask for, and tell how it ends.

    :param argv: arguments; None = those of the process. Then a request to stop is raised inside of `work`, which removes what is half written.
    :param check: raises UserError for values that are not allowed.
    :param work: gives the exit code; None = 0.
    :param stopped: what is said at a request to stop.
    :return: the exit code, see :func:`ended`.
    """
    def read_and_work() -> int:
        options = parser.read(argv)
        check(options)
        if argv is None:
            raise_stop()
        with long_names_refused():
            return work(options) or 0

    return ended(parser.prog, stopped, read_and_work)


def ended(program: str, stopped: str, work: Callable[[], int]) -> int:
    """Do the work of a program that saves nothing, and tell how it ends.

    :param program: its name.
    :param stopped: what is said at a request to stop; the empty string = nothing but the end of the line.
    :param work: gives the exit code.
    :return: the exit code: that of the work, of its error, of the request to stop; 0 where the reader of the output has had enough (`| head`), 2 where the
        output cannot be written.
    """
    try:
        return _flushed(work)
    except LmplayError as error:
        for fault in error.faults if isinstance(error, UserError) else [error]:
            print(f"{program}: {fault}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            print(f"\n{program}: {stopped}" if stopped else "", file=sys.stderr)
        return stop.exit_code if isinstance(stop, Stop) else 130
    except BrokenPipeError:
        drop_output()
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        drop_output()
        print(f"{program}: its output cannot be written ({error.strerror}); make room, or send it elsewhere.", file=sys.stderr)
        return 2


def _flushed(work: Callable[[], int]) -> int:
    """Do the work, and write out what it has printed: at the end of the interpreter a failure would be a traceback."""
    try:
        code = work()
    except SystemExit:  # after --help
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def replace_broken_input() -> None:
    """Let bytes of the standard input that are no text become replacement characters: one bad line must not end a conversation."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _with_hyphens(word: str) -> str:
    """Write the name of a flag with hyphens; its value stays as it is."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word
