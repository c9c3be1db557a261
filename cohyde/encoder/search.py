"""What the index is searched with, and the ranked lists that come of it. Importing it imports no torch or faiss."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cohyde.config import SearchConfig
from cohyde.encoder.pairs import joined
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.encoder.index import ExactIndex

Embed = Callable[[Sequence[str]], np.ndarray]
SearchMode = Callable[[Embed, Sequence[str], Sequence[str], SearchConfig], np.ndarray]
"""``(embed, queries, descriptions, config)`` to (n, d) unit rows, one a query."""


def description(embed: Embed, queries: Sequence[str], descriptions: Sequence[str], config: SearchConfig) -> np.ndarray:
    """The description's vector (paper; HyDE, Gao et al. 2023)."""
    return embed(descriptions)


def real_query(embed: Embed, queries: Sequence[str], descriptions: Sequence[str], config: SearchConfig) -> np.ndarray:
    """The query's vector: the rewriter is not used."""
    return embed(queries)


def concatenated(embed: Embed, queries: Sequence[str], descriptions: Sequence[str], config: SearchConfig) -> np.ndarray:
    """The vector of one text: the query, a blank, the description."""
    return embed([joined(query, text) for query, text in zip(queries, descriptions, strict=True)])


def fused(embed: Embed, queries: Sequence[str], descriptions: Sequence[str], config: SearchConfig) -> np.ndarray:
    """The weighted mean of both vectors, ``query_weight`` on the query's, brought back to length 1."""
    mean = config.query_weight * embed(queries) + (1 - config.query_weight) * embed(descriptions)
    lengths = np.linalg.norm(mean, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ValueError("a query's vector and its description's cancel each other out: they cannot be fused")
    unit: np.ndarray = (mean / lengths).astype(np.float32)
    return unit


SEARCH_MODES: Mapping[str, SearchMode] = {
    "description": description,
    "query": real_query,
    "concatenated": concatenated,
    "fused": fused,
}


def search_vectors(
    embed: Embed, queries: Sequence[str], descriptions: Sequence[str], config: SearchConfig
) -> np.ndarray:
    """Embed what is searched with, as ``config.mode`` says.

    Args:
        embed: the encoder, on the side of what is searched with.
        queries: n requests.
        descriptions: n generated descriptions in the same order, none of them empty; may be empty with mode ``query``.
        config: mode and weight.

    Returns:
        (n, d) float32, unit rows.

    Raises:
        UserError: no mode has that name.
        ValueError: unequal numbers of queries and descriptions, or vectors that are no unit vectors.
    """
    if config.mode not in SEARCH_MODES:
        raise UserError(
            f"no search mode is called {config.mode!r}", f"search.mode is one of: {', '.join(SEARCH_MODES)}"
        )
    if len(queries) != len(descriptions) and not (config.mode == "query" and not descriptions):
        raise ValueError(f"{len(queries)} queries but {len(descriptions)} descriptions; every query needs one")
    return SEARCH_MODES[config.mode](embed, queries, descriptions, config)


def rank(
    index: "ExactIndex", vectors: np.ndarray, tool_ids: Sequence[str], depth: int
) -> list[list[tuple[str, float]]]:
    """The ``depth`` best tools for each vector, best first, ties in catalogue order.

    Args:
        index: over the catalogue's vectors, in catalogue order.
        vectors: (n, d) unit rows.
        tool_ids: the catalogue's ids, in the same order.
        depth: tools a query; a smaller catalogue gives all it has.

    Returns:
        For each of the n vectors, pairs of tool id and inner product.
    """
    if len(tool_ids) != len(index):
        raise ValueError(f"the index holds {len(index)} vectors but there are {len(tool_ids)} tool ids")
    scores, positions = index.search(vectors, depth)
    return [
        [(tool_ids[position], score) for position, score in zip(row_positions, row_scores, strict=True)]
        for row_positions, row_scores in zip(positions.tolist(), scores.tolist(), strict=True)
    ]
