"""A softmax over some tokens of a large vocabulary, for training.  Math floor.

Shapes: N positions, V vocabulary, D width, S candidates.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..data.collate import to_device
from ..modules.heads import LinearTerms

# The number of candidates beyond those asked for is a multiple of this.
_MULTIPLE = 256


def choose_candidates(terms: LinearTerms, targets_N: Tensor) -> tuple[LinearTerms, Tensor, Tensor]:
    """Choose the tokens that a softmax of training is over, so that the sum over the whole vocabulary is estimated without bias.

    These are the first half of `terms.candidates` ids, which are the frequent tokens where ids are in the order of frequency (as those of byte-pair encodings
    nearly are), as many others at random, each standing for all of its kind (Horvitz and Thompson 1952, "A generalization of sampling without replacement from
    a finite universe"), and the targets. A target always counts once for its own position; one that is not drawn counts for no other position.

    They are chosen on the CPU: how many targets are not drawn decides a shape, and a device would have to be waited for.

    :param terms: how the head computes logits; more candidates than V are an error.
    :param targets_N: token ids, int64, on the CPU.
    :return: the same for the candidates alone, the targets as numbers of candidates (N,), and the ids of the candidates (S,); on the device of the weight.
    """
    weight_VD = terms.weight_VD
    size, first = len(weight_VD), terms.candidates // 2
    drawn = first + torch.randperm(size - first)[:terms.candidates - first].sort().values
    ids = torch.cat([torch.arange(first), drawn])
    place_V = torch.full((size,), -1)
    place_V[ids] = torch.arange(len(ids))
    own = targets_N[place_V[targets_N] < 0].unique()
    place_V[own] = torch.arange(len(ids), len(ids) + len(own))
    own = nn.functional.pad(own, (0, -len(own) % _MULTIPLE))  # of few sizes, for the products; an id too many counts for no position
    log_weights = torch.zeros(len(ids) + len(own))
    log_weights[first:len(ids)] = math.log((size - first) / max(len(drawn), 1))
    log_weights[len(ids):] = -math.inf
    places_N, ids, log_weights = (to_device(chosen, weight_VD.device) for chosen in (place_V[targets_N], torch.cat([ids, own]), log_weights))
    return terms._replace(weight_VD=weight_VD.index_select(0, ids), log_weights=log_weights), places_N, ids
