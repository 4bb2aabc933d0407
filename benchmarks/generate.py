"""Writing texts: ours and transformers' `generate` with the same weights, measured in turns in one process.

    python benchmarks/generate.py [--sizes tiny small gpt2] [--batches 1 8] [--sampled] [--tokens 128] [--rounds 5]
    python benchmarks/generate.py --model NAME.lmp --text FILE [--sampled]
    python benchmarks/generate.py --group 8 --batches 64
    python benchmarks/generate.py --profile

For each size it prints the time of a step (a token of each text), the ratio of the medians with that of the slowest and the fastest round, and how much of ours
and of theirs the floor is: the time that it takes to read all weights once at the speed of a plain read, or to multiply at the speed of a large product,
whichever is longer. Both are measured first. A step that writes more than one token of a text can be below that floor.

Without `--sampled` the most probable tokens are written, and the texts must be equal. Fresh weights say little about how often a draft guesses right: `--model`
takes trained ones, and prompts from a text. With `--group` each prompt is answered this many times, as in training with rewards: tokens are drawn, a text ends
at one of some tokens, on average after half of `--tokens`. Where tokens are drawn there is no draft.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import profile

from lmplay.checkpoints.trained import open_trained
from lmplay.exp import build_model, get_experiment
from lmplay.writing.drafts import MOST_TEXTS, make_draft
from lmplay.writing.generation import generate
from lmplay.writing.packed import pack
from lmplay.writing.sampling import Sampling

# Blocks, width, heads.
_SIZES = {"tiny": (4, 256, 4), "small": (6, 384, 6), "gpt2": (12, 768, 12)}
_ENOUGH = 1 << 40
Ways = dict[str, Callable[[int], list[list[int]]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=_SIZES, default=[*_SIZES])
    parser.add_argument("--exp", default="gpt2ish", help="gpt2ish, llamaish, or another that transformers has too")
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--model", type=Path, help="a trained model instead of fresh ones")
    parser.add_argument("--text", type=Path, help="where prompts begin, with --model")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--sampled", action="store_true", help="draw tokens")
    parser.add_argument("--temperature", type=float, default=0.8, help="with --sampled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--group", type=int, default=0, help="answers to each prompt")
    parser.add_argument("--no-draft", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print what the time of a step is made of")
    arguments = parser.parse_args()
    bandwidth, rate = read_speed(), product_speed()
    print(f"{torch.get_num_threads()} threads; a plain read {bandwidth / 1e9:.1f} GB/s, a large product {rate / 1e9:.0f} GFLOP/s")
    for name in [arguments.model.stem] if arguments.model else arguments.sizes:
        torch.manual_seed(0)
        ours, prompts_BT = open_model(arguments) if arguments.model else make_model(arguments, name)
        theirs = ours.as_transformers().eval()
        weights = {id(layer.weight): layer.weight.numel() for layer in ours.modules() if isinstance(layer, nn.Linear)}
        floor = (4 * sum(weights.values()) / bandwidth, 2 * sum(weights.values()) / rate)
        for batch in arguments.batches:
            ways = both_ways(arguments, ours, theirs, prompts_BT, batch)
            measure(arguments, f"{name}, {batch} text{'s' * (batch > 1)}", ways, batch, max(floor[0], batch * floor[1]))
            if arguments.profile:
                show_profiles(arguments, ways)


def read_speed() -> float:
    """Measure how many bytes/s a sum over a large tensor reads, at best."""
    numbers = torch.ones(1 << 27)
    return numbers.nbytes / min(timed(numbers.sum) for _ in range(7))


def product_speed() -> float:
    """Measure operations/s of a large product, at best."""
    one = torch.ones(1536, 1536)
    return 2 * 1536**3 / min(timed(lambda: one @ one) for _ in range(7))


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def make_model(arguments: argparse.Namespace, size: str) -> tuple[Any, torch.Tensor]:
    """Build a model with fresh weights, large enough that its tokens are not all equally probable, and prompts."""
    blocks, width, heads = _SIZES[size]
    model = build_model(get_experiment(arguments.exp), vocab_size=arguments.vocabulary, context_len=arguments.context, num_blocks=blocks, embed_dim=width,
                        num_heads=heads, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.1)
    return model, torch.randint(1, arguments.vocabulary, (max(arguments.batches), arguments.prompt))


def open_model(arguments: argparse.Namespace) -> tuple[Any, torch.Tensor]:
    """Open a trained model, and cut prompts from a text."""
    trained = open_trained(arguments.model)
    ids = list(trained.tokenizer.encode(arguments.text.read_text(encoding="utf-8")[:1 << 18]).ids)
    starts = range(0, len(ids) - arguments.prompt, len(ids) // (max(arguments.batches) + 1))
    return trained.module.eval(), torch.tensor([ids[start:start + arguments.prompt] for start in starts])[:max(arguments.batches)]


def both_ways(arguments: argparse.Namespace, ours: nn.Module, theirs: Any, prompts_BT: torch.Tensor, batch: int) -> Ways:
    """Make what writes a batch of texts in a turn; it gives the tokens."""
    group, most, vocabulary = arguments.group or 1, arguments.tokens, ours.get_submodule("head").weight.shape[0]
    ends = [*range(1, 1 + 2 * vocabulary // most)] if arguments.group else []
    prompts_BT = prompts_BT[:batch // group].repeat_interleave(group, 0)
    drawn = arguments.sampled or arguments.group > 0
    sampling = Sampling(temperature=0 if not drawn else 1 if arguments.group else arguments.temperature)
    draft = make_draft(ours, _ENOUGH) if batch <= MOST_TEXTS and not drawn and not arguments.no_draft else None
    packed = None if arguments.group else pack(ours, MOST_TEXTS if draft is not None else batch, _ENOUGH)

    def write(turn: int) -> list[list[int]]:
        model = packed or pack(ours, min(batch, 64), _ENOUGH)  # in training the weights are others in each step
        seeds = [turn * batch + row for row in range(batch)]
        steps = [*generate(model, prompts_BT.tolist(), ends, arguments.context, sampling, seeds, most, draft=draft)]
        return [[step[row] for step in steps if step[row] is not None] for row in range(batch)]

    def write_theirs(turn: int) -> list[list[int]]:
        choice = {"do_sample": True, "top_k": 0, "temperature": sampling.temperature} if drawn else {"do_sample": False}
        found = theirs.generate(prompts_BT, attention_mask=torch.ones_like(prompts_BT), max_new_tokens=most, eos_token_id=ends or None, pad_token_id=0,
                                **choice)
        return [[token for token in row if token or not ends] for row in found[:, arguments.prompt:].tolist()]

    return {"ours": write, "theirs": write_theirs}


def measure(arguments: argparse.Namespace, name: str, ways: Ways, batch: int, floor: float) -> None:
    """Measure in turns, and print the figures."""
    written, times = {}, {way: [] for way in ways}
    for turn in range(arguments.rounds + 1):
        for way, write in ways.items():
            start = time.perf_counter()
            written[way] = write(turn)
            if turn:  # the first is for warming up
                times[way].append((time.perf_counter() - start) * batch / sum(map(len, written[way])))
    step = {way: median(found) for way, found in times.items()}
    ratios = sorted(their / our for our, their in zip(times["ours"], times["theirs"], strict=True))
    equal = "" if arguments.sampled or arguments.group else f"; texts equal: {written['ours'] == written['theirs']}"
    print(f"{name}: ratio {step['theirs'] / step['ours']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); ours {1000 * step['ours']:.2f} ms a step, theirs "
          f"{1000 * step['theirs']:.2f}; the floor is {1000 * floor:.2f} ms, {100 * floor / step['ours']:.0f} % of ours and "
          f"{100 * floor / step['theirs']:.0f} % of theirs{equal}", flush=True)


def show_profiles(arguments: argparse.Namespace, ways: Ways) -> None:
    """Print the operators that take longest, with how often they are called in a step."""
    for way, write in ways.items():
        with profile() as found:
            texts = write(1)
        steps, total = max(map(len, texts)), sum(row.self_cpu_time_total for row in found.key_averages())
        rows = sorted(found.key_averages(), key=lambda row: -row.self_cpu_time_total)
        print(f"  {way}: {sum(row.count for row in rows) / steps:.0f} operators a step, {total / steps / 1000:.2f} ms in them")
        for row in rows[:12]:
            print(f"    {row.self_cpu_time_total / steps / 1000:7.3f} ms  {row.count / steps:6.1f} ×  {row.key}")


if __name__ == "__main__":
    main()
