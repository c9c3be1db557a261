"""Two systems over the same queries: differences with their uncertainty, and the queries that changed most."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cohyde.errors import UserError
from cohyde.evaluation.bootstrap import Estimate, Interval, holm, over_queries, over_tiers
from cohyde.evaluation.metrics import ALL, MEAN_OVER_TIERS, metric_and_cutoff
from cohyde.evaluation.per_query import PerQuery


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What B scores more than A, over ``n`` queries that both have answered. All but ``k`` and ``n`` are fractions."""

    split: str
    tier: str
    metric: str
    k: int
    a: float
    b: float
    difference: float
    a_interval: Interval | None
    """95%, of A alone; None for one query."""
    b_interval: Interval | None
    low: float | None
    """Ends of the 95% interval of the difference; None for one query."""
    high: float | None
    flips: float | None
    """Share of the resamples in which the difference has not this sign."""
    p: float | None
    """Two-sided."""
    p_holm: float | None
    """Corrected for the family: all rows of one metric and cutoff."""
    n: int

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it; intervals of A and B are ``[low, high]``."""
        pairs = {
            name: None if interval is None else [interval.low, interval.high]
            for name in ("a_interval", "b_interval")
            for interval in (getattr(self, name),)
        }
        return {**asdict(self), **pairs}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A query that both have answered, by its row in either, and what it scores in each."""

    row: int
    a: float
    b: float


def shared_rows(a: PerQuery, b: PerQuery, names: tuple[str, str] = ("A", "B")) -> tuple[PerQuery, PerQuery]:
    """What both have answered, in the same order. Each is of one search mode.

    Of two evaluations one may have answered more queries than the other: a sample, and all.

    Raises:
        UserError: they are of different datasets; names what differs.
    """
    if a.catalogue != b.catalogue:
        _refuse(names, "they searched different catalogues")
    at_a, at_b = _places(a, names[0]), _places(b, names[1])
    both = [key for key in at_a if key in at_b]
    only_a, only_b = len(at_a) - len(both), len(at_b) - len(both)
    splits = sorted({split for split, _ in both})
    for split in splits:
        of_a, of_b, of_both = (sum(one == split for one, _ in keys) for keys in (at_a, at_b, both))
        if of_a > of_both < of_b:
            more = f"{names[0]} has {of_a - of_both} queries that {names[1]} has not, which has {of_b - of_both} others"
            _refuse(names, f"they answered different queries of the {split} split: {more}")
    if not both:
        _refuse(names, f"they have no query in common: {only_a} here, {only_b} there")
    left = a.take(np.array([at_a[key] for key in both]))
    right = b.take(np.array([at_b[key] for key in both]))
    for row, (split, identifier) in enumerate(both):
        if left.text[row] != right.text[row]:
            _refuse(names, f"query {identifier!r} ({split}) has another text in each")
        if left.tier[row] != right.tier[row]:
            _refuse(names, f"query {identifier!r} ({split}) is of tier {left.tier[row]} here, {right.tier[row]} there")
        if set(left.gold[row]) != set(right.gold[row]):
            _refuse(names, f"query {identifier!r} ({split}) has other gold tools in each")
    return left, right


def _places(found: PerQuery, name: str) -> dict[tuple[str, str], int]:
    places = {key: row for row, key in enumerate(zip(found.split, found.id, strict=True))}
    if len(places) != len(found):
        raise ValueError(f"{name}: select one search mode first")
    return places


def _refuse(names: tuple[str, str], what: str) -> None:
    raise UserError(
        f"{names[0]} and {names[1]} are of different data: {what}",
        "compare systems over one dataset, with the same subset and samples",
    )


def compare(a: PerQuery, b: PerQuery, metrics: Sequence[str] | None = None) -> list[Difference]:
    """B minus A by metric, split and tier; over all queries and over tiers too where there are several.

    Args:
        a: rows that :func:`shared_rows` has paired with those of ``b``.
        b: the other system's.
        metrics: such as ``ndcg@5``; None takes all that both have.
    """
    names = [name for name in a.values if name in b.values] if metrics is None else list(metrics)
    values = np.stack([np.stack([a.values[name], b.values[name]], axis=1) for name in names], axis=1)
    values = np.concatenate([values, values[:, :, 1:] - values[:, :, :1]], axis=2)  # (queries, metrics, [a, b, b - a])
    rows = [
        (split, tier, estimates)
        for split in dict.fromkeys(a.split)
        for tier, estimates in _by_tier(values[a.split == split], a.tier[a.split == split])
    ]
    return [row for position, name in enumerate(names) for row in _family(name, position, rows)]


def _by_tier(values: npt.NDArray[np.float64], tiers: npt.NDArray[np.object_]) -> Iterator[tuple[str, list[Estimate]]]:
    flat, labels = values.reshape(len(values), -1), sorted(set(tiers))
    for label in labels:
        yield label, over_queries(flat[tiers == label])
    if len(labels) > 1:
        yield ALL, over_queries(flat)
        yield MEAN_OVER_TIERS, over_tiers(flat, tiers.tolist())


def _family(name: str, position: int, rows: Sequence[tuple[str, str, list[Estimate]]]) -> list[Difference]:
    """The rows of one metric."""
    metric, k = metric_and_cutoff(name)
    found = []
    for split, tier, estimates in rows:
        a, b, difference = estimates[3 * position : 3 * position + 3]
        found.append(
            Difference(
                split=split,
                tier=tier,
                metric=metric,
                k=k,
                a=a.mean,
                b=b.mean,
                difference=difference.mean,
                a_interval=a.interval,
                b_interval=b.interval,
                low=difference.interval.low if difference.interval else None,
                high=difference.interval.high if difference.interval else None,
                flips=difference.flips,
                p=difference.p,
                p_holm=None,
                n=difference.n,
            )
        )
    adjusted = iter(holm([row.p for row in found if row.p is not None]))
    return [row if row.p is None else replace(row, p_holm=next(adjusted)) for row in found]


def changes(a: PerQuery, b: PerQuery, metric: str) -> list[Change]:
    """The paired queries whose scores differ, those that changed most first, equals in their order."""
    difference = b.values[metric] - a.values[metric]
    order = np.argsort(-np.abs(difference), kind="stable")
    return [
        Change(row=row, a=float(a.values[metric][row]), b=float(b.values[metric][row]))
        for row in order.tolist()
        if difference[row]
    ]
