"""A compiled model, compiled as few times as possible."""
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..modules.packed import Starts, define_operator, starts_of
from ..objectives.judge_chunk import JudgeChunk, judge_chunk
from .random_state import restore_torch_random_state, torch_random_state

# Graphs that torch compiles before it falls back to eager code: two for training and two for validation are needed in each stage that freezes others.
_MOST_GRAPHS = 256
# Positions of the example with which the loss is compiled: as many as a chunk of a small GPU has, so that each row is summed up by itself.
_LOSS_ROWS = 1024


class Compiled(nn.Module):
    """Runs the compiled code of a model: one graph for mini-batches of several pieces of any length, one for those of a single piece, one for packed pieces.

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
        self._loss_code = torch.compile(judge_chunk, **options)
        self._longest = longest
        self._widths = {True: min(longest, slots), False: min(longest, max(slots // 2, 2))}  # of the examples: a single piece; two
        self._plain_attention, self._tell, self._while_compiling = plain_attention, tell, while_compiling
        self._known: set[tuple[Any, ...]] = set()

    def forward(self, tokens_BT: Tensor, lengths: tuple[int, ...] | None = None) -> Tensor:
        """Run the model; `lengths` are those of packed pieces, see :mod:`lmplay.exp`."""
        packed, single = lengths is not None, len(tokens_BT) == 1
        if packed and tokens_BT.shape[1] == 1:  # torch would make another code for this size
            alone: Tensor = self._model(tokens_BT, lengths=lengths)
            return alone
        more = {} if lengths is None else {"lengths": self._starts_of(lengths, tokens_BT.device)}
        kind = (single, packed, torch.is_grad_enabled(), self._model.training, *(parameter.requires_grad for parameter in self._model.parameters()))
        with sdpa_kernel(SDPBackend.MATH) if self._plain_attention else nullcontext():
            if kind not in self._known:
                with self._while_compiling():
                    self._compile(single, packed, tokens_BT.device)
                self._known.add(kind)
            hidden_BTD: Tensor = self._code(tokens_BT, **more)
        self._note_graphs(f"a mini-batch of {tuple(tokens_BT.shape)}")
        return hidden_BTD

    def _starts_of(self, lengths: tuple[int, ...], device: torch.device) -> Starts:
        """Say where pieces begin, with an empty one behind them: torch would make another code for a single piece."""
        return starts_of((*lengths, 0), self._longest, device)

    @property
    def judge_chunk(self) -> JudgeChunk | None:
        """Compiled code of :func:`lmplay.objectives.judge_chunk.judge_chunk` on a GPU of NVIDIA; None elsewhere."""
        return self._judge_chunk if next(self._model.parameters()).device.type == "cuda" else None

    def _judge_chunk(self, logits_CP: Tensor, targets_C: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run that code."""
        if len(logits_CP) == 1:  # torch would make another code for this size
            return judge_chunk(logits_CP, targets_C, *arguments)
        kind = ("loss", logits_CP.shape[1], logits_CP.dtype, *arguments)
        if kind not in self._known:
            with self._while_compiling():
                self._compile_loss(logits_CP, targets_C, *arguments)
            self._known.add(kind)
        found = self._run_loss(logits_CP, targets_C, *arguments)
        self._note_graphs(f"the loss of {len(logits_CP)} positions")
        return found

    def _compile_loss(self, logits_CP: Tensor, targets_C: Tensor, *arguments: Any) -> None:
        """Compile the loss of a chunk, by running an example whose result is not used."""
        started = time.perf_counter()
        self._run_loss(logits_CP.new_zeros(_LOSS_ROWS, logits_CP.shape[1]), targets_C.new_zeros(_LOSS_ROWS), *arguments)
        self.graphs = _count_graphs()
        self._tell(f"compiled for the loss{'' if arguments[-1] else ' of validations'}: {time.perf_counter() - started:.0f} s")

    def _run_loss(self, logits_CP: Tensor, targets_C: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run the code for the loss, which is one for any number of positions."""
        for tensor in (logits_CP, targets_C):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        found: tuple[Tensor, Tensor, Tensor | None] = self._loss_code(logits_CP, targets_C, *arguments)
        return found

    def _note_graphs(self, what: str) -> None:
        """Warn where code that was known has been compiled again; `what` for."""
        if (graphs := _count_graphs()) > self.graphs:
            self.graphs, self.made_again = graphs, self.made_again + 1
            self._tell(f"WARNING: compiled again, for {what}; this takes time and should not happen")

    def _compile(self, single: bool, packed: bool, device: torch.device) -> None:
        """Compile forward and backward pass for a kind of mini-batch, by running an example whose results are not used."""
        started, purpose = time.perf_counter(), "training" if torch.is_grad_enabled() else "validation"
        width = max(self._widths[single], 2) if packed else self._widths[single]
        tokens_BT = torch.zeros(1 if single else 2, width, dtype=torch.int64, device=device)
        more = {}
        if packed:
            define_operator()
            more = {"lengths": self._starts_of((width // 2, width - width // 2), device)}
        random_before = torch_random_state()
        hidden_BTD = self._code(tokens_BT, **more)
        learned = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        if hidden_BTD.requires_grad:
            torch.autograd.grad(hidden_BTD.sum(), learned, allow_unused=True)  # not backward(): it would add to the gradients of the batch
        restore_torch_random_state(random_before)
        self.graphs = _count_graphs()
        kind = ", packed pieces" if packed else ", single pieces" if single else ""
        self._tell(f"compiled for {purpose}{kind}: {time.perf_counter() - started:.0f} s")


def _count_graphs() -> int:
    """Return how many graphs torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
