"""Retrieval metrics at fixed cutoffs, and their means within tiers and over all queries.

Every metric takes ``ranked`` (ids for one query, best first; an id that comes again is ignored, so that what follows
moves up) and ``gold`` (the ids that are right; at least one), and is a fraction in [0, 1]. Gains are binary.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any

from cohyde.catalog import Query

CUTOFFS = (1, 5, 10, 20)
ALL = "all"
MEAN_OVER_TIERS = "mean over tiers"


def _hits(ranked: Iterable[str], gold: Collection[str], k: int) -> tuple[list[bool], set[str]]:
    """Whether each of the first ``k`` distinct ids is gold, and the distinct gold ids."""
    golds = set(gold)
    if not golds:
        raise ValueError("a query without gold tools cannot be scored: leave it out and count it")
    if k < 1:
        raise ValueError(f"a cutoff has to be at least 1, got {k}")
    return [identifier in golds for identifier in islice(dict.fromkeys(ranked), k)], golds


def hit_at(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """1 if any gold tool is in the top ``k``, else 0.

    Raises:
        ValueError: no gold, or ``k`` below 1.
    """
    hits, _ = _hits(ranked, gold, k)
    return float(any(hits))


def recall_at(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """Share of the gold tools that are in the top ``k``; the denominator is |gold|, not min(k, |gold|).

    Raises:
        ValueError: no gold, or ``k`` below 1.
    """
    hits, golds = _hits(ranked, gold, k)
    return sum(hits) / len(golds)


def ndcg_at(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """Discounted cumulative gain of the top ``k`` over that of a perfect ranking (Järvelin & Kekäläinen 2002).

    A hit at rank r counts 1/log2(r + 1). The ideal ranking has min(k, |gold|) hits at the top: it is taken from the
    gold set and not from what was retrieved, and it is cut at ``k``.

    Raises:
        ValueError: no gold, or ``k`` below 1.
    """
    hits, golds = _hits(ranked, gold, k)
    gain = math.fsum(1 / math.log2(rank + 1) for rank, hit in enumerate(hits, start=1) if hit)
    ideal = math.fsum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(golds)) + 1))
    return gain / ideal


def comp_at(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """1 if every gold tool is in the top ``k``, else 0 (COMP@k of COLT, Qu et al. 2024); 0 where |gold| > k.

    Raises:
        ValueError: no gold, or ``k`` below 1.
    """
    hits, golds = _hits(ranked, gold, k)
    return float(sum(hits) == len(golds))


METRICS: Mapping[str, Callable[[Sequence[str], Collection[str], int], float]] = {
    "hit": hit_at,
    "recall": recall_at,
    "ndcg": ndcg_at,
    "comp": comp_at,
}
"""By name; :mod:`cohyde.evaluation.scoring` has each of them for many queries at once."""


@dataclass(frozen=True, kw_only=True)
class QueryScore:
    """The scores of one query; ``values`` maps names such as ``"ndcg@5"`` to fractions."""

    id: str
    tier: str
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Means:
    """Means over ``n`` queries, by the names of :class:`QueryScore`."""

    n: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Means within each tier (labels sorted), over all queries, and the unweighted mean of the tiers' means."""

    tiers: Mapping[str, Means]
    all: Means
    mean_over_tiers: Means

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows ``{"tier", "metric", "k", "value", "n"}``: the tiers, then ``all``, then ``mean over tiers``.

        A tier that is itself labelled ``all`` has no rows of its own: the name means all queries.
        """
        named = [(tier, means) for tier, means in self.tiers.items() if tier != ALL]
        named += [(ALL, self.all), (MEAN_OVER_TIERS, self.mean_over_tiers)]
        return [
            {"tier": tier, "metric": metric, "k": k, "value": value, "n": means.n}
            for tier, means in named
            for name, value in means.values.items()
            for metric, k in (metric_and_cutoff(name),)
        ]


def metric_and_cutoff(name: str) -> tuple[str, int]:
    """``("ndcg", 5)`` of ``"ndcg@5"``; ``("ndcg:equivalents", 5)`` of ``"ndcg@5:equivalents"``."""
    metric, _, rest = name.partition("@")
    k, colon, form = rest.partition(":")
    return f"{metric}{colon}{form}", int(k)


def score_query(ranked: Sequence[str], gold: Collection[str]) -> dict[str, float]:
    """Every metric at every cutoff for one query, as ``{"hit@1": …, "ndcg@5": …, …}``.

    Raises:
        ValueError: no gold.
    """
    return {f"{name}@{k}": metric(ranked, gold, k) for name, metric in METRICS.items() for k in CUTOFFS}


def score_run(rankings: Mapping[str, Sequence[str]], queries: Sequence[Query]) -> tuple[list[QueryScore], int]:
    """Score rankings by query id; returns the scores in the order of ``queries``, and how many had no gold.

    A query that ``rankings`` lacks scores 0 and stays in the means; one without gold is left out and counted.
    """
    scored = [
        QueryScore(id=query.id, tier=query.tier, values=score_query(rankings.get(query.id, ()), query.tools))
        for query in queries
        if query.tools
    ]
    return scored, len(queries) - len(scored)


def summarise(rows: Sequence[QueryScore]) -> Summary:
    """Means of per-query scores. ``mean_over_tiers`` weighs every tier alike, whatever its number of queries.

    Raises:
        ValueError: no rows, or rows that hold different metrics.
    """
    if not rows:
        raise ValueError("there is no query to take a mean over")
    names = list(rows[0].values)
    for row in rows:
        if set(row.values) != set(names):
            raise ValueError(f"query {row.id!r} has other metrics than query {rows[0].id!r}")
    return summarise_columns([row.tier for row in rows], {name: [row.values[name] for row in rows] for name in names})


def summarise_columns(tiers: Sequence[str], columns: Mapping[str, Sequence[float]]) -> Summary:
    """:func:`summarise` of what stands in columns: the tier of each query, and each metric's value of each query.

    Raises:
        ValueError: no query.
    """
    if not len(tiers):
        raise ValueError("there is no query to take a mean over")
    members = {label: [tier == label for tier in tiers] for label in sorted(set(tiers))}
    by_tier = {
        label: _means({name: list(compress(column, own)) for name, column in columns.items()})
        for label, own in members.items()
    }
    over_tiers = _means({name: [means.values[name] for means in by_tier.values()] for name in columns})
    return Summary(tiers=by_tier, all=_means(columns), mean_over_tiers=Means(n=len(tiers), values=over_tiers.values))


def mean_or_zero(values: Sequence[float]) -> float:
    """The mean; 0 where there is nothing to take one over, so that a count of a stage is a number always."""
    return sum(values) / len(values) if values else 0.0


def _means(columns: Mapping[str, Sequence[float]]) -> Means:
    """``fsum`` rounds once, so that a mean does not depend on the order of the queries."""
    return Means(
        n=max(len(column) for column in columns.values()),
        values={name: math.fsum(column) / len(column) for name, column in columns.items()},
    )
