"""Writing texts: ours and transformers' `generate` with the same weights, measured in turns in one process.

    python benchmarks/generate.py [--batches 1 8] [--tokens 128] [--rounds 5] [--group 8]

Without `--group` the most probable tokens are written, and the texts must be equal. With it each prompt is answered this many times, as in training with
rewards: tokens are drawn, and a text ends at one of some tokens, on average after half of `--tokens`. The figure is the ratio of the medians of the times for a
token, with the spread of the ratio by rounds.
"""
from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from lmplay.exp import build_model, get_experiment
from lmplay.exp.llamaish import from_transformers, settings_of
from lmplay.writing.generation import generate
from lmplay.writing.packed import pack
from lmplay.writing.sampling import Sampling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--group", type=int, default=0, help="answers to each prompt")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=arguments.vocabulary, hidden_size=arguments.width, intermediate_size=4 * arguments.width,
                         num_hidden_layers=arguments.blocks, num_attention_heads=arguments.width // 64, max_position_embeddings=arguments.context,
                         eos_token_id=None, bos_token_id=None, pad_token_id=0, initializer_range=0.1)
    theirs = LlamaForCausalLM(config).eval()
    ours = build_model(get_experiment("llamaish"), **settings_of(config))
    ours.load_state_dict(from_transformers(theirs.state_dict(), ours))
    print(f"{sum(parameter.numel() for parameter in theirs.parameters()) / 1e6:.0f} M parameters, {torch.get_num_threads()} threads")
    for batch in arguments.batches:
        measure(arguments, ours, theirs, batch)


def measure(arguments: argparse.Namespace, ours: nn.Module, theirs: LlamaForCausalLM, batch: int) -> None:
    """Measure a batch of texts in turns, and print the figures."""
    group, most = arguments.group or 1, arguments.tokens
    ends = range(1, 1 + 2 * arguments.vocabulary // most) if arguments.group else [-1]
    prompts = torch.randint(1, arguments.vocabulary, (batch // group, arguments.prompt)).repeat_interleave(group, 0)
    sampling = Sampling(temperature=1 if arguments.group else 0)
    written: dict[str, list[list[int]]] = {}
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(arguments.rounds + 1):
        for way in times:
            start = time.perf_counter()
            if way == "ours":
                packed = pack(ours, min(batch, 64), 1 << 40)  # the weights are others in each step
                steps = [*generate(packed, prompts.tolist(), ends, arguments.context, sampling, [turn * batch + row for row in range(batch)], most)]
                written[way] = [[step[row] for step in steps if step[row] is not None] for row in range(batch)]
            else:
                found = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=most, do_sample=bool(arguments.group), top_k=0,
                                        eos_token_id=[*ends] if arguments.group else None)
                written[way] = [[token for token in row if token or not arguments.group] for row in found[:, arguments.prompt:].tolist()]
            if turn:  # the first is for warming up
                times[way].append((time.perf_counter() - start) / sum(map(len, written[way])))
    ratios = sorted(their / our for our, their in zip(times["ours"], times["theirs"], strict=True))
    print(f"{batch} texts of {arguments.prompt} + {most} tokens: ours {1 / median(times['ours']):.1f} tokens/s, theirs "
          f"{1 / median(times['theirs']):.1f}; ratio {median(times['theirs']) / median(times['ours']):.2f} "
          f"({ratios[0]:.2f} to {ratios[-1]:.2f})" + ("" if arguments.group else f"; texts equal: {written['ours'] == written['theirs']}"))


if __name__ == "__main__":
    main()
