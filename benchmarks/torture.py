"""Tries to lose a run: kills at every kind of moment, full and read-only disks, damaged files, a failing hub. Prints what survived; lost must be 0.

    python benchmarks/torture.py --quick              # some minutes
    python benchmarks/torture.py --kills 500 --minutes 120 --seed 1
    python benchmarks/torture.py --kills 100 --only kills
    python benchmarks/torture.py --ranks 2,3 --kills 100 --folder torture   # several processes; the same command goes on

A run is killed again and again: from 50 ms after its start on, while it validates, saves, writes statistics and renames files, and when it was stopped and
continued. After each kill its newest file is verified, and in the end its files must be, bit for bit, those of an undisturbed run.
Every other fault starts from a copy of a run that was stopped in the middle. As root the disks are small ones in memory (tmpfs).
"""
from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from torture_faults import damaged_files, disks, hub, limited, other_files, siblings
from torture_ranks import kill_ranks
from torture_run import WINDOWS, Row, Torture, same, untouched, wait_for, whole

SAMPLES_PER_KILL = 25
# Length of the runs for the other faults, and the most of those that are killed.
SAMPLES, MOST_SAMPLES = 120, 900
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOMENTS = ("start", "any time", *WINDOWS)
PARTS = ("kills", "damage", "disks", "siblings", "hub")


def kill_once(torture: Torture, out: Path, dice: random.Random, moment: str, number: int, pauses: int) -> int | None:
    """Start the run and kill it at a moment; return its exit code, None = it ended before.

    :param pauses: how often it is stopped and continued before.
    """
    process = torture.start(out, cold=moment == "start", marked=moment in WINDOWS)
    if moment == "start":
        time.sleep(dice.uniform(0.05, 4))
    elif moment == "any time":
        time.sleep(dice.uniform(0.3, 4))
    else:
        wait_for(moment, process.stdout, dice)
    threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
    for _ in range(pauses):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(dice.uniform(0, 0.3))
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(dice.uniform(0, 0.1))
    if process.poll() is None:
        process.send_signal(number)
    process.wait(timeout=300)
    return None if process.returncode == 0 else process.returncode


def kills(torture: Torture, reference: Path, out: Path, count: int, until: float, seed: int) -> list[Row]:
    """Kill one run again and again, then let it finish; one that ends before is compared, and another begins."""
    dice = random.Random(seed)
    rows: dict[tuple[str, str], Row] = {}
    ends = Row("ends: bit for bit the same")
    done = 0
    while done < count and time.monotonic() < until:
        moment, number, pauses = dice.choice(MOMENTS), dice.choice(SIGNALS), dice.choice((0, 0, 0, 1, 3))
        code = kill_once(torture, out, dice, moment, number, pauses)
        if code is None:
            ends.tries, ends.lost = ends.tries + 1, ends.lost + int(not same(reference, out))
            out = out.with_name(f"killed-{ends.tries}")
            continue
        row = rows.setdefault((moment, str(number)), Row(f"{signal.Signals(number).name}, {moment}"))
        row.tries, row.lost, done = row.tries + 1, row.lost + (out.exists() and not whole(out)), done + 1
        row.codes[code] += 1
        if pauses:
            paused = rows.setdefault(("", ""), Row("of these after STOP and CONT"))
            paused.message = str(int(paused.message or 0) + 1)
    torture.finish(out, ends)
    ends.tries, ends.lost, ends.message = ends.tries + 1, ends.lost + int(not same(reference, out)), f"after {done} kills"
    return [*(rows[key] for key in sorted(rows, reverse=True)), ends]


def stop_in_the_middle(torture: Torture, out: Path) -> None:
    """Run until the second stage has saved, and stop."""
    process = torture.start(out)
    begun = saves = 0
    for line in process.stdout:
        begun += line.startswith("== stage mix")
        saves += bool(begun) and line.startswith("saved")
        if saves == 3:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)


def other_faults(parts: list[str], folder: Path, seed: int, kills: int) -> Iterator[Row]:
    """All but kills."""
    torture, reference = untouched(folder / "short", SAMPLES)
    stopped, dice = folder / "stopped", random.Random(seed)
    stop_in_the_middle(torture, stopped)
    if "damage" in parts:
        yield from damaged_files(torture, reference, stopped, folder)
        yield from other_files(torture, reference, stopped, folder)
    if "disks" in parts:
        yield limited(torture, reference, stopped, folder)
        if os.geteuid() == 0:
            yield from disks(torture, reference, stopped, folder)
    if "siblings" in parts:
        yield from siblings(torture, reference, folder, dice)
    if "hub" in parts:
        yield from hub(torture, folder, dice, kills)


def main() -> int:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0, help="no more kills after this time")
    parser.add_argument("--samples-per-kill", type=int, default=SAMPLES_PER_KILL, help="length of the run: the samples between two kills, about")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--quick", action="store_true", help="12 kills")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part only; may be given several times")
    parser.add_argument("--ranks", default="", metavar="N,…", help="kill ranks of runs of N processes, and nothing else (see torture_ranks.py)")
    parser.add_argument("--torchrun-every", type=int, default=10, metavar="N", help="with --ranks: every Nth run is started by torchrun itself; 1 = all")
    parser.add_argument("--folder", type=Path, default=Path("torture"), help="with --ranks: where all is kept")
    options = parser.parse_args()
    parts = options.only or list(PARTS)
    count = 12 if options.quick else options.kills
    until = time.monotonic() + options.minutes * 60
    print(f"seed {options.seed}, {count} kills")
    folder = Path(tempfile.mkdtemp(prefix="lmplay-torture-")) if not options.ranks else options.folder.absolute()
    print(f"\n{'what':<34}{'tries':>6}{'survived':>10}{'lost':>6}   {'exit codes':<28} message")
    rows: list[Row] = []
    if options.ranks:
        parts = ["kills"]
        for row in kill_ranks(folder, [int(size) for size in options.ranks.split(",")], count, until, options.seed, options.torchrun_every):
            row.print()
            rows.append(row)
    elif "kills" in parts:
        torture, reference = untouched(folder / "long", min(max(count * options.samples_per_kill, 90), MOST_SAMPLES))
        rows += kills(torture, reference, folder / "killed", count, until, options.seed)
        for row in rows:
            row.print()
    if parts != ["kills"]:
        for row in other_faults(parts, folder, options.seed, max(count // 20, 2)):
            row.print()
            rows.append(row)
    lost = sum(row.lost for row in rows)
    print(f"\n{sum(row.tries for row in rows)} tries, {lost} lost (seed {options.seed})")
    if not lost and not options.ranks:
        shutil.rmtree(folder)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
