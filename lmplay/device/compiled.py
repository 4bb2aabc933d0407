"""A compiled model, compiled as few times as possible.  Imports torch only."""
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .random_state import restore_torch_random_state, torch_random_state

# Graphs that torch compiles before it falls back to eager code: two for training and two for validation are needed in each stage that freezes others.
_MOST_GRAPHS = 256


class Compiled(nn.Module):
    """Runs the compiled code of a model: one graph for mini-batches of several pieces of any length, and one for those of a single piece.

    Each is compiled when it is first needed, with an example of a fixed size and not with the current mini-batch: the compiler's choices depend on the size,
    and with them the last bits of a result, which must not depend on where a run was stopped.
    """

    def __init__(self, model: nn.Module, slots: int, longest: int, plain_attention: bool, tell: Callable[[str], None],
                 while_compiling: Callable[[], AbstractContextManager[Any]] = nullcontext, **options: Any):
        """
        :param model: token ids (B, T) -> hidden states (B, T, D).
        :param slots: the most tokens in a mini-batch, padding included.
        :param longest: the longest piece, in tokens.
        :param plain_attention: attention by matrix products and a softmax instead of torch's fused kernel.
        :param tell: called with a line when code has been compiled: what for, and the seconds.
        :param while_compiling: makes a context manager around each compilation.
        :param options: of :func:`torch.compile`.
        """
        super().__init__()
        import torch._dynamo.config
        import torch.fx.experimental._config

        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _MOST_GRAPHS
        torch.fx.experimental._config.use_duck_shape = False  # with 64 pieces of 64 tokens it would expect both sizes to be equal always
        self.graphs = self.made_again = 0
        self._model, self._code = model, torch.compile(model, dynamic=True, **options)
        self._widths = {True: min(longest, slots), False: min(longest, max(slots // 2, 2))}  # of the examples: a single piece; two
        self._plain_attention, self._tell, self._while_compiling = plain_attention, tell, while_compiling
        self._known: set[tuple[Any, ...]] = set()

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Run the model."""
        single = len(tokens_BT) == 1
        kind = (single, torch.is_grad_enabled(), self._model.training, *(parameter.requires_grad for parameter in self._model.parameters()))
        with sdpa_kernel(SDPBackend.MATH) if self._plain_attention else nullcontext():
            if kind not in self._known:
                with self._while_compiling():
                    self._compile(single, tokens_BT.device)
                self._known.add(kind)
            hidden_BTD: Tensor = self._code(tokens_BT)
        if (graphs := _count_graphs()) > self.graphs:
            self.graphs, self.made_again = graphs, self.made_again + 1
            self._tell(f"WARNING: compiled again, for a mini-batch of {tuple(tokens_BT.shape)}; this takes time and should not happen")
        return hidden_BTD

    def _compile(self, single: bool, device: torch.device) -> None:
        """Compile forward and backward pass for a kind of mini-batch, by running an example whose results are not used."""
        started, purpose = time.perf_counter(), "training" if torch.is_grad_enabled() else "validation"
        tokens_BT = torch.zeros(1 if single else 2, self._widths[single], dtype=torch.int64, device=device)
        random_before = torch_random_state()
        hidden_BTD = self._code(tokens_BT)
        learned = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        if hidden_BTD.requires_grad:
            torch.autograd.grad(hidden_BTD.sum(), learned, allow_unused=True)  # not backward(): it would add to the gradients of the batch
        restore_torch_random_state(random_before)
        self.graphs = _count_graphs()
        self._tell(f"compiled for {purpose}{', single pieces' if single else ''}: {time.perf_counter() - started:.0f} s")


def _count_graphs() -> int:
    """Return how many graphs torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
