"""Checks of the sizes of a model, with what to choose instead.  No torch."""
from __future__ import annotations

from ..errors import UserError


def check_sizes(vocab_size: int, context_len: int, num_blocks: int, embed_dim: int, num_heads: int, dropout: float = 0.0, **own: int | None) -> None:
    """Raise a UserError where a size is not a positive number, or `dropout` is no share; `own` are further sizes, None = not given."""
    sizes = {"vocab-size": vocab_size, "context-len": context_len, "num-blocks": num_blocks, "embed-dim": embed_dim, "num-heads": num_heads}
    named = {**{f"--{name}": size for name, size in sizes.items()}, **own}
    if faults := [f"{name} {size}: must be at least 1." for name, size in named.items() if size is not None and size < 1]:
        raise UserError(*faults)
    if not 0 <= dropout < 1:
        raise UserError(f"dropout {dropout}: must be a share from 0 (none) to less than 1.")


def check_heads(embed_dim: int, num_heads: int) -> None:
    """Raise a UserError where the number of heads does not divide the width, with the nearest values of both that fit."""
    if embed_dim % num_heads == 0:
        return
    below = embed_dim // num_heads * num_heads
    widths = " or ".join(str(width) for width in (below, below + num_heads) if width)
    raise UserError(f"--embed-dim {embed_dim}, --num-heads {num_heads}: the width must be a multiple of the number of heads; "
                    f"choose --embed-dim {widths}, or --num-heads {_nearest_divisors(embed_dim, num_heads)}.")


def check_kv_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise a UserError where the heads of keys and values do not divide those of queries, with the nearest numbers that do."""
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise UserError(f"num_kv_heads {num_kv_heads}, --num-heads {num_heads}: the heads of keys and values must divide those of queries; "
                        f"choose num_kv_heads {_nearest_divisors(num_heads, num_kv_heads)}.")


def _nearest_divisors(whole: int, wanted: int) -> str:
    divisors = [number for number in range(1, whole + 1) if whole % number == 0]
    nearest = [number for number in divisors if number < wanted][-1:] + [number for number in divisors if number > wanted][:1]
    return " or ".join(map(str, nearest))
