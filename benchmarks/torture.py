"""Tries to lose a run: kills at random and during saves, full and read-only disks, damaged files. Prints what survived; lost must be 0.

    python benchmarks/torture.py --quick              # some minutes
    python benchmarks/torture.py --kills 200 --minutes 60 --seed 1

One run is killed again and again. After each kill its newest file is verified, and in the end its files must be, bit for bit, those of an undisturbed run.
Every other fault starts from a copy of a run that was stopped in the middle. As root the disks are small ones in memory (tmpfs).
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import ENVIRONMENT, TINY, compare_runs, sentences, write_plan, write_rows

from lmplay.checkpoints.format import verify

NAME = "gpt2ish_model"
SAMPLES_PER_KILL = 25
# Length of the runs for the other faults.
SAMPLES = 120


@dataclass
class Row:
    """A line of the table."""

    what: str
    tries: int = 0
    lost: int = 0
    codes: Counter = field(default_factory=Counter)
    message: str = ""

    def print(self) -> None:
        """Print it."""
        codes = " ".join(f"{code}×{count}" for code, count in sorted(self.codes.items()))
        print(f"{self.what:<34}{self.tries:>6}{self.tries - self.lost:>10}{self.lost:>6}   {codes:<28} {self.message[:150]}", flush=True)


class Torture:
    """A plan, and the command that runs it."""

    def __init__(self, folder: Path, samples: int):
        folder.mkdir()
        write_rows(folder / "rows.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9)} for i in range(200)])
        plan = {"tales": {"dataset": "builtin:tales", "samples": samples // 3},
                "mix": {"dataset": [{"path": "rows.jsonl", "weight": 2}, {"path": "builtin:tales", "weight": 1}], "samples": samples // 3,
                        "freeze": ["blocks.0.mlp*"]},
                "rows": {"dataset": "rows.jsonl", "epochs": samples / 3 / 180}}
        self.plan = write_plan(folder, plan)
        (folder / "plan.json").write_text(json.dumps({"$defaults": {"lr": 0.01, "lr_schedule": "cosine", "validation": {"samples": 3}}, **plan}))

    def command(self, out: Path, *more: str) -> list[str]:
        """The command line of a run."""
        return [sys.executable, "-m", "lmplay.train", *TINY, "--dropout", "0.1", "--training-plan", str(self.plan), "--out-dir", str(out), "--batch-size", "7",
                "--mini-batch-size", "3", "--save-interval", "10", "--validation-interval", "40", *more]

    def start(self, out: Path, **options) -> subprocess.Popen:
        """Start a run."""
        return subprocess.Popen(self.command(out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT, **options)

    def finish(self, out: Path, row: Row | None = None, **options) -> tuple[int, str]:
        """Run to the end."""
        process = self.start(out, **options)
        output = process.communicate(timeout=900)[0]
        if row is not None:
            row.codes[process.returncode] += 1
        return process.returncode, output


def kill_once(torture: Torture, out: Path, dice: random.Random, aimed: bool, number: int) -> int | None:
    """Start the run and kill it, at a random time or during a save; return its exit code, None = it ended before."""
    process = torture.start(out)
    saved = out / f"{NAME}.lmp"
    began = saved.stat().st_mtime_ns if saved.exists() else 0
    if aimed:
        saves = dice.randint(0, 2)
        while process.poll() is None and saves >= 0:
            if (out / f".{NAME}.lmp.{process.pid}.tmp").exists():
                saves -= 1
                time.sleep(dice.uniform(0, 0.004 if saves < 0 else 0.05))
    else:
        seconds = dice.uniform(0, 1.5)
        while process.poll() is None and dice.random() < 0.998 and not (saved.exists() and saved.stat().st_mtime_ns != began):
            time.sleep(0.01)  # mostly until the first save, sometimes in start-up
        time.sleep(seconds)
    if process.poll() is None:
        process.send_signal(number)
    process.communicate(timeout=300)
    return None if process.returncode == 0 else process.returncode


def whole(out: Path) -> bool:
    """Tell whether the newest file is whole, if there has been a save."""
    path = out / f"{NAME}.lmp"
    return verify(path) is True if path.exists() else not any(out.glob(f"{NAME}*.lmp"))


def same(reference: Path, out: Path) -> bool:
    """Compare all files but older states and damaged ones."""
    if not out.exists():
        return False
    with tempfile.TemporaryDirectory() as folder:
        left, right = (shutil.copytree(source, Path(folder) / name, ignore=shutil.ignore_patterns("*.prev-*", "*.damaged-*", ".*"))
                       for name, source in (("left", reference), ("right", out)))
        return compare_runs(left, right) == []


def kills(torture: Torture, reference: Path, out: Path, count: int, until: float, seed: int) -> list[Row]:
    """Kill one run again and again, then let it finish."""
    dice = random.Random(seed)
    rows = {(aimed, number): Row(f"{signal.Signals(number).name} {'in a save' if aimed else 'at any time'}") for aimed in (True, False)
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)}
    done = 0
    while done < count and time.monotonic() < until:
        aimed, number = dice.random() < 0.6, dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        code = kill_once(torture, out, dice, aimed, number)
        if code is None:
            print(f"the run ended after {done} kills; more --samples-per-kill makes it longer")
            break
        row = rows[aimed, number]
        row.tries, row.lost, done = row.tries + 1, row.lost + (not whole(out)), done + 1
        row.codes[code] += 1
    end = Row(f"after {done} kills: bit for bit the same", tries=1)
    end.message = torture.finish(out, end)[1].strip().splitlines()[-1]
    end.lost = int(not same(reference, out))
    return [*rows.values(), end]


def damages() -> dict[str, Callable[[Path], None]]:
    """Ways to damage a file."""
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[random.Random(len(data)).randrange(len(data))] ^= 16
        path.write_bytes(data)

    return {"flipped bit": flip, "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2), "empty file": lambda path: os.truncate(path, 0),
            "last byte lost": lambda path: os.truncate(path, path.stat().st_size - 1), "deleted file": Path.unlink,
            "other bytes": lambda path: path.write_bytes(b"\x80\x04N." * 100)}


def damaged_files(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Iterator[Row]:
    """Damage the newest file, and the newest two."""
    for what, damage in damages().items():
        for parts in (("",), ("", ".prev-1")):
            out = shutil.copytree(stopped, folder / "damaged")
            row = Row(f"{what}, {'newest' if len(parts) == 1 else 'newest two'}", tries=1)
            for part in parts:
                damage(out / f"{NAME}{part}.lmp")
            output = torture.finish(out, row)[1]
            row.message = next((line for line in output.splitlines() if "going on from" in line), "no message about it")
            row.lost = int(not same(reference, out))
            shutil.rmtree(out)
            yield row


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a small disk; raises RuntimeError where that is not allowed."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, check=False).returncode:
        raise RuntimeError("no permission to mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disks(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Iterator[Row]:
    """Disks that are full or read-only for a while."""
    size = sum(path.stat().st_size for path in stopped.iterdir()) * 6
    with disk(folder / "small", 120_000) as place:
        row = Row("disk too small from the start", tries=1)
        code, output = torture.finish(place / "out", row)
        row.lost, row.message = int(code != 2), output.strip().splitlines()[-1]
        yield row
    for what in ("full", "read-only"):
        with disk(folder / what, size) as place:
            out = shutil.copytree(stopped, place / "out")
            row = Row(f"disk {what} while training", tries=1)
            process = torture.start(out)
            for line in process.stdout:
                if line.startswith("saved"):
                    break
            if what == "full":
                with contextlib.suppress(OSError), open(place / "filler", "wb") as file:
                    while True:
                        file.write(bytes(4096))
                        file.flush()
            else:
                subprocess.run(["mount", "--bind", str(place), str(place)], check=True)  # a second mount of it, read-only
                subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
            output = process.communicate(timeout=900)[0]
            row.codes[process.returncode] += 1
            warnings = [line for line in output.splitlines() if "could not be written" in line]
            row.message = f"{len(warnings)} warnings: {warnings[0] if warnings else output.splitlines()[-1]}"
            if what == "read-only":
                subprocess.run(["umount", str(place)], check=True)
            (place / "filler").unlink(missing_ok=True)
            kept = whole(out)
            torture.finish(out, row)
            row.lost = int(not (kept and same(reference, out)))
            yield row


def limited(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Row:
    """Files that are limited to less than the size of a state."""
    out = shutil.copytree(stopped, folder / "limited")
    most = (out / f"{NAME}.lmp").stat().st_size // 2
    row = Row("files limited to half a state", tries=1)
    output = torture.finish(out, row, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))[1]
    row.message = next((line for line in output.splitlines() if "could not be written" in line), "no message about it")
    kept = whole(out)
    torture.finish(out, row)
    row.lost = int(not (kept and same(reference, out)))
    return row


def untouched(folder: Path, samples: int) -> tuple[Torture, Path]:
    """Make a plan, and run it undisturbed for comparison."""
    torture, reference = Torture(folder, samples), folder / "reference"
    code, output = torture.finish(reference)
    assert code == 0, output
    return torture, reference


def main() -> int:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0, help="no more kills after this time")
    parser.add_argument("--samples-per-kill", type=int, default=SAMPLES_PER_KILL, help="length of the run: the samples between two kills, about")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--quick", action="store_true", help="12 kills")
    options = parser.parse_args()
    count = 12 if options.quick else options.kills
    until = time.monotonic() + options.minutes * 60
    print(f"seed {options.seed}, {count} kills")
    folder = Path(tempfile.mkdtemp(prefix="lmplay-torture-"))
    torture, reference = untouched(folder / "long", max(count * options.samples_per_kill, 90))
    print(f"\n{'what':<34}{'tries':>6}{'survived':>10}{'lost':>6}   {'exit codes':<28} message")
    rows = kills(torture, reference, folder / "killed", count, until, options.seed)
    for row in rows:
        row.print()
    torture, reference = untouched(folder / "short", SAMPLES)
    stopped = folder / "stopped"
    process = torture.start(stopped)
    saves = 0
    for line in process.stdout:
        saves += line.startswith("saved")
        if saves == 6:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    further = [damaged_files(torture, reference, stopped, folder), iter([limited(torture, reference, stopped, folder)])]
    if os.geteuid() == 0:
        further.append(disks(torture, reference, stopped, folder))
    for row in (row for part in further for row in part):
        row.print()
        rows.append(row)
    lost = sum(row.lost for row in rows)
    print(f"\n{sum(row.tries for row in rows)} tries, {lost} lost (seed {options.seed})")
    if not lost:
        shutil.rmtree(folder)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
