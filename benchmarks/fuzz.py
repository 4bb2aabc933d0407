"""Gives thousands of files as strangers might make them to the programs: each must be taken or refused with 2, without a traceback, in 1 GB and 20 s.

    python benchmarks/fuzz.py --inputs 20000 --first 0      # prints what got through, as kind and seed: make it an example of tests/test_hostile.py

What is taken is trained for a step, where that is cheap. The inputs are tried in processes forked from one that has imported what is heavy: several in each,
one after the other. When one gets through, it is tried again in a process of its own.
"""
from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"], os.environ["HF_HUB_OFFLINE"] = "1", "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile import KINDS, Hostile, prepare  # noqa: E402

SECONDS, BYTES = 20, 10**9
TOGETHER = 35  # inputs tried in one process
Input = tuple[str, int]


def try_together(hostile: Hostile, inputs: Sequence[Input], log: Path) -> tuple[int, str]:
    """Try inputs in one process; gives how many went well, and what was wrong with the next one, or the empty string."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _try_each(hostile, inputs, log, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        good = len(pipe.read())
    _, status = os.waitpid(child, 0)
    code, said = os.waitstatus_to_exitcode(status), log.read_text(errors="replace")
    if not code:
        return good, ""
    if code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return good, f"took more than {SECONDS} s"
    return good, f"ended with {code}: {(said.strip().splitlines() or [''])[-1][:150]}"


def _try_each(hostile: Hostile, inputs: Sequence[Input], log: Path, pipe: int) -> None:
    """Be the process: write a byte for each input that goes well; end with the first that does not."""
    for kind, seed in inputs:
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, -1))  # of its own time: other programs may be at work
        signal.alarm(10 * SECONDS)  # where it waits for something
        output = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        try:
            fault = hostile.fault(kind, seed)
        except BaseException:
            fault = traceback.format_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        if not fault and "Traceback" in log.read_text(errors="replace"):
            fault = "a traceback"
        if not fault and (taken := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) > BYTES:
            fault = f"took {taken / 1e6:.0f} MB"
        if fault:
            os.write(2, f"\n{fault}".encode(errors="replace"))
            os._exit(70)
        os.write(pipe, b".")
    os._exit(0)


def main() -> int:
    """Try them all; 1 when one got through."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first input")
    parser.add_argument("--minutes", type=float, default=10_000.0, help="end after that time")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    through, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        hostile, log = prepare(Path(folder)), Path(folder) / "log"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            hostile.warm_up()  # imports what is heavy
        gc.collect()
        gc.freeze()
        left = [(options.kinds[n % len(options.kinds)], options.first + n // len(options.kinds)) for n in range(options.inputs)]
        while left and time.monotonic() - began < 60 * options.minutes:
            now = left[:TOGETHER]
            good, fault = try_together(hostile, now, log)
            if fault:
                alone = try_together(hostile, now[good:good + 1], log)[1]
                through += 1
                print(f"{now[good]}: {alone or f'{fault} (after {now[:good]})'}", flush=True)
            tried.update(kind for kind, _ in now[:good + bool(fault)])
            left = left[good + bool(fault):]
            if sum(tried.values()) // 1000 > (sum(tried.values()) - good - bool(fault)) // 1000:
                print(f"{sum(tried.values()):,} inputs after {time.monotonic() - began:.0f} s", flush=True)
    taken, used = time.monotonic() - began, [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    print(f"{sum(tried.values()):,} inputs in {taken:.0f} s ({cpu:.0f} s of processor time), {through} got through: {dict(tried)}")
    return bool(through)


if __name__ == "__main__":
    sys.exit(main())
