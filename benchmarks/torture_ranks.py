"""Kills of ranks for `torture.py`: several processes that train together, of which one or all are killed, again and again.

Each of the variants (number of processes, `--shard`, format of states) has a run of its own, and an undisturbed one with as many processes. After each kill
all processes must have ended, and the newest state must be whole or not there; a run that comes to its end must have left, bit for bit, what the undisturbed
one has. Most runs are forked from a process that has imported torch, with the variables that torchrun sets; every tenth, or every Nth
(`--torchrun-every`), is started by torchrun itself. All is kept in a folder: the same command goes on.
"""
from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import several
from helpers import ROOT
from torture_run import MARKED, WINDOWS, Row, Torture, same, wait_for, whole

SAMPLES = 60
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
VICTIMS = ("one rank", "one rank", "all ranks")
_SECONDS = 90  # for all to end: 30 are promised where the machine has nothing else to do
_WHOLE_RUN = 900  # seconds for a run that nobody kills, on a machine with much else to do


@dataclass(frozen=True)
class Variant:
    """How many processes train, and with which flags."""

    size: int
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name its folders, and its line in the table."""
        return " ".join([f"{self.size} processes", *(flag.removeprefix("--") for flag in self.flags if flag != "--checkpoint-format")])


def variants(sizes: Sequence[int]) -> list[Variant]:
    """Give all variants."""
    return [Variant(size, (*shard, "--checkpoint-format", form)) for form in ("file", "sharded") for shard in ((), ("--shard",)) for size in sizes]


class Running:
    """The processes of a run."""

    def __init__(self, torture: Torture, variant: Variant, out: Path, marked: bool, by_torchrun: bool):
        flags = torture.flags(out, *variant.flags)
        self.torchrun: subprocess.Popen | None = None
        if not by_torchrun:
            self.processes = several.start(variant.size, [*(["-c", MARKED] if marked else ["-m", "lmplay.train"]), *flags])
        else:
            program = torture.plan.with_name("marked.py")
            program.write_text(MARKED)
            command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={variant.size}", "--standalone", str(program), *flags]
            environment = {**torture.environment, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
            self.torchrun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            self.processes = [self.torchrun]
        self.lines = self.processes[0].stdout
        self.said: list[str] = []
        for pipe in [process.stderr for process in self.processes] + [process.stdout for process in self.processes[1:]]:
            threading.Thread(target=lambda pipe=pipe: self.said.extend(pipe), daemon=True).start()

    def ranks(self) -> list[int]:
        """Give the process numbers of the ranks that are there."""
        if self.torchrun is None:
            return [process.pid for process in self.processes if process.poll() is None]
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.torchrun.pid}/task/{self.torchrun.pid}/children").read_text().split()]
        return []

    def kill(self, victims: str, number: int, dice: random.Random) -> None:
        """Kill one rank, or all; with SIGKILL torchrun is killed with all, as when a machine is switched off."""
        pids = self.ranks()
        chosen = pids if victims == "all ranks" else dice.sample(pids, min(1, len(pids)))
        if self.torchrun is not None and (not chosen or (victims == "all ranks" and number == signal.SIGKILL)):
            chosen = [self.torchrun.pid, *chosen]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self, seconds: float = _SECONDS) -> list[int] | None:
        """Wait until all have ended, and give their exit codes; None where they hang: they have not ended after that time."""
        threading.Thread(target=lambda: self.said.extend(self.lines), daemon=True).start()  # a full pipe would stop them
        ranks, until = self.ranks(), time.monotonic() + seconds
        while any(map(several.is_alive, ranks)) or any(process.poll() is None for process in self.processes):
            if time.monotonic() > until:
                for pid in [*ranks, *(process.pid for process in self.processes)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return None
            time.sleep(0.05)
        return [process.wait() for process in self.processes]


@dataclass
class Progress:
    """What has been done, in a file."""

    path: Path
    kills: int = 0
    ends: int = 0
    rows: dict[str, Row] = field(default_factory=dict)

    def row(self, name: str) -> Row:
        """Give a line of the table."""
        return self.rows.setdefault(name, Row(name))

    def load(self) -> Progress:
        """Go on from the file, if it is there."""
        if self.path.exists():
            found = json.loads(self.path.read_text())
            self.kills, self.ends = found["kills"], found["ends"]
            self.rows = {row["what"]: Row(**{**row, "codes": Counter({int(code): count for code, count in row["codes"].items()})}) for row in found["rows"]}
        return self

    def save(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps({"kills": self.kills, "ends": self.ends, "rows": [vars(row) for row in self.rows.values()]}))


def kill_ranks(folder: Path, sizes: Sequence[int], count: int, until: float, seed: int, torchrun_every: int) -> Iterator[Row]:
    """Kill the runs of all variants in turn, then let each come to its end; gives the lines of the table.

    :param folder: where all is kept.
    :param count: of kills, those of earlier calls among them.
    :param until: no more kills after this time.
    :param torchrun_every: every so many runs are started by torchrun itself; 1 = all.
    """
    torture = Torture(folder, SAMPLES)
    progress, chosen = Progress(folder / "progress.json").load(), variants(sizes)
    while progress.kills < count and time.monotonic() < until:
        by_torchrun = progress.kills % torchrun_every == torchrun_every - 1
        _kill_once(torture, folder, chosen[progress.kills % len(chosen)], progress, random.Random(f"{seed} {progress.kills} {progress.ends}"), by_torchrun)
        progress.save()
    for variant in chosen:
        if _out(folder, variant).exists():
            _end(torture, folder, variant, progress, Running(torture, variant, _out(folder, variant), False, False).ended(_WHOLE_RUN))
            progress.save()
    yield from progress.rows.values()


def _kill_once(torture: Torture, folder: Path, variant: Variant, progress: Progress, dice: random.Random, by_torchrun: bool) -> None:
    """Start a variant's run, and kill it at a moment."""
    victims, number, moment = dice.choice(VICTIMS), dice.choice(SIGNALS), dice.choice(("any time", *WINDOWS))
    out = _out(folder, variant)
    running = Running(torture, variant, out, marked=True, by_torchrun=by_torchrun)
    if moment == "any time":
        time.sleep(dice.uniform(0.3, 20 if by_torchrun else 5))
    else:
        wait_for(moment, running.lines, dice)
    running.kill(victims, number, dice)
    killed = time.monotonic()
    codes = running.ended()
    print(f"{progress.kills + 1:4} {variant.name}, {victims}, {signal.Signals(number).name}, {moment}{', by torchrun' if by_torchrun else ''}: {codes} after "
          f"{time.monotonic() - killed:.1f} s", file=sys.stderr, flush=True)
    if codes is not None and not any(codes):
        _end(torture, folder, variant, progress, codes)
        return
    row = progress.row(f"{signal.Signals(number).name}, {victims}{', by torchrun' if by_torchrun else ''}")
    row.tries, progress.kills = row.tries + 1, progress.kills + 1
    row.codes.update(codes or ())
    fault = "hangs" if codes is None else "" if not out.exists() or whole(out) else "the newest state is damaged"
    if fault:
        row.lost, row.message = row.lost + 1, f"{row.message} kill {progress.kills} of {variant.name}: {fault};"
        (folder / f"kill-{progress.kills}.said").write_text("".join(running.said))


def _end(torture: Torture, folder: Path, variant: Variant, progress: Progress, codes: list[int] | None) -> None:
    """Compare a run that has come to its end with the undisturbed one, and put it aside."""
    reference = folder / f"{variant.name}, untouched"
    if not reference.exists():
        begun = folder / f"{variant.name}, begun"
        shutil.rmtree(begun, ignore_errors=True)
        found = Running(torture, variant, begun, False, False).ended(_WHOLE_RUN)
        if found is None or any(found):
            raise SystemExit(f"{begun}: the undisturbed run has failed ({found})")
        begun.rename(reference)
    out, row = _out(folder, variant), progress.row(f"ends: {variant.name}")
    row.tries, progress.ends = row.tries + 1, progress.ends + 1
    row.codes.update(codes or ())
    differs = codes is None or any(codes) or not same(reference, out)
    row.lost += differs
    if out.exists():
        out.rename(folder / f"{variant.name}, {'differs' if differs else 'same'} {progress.ends}")


def _out(folder: Path, variant: Variant) -> Path:
    """Name the folder of the run that is being killed."""
    return folder / f"{variant.name}, killed"
