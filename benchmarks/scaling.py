"""Step time and data time of 1, 2 … processes side by side: the same model, plan and flags, started by torchrun; on a CPU with gloo, on GPUs with nccl.

    python benchmarks/scaling.py                                       # 1 and 2 processes on this machine, built-in texts, a small model
    python benchmarks/scaling.py --processes 1,2,4,8 --embed-dim 1024 --num-blocks 24 --batch-size 256 --flags "--amp --exp modern"

    python benchmarks/scaling.py --order 1,8,64,1024                   # what reading in shares costs a rank, simulated in one process

The numbers of processes take turns, and each round is a run of its own. Of each run the first steps are left out. The step time is the median over the steps of
all rounds of a number; "data" is what of it the step waited for its batch. "of ideal" is the time of one process, divided by the number of processes and by the
time that was measured: 100 % is N processes N times as fast. Beside it is a plain start without torchrun: one process through torchrun should be as fast.

With `--order` nothing is trained: the order of samples, the deal of rows and pieces and the messages are those of N ranks, made one after the other. The batch
grows with the ranks (weak scaling). Rows, tokens and bytes are counted for each rank. "order" is the processor time of one rank for drawing rows, unpacking
what others tell, filling and dealing batches; its own reading and cutting, which does not grow, is beside it.
"""
from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

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


class Crew:
    """N ranks that read together, played by one process one after the other."""

    def __init__(self, size: int):
        from lmplay.data.shares import Shares

        crew = self

        class First(Shares):
            """What rank 0 does, with what all others tell."""

            def read(self, places, readings, failed, seed):
                contents, mine = [], {}
                for rank in crew.ranks:
                    started = time.process_time()
                    outcomes, content = rank.tell(places, readings, failed, seed)
                    crew.seconds["cut"] += (time.process_time() - started) / size
                    crew.note(rank.rank, outcomes, len(content))
                    crew.seconds["aside"] += time.process_time() - started
                    contents.append(content)
                    mine = outcomes if not rank.rank else mine
                return self.hear(contents, places, mine)

        self.size, self.seconds, self.drawn = size, Counter(), 0
        self.rows, self.tokens, self.told, self.moved = Counter(), Counter(), Counter(), Counter()
        self.cutters: dict[tuple[int, int, int], tuple[int, int]] = {}  # who has cut a piece, and the bytes that sending it takes
        self.ranks = [(Shares if rank else First)(Place(rank, size)) for rank in range(size)]

    def note(self, rank: int, outcomes: dict, told: int) -> None:
        """Count what a rank has done for a chunk."""
        from lmplay.data.outlines import contents

        pieces = [piece for outcome in outcomes.values() for piece in outcome.pieces]
        self.rows[rank] += len(outcomes)
        self.tokens[rank] += sum(len(piece.tokens) for piece in pieces)
        self.told[rank] += told
        for piece in pieces:
            key = piece.sample.source, piece.sample.row, piece.number
            self.cutters[key] = rank, len(pickle.dumps((0, contents(piece)), pickle.HIGHEST_PROTOCOL))


class Place:
    """A rank's number."""

    reading = nullcontext()

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def swap(self, parts):
        raise NotImplementedError


def order(size: int, options: argparse.Namespace) -> str:
    """Make the batches of N ranks; gives a line of what each rank has done for a step."""
    from lmplay.data.batcher import Batcher
    from lmplay.data.continuation import Cutter
    from lmplay.data.stage import StageData
    from lmplay.device.ranks import Ranks
    from lmplay.engine.batches import Grouping, cost_of
    from lmplay.plan.schema import Stage
    from lmplay.tokenizer import load_tokenizer

    crew, cutter = Crew(size), Cutter(load_tokenizer(options.tokenizer), options.context_len)
    endless = {"samples": 10**9} if options.dataset.startswith("builtin:") else {"epochs": 10**6}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        for rank in crew.ranks:
            closing.enter_context(rank.reading(lambda samples: ((cutter.cut(sample), tag) for sample, tag in samples), lambda: False))
        data = StageData(Stage.model_validate({"name": "s", "dataset": options.dataset, "validation": 0, **endless}), Path(folder), 0)
        first = crew.ranks[0]
        batcher = Batcher(data.open_samples(first), cutter.cut, options.pieces * size, spread=True, cutting=first.cut)
        ranks, grouping = Ranks(), Grouping(min(options.pieces, 8), 1, options.context_len, False, size)
        ranks.size = size
        pieces = 0
        for _ in range(options.steps):
            started, aside = time.process_time(), crew.seconds["aside"]
            batch = batcher.next()
            mini_batches = grouping.mini_batches(batch.pieces, 0, outlined=True)
            takers = ranks.deal(mini_batches, cost_of)
            seconds = time.process_time() - started
            crew.seconds["order"] += seconds - (crew.seconds["aside"] - aside)  # without what only the counting here takes
            pieces += len(batch.pieces)
            for taker, mini_batch in zip(takers, mini_batches, strict=True):
                for number, _ in mini_batch.rows:
                    piece = batch.pieces[number]
                    cutter_of, n_bytes = crew.cutters[piece.sample.source, piece.sample.row, piece.number]
                    crew.moved[taker] += n_bytes * (cutter_of != taker)
    each = [[counter[rank] / options.steps for rank in range(size)] for counter in (crew.rows, crew.tokens, crew.moved)]
    told = sum(crew.told.values()) / options.steps * (size - 1) / size
    shown = [f"{mean(values):,.0f} ({max(values):,.0f})" for values in each]
    return f"| {size:,} | {pieces / options.steps:,.0f} | {' | '.join(shown[:2])} | {told / 1e3:,.1f} kB | {shown[2]} | " \
        f"{1000 * crew.seconds['order'] / options.steps:,.0f} ms | {1000 * crew.seconds['cut'] / options.steps:,.0f} ms |"


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
    parser.add_argument("--order", default="", metavar="N,…", help="numbers of ranks to simulate; nothing is trained then")
    parser.add_argument("--dataset", default="builtin:tales", help="with --order: what is read")
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--context-len", type=int, default=256)
    parser.add_argument("--pieces", type=int, default=8, help="with --order: pieces of a batch for each rank")
    options = parser.parse_args()
    if options.order:
        print("| ranks | pieces a step | rows read by a rank (most) | tokens cut by it (most) | told to it | bytes of pieces sent to it (most) | order | "
              "its cutting |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for size in map(int, options.order.split(",")):
            print(order(size, options), flush=True)
        return
    arguments = ["--dataset", options.dataset, "--tokenizer", options.tokenizer, "--num-heads", "4", "--context-len", str(options.context_len),
                 "--num-blocks", options.num_blocks,
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
