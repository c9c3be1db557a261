"""Rows of metrics: from ranked lists to the numbers that every table is made of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cohyde.catalog import Query
from cohyde.evaluation.metrics import QueryScore, score_query, summarise

Ranking = Sequence[tuple[str, float]]
"""Tool ids with their scores, best first."""
EVERY_QUERY = "all"
SAMPLE = "sample"


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One number: a fraction in [0, 1], a mean over ``n`` queries.

    ``search`` is what the index was searched with; ``scope`` says which queries of the split were scored: ``all``,
    or the fixed ``sample`` that all rounds share.
    """

    split: str
    tier: str
    metric: str
    k: int
    value: float
    n: int
    search: str
    scope: str

    def to_row(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def row_from(data: Mapping[str, Any]) -> MetricRow:
    """Read back what :meth:`MetricRow.to_row` wrote."""
    return MetricRow(**data)


def score_queries(queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[QueryScore]:
    """Score each query's ranking by every metric at every cutoff."""
    return [
        QueryScore(id=query.id, tier=query.tier, values=score_query([tool for tool, _ in ranking], query.tools))
        for query, ranking in zip(queries, rankings, strict=True)
    ]


def metric_rows(scores: Sequence[QueryScore], *, split: str, search: str, scope: str) -> list[MetricRow]:
    """Means by tier, over all queries, and over tiers; none for no scores."""
    if not scores:
        return []
    return [MetricRow(split=split, search=search, scope=scope, **row) for row in summarise(scores).rows()]


def value_of(
    rows: Iterable[MetricRow], *, split: str, tier: str, search: str, scope: str, metric: str = "ndcg", k: int = 5
) -> float | None:
    """The one value under these labels, or None where it was not measured."""
    found = row_of(rows, split=split, tier=tier, search=search, scope=scope, metric=metric, k=k)
    return found.value if found else None


def row_of(
    rows: Iterable[MetricRow], *, split: str, tier: str, search: str, scope: str, metric: str = "ndcg", k: int = 5
) -> MetricRow | None:
    """The one row under these labels, or None where it was not measured."""
    wanted = (split, tier, search, scope, metric, k)
    return next(
        (row for row in rows if (row.split, row.tier, row.search, row.scope, row.metric, row.k) == wanted), None
    )
