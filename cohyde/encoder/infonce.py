"""Symmetric InfoNCE over in-batch negatives, from embeddings alone. Importing it imports no torch.

Legend of shape suffixes: B pairs of a batch, D dimensions of a vector.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Negatives = Callable[[Sequence[str], Sequence[str], Sequence[Collection[str]]], "np.ndarray | None"]
"""``(tools, texts, right)`` of a batch to a (B, B) boolean array, or None for all: is tool j a negative of anchor i?

``tools[j]`` is the id of pair j's tool and ``texts[j]`` its rendering in this batch; ``right[i]`` the ids of all tools
that are known to fulfil anchor i.
"""


def all_in_batch(tools: Sequence[str], texts: Sequence[str], right: Sequence[Collection[str]]) -> "np.ndarray | None":
    """Every other pair of the batch is a negative (paper)."""
    return None


def gold_aware(tools: Sequence[str], texts: Sequence[str], right: Sequence[Collection[str]]) -> np.ndarray:
    """No false negatives: what is right for an anchor is never its negative, nor is what reads the same.

    It goes by tool id: another rendering of the same tool is right, and so is another gold of the same query. Two
    tools that this batch renders alike (the endpoints of one provider, where φ is the title alone) cannot be told
    apart: where one is right for an anchor, the other is no negative of it either. Source: ToolEX's warning that
    positives which nobody labelled poison in-batch negatives.
    """
    texts_of: dict[str, set[str]] = {}
    for tool, text in zip(tools, texts, strict=True):
        texts_of.setdefault(tool, set()).add(text)
    right_texts = [{text for tool in ids if tool in texts_of for text in texts_of[tool]} for ids in right]
    return np.array(
        [
            [tool not in ids and text not in alike for tool, text in zip(tools, texts, strict=True)]
            for ids, alike in zip(right, right_texts, strict=True)
        ],
        dtype=bool,
    )


NEGATIVES: Mapping[str, Negatives] = {"all": all_in_batch, "gold_aware": gold_aware}


def infonce(
    anchors_BD: "Tensor",
    positives_BD: "Tensor",
    temperature: float,
    negatives_BB: "Tensor | None" = None,
    hard_HD: "Tensor | None" = None,
    hard_BH: "Tensor | None" = None,
) -> "Tensor":
    """Symmetric InfoNCE: the mean cross-entropy of finding each anchor's positive, and each positive's anchor.

    With s_ij = a_i · p_j / τ, N_i the negatives of i, and h_k the hard negatives that count for i (H_i),

        L = 1/2B Σ_i [ −log exp(s_ii) / (exp(s_ii) + Σ_{j ∈ N_i} exp(s_ij) + Σ_{k ∈ H_i} exp(a_i · h_k / τ))
                       −log exp(s_ii) / (exp(s_ii) + Σ_{j : i ∈ N_j} exp(s_ji)) ]

    which with all in-batch negatives and no hard ones is what sentence-transformers calls
    MultipleNegativesSymmetricRankingLoss with scale 1/τ. A hard negative has no anchor, so it stands in the direction
    from anchors to tools alone. Source: van den Oord et al. 2018, "Representation Learning with Contrastive Predictive
    Coding", eq. 4, in both directions.

    Args:
        anchors_BD: (B, D) unit rows, float32 (a narrower type loses digits at τ = 0.05).
        positives_BD: (B, D) unit rows; row i belongs to anchor i.
        temperature: τ > 0.
        negatives_BB: (B, B) boolean, [i, j] true where positive j is a negative of anchor i (and so anchor i one of
            positive j); the diagonal is ignored. None: all.
        hard_HD: (H, D) unit rows, further tools that are nobody's positive here. None: none.
        hard_BH: (B, H) boolean, [i, k] true where hard negative k counts for anchor i.

    Returns:
        A scalar in nats, at least 0.
    """
    from torch import cat

    scores_BB = anchors_BD @ positives_BD.T / temperature
    if negatives_BB is not None:
        scores_BB = scores_BB.masked_fill(~negatives_BB.clone().fill_diagonal_(True), float("-inf"))
    to_anchor_B = scores_BB.log_softmax(dim=0).diagonal()
    scores_BT = scores_BB  # T tools: the positives, then the hard negatives
    if hard_HD is not None and hard_BH is not None:
        hard_scores_BH = (anchors_BD @ hard_HD.T / temperature).masked_fill(~hard_BH, float("-inf"))
        scores_BT = cat((scores_BB, hard_scores_BH), dim=1)
    to_positive_B = scores_BT.log_softmax(dim=1).diagonal()
    return -(to_positive_B.mean() + to_anchor_B.mean()) / 2


def matryoshka(loss: "Callable[[Tensor], Tensor]", vectors_ND: "Tensor", dimensions: Sequence[int]) -> "Tensor":
    """The sum of a loss over vectors that are cut to each of ``dimensions``, in nats.

    So the first numbers of a vector serve as a vector of their own. Source: Kusupati et al. 2022, "Matryoshka
    Representation Learning", eq. 1 with all weights 1; as sentence-transformers' MatryoshkaLoss.
    """
    losses = [loss(shortened(vectors_ND, dimension)) for dimension in dimensions]
    return sum(losses[1:], losses[0])


def shortened(vectors_ND: "Tensor", dimension: int) -> "Tensor":
    """The first so many numbers of each vector, (N, dimension), brought back to length 1."""
    from torch.nn.functional import normalize

    return normalize(vectors_ND[:, :dimension])
