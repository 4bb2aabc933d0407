"""A compiled model: when its code is made, and that it is made no more often than that.  Engine floor: imports torch only."""
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Graphs that torch keeps of a function before it gives up and runs it as it is: two for training, two for validation, in each stage that freezes others.
_MOST_GRAPHS = 256


class Compiled(nn.Module):
    """Runs the compiled code of a model: one for mini-batches of any number of pieces of any length, and one for those of a single piece.

    Each is made when it is first needed, from an example of a fixed size and not from the mini-batch at hand: what the compiler chooses by the size, and with
    it the last bits of a result, must not depend on where a run was stopped.
    """

    def __init__(self, model: nn.Module, places: int, longest: int, plain_attention: bool, tell: Callable[[str], None],
                 while_compiling: Callable[[], AbstractContextManager[None]] = nullcontext, **options: Any):
        """
        :param model: token ids (B, T) -> hidden states (B, T, D).
        :param places: the most tokens in a mini-batch.
        :param longest: the longest piece, in tokens.
        :param plain_attention: attention by matrix products and a softmax instead of torch's fused kernel.
        :param tell: is told what was made, and how long it took.
        :param while_compiling: what goes around the making of code.
        :param options: of :func:`torch.compile`.
        """
        super().__init__()
        import torch._dynamo.config
        import torch.fx.experimental._config

        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _MOST_GRAPHS
        torch.fx.experimental._config.use_duck_shape = False  # 64 pieces of 64 tokens are no rule
        self.graphs = self.made_again = 0
        self._model, self._code = model, torch.compile(model, dynamic=True, **options)
        self._widths = {True: min(longest, places), False: min(longest, max(places // 2, 2))}  # of a single piece; of two
        self._plain_attention, self._tell, self._while_compiling = plain_attention, tell, while_compiling
        self._known: set[tuple[Any, ...]] = set()

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Run the model."""
        single = len(tokens_BT) == 1
        kind = (single, torch.is_grad_enabled(), self._model.training, *(parameter.requires_grad for parameter in self._model.parameters()))
        with sdpa_kernel(SDPBackend.MATH) if self._plain_attention else nullcontext():
            if kind not in self._known:
                with self._while_compiling():
                    self._make(single, tokens_BT.device)
                self._known.add(kind)
            hidden_BTD: Tensor = self._code(tokens_BT)
        if (graphs := _count_graphs()) > self.graphs:
            self.graphs, self.made_again = graphs, self.made_again + 1
            self._tell(f"WARNING: compiled again, for a mini-batch of {tuple(tokens_BT.shape)}; this costs time and should not be")
        return hidden_BTD

    def _make(self, single: bool, device: torch.device) -> None:
        """Let the code for a kind of mini-batch be made, forward and backward, by one whose results nobody needs."""
        started, purpose = time.perf_counter(), "training" if torch.is_grad_enabled() else "validation"
        tokens_BT = torch.zeros(1 if single else 2, self._widths[single], dtype=torch.int64, device=device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            hidden_BTD = self._code(tokens_BT)
            learned = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            if hidden_BTD.requires_grad:
                torch.autograd.grad(hidden_BTD.sum(), learned, allow_unused=True)  # not backward(): gradients of the batch may already be there
        self.graphs = _count_graphs()
        self._tell(f"compiled for {purpose}{', single pieces' if single else ''}: {time.perf_counter() - started:.0f} s")


def _count_graphs() -> int:
    """Count what torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
