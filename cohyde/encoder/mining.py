"""Hard negatives: tools that the encoder ranks high for an anchor and that are not right for it."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from cohyde.catalog import Tool, render
from cohyde.config import MiningConfig
from cohyde.encoder.embedder import Embedder
from cohyde.encoder.search import rank
from cohyde.progress import Progress

Ranking = Sequence[tuple[str, float]]
AT_ONCE = 4096
"""Anchors that are searched together, between two lines of progress."""


def hard_negatives(
    ranked: Ranking, right: Collection[str], positive_score: float, per_anchor: int, max_score_share: float
) -> list[tuple[str, float]]:
    """The first of a ranking that are not right, and not so close to the positive that they may be right unlabelled.

    Args:
        ranked: tool ids with their inner products, best first.
        right: ids that fulfil the anchor: golds, and tools that read as one of them does.
        positive_score: inner product of the anchor and its best gold.
        per_anchor: k, how many to keep at most.
        max_score_share: what scores above this share of the positive is left out (NV-Retriever, de Souza P. Moreira
            et al. 2024, section 3: "TopK-PercPos").

    Returns:
        At most k of ``ranked``; none where the positive itself scores 0 or less.
    """
    highest = max_score_share * positive_score
    left = [(tool, score) for tool, score in ranked if tool not in right and score <= highest]
    return left[:per_anchor] if positive_score > 0 else []


def mine(
    embedder: Embedder,
    right: Mapping[str, Collection[str]],
    tools: Sequence[Tool],
    index_form: int,
    mining: MiningConfig,
    progress: Progress,
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Each anchor with its hard negatives and their inner products, in the order of ``right``.

    Args:
        embedder: the encoder.
        right: for each anchor the ids that fulfil it, all of them in the catalogue.
        tools: the catalogue, in its order; searched in the rendering φ that ``index_form`` says.
        index_form: 1 to 5.
        mining: depth, k and the highest share of the positive's score.
        progress: told of the anchors that are searched.
    """
    from cohyde.encoder.index import ExactIndex

    ids = [tool.id for tool in tools]
    place_of = {tool_id: place for place, tool_id in enumerate(ids)}
    catalogue_TD = embedder.embed([render(tool, index_form) for tool in tools], "document")
    index, anchors = ExactIndex(catalogue_TD), list(right)
    for start in range(0, len(anchors), AT_ONCE):
        part = anchors[start : start + AT_ONCE]
        vectors_AD = embedder.embed(part)
        for anchor, vector_D, ranked in zip(part, vectors_AD, rank(index, vectors_AD, ids, mining.depth), strict=True):
            golds = [place_of[tool] for tool in right[anchor]]
            positive = float(np.max(catalogue_TD[golds].astype(np.float64) @ vector_D))
            yield anchor, hard_negatives(ranked, right[anchor], positive, mining.per_anchor, mining.max_score_share)
        progress.update(start + len(part), len(anchors), "anchors mined")
