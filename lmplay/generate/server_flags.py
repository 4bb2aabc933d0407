"""The flags of `lmp_generator --serve`."""
from __future__ import annotations

import argparse

from ..web.address import add_flags

PORT = 8000
# The least and the largest repetition penalty, for flags and requests alike.
PENALTIES = (0.01, 100)
# The limits of a server: what is the default, the least, and what it is.
_LIMITS: dict[str, tuple[int, int, str, str]] = {
    "limit_tokens": (4096, 1, "TOKENS", "largest number of tokens of a text that a request may ask for"),
    "limit_seconds": (300, 1, "SECONDS", "longest time of a request: if it still waits it is refused, texts that are being written end there"),
    "limit_queue": (64, 0, "TEXTS", "largest number of texts that wait while --batch-size others are being written; more are refused"),
    "limit_body": (1_048_576, 1, "BYTES", "largest size of a request"),
    "grace": (10, 0, "SECONDS", "time in which texts may finish after Ctrl+C or SIGTERM")}


def add_server_flags(parser: argparse.ArgumentParser) -> set[str]:
    """Describe the flags; gives the destinations of those that are rarely needed."""
    group = parser.add_argument_group("a server with OpenAI's API, with a page to try the models",
                                      "The flags above are the defaults of requests.")
    add_flags(group, PORT, "serve the model, or several")
    for name, (default, _, unit, text) in _LIMITS.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar=unit, type=int, help=f"{text} (default: {default})")
    return set(_LIMITS)


def server_ranges(options: argparse.Namespace) -> dict[str, tuple[int, None]]:
    """Give the least value of each limit that was typed."""
    return {name: (least, None) for name, (_, least, _, _) in _LIMITS.items() if getattr(options, name) is not None}


def server_faults(options: argparse.Namespace) -> list[str]:
    """List what goes without `--serve` only, or with it only."""
    if options.serve is None:
        faults = [f"--{name.replace('_', '-')}: only with --serve." for name in ("token", *_LIMITS) if getattr(options, name) is not None]
        return [*faults, *(["--model: several models are for --serve; give one."] if len(options.model or ()) > 1 else [])]
    return [f"--serve with {flag}: it is not possible; {hint}." for flag, is_given, hint in
            (("--title", options.title is not None, "leave it out"), ("--json", options.json, "leave it out"),
             ("--samples", options.samples > 1, "requests have `n`"), ("--seed", options.seed is not None, "requests have `seed`")) if is_given]


def limits_of(options: argparse.Namespace) -> dict[str, int]:
    """Give the limits by name."""
    return {name: default if getattr(options, name) is None else getattr(options, name) for name, (default, *_) in _LIMITS.items()}
