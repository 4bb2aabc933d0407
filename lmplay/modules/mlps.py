"""Layers that work on each position alone.  Shapes: B pieces, T positions, D embedding width, F hidden width."""
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its approximation by tanh, as in GPT-2."""
    return functional.gelu(x, approximate="tanh")


def gelu(x: Tensor) -> Tensor:
    """GELU as it is defined (Hendrycks and Gimpel 2016)."""
    return functional.gelu(x)


def squared_relu(x: Tensor) -> Tensor:
    """So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling"."""
    return functional.relu(x).square()


class Mlp(nn.Module):
    """Two linear layers with an activation between them, and dropout of outputs."""

    def __init__(self, embed_dim: int, dropout: float = 0.0, *, hidden_dim: int | None = None, bias: bool = True,
                 activation: Callable[[Tensor], Tensor] = gelu_tanh):
        """
        :param hidden_dim: F; None = 4 D.
        :param bias: of both layers.
        """
        super().__init__()
        hidden_dim = hidden_dim or 4 * embed_dim
        self.expansion = nn.Linear(embed_dim, hidden_dim, bias)
        self.projection = nn.Linear(hidden_dim, embed_dim, bias)
        self.residual_dropout = nn.Dropout(dropout)
        self.activation = activation

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Compute the addition to the residual stream: (B, T, D) -> (B, T, D)."""
        return self.residual_dropout(self.projection(self.activation(self.expansion(hidden_BTD))))

    def extra_repr(self) -> str:
        """See torch."""
        return f"activation={self.activation.__name__}"


class GatedMlp(nn.Module):
    """SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer"): silu(gate) * up, of one linear layer, then another."""

    def __init__(self, embed_dim: int, dropout: float = 0.0, *, hidden_dim: int | None = None, bias: bool = False):
        """
        :param hidden_dim: F; None = :func:`gated_width`.
        :param bias: of both layers.
        """
        super().__init__()
        hidden_dim = hidden_dim or gated_width(embed_dim)
        self.expansion = nn.Linear(embed_dim, 2 * hidden_dim, bias)  # gate, then up
        self.projection = nn.Linear(hidden_dim, embed_dim, bias)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Compute the addition to the residual stream: (B, T, D) -> (B, T, D)."""
        gate, up = self.expansion(hidden_BTD).chunk(2, -1)
        return self.residual_dropout(self.projection(functional.silu(gate) * up))


def gated_width(embed_dim: int) -> int:
    """Give the F at which a gated MLP has about the weights of a plain one of 4 D: 8/3 D, rounded up to a multiple of 32."""
    return -(-8 * embed_dim // 96) * 32
