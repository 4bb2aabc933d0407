"""Prefetching: the next items of an iterator are made in a thread while earlier ones are in use.  Data floor, no torch; imports nothing of lmplay."""
from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

# Seconds between two checks whether to stop waiting for an item, and seconds that a thread gets to end.
_ASK_SECONDS = 0.1
_PATIENCE = 5.0
# The signals that people and job systems send to a whole group of processes, which only the main thread of the program may receive.
SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)}
_T = TypeVar("_T")


class Prefetch(Generic[_T]):
    """Gives the items of an iterator, made ahead in a thread; without a thread when `depth` is 0.

    The two threads share only queues whose operations are atomic in the interpreter: an exception that a signal raises, anywhere in the taking
    thread, leaves no lock behind for which the other would wait for ever.
    """

    def __init__(self, make: Callable[[Callable[[], bool]], Iterator[_T]], depth: int):
        """
        :param make: makes the iterator, in the thread where it will run; is given a function that returns True once its items are no longer wanted.
        :param depth: the most items that are made ahead; 0 = each when it is asked for, without a thread.
        """
        self._make = make
        self._depth = depth
        self._halted = self._ended = False
        self._iterator: Iterator[_T] | None = None
        self._thread: threading.Thread | None = None
        self._items: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()
        self._orders: SimpleQueue[bool] = SimpleQueue()  # True = make one more, False = end

    def start(self) -> None:
        """Start the thread now, not when the first item is asked for; without a thread this does nothing."""
        if self._depth and self._thread is None:
            self._start()

    def next(self, stop_waiting: Callable[[], bool] = lambda: False) -> _T | None:
        """Give the next item; None at the end, once closed, or when told to stop waiting (which loses nothing).

        :param stop_waiting: asked from time to time while the item isn't there.
        :raises BaseException: what the iterator raised, after the items before it.
        """
        if self._ended or self._halted:
            return None
        if not self._depth:
            if self._iterator is None:
                self._iterator = self._make(self._is_halted)
            item = next(self._iterator, None)
            self._ended = item is None
            return item
        self.start()
        while True:
            try:
                item, error = self._items.get(timeout=_ASK_SECONDS)
            except Empty:
                if stop_waiting():
                    return None
                continue
            self._orders.put(True)
            self._ended = item is None
            if error is not None:
                raise error
            return item

    def close(self) -> None:
        """Stop at once: items made ahead are dropped, and the iterator is closed."""
        self._halted = True
        self._orders.put(False)
        if self._thread is not None:
            self._thread.join(_PATIENCE)  # one that waits for the network for longer is left behind: it does not keep the program from ending
        elif self._iterator is not None:
            _close(self._iterator)

    def _is_halted(self) -> bool:
        """Tell whether items are no longer wanted."""
        return self._halted

    def _start(self) -> None:
        """Start the thread."""
        for _ in range(self._depth):
            self._orders.put(True)
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Make items as ordered, until the end; what is raised goes to whoever takes them."""
        if hasattr(signal, "pthread_sigmask"):  # processes started from here inherit it: no signal reaches them, not even in their first moment
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        iterator = None
        try:
            iterator = self._make(self._is_halted)
            while self._orders.get() and not self._halted:
                item = next(iterator, None)
                self._items.put((item, None))
                if item is None:
                    break
        except BaseException as error:
            self._items.put((None, error))
        finally:
            _close(iterator)


def _close(iterator: Iterator[object] | None) -> None:
    """Close a generator."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
