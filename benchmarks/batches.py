"""What a model learns from equally many tokens when long texts are divided into rows and batches in different ways.

    python benchmarks/batches.py                                               # anywhere: built-in texts
    python benchmarks/batches.py --novel novel.txt --articles articles.jsonl   # the real thing

A small model with a vocabulary of 1,024 tokens reads pieces of 128 (`--context`), eight a step. Each way is trained with the same seeds, in turns; the
figure is the loss of the end of the same held-out text in bits per byte. Of articles there are two kinds: with their title, which is repeated before each
piece, and without. It takes hours on two cores: with `--results FILE` each figure is kept, and what is there is not trained again.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lmplay.data.tales import Tales
from lmplay.train.__main__ import main as train

MODEL = ["--num-blocks", "2", "--embed-dim", "128", "--num-heads", "4", "--dropout", "0", "--tokenizer", "train:1024",
         "--device", "cpu", "--batch-size", "8", "--lr", "0.01", "--optimizer-warmup-steps", "20", "--validation-interval", "0", "--save-interval",
         "0", "--quiet"]
PIECES = ("together", "spread", "shuffled")
NOVEL = [(row_bytes, pieces) for row_bytes in (16384, 4096, 2048, 1024) for pieces in PIECES]
HELD_OUT = 60_000  # bytes at the end of each text


def learn(folder: Path, file: Path, held_out: Path, row_bytes: int | None, pieces: str, tokens: int, context_len: int, seed: int) -> float:
    """Train a model, and give its loss at the end in bits per byte."""
    own = {} if row_bytes is None else {"row_bytes": row_bytes}
    validation = {"dataset": {"path": str(held_out), "row_bytes": 2048}, "samples": 24}
    plan = {"one": {"dataset": {"path": str(file), **own}, "tokens": tokens, "pieces": pieces, "lr_schedule": "cosine", "validation": validation}}
    (folder / "plan.json").write_text(json.dumps(plan))
    name = f"{file.stem}-{row_bytes}-{pieces}-{seed}"
    with contextlib.redirect_stdout(io.StringIO()):
        code = train([*MODEL, "--training-plan", str(folder / "plan.json"), "--seed", str(seed), "--context-len", str(context_len),
                      "--out-dir", str(folder), "--model", str(folder / f"{name}.lmp")])
    assert code == 0
    return float(json.loads((folder / f"{name}_validate_stats.json").read_text())["columns"]["bits_per_byte"][-1])


def prepare(folder: Path, novel: str | None, articles: str | None) -> None:
    """Write a long text, articles with and without titles, and the held-out end of both."""
    text = Path(novel).read_text() if novel else "\n\n".join(tale.text for tale in (Tales(4)[i] for i in range(1500)))
    if articles:
        found = [json.loads(line) for line in Path(articles).read_text().splitlines()]
    else:
        found = [{"title": f"Tale {i}", "text": Tales(4)[i].text * 8} for i in range(5000, 5200)]
    (folder / "novel.txt").write_text(text[:-HELD_OUT])
    (folder / "titled.jsonl").write_text("".join(json.dumps(article) + "\n" for article in found[:-4]))
    (folder / "untitled.jsonl").write_text("".join(json.dumps({"text": article["text"]}) + "\n" for article in found[:-4]))
    (folder / "held-out.txt").write_text(text[-HELD_OUT:])
    (folder / "held-out-articles.txt").write_text("\n\n".join(article["text"] for article in found[-4:])[:HELD_OUT])


def kept(results: Path | None, way: dict[str, Any]) -> float | None:
    """Give the figure of a way that an earlier run has kept."""
    lines = results.read_text().splitlines() if results and results.exists() else []
    return next((float(line["bits_per_byte"]) for line in map(json.loads, lines) if line.items() >= way.items()), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--novel", help="a text file")
    parser.add_argument("--articles", help="a file of JSON lines with the fields `title` and `text`")
    parser.add_argument("--tokens", type=int, default=240_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--results", type=Path, help="a file of JSON lines for the figures; the ways that are in it are not trained again")
    parser.add_argument("--only", nargs="*", help="ways, such as novel-4096-spread; all by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, arguments.novel, arguments.articles)
        ways = [(folder / "novel.txt", folder / "held-out.txt", *way) for way in NOVEL]
        ways += [(folder / f"{kind}.jsonl", folder / "held-out-articles.txt", None, pieces) for kind in ("titled", "untitled") for pieces in PIECES]
        ways = [way for way in ways if not arguments.only or f"{way[0].stem}-{way[2]}-{way[3]}" in arguments.only]
        found: dict[tuple[str, int | None, str], list[float]] = {}
        for seed in range(arguments.seeds):
            for file, held_out, row_bytes, pieces in ways:
                way = {"text": file.stem, "rows": row_bytes, "pieces": pieces, "tokens": arguments.tokens, "context": arguments.context, "seed": seed}
                bits = kept(arguments.results, way) or learn(folder, file, held_out, row_bytes, pieces, arguments.tokens, arguments.context, seed)
                if arguments.results and kept(arguments.results, way) is None:
                    with open(arguments.results, "a") as results:
                        results.write(json.dumps(way | {"bits_per_byte": bits}) + "\n")
                found.setdefault((file.stem, row_bytes, pieces), []).append(bits)
                print(f"seed {seed} {file.stem:<9} rows {row_bytes or 'as they are':<12} {pieces:<9} {bits:.3f}", flush=True)
        print(f"\ncontext {arguments.context}, {arguments.tokens:,} tokens; bits per byte, mean of {arguments.seeds} seeds ± standard error")
        for (text, row_bytes, pieces), bits in found.items():
            error = f" ± {stdev(bits) / len(bits) ** 0.5:.3f}" if len(bits) > 1 else ""
            print(f"{text:<9} {row_bytes or 'as they are':<12} {pieces:<9} {fmean(bits):.3f}{error}")


if __name__ == "__main__":
    main()
