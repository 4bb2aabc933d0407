"""Ranks that read together, as threads of one process."""
import threading
from concurrent.futures import ThreadPoolExecutor

from lmplay.device.ranks import Ranks

SECONDS = 30  # that a thread waits for the others, where a fault would let it wait for ever


class Member(Ranks):
    """One of them; `received` counts bytes that others have sent it."""

    def __init__(self, rank, mail, barrier):
        self.rank, self.size, self._mail, self._barrier = rank, len(mail), mail, barrier
        self.received = self.swaps = 0
        self.reading = threading.Lock()

    def swap(self, parts):
        self._mail[self.rank] = parts
        self._barrier.wait(SECONDS)
        found = None if any(sent is None for sent in self._mail) else [sent[self.rank] for sent in self._mail]
        self._barrier.wait(SECONDS)
        self.swaps += 1
        self.received += sum(len(part) for rank, part in enumerate(found or ()) if rank != self.rank)
        return found


def crew(size):
    """Make N ranks."""
    mail, barrier = [None] * size, threading.Barrier(size)
    return [Member(rank, mail, barrier) for rank in range(size)]


def together(size, work):
    """Let each of N ranks do work, in threads; gives what they return, in order."""
    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(work, member) for member in crew(size)]]
