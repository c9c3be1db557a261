"""Symmetric InfoNCE over in-batch negatives, from embeddings alone. Importing it imports no torch.

Legend of shape suffixes: B pairs of a batch, D dimensions of a vector.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Negatives = Callable[[Sequence[str], Sequence[Collection[str]]], "np.ndarray | None"]
"""``(tools, golds)`` of a batch to a (B, B) boolean array, or None for all: may tool j be anchor i's negative?

``tools[j]`` is the id of pair j's tool; ``golds[i]`` the ids of all tools known to be right for pair i's anchor.
"""


def all_in_batch(tools: Sequence[str], golds: Sequence[Collection[str]]) -> np.ndarray | None:
    """Every other pair of the batch is a negative (paper)."""
    return None


def gold_aware(tools: Sequence[str], golds: Sequence[Collection[str]]) -> np.ndarray | None:
    """No false negatives: a tool that is right for an anchor is never its negative.

    It goes by tool id and not by text: two renderings of one tool are the same tool, and so are two golds of a query.
    """
    return np.array([[tool not in gold for tool in tools] for gold in golds], dtype=bool)


NEGATIVES: Mapping[str, Negatives] = {"all": all_in_batch, "gold_aware": gold_aware}


def infonce(
    anchors_BD: "Tensor", positives_BD: "Tensor", temperature: float, negatives_BB: "Tensor | None" = None
) -> "Tensor":
    """Symmetric InfoNCE: the mean cross-entropy of finding each anchor's positive, and each positive's anchor.

    With s_ij = a_i · p_j / τ and N_i the negatives of i,

        L = 1/2B Σ_i [ −log exp(s_ii) / (exp(s_ii) + Σ_{j ∈ N_i} exp(s_ij))
                       −log exp(s_ii) / (exp(s_ii) + Σ_{j : i ∈ N_j} exp(s_ji)) ]

    which with all in-batch negatives is what sentence-transformers calls MultipleNegativesSymmetricRankingLoss with
    scale 1/τ. Source: van den Oord et al. 2018, "Representation Learning with Contrastive Predictive Coding", eq. 4,
    in both directions.

    Args:
        anchors_BD: (B, D) unit rows, float32 (a narrower type loses digits at τ = 0.05).
        positives_BD: (B, D) unit rows; row i belongs to anchor i.
        temperature: τ > 0.
        negatives_BB: (B, B) boolean, [i, j] true where positive j is a negative of anchor i (and so anchor i one of
            positive j); the diagonal is ignored. None: all.

    Returns:
        A scalar in nats, at least 0.
    """
    scores_BB = anchors_BD @ positives_BD.T / temperature
    if negatives_BB is not None:
        scores_BB = scores_BB.masked_fill(~negatives_BB.clone().fill_diagonal_(True), float("-inf"))
    to_positive_B = scores_BB.log_softmax(dim=1).diagonal()
    to_anchor_B = scores_BB.log_softmax(dim=0).diagonal()
    return -(to_positive_B.mean() + to_anchor_B.mean()) / 2
