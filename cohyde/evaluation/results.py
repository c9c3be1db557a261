"""Rows of metrics: from ranked lists to the numbers that every table is made of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cohyde.evaluation.metrics import summarise_columns
from cohyde.evaluation.per_query import PerQuery

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


def metric_rows(found: PerQuery) -> list[MetricRow]:
    """The means of each split and search mode, in the order in which they come: by tier, over all queries, over tiers.

    They are over the sample that all rounds share, and over every query where more than that was scored.
    """
    labels = dict.fromkeys(zip(found.search, found.split, strict=True))
    rows = []
    for search, split in labels:
        scored = found.select(split=split, search=search)
        sampled = scored.select(in_sample=True)
        rows += _means(sampled, split=split, search=search, scope=SAMPLE)
        if len(scored) > len(sampled):
            rows += _means(scored, split=split, search=search, scope=EVERY_QUERY)
    return rows


def _means(found: PerQuery, *, split: str, search: str, scope: str) -> list[MetricRow]:
    if not len(found):
        return []
    summary = summarise_columns(found.tier.tolist(), {name: column.tolist() for name, column in found.values.items()})
    return [MetricRow(split=split, search=search, scope=scope, **row) for row in summary.rows()]


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
