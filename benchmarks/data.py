"""How fast the data path is, how much of a batch is padding, what a resume costs, and whether memory stays flat.

    python benchmarks/data.py                                              # anywhere: built-in texts, a tokenizer trained on them
    python benchmarks/data.py --wikitext train.jsonl --tokenizer FOLDER    # the real thing

All ways are measured in turns within one run, so that a busy machine slows them alike: look at the ratios.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from statistics import median

from lmplay.data.batcher import Batch, Batcher
from lmplay.data.collate import MiniBatch, collate
from lmplay.data.continuation import Cutter
from lmplay.data.mixing import Mix
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import choose_reading
from lmplay.data.sources.remote import RemoteFile
from lmplay.data.sources.shards import ShardedSource
from lmplay.data.stage import StageData
from lmplay.data.stream import Length, SampleStream
from lmplay.data.workers import Workers
from lmplay.plan.schema import Stage
from lmplay.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

BATCH_SIZE, MINI_BATCH_SIZE = 50, 4
EPOCHS = 8  # of the whole pipeline, so that the start of processes is a small part
CONTEXTS = (512, 1024)


def open_stage(folder: Path, dataset: object, **length: int) -> StageData:
    """Open a data set for an epoch (or another length), with nothing held out."""
    stage = {"name": "bench", "dataset": dataset, **(length or {"epochs": 1}), "validation": {"fraction": 0.0}}
    return StageData(Stage.model_validate(stage), folder / "datasets", seed=0)


class OnDisk(RemoteFile):
    """A local file that is read as those of the hub are, from a place on."""

    def __init__(self, file: Path):
        super().__init__("bench", "bench", "main", file.name)
        self._size, self._file = file.stat().st_size, file

    def read(self, start: int, end: int) -> bytes:
        with open(self._file, "rb") as handle:
            handle.seek(start)
            return handle.read(end - start)


def open_samples(folder: Path, file: Path, streaming: bool, epochs: int = 1) -> SampleStream:
    """Open an epoch (or more) of a file, read by number or as a stream of the hub; shuffled."""
    if not streaming:
        return open_stage(folder, str(file), epochs=epochs).open_samples()
    source = ShardedSource("bench", "lines", [OnDisk(file)], None, {})
    return SampleStream(Mix([open_reader(source, Order(seed=0))]), [choose_reading("bench", source.columns, None)], Length(epochs=1), [source])


def batches(samples: SampleStream, tokenizer: Tokenizer, context_len: int, workers: int = 1) -> Iterator[Batch]:
    """Give batches, made in line or with processes that cut."""
    cutter = Cutter(tokenizer, context_len)
    with Workers(cutter.cut, workers) if workers > 1 else nullcontext() as pool:
        yield from iter(Batcher(samples, cutter.cut, BATCH_SIZE, cutting=pool.cut if pool else None).next, None)


def pipeline(folder: Path, file: Path, tokenizer: Tokenizer, context_len: int, workers: int = 1) -> Iterator[list[MiniBatch]]:
    """Go the whole way: open the file, read, shuffle, tokenize, cut, fill batches, make tensors."""
    for batch in batches(open_samples(folder, file, False, EPOCHS), tokenizer, context_len, workers):
        yield collate(batch.pieces, MINI_BATCH_SIZE, 1, context_len - 1)


def exhaust(items: Iterator[object]) -> None:
    """Take all items."""
    for _ in items:
        pass


def ways(folder: Path, file: Path, texts: list[str], tokenizer: Tokenizer) -> dict[str, Callable[[], object]]:
    """List what is compared: ours, and encoders of others that only make ids."""
    import datasets
    import tokenizers
    import transformers

    datasets.disable_progress_bars()
    datasets.disable_caching()
    library = tokenizers.Tokenizer.from_str(tokenizer.spec["json"])
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.spec["json"]))
    table = datasets.Dataset.from_dict({"text": texts})
    found: dict[str, Callable[[], object]] = {
        f"rows to mini-batches, context {context}{', 2 processes' * (workers > 1)}":
            (lambda context=context, workers=workers: exhaust(pipeline(folder, file, tokenizer, context, workers)))  # type: ignore[misc]
        for context in CONTEXTS for workers in (1, 2)}
    found["lmplay encoder alone"] = lambda: [tokenizer.encode(text) for text in texts]
    found["datasets.map, fast tokenizer"] = lambda: table.map(lambda rows: wrapped(rows["text"]), batched=True, remove_columns=["text"])
    found["tokenizers, encode_batch"] = lambda: library.encode_batch(texts)
    if tokenizer._pairs is not None:
        encoding = tokenizer._pairs._encoding
        found["tiktoken alone, one thread"] = lambda: [encoding.encode_ordinary(text) for text in texts]
    return found


def measure_speed(folder: Path, file: Path, tokenizer: Tokenizer, rounds: int) -> None:
    """(a) Tokens a second; every way does all texts once a round."""
    with open(file, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    tokens = sum(len(tokenizer.encode(text).ids) for text in texts)
    print(f"(a) speed: {len(texts):,} texts, {tokens:,} tokens, tokenizer {tokenizer.name}, median of {rounds}")
    compared = ways(folder, file, texts, tokenizer)
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(rounds + 1):
        for name, way in compared.items():
            started = time.perf_counter()
            way()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    base = median(seconds["datasets.map, fast tokenizer"])
    for name, times in seconds.items():
        done = tokens * (EPOCHS if name.startswith("rows") else 1)
        rate = done / median(times) / 1e6
        print(f"    {name:50} {rate:6.2f} M tokens/s   {rate / (tokens / base / 1e6):5.2f} x datasets.map   ({min(times):.2f} to {max(times):.2f} s)")


def measure_padding(folder: Path, file: Path, tokenizer: Tokenizer) -> None:
    """(b) The share of slots in mini-batches that are padding; sorted is what training does."""
    print(f"(b) padding, batch {BATCH_SIZE}, mini-batch {MINI_BATCH_SIZE}")
    for context in CONTEXTS:
        shares = {}
        made = list(batches(open_samples(folder, file, streaming=False), tokenizer, context))
        for name, step in (("sorted", BATCH_SIZE), ("unsorted", MINI_BATCH_SIZE)):
            parts = [batch.pieces[start:start + step] for batch in made for start in range(0, len(batch.pieces), step)]
            mini_batches = [mini for part in parts for mini in collate(part, MINI_BATCH_SIZE)]
            shares[name] = sum(mini.n_padding for mini in mini_batches) / sum(mini.n_slots for mini in mini_batches)
        print(f"    context {context:5}   sorted {shares['sorted']:6.2%}   unsorted {shares['unsorted']:6.2%}   (sorted is to be under 3 %)")


def measure_resume(folder: Path, file: Path, n_rows: int, rounds: int) -> None:
    """(c) The time from nothing to the next sample, at several positions, of a file read by number and of one read as a stream."""
    print(f"(c) resume within {n_rows:,} rows: seconds to open, go to the position and give a sample (to be equal, under 2)")
    for streaming in (False, True):
        stream = open_samples(folder, file, streaming)
        positions, done = {}, 0
        for share in (0.01, 0.5, 0.99):
            for _ in range(int(share * n_rows) - done):
                stream.next()
            done = int(share * n_rows)
            positions[share] = stream.state()
        seconds: dict[float, list[float]] = {share: [] for share in positions}
        for _ in range(rounds):
            for share, position in positions.items():
                started = time.perf_counter()
                resumed = open_samples(folder, file, streaming)
                resumed.restore(position)
                resumed.next()
                seconds[share].append(time.perf_counter() - started)
        print(f"    {'streamed' if streaming else 'indexed ':8} " + "   ".join(f"at {share:.0%}: {median(times):.3f}" for share, times in seconds.items()))


def peak_memory(folder: Path, file: Path, counts: list[int], streaming: bool) -> list[int]:
    """Give the peak memory (KiB on Linux) of this process after N rows have become mini-batches."""
    peaks, seen = [], 0
    for batch in batches(open_samples(folder, file, streaming), load_tokenizer("bytes"), CONTEXTS[0]):
        collate(batch.pieces, MINI_BATCH_SIZE)
        seen += len(batch.samples)
        if seen >= counts[len(peaks)]:
            peaks.append(own_peak())
            if len(peaks) == len(counts):
                break
    return peaks


def own_peak() -> int:
    """Give the peak memory of this program; what the system says of a process begins with that of the one it was forked from."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])


def measure_memory(folder: Path, file: Path, counts: list[int]) -> None:
    """(d) Peak memory, in a process of its own."""
    print("(d) peak memory (to grow by less than 5 %)")
    for streaming in (False, True):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            first, last = pool.apply(peak_memory, (folder, file, counts, streaming))
        print(f"    {'streamed' if streaming else 'indexed ':8} after {counts[0]:,} rows {first / 1024:.0f} MiB, after {counts[1]:,} {last / 1024:.0f} MiB: "
              f"{last / first - 1:+.1%}")


def write_articles(folder: Path, n_rows: int) -> Path:
    """Write long texts: built-in tales, joined until they are as long as articles are."""
    stream = open_stage(folder, "builtin:tales", samples=70 * n_rows).open_samples()
    file = folder / "articles.jsonl"
    with open(file, "w", encoding="utf-8") as out:
        for number in range(n_rows):
            tales = islice(iter(stream.next, None), 3 + 7 * number % 60)
            out.write(json.dumps({"title": f"Tales {number}", "text": "\n".join(sample.truth for sample in tales)}) + "\n")
    return file


def write_rows(folder: Path, n_rows: int) -> Path:
    """Write many short rows."""
    file = folder / "rows.jsonl"
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(f'{{"text": "Row {number} is told here. It is as long as most are{"." * (number % 40)}"}}\n' for number in range(n_rows))
    return file


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: shows that all of it works")
    parser.add_argument("--wikitext", type=Path, help="a jsonl of articles with title and text (default: made of built-in tales)")
    parser.add_argument("--tokenizer", help="as lmp_trainer takes it (default: train:8192 on the articles)")
    parser.add_argument("--rounds", type=int, help="how often each way is measured (default 5, quick 1)")
    parser.add_argument("--only", choices="abcd", help="one part: a speed, b padding, c resume, d memory")
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.only in (None, "a", "b"):
            articles = args.wikitext or write_articles(folder, 30 if args.quick else 300)
            with open(articles, encoding="utf-8") as lines:
                tokenizer = load_tokenizer(args.tokenizer) if args.tokenizer else train_tokenizer((json.loads(line)["text"] for line in lines), 8192)
            if args.only != "b":
                measure_speed(folder, articles, tokenizer, rounds)
            if args.only != "a":
                measure_padding(folder, articles, tokenizer)
        if args.only in (None, "c", "d"):
            n_rows = 20_000 if args.quick else 1_000_000
            rows = write_rows(folder, n_rows)
            if args.only != "d":
                measure_resume(folder, rows, n_rows, rounds)
            if args.only != "c":
                measure_memory(folder, rows, [n_rows // 50, n_rows // 5])


if __name__ == "__main__":
    main()
