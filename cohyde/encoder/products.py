"""The largest inner products of many queries with many vectors: a matrix product in blocks, selected in two steps."""

import numpy as np

VECTORS_AT_ONCE = 1 << 16
"""Vectors that queries are multiplied with at a time: 64 MiB of scores for 256 queries, however large the catalogue."""
MEMBERS = 16
"""Scores of a group, of which the selection looks at the largest first."""


def room_for_products(queries: int, vectors: int) -> np.ndarray:
    """Memory for the scores of so many queries, to be used again: fresh memory costs a search some percent."""
    return np.empty(queries * min(vectors, VECTORS_AT_ONCE), dtype=np.float32)


def largest_products(
    queries: np.ndarray, vectors: np.ndarray, width: int, room: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ``width`` largest inner products of each query, in no order.

    A heap or a sort over all scores of a query costs as much as a fifth of computing them. The largest ``width`` lie
    in the ``width`` groups of scores with the largest maxima, which one pass finds; so only those groups are sorted.

    Args:
        queries: (m, d) float32; some hundreds, so that the product runs at full speed and its result has room.
        vectors: (n, d) float32, or float16, which is widened block by block; may be mapped from a file.
        width: from 1 to n.
        room: what :func:`room_for_products` gives for at least m and n; nobody else may use it meanwhile.

    Returns:
        ``(scores, positions)``, both (m, width): float32, and int64 from 0. Of equal scores at the edge any may be left
        out.
    """
    scores = np.empty((len(queries), 0), dtype=np.float32)
    positions = np.empty((len(queries), 0), dtype=np.int64)
    for start in range(0, len(vectors), VECTORS_AT_ONCE):
        block_ND = vectors[start : start + VECTORS_AT_ONCE].astype(np.float32, copy=False)
        products_MN = room[: len(queries) * len(block_ND)].reshape(len(queries), len(block_ND))
        np.matmul(queries, block_ND.T, out=products_MN)
        places = _places_of_largest(products_MN, min(width, len(block_ND)))
        scores, positions = np.hstack([scores, _at(products_MN, places)]), np.hstack([positions, places + start])
        if scores.shape[1] > width:
            best = _partitioned(scores, width)
            scores, positions = _at(scores, best), _at(positions, best)
    return scores, positions


def _places_of_largest(scores_MN: np.ndarray, width: int) -> np.ndarray:
    """(m, width) places of the largest of each row of (m, n), in no order."""
    rows, count = scores_MN.shape
    groups = count // MEMBERS
    if groups < 2 * width:
        return _partitioned(scores_MN, width)
    # A group's members lie ``groups`` places apart, so that the maxima of all groups are one pass over whole rows.
    maxima_MG = scores_MN[:, : groups * MEMBERS].reshape(rows, MEMBERS, groups).max(axis=1)
    best_groups = _partitioned(maxima_MG, width)
    members = (best_groups[:, None, :] + groups * np.arange(MEMBERS)[None, :, None]).reshape(rows, -1)
    left_over = np.broadcast_to(np.arange(groups * MEMBERS, count), (rows, count - groups * MEMBERS))
    candidates = np.hstack([members, left_over])
    return _at(candidates, _partitioned(_at(scores_MN, candidates), width))


def _partitioned(scores_MN: np.ndarray, width: int) -> np.ndarray:
    edge = scores_MN.shape[1] - width
    return np.argpartition(scores_MN, edge, axis=1)[:, edge:]


def _at(values_MN: np.ndarray, places: np.ndarray) -> np.ndarray:
    """As ``np.take_along_axis`` along rows, which takes twice as long."""
    starts = values_MN.shape[1] * np.arange(len(values_MN))[:, None]
    taken: np.ndarray = values_MN.ravel()[places + starts]
    return taken
