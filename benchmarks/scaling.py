"""Step time and data time of 1, 2 … processes side by side: the same model, plan and flags, started by torchrun; on a CPU with gloo, on GPUs with nccl.

    python benchmarks/scaling.py                                       # 1 and 2 processes on this machine, built-in texts, a small model
    python benchmarks/scaling.py --processes 1,2,4,8 --embed-dim 1024 --num-blocks 24 --batch-size 256 --flags "--amp --exp modern"

The numbers of processes take turns, and each round is a run of its own. Of each run the first steps are left out. The step time is the median over the steps of
all rounds of a number; "data" is what of it the step waited for its batch. "of ideal" is the time of one process, divided by the number of processes and by the
time that was measured: 100 % is N processes N times as fast. Beside it is a plain start without torchrun: one process through torchrun should be as fast.
"""
from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

_SKIPPED = 3  # steps at the start of each run


def measure(processes: int, arguments: list[str], steps: int) -> tuple[list[float], list[float]]:
    """Train with N processes (0 = one without torchrun); seconds of each step, and of waiting for its batch."""
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}"] if processes else []
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, *launcher, "-m", "lmplay.train", *arguments, "--out-dir", out, "--model", "scaling", "--max-steps", str(steps + _SKIPPED),
                   "--validation-interval", "0", "--save-interval", "0", "--quiet"]
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **threads})
        path = Path(out) / "scaling_train_stats.json"
        if not path.exists():
            raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
        clock = json.loads(path.read_text(encoding="utf-8"))["clock"]
    seconds = [after - before for before, after in pairwise(clock["seconds"])][_SKIPPED:]
    return seconds, [step * share for step, share in zip(seconds, clock["data_wait_share"][_SKIPPED + 1:], strict=True)]


def main() -> None:
    """Measure, and print a line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--num-blocks", default="4")
    parser.add_argument("--embed-dim", default="256")
    parser.add_argument("--batch-size", default="32")
    parser.add_argument("--flags", default="", help="further flags of lmp_trainer")
    options = parser.parse_args()
    arguments = ["--dataset", "builtin:tales", "--tokenizer", "bytes", "--num-heads", "4", "--context-len", "256", "--num-blocks", options.num_blocks,
                 "--embed-dim", options.embed_dim, "--batch-size", options.batch_size, "--mini-batch-size", "4", "--dropout", "0", *shlex.split(options.flags)]
    numbers = [0, *map(int, options.processes.split(","))]
    found: dict[int, tuple[list[float], list[float]]] = {number: ([], []) for number in numbers}
    for _ in range(options.rounds):
        for number in numbers:
            for seconds, new in zip(found[number], measure(number, arguments, options.steps), strict=True):
                seconds += new
    one = median(found[0][0])
    print("processes   step ms   data ms   of ideal")
    for number, (steps, data) in found.items():
        name = str(number) if number else "plain 1"
        print(f"{name:>9} {1000 * median(steps):9.1f} {1000 * median(data):9.2f} {one / max(number, 1) / median(steps):9.0%}")


if __name__ == "__main__":
    main()
