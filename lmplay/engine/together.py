"""Several ranks as one run: each rank's requests, errors and exit code become those of all.  Engine floor.

Whatever ranks decide begins with a vote: has any of them something to say?  If so, all say it, and all do the same.  A rank that fails elsewhere meets the
others in their next vote.  Only between the vote of a step and the end of its sums a rank that fails leaves alone; the others notice by the connection.
"""
from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TextIO, TypeVar

from torch import nn

from ..device.processes import Lost, Processes
from ..device.ranks import Ranks
from ..errors import ElsewhereError, LmplayError, TrainingError, Unavailable, UserError
from ..launch import Launch
from .accord import Accord
from .interrupt import Interrupt, Stopped

T = TypeVar("T")


@dataclass(frozen=True)
class _Word:
    """What a rank has to say: that it stops, with an exit code and a reason; or that it has failed with an error of a kind."""

    stop: tuple[int, str] | None = None
    kind: str = ""
    lines: tuple[str, ...] = ()


_NOTHING = _Word()
# Errors that mean something to those who catch them.
_KINDS: dict[str, type[LmplayError]] = {kind.__name__: kind for kind in (UserError, Unavailable, TrainingError)}


class Together(Accord):
    """The decisions of several ranks."""

    def __init__(self, ranks: Processes, interrupt: Interrupt):
        self._ranks, self._interrupt = ranks, interrupt
        self._in_step = False  # between the vote of a step and the end of its sums
        self._asked = False  # the vote of a step has begun, and has not been counted
        self._by_halves = False  # an update of the step has been done, and it has more of them
        self._mine = _NOTHING
        self._over = False  # all ranks know of an error: there is nothing more to vote on
        self.alone = False  # this process ends without the others
        interrupt.shared = True
        ranks.ask_step = self._step_is_off

    @property
    def ranks(self) -> Ranks:
        """See :class:`Accord`."""
        return self._ranks

    def gather(self, work: Callable[[], T]) -> list[T]:
        """See :meth:`Accord.gather`."""
        value = self.alike(work)
        with self._interrupt.held():
            return self._ranks.exchange(value)

    def alike(self, work: Callable[[], T]) -> T:
        """See :meth:`Accord.alike`."""
        try:
            value = work()
            word = self._request() if value is None else _NOTHING
        except Stopped:
            if self._interrupt.stopping() or self._in_step or (self._interrupt.is_ending and self._interrupt.at_work):
                raise
            word = self._request()
        except Exception as error:
            if isinstance(error, Lost) or self._over or self._in_step:
                raise
            self._settle(_word_of(error), error)
            raise
        if not self._over:
            self._settle(word)
        return value

    def main_first(self, work: Callable[[], T]) -> T:
        """See :meth:`Accord.main_first`."""
        found: list[T] = []
        self.alike(lambda: found.append(work()) if self._ranks.is_main else None)
        self.alike(lambda: None if self._ranks.is_main else found.append(work()))
        return found[0]

    def from_main(self, work: Callable[[], T]) -> T:
        """See :meth:`Accord.from_main`."""
        return self.gather(lambda: work() if self._ranks.is_main else None)[0]  # type: ignore[return-value]

    def check_same(self, facts: Callable[[], dict[str, object]]) -> None:
        """See :meth:`Accord.check_same`."""
        found = self.gather(facts)
        faults = [f"{self._ranks.describe(rank)} has not the same {name} as rank 0; all processes need the same command, the same version and the same files "
                  "(on several machines in a folder that they share)." for rank, other in enumerate(found) for name in other if other[name] != found[0][name]]
        if faults:
            self._over = True
            raise UserError(*faults)

    @contextmanager
    def in_unison(self, module: nn.Module) -> Iterator[bool]:
        """See :meth:`Accord.in_unison`."""
        if not self._ranks.shards:
            yield False
            return
        self._in_step = True
        with self._ranks.passing(module):
            yield True
        self._in_step = False

    def announce(self, error: Exception) -> None:
        """See :meth:`Accord.announce`."""
        if self._ranks.saves_together and not (isinstance(error, Lost) or self._over or self._in_step):
            with suppress(Exception):
                self._settle(_word_of(error), error)

    def can_save(self) -> bool:
        """See :meth:`Accord.can_save`; where some ranks leave instead, none saves."""
        if self._ranks.knows.is_set() or self._in_step:
            return False
        if self._over:
            self._call(_NOTHING)
            with suppress(Lost):
                self._count()
                return True
            return False
        return True

    def begin_step(self, seed: int, step: int) -> None:
        """See :meth:`Accord.begin_step`."""
        self._ranks.place = (seed, step)
        with self._interrupt.held():
            self._mine = self._request()
            self._in_step = self._asked = True
            self._call(self._mine)

    def _step_is_off(self) -> bool:
        """Tell whether a rank has stopped, so that no rank does the step; of several updates the first is asked about, the others belong to it.

        :raises Exception: when another rank has failed.
        """
        if not self._asked:
            self._by_halves = True
            return False
        with self._interrupt.held():
            self._asked = False
            if not self._count():
                return False
            self._in_step = False
            with suppress(Stopped):
                self._hear(self._mine)
        return True

    def end_step(self) -> None:
        """See :meth:`Accord.end_step`."""
        self._in_step = self._by_halves = False

    def failed_elsewhere(self, error: BaseException) -> bool:
        """See :meth:`Accord.failed_elsewhere`."""
        return (isinstance(error, Lost) or self._over) and not self._by_halves

    def leave(self, error: BaseException | None = None) -> None:
        """Wait for the other ranks to come to their end; where they do not know of an error, tell them why they will miss this one, and end alone.

        :param error: with which this one ends, if any.
        """
        interrupt = self._interrupt
        agreed = self._over or (isinstance(error, Stopped) and interrupt.stopping() and not (interrupt.is_ending and interrupt.at_work))
        self.alone = error is not None and not agreed
        if not self.alone:
            with suppress(Lost):
                self._call(_NOTHING, leaves=True)
                self._count()
            self._ranks.leave()
        elif not isinstance(error, Lost):
            text = "was told to end at once" if isinstance(error, Stopped) else str(error) if isinstance(error, LmplayError) else _trace(error)
            self._ranks.report(text, getattr(error, "exit_code", 1))

    def _request(self) -> _Word:
        """Say whether a request to stop has come here."""
        interrupt = self._interrupt
        return _Word(stop=(interrupt.exit_code or 0, interrupt.reason)) if interrupt.requested() else _NOTHING

    def _call(self, word: _Word, leaves: bool = False) -> None:
        """Begin a vote: whether this rank has something to say, was asked for a save, comes to its end, or goes on."""
        self._ranks.begin_vote([float(word != _NOTHING), float(self._interrupt.take_save()), float(leaves), float(not leaves)])

    def _count(self) -> bool:
        """End a vote, and tell whether any rank has something to say."""
        spoken, save, leaves, goes_on = self._ranks.end_vote()
        if leaves and goes_on:
            raise Lost("the processes have not done the same, which is a fault of the program", 1, self._ranks.is_main)
        if save and self._ranks.is_main:
            self._interrupt.want_save()
        return bool(spoken)

    def _settle(self, word: _Word, error: Exception | None = None) -> None:
        """Vote, and do what is said, if anything.

        :param word: of this rank.
        :param error: that it has raised.
        """
        with self._interrupt.held():
            self._call(word)
            if self._count():
                self._hear(word, error)

    def _hear(self, word: _Word, error: Exception | None = None) -> None:
        """Exchange what the ranks say, and raise what follows from it: the first error, else the first request to stop."""
        words = self._ranks.exchange(word)
        failed = next((rank for rank, other in enumerate(words) if other.kind), None)
        if failed is not None:
            self._over = True
            if error is not None and failed == self._ranks.rank:
                raise error
            raise _error_of(words[failed], self._ranks.describe(failed), told=words[self._ranks.rank] == words[failed])
        exit_code, reason = next(other.stop for other in words if other.stop is not None)
        self._interrupt.agree(exit_code, reason)
        raise Stopped(exit_code, self._interrupt.at_work)


def _word_of(error: Exception) -> _Word:
    """Say what an error is."""
    kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "")
    lines = error.faults if isinstance(error, UserError) else (str(error),) if kind else (_trace(error),)
    return _Word(kind=kind or ElsewhereError.__name__, lines=lines)


def _trace(error: BaseException | None) -> str:
    """Write down an error with its stack trace."""
    return "".join(traceback.format_exception(error)).strip()


def _error_of(word: _Word, where: str, told: bool) -> Exception:
    """Make the error that another rank has raised.

    :param where: names the rank.
    :param told: this rank has raised the same.
    """
    lines = word.lines if told else tuple(f"{where}: {line}" for line in word.lines)
    return UserError(*lines) if word.kind == UserError.__name__ else _KINDS.get(word.kind, ElsewhereError)("\n".join(lines))


@contextmanager
def join(launch: Launch, interrupt: Interrupt) -> Iterator[Together]:
    """Meet the other ranks, and end with them; all but rank 0 are silent.

    :param launch: the place of this process.
    :raises Lost: when they do not come.
    """
    together = Together(Processes(launch), interrupt)
    if launch.rank:
        sys.stdout, sys.stderr = _nowhere(), _nowhere()
    try:
        yield together
    except BaseException as error:
        together.leave(error)
        raise
    together.leave()


def _nowhere() -> TextIO:
    """Open a stream that nobody reads."""
    return open(os.devnull, "w", encoding="utf-8")
