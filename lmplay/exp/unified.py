"""GPT-2 whose token embeddings are predicted by a network while it is trained, see :class:`lmplay.modules.embeddings.UnifiedEmbedding`."""
from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import UserError
from ..modules.embeddings import UnifiedEmbedding
from .gpt2ish import GPT2ish


class Unified(GPT2ish):
    """:class:`GPT2ish` with unified embeddings; for use it is a plain :class:`GPT2ish`, see :meth:`folded`."""

    def __init__(self, vocab_size: int, context_len: int, num_blocks: int, embed_dim: int, num_heads: int, dropout: float = 0.1, tied_head: bool = False,
                 front_factor: float = 8.0):
        """See :class:`GPT2ish`.

        :param tied_head: cannot be: there is no table to share.
        :param front_factor: width of the front table / `embed_dim`.
        :raises UserError: for a tied head, and as :class:`GPT2ish`.
        """
        if tied_head:
            raise UserError("unified: the head cannot share the embeddings, which are predicted; leave --tied-head out.")
        super().__init__(vocab_size, context_len, num_blocks, embed_dim, num_heads, dropout, tied_head=False)
        self.token_embedding: UnifiedEmbedding = UnifiedEmbedding(vocab_size, embed_dim, front_factor)
        self._settings = {"vocab_size": vocab_size, "context_len": context_len, "num_blocks": num_blocks, "embed_dim": embed_dim, "num_heads": num_heads,
                          "dropout": dropout, "tied_head": False}

    def folded(self) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
        """Give the experiment, the settings and the weights of the model that computes the same with a plain table of embeddings."""
        weights = {name: weight for name, weight in self.state_dict().items() if not name.startswith("token_embedding.")}
        return "gpt2ish", self._settings, {**weights, "token_embedding.weight": self.token_embedding.table()}
