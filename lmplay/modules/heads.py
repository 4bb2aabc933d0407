"""Heads: hidden states to logits.  Shapes: D width, V vocabulary."""
from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ..errors import UserError
from .norms import RMSNorm


def head_parameters(model: nn.Module) -> set[int]:
    """Give the ids of the parameters of a model's head, if it has one; its weight may be a parameter of another module."""
    head = getattr(model, "head", None)
    return {id(parameter) for parameter in [*head.parameters(), getattr(head, "weight", None)]} if head is not None else set()


class LinearTerms(NamedTuple):
    """What an objective needs to know of a head to compute its cross-entropy a chunk at a time."""

    weight_VD: Tensor
    soft_cap: float = 0.0
    """Logits are soft_cap * tanh(hidden @ weight / soft_cap); 0 = they are hidden @ weight (Gemma Team 2024, "Gemma 2")."""
    z_loss: float = 0.0
    """In training, this times the square of the log of the sum of exp(logits) is minimised too (Chowdhery et al. 2022, "PaLM")."""
    candidates: int = 0
    """In training, the softmax is over this many tokens of a larger vocabulary, see :func:`lmplay.objectives.candidates.choose_candidates`; 0 = over all."""
    log_weights: Tensor | None = None
    """What is added to the logits (V,) but for that of a position's target."""


class LinearHead(nn.Linear):
    """A linear head without bias, with a soft cap on logits, a z-loss, and predictions of later tokens as further tasks in training.

    It speaks with objectives by two names, which any other head may have, too. ``linear_terms()`` says how its ``forward`` computes logits; such a head is
    judged as fast as a plain ``nn.Linear``. ``ahead`` are modules: number i turns a hidden state into one from which the head predicts the token that is i + 1
    after the next; their losses are added in training, times ``ahead_weight``.
    """

    def __init__(self, embed_dim: int, vocab_size: int, soft_cap: float = 0.0, z_loss: float = 0.0, ahead: int = 0, ahead_weight: float = 0.3,
                 candidates: int = 0):
        """
        :param soft_cap: see :class:`LinearTerms`.
        :param z_loss: see :class:`LinearTerms`.
        :param ahead: later tokens that are predicted in training (Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction").
        :param ahead_weight: of the loss of each of them; 0.3 is that of DeepSeek-V3 (2024).
        :param candidates: see :class:`LinearTerms`.
        :raises UserError: when one of them is negative.
        """
        settings = {"soft_cap": soft_cap, "z_loss": z_loss, "multi_token": ahead, "multi_token_weight": ahead_weight, "sampled_tokens": candidates}
        if faults := [f"{name} {value:g}: must be 0 (off) or more." for name, value in settings.items() if not value >= 0]:
            raise UserError(*faults)
        super().__init__(embed_dim, vocab_size, bias=False)
        self.soft_cap, self.z_loss, self.ahead_weight = soft_cap, z_loss, ahead_weight
        self.candidates = candidates if candidates < vocab_size else 0
        self.ahead = nn.ModuleList(_Ahead(embed_dim) for _ in range(ahead))

    def forward(self, hidden: Tensor) -> Tensor:
        """Give the logits (…, V) of hidden states (…, D)."""
        if not self.soft_cap:
            return super().forward(hidden)
        return self.soft_cap * super().forward(hidden / self.soft_cap).tanh()

    def linear_terms(self) -> LinearTerms:
        """Tell how the logits are computed."""
        return LinearTerms(self.weight, self.soft_cap, self.z_loss, self.candidates)

    def extra_repr(self) -> str:
        """See torch."""
        return f"{super().extra_repr()}, soft_cap={self.soft_cap:g}, z_loss={self.z_loss:g}"


class _Ahead(nn.Module):
    """A linear layer beside the hidden states, and a norm; the layer is 0 at first."""

    def __init__(self, embed_dim: int):
        super().__init__()
        self.projection = nn.Linear(embed_dim, embed_dim, bias=False)
        nn.init.zeros_(self.projection.weight)
        self.norm = RMSNorm(embed_dim, 1e-5)

    def forward(self, hidden: Tensor) -> Tensor:
        changed: Tensor = self.norm(hidden + self.projection(hidden))
        return changed
