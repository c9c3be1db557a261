"""The metrics of :mod:`cohyde.evaluation.metrics` for many queries at once: equal to it, and fast."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cohyde.evaluation.lists import Lists
from cohyde.evaluation.metrics import CUTOFFS, METRICS

Columns = dict[str, npt.NDArray[np.float64]]
BLOCK = 10_000
"""Queries at once; bounds memory (some 100 MB at 100 tools a ranking)."""


def score_lists(ranked: Lists, gold: Lists, cutoffs: Sequence[int] = CUTOFFS) -> Columns:
    """Every metric at every cutoff for n queries, as :func:`cohyde.evaluation.metrics.score_query` defines them.

    Args:
        ranked: n rankings, best first; a name that comes again is ignored, and what follows moves up.
        gold: n sets of what is right, none of them empty.
        cutoffs: each at least 1.

    Returns:
        (n,) fractions by name, such as ``ndcg@5``.

    Raises:
        ValueError: unequal numbers of rankings and gold sets, or a gold set that is empty.
    """
    if len(ranked) != len(gold):
        raise ValueError(f"{len(ranked)} rankings but {len(gold)} gold sets; every query needs one of each")
    if len(gold) and not gold.lengths.all():
        raise ValueError("a query without gold tools cannot be scored: leave it out and count it")
    gold = _renamed(gold, ranked.names)
    starts = range(0, len(ranked), BLOCK)
    blocks = [np.arange(start, min(start + BLOCK, len(ranked))) for start in starts] or [np.arange(0)]
    scored = [_score_block(ranked.take(rows), gold.take(rows), cutoffs) for rows in blocks]
    return {f"{name}@{k}": np.concatenate([one[name, k] for one in scored]) for name in METRICS for k in cutoffs}


def score_equivalents(ranked: Lists, sets: Lists, owner: npt.NDArray[np.int64]) -> Columns:
    """Each metric's maximum over a query's valid gold sets, taken metric by metric (ToolEq).

    Args:
        ranked: n rankings.
        sets: the valid gold sets of all queries, those of a query beside each other, in the order of the queries.
        owner: the query that each of the sets belongs to; every query has one at least.

    Raises:
        ValueError: a query without a set, or a set that is empty.
    """
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    if not np.array_equal(owner[firsts], np.arange(len(ranked))):
        raise ValueError("the gold sets have to be in the order of the queries, at least one for each")
    by_set = score_lists(ranked.take(owner), sets)
    return {name: np.maximum.reduceat(column, firsts) if len(firsts) else column for name, column in by_set.items()}


def _renamed(lists: Lists, names: npt.NDArray[np.object_]) -> Lists:
    """The same lists, coded by a vocabulary that starts with ``names``."""
    code_of = {name: code for code, name in enumerate(names)}
    codes = np.array([code_of.setdefault(name, len(code_of)) for name in lists.names], dtype=np.int64)
    vocabulary = np.empty(len(code_of), dtype=object)
    vocabulary[:] = list(code_of)
    return Lists(names=vocabulary, codes=codes[lists.codes], offsets=lists.offsets)


def _score_block(
    ranked: Lists, gold: Lists, cutoffs: Sequence[int]
) -> Mapping[tuple[str, int], npt.NDArray[np.float64]]:
    deepest = max(cutoffs)
    hits, golds = _hits(ranked, gold, deepest)
    discounts = np.array([1 / math.log2(rank + 1) for rank in range(1, deepest + 1)])
    # Sums rank by rank, of hits and of the ideal alike: a perfect ranking comes to exactly 1.
    found = np.cumsum(hits, axis=1, dtype=np.int64)
    gain, ideal = np.cumsum(hits * discounts, axis=1), np.cumsum(discounts)
    scores: dict[tuple[str, int], npt.NDArray[np.float64]] = {}
    for k in cutoffs:
        hits_at_k = found[:, k - 1]
        scores["hit", k] = (hits_at_k > 0).astype(np.float64)
        scores["recall", k] = hits_at_k / golds
        scores["ndcg", k] = gain[:, k - 1] / ideal[np.minimum(k, golds) - 1]
        scores["comp", k] = (hits_at_k == golds).astype(np.float64)
    return scores


def _hits(ranked: Lists, gold: Lists, deepest: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """(n, deepest) whether each of the first distinct names is gold; (n,) the number of distinct gold names."""
    size = max(len(gold.names), 1)
    ranked_keys, gold_keys = _keys(ranked, size), np.unique(_keys(gold, size))
    first = _is_first(ranked_keys)
    rows = ranked_keys // size
    before = np.concatenate([[0], np.cumsum(first)])
    rank = before[:-1] - before[ranked.offsets[rows]]  # how many distinct names stand above it in its list
    kept = np.flatnonzero(first & (rank < deepest))
    found = kept[np.isin(ranked_keys[kept], gold_keys, assume_unique=True)]
    hits = np.zeros((len(ranked), deepest), dtype=bool)
    hits[rows[found], rank[found]] = True
    return hits, np.bincount(gold_keys // size, minlength=len(gold))


def _keys(lists: Lists, size: int) -> npt.NDArray[np.int64]:
    """One number for each (list, name): equal names of different lists are told apart."""
    rows: npt.NDArray[np.int64] = np.repeat(np.arange(len(lists)), lists.lengths)
    return rows * size + lists.codes


def _is_first(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a number has not come before."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[order[1:]] = in_order[1:] != in_order[:-1]
    return first
