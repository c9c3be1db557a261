"""What an index misses: its neighbours of a catalogue's own vectors, held against the exact ones."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cohyde.encoder.index import ExactIndex
from cohyde.encoder.index_kinds import Index


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How much of what an exact search finds an index finds, too."""

    k: int
    """Neighbours of each vector that were asked for; a small catalogue has fewer."""
    value: float
    """Share of the exact ones that were found, averaged over the sampled vectors; in [0, 1]."""
    sampled: int
    """Vectors whose neighbours were looked for."""


def sample(size: int, most: int) -> np.ndarray:
    """Places of ``most`` vectors of so many, or of all: drawn evenly, the same ones each time."""
    return np.sort(np.random.default_rng(0).permutation(size)[:most])


def recall_of_neighbours(index: Index, vectors: np.ndarray, k: int, most: int) -> Recall:
    """Compare an index with an exact search over ``vectors``, which is what it is to stand for.

    Args:
        index: over n vectors.
        vectors: (n, d) float32 unit rows in its order, such as they were before they were rounded.
        k: neighbours; each vector itself, which every index finds, is left out.
        most: vectors whose neighbours are looked for.

    Returns:
        The recall; 1 where a catalogue of one tool has no neighbours.
    """
    places = sample(len(vectors), most)
    k = min(k, len(vectors) - 1)
    found, exact = (
        _others(each.search(vectors[places], k + 1)[1].tolist(), places.tolist(), k)
        for each in (index, ExactIndex(vectors))
    )
    return Recall(k=k, value=share_found(found, exact, k) if k else 1.0, sampled=len(places))


def share_found(found: Sequence[Sequence[int]], exact: Sequence[Sequence[int]], k: int) -> float:
    """Recall@k: how many of the ``k`` exact ones of each row were found, as a share, averaged over rows."""
    return float(np.mean([len(set(ours) & set(theirs)) / k for ours, theirs in zip(found, exact, strict=True)]))


def _others(rows: Sequence[Sequence[int]], own: Sequence[int], k: int) -> list[list[int]]:
    return [[place for place in row if place != itself][:k] for row, itself in zip(rows, own, strict=True)]


def search_seconds(index: Index, queries: np.ndarray, k: int) -> list[float]:
    """Seconds of a search for each of (m, d) unit rows, one at a time, after one that is not counted."""
    index.search(queries[:1], k)
    seconds = []
    for query in queries:
        started = time.perf_counter()
        index.search(query[None], k)
        seconds.append(time.perf_counter() - started)
    return seconds
