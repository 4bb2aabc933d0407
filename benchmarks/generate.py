"""Writing texts: ours and transformers' `generate` with the same weights, greedily, measured in turns in one process.

    python benchmarks/generate.py [--batches 1 8] [--tokens 128] [--rounds 5]

The texts must be equal. The figure is the ratio of the medians of their times, with the spread of the ratio by rounds.
"""
from __future__ import annotations

import argparse
import time
from statistics import median

import torch
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
        packed = pack(ours, batch, 1 << 40)
        prompts = torch.randint(1, arguments.vocabulary, (batch, arguments.prompt))
        written: dict[str, list[list[int]]] = {}
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for turn in range(arguments.rounds + 1):
            for way in times:
                start = time.perf_counter()
                if way == "ours":
                    steps = [*generate(packed, prompts.tolist(), [-1], arguments.context, Sampling(temperature=0), list(range(batch)), arguments.tokens)]
                    written[way] = [[step[row] or 0 for step in steps] for row in range(batch)]
                else:
                    found = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=arguments.tokens, do_sample=False)
                    written[way] = found[:, arguments.prompt:].tolist()
                if turn:  # the first is for warming up
                    times[way].append(time.perf_counter() - start)
        ratios = sorted(their / our for our, their in zip(times["ours"], times["theirs"], strict=True))
        print(f"{batch} texts of {arguments.prompt} + {arguments.tokens} tokens: ours {batch * arguments.tokens / median(times['ours']):.1f} tokens/s, theirs "
              f"{batch * arguments.tokens / median(times['theirs']):.1f}; ratio {median(times['theirs']) / median(times['ours']):.2f} "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f}); texts equal: {written['ours'] == written['theirs']}", flush=True)


if __name__ == "__main__":
    main()
