"""Gives thousands of files as strangers might make them to the programs: each must be taken or refused with 2, without a traceback, in 1 GB and 20 s.

    python benchmarks/fuzz.py --inputs 20000 --first 0      # prints what got through, as kind and seed: make it an example of tests/test_hostile.py

Each input is tried in a process of its own, forked from one that has imported what is heavy.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"], os.environ["HF_HUB_OFFLINE"] = "1", "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile import KINDS, Hostile, prepare  # noqa: E402

SECONDS, BYTES = 20, 10**9


def try_in_child(hostile: Hostile, kind: str, seed: int, log: Path) -> str:
    """Try an input; gives what went wrong, or the empty string."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))  # of its own time: other programs may be at work
        signal.alarm(10 * SECONDS)  # where it waits for something
        output = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            codes = hostile.try_one(kind, seed)
            os._exit(0 if {*codes} <= {0, 2} else 71)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)
    _, status, usage = os.wait4(child, 0)
    code, bytes_used = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
    said = log.read_text(errors="replace")
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"took more than {SECONDS} s"
    if bytes_used > BYTES:
        return f"took {bytes_used / 1e6:.0f} MB"
    if code or "Traceback" in said:
        return f"ended with {code}: {(said.strip().splitlines() or [''])[-1][:150]}"
    return ""


def main() -> int:
    """Try them all; 1 when one got through."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first input")
    parser.add_argument("--minutes", type=float, default=10_000.0, help="end after that time")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    through = 0
    ends = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        hostile = prepare(Path(folder))
        for kind in KINDS:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception):
                hostile.try_one(kind, 0)  # imports what is heavy
        for number in range(options.inputs):
            if time.monotonic() > ends:
                break
            kind, seed = options.kinds[number % len(options.kinds)], options.first + number // len(options.kinds)
            tried[kind] += 1
            if fault := try_in_child(hostile, kind, seed, Path(folder) / "log"):
                through += 1
                print(f'("{kind}", {seed}): {fault}', flush=True)
    print(f"{sum(tried.values()):,} inputs, {through} got through: {dict(tried)}")
    return bool(through)


if __name__ == "__main__":
    sys.exit(main())
