"""The main table and the ablation table: systems × cells, each cell a mean over queries with its interval."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cohyde.evaluation.bootstrap import over_queries
from cohyde.evaluation.per_query import PerQuery
from cohyde.evaluation.report import TABLE_SPLITS
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE

METRIC = "ndcg@5"
DEV = "dev"
Place = tuple[str, str]
"""A column: split and tier."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mean over queries, or the mean over queries of a difference."""

    value: float
    """A fraction, or the difference of two."""
    low: float | None
    """Ends of the 95% bootstrap interval; None for a single query, which says nothing of others."""
    high: float | None
    n: int
    """Queries."""

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def is_certain(self) -> bool:
        """Of a difference: whether its interval leaves 0 out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system, or an ablation, with its cells."""

    key: str
    title: str
    group: str
    run: str
    stage: str
    search: str
    cells: Mapping[Place, Cell]
    """NDCG@5 by split and tier; what was not measured is not there."""
    dev: float | None
    """Mean over tiers on the dev split."""
    differences: Mapping[Place, Cell]
    """To the row that the table compares with; empty in the main table."""

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        names = ("key", "title", "group", "run", "stage", "search", "dev")
        return {name: getattr(self, name) for name in names} | {
            "cells": [_to_json(place, cell) for place, cell in self.cells.items()],
            "differences": [_to_json(place, cell) for place, cell in self.differences.items()],
        }


def _to_json(place: Place, cell: Cell) -> dict[str, Any]:
    return {"split": place[0], "tier": place[1], "metric": "ndcg", "k": 5, **asdict(cell)}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a system was found to do: its per-query results under the one search mode that it is read with."""

    key: str
    title: str
    group: str
    run: str
    stage: str
    search: str
    results: PerQuery


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows over the same queries."""

    scope: str
    """``sample``: what all systems have scored; ``all``: every query, where systems have scored more than that."""
    places: tuple[Place, ...]
    """Columns that any row has a value in."""
    rows: tuple[Row, ...]

    def best(self, place: Place) -> float | None:
        """The highest value of a column."""
        return max((row.cells[place].value for row in self.rows if place in row.cells), default=None)

    @property
    def without_vague(self) -> bool:
        """Whether there are no vague paraphrases in this data."""
        return not any(split == "vague" for split, _ in self.places)

    @property
    def single(self) -> list[Place]:
        """Columns that a single query stands for."""
        return [
            place for place in self.places if any(row.cells[place].n == 1 for row in self.rows if place in row.cells)
        ]

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"scope": self.scope, "rows": [row.to_json() for row in self.rows]}


def tables(measured: Sequence[Measured], reference: str | None = None) -> list[Table]:
    """The table over the sample that all systems share, and one over every query where more was scored.

    Args:
        measured: in the order of the rows.
        reference: key of the system that all others are compared with, query by query; None compares none.
    """
    found = [_table(measured, SAMPLE, reference)]
    whole = [one for one in measured if not one.results.in_sample.all()]
    return [*found, _table(whole, EVERY_QUERY, reference)] if whole else found


def _table(measured: Sequence[Measured], scope: str, reference: str | None) -> Table:
    columns = {one.key: _columns(one.results, scope) for one in measured}
    compared = columns.get(reference, {}) if reference else {}
    rows = tuple(_row(one, columns[one.key], compared if one.key != reference else {}) for one in measured)
    tiers = sorted({tier for own in columns.values() for split, tier in own if split in TABLE_SPLITS})
    places = [(split, tier) for split in TABLE_SPLITS for tier in tiers]
    there = {place for row in rows for place in row.cells}
    return Table(scope=scope, places=tuple(place for place in places if place in there), rows=rows)


Column = dict[str, float]
"""A metric by query id."""


def _columns(results: PerQuery, scope: str) -> dict[Place, Column]:
    """Each column's queries. A split of which no more than the sample was scored is the sample in either scope."""
    kept = results if scope == EVERY_QUERY else results.select(in_sample=True)
    found: dict[Place, Column] = {}
    for split, tier, query, value in zip(kept.split, kept.tier, kept.id, kept.values[METRIC], strict=True):
        found.setdefault((split, tier), {})[query] = float(value)
    return found


def _row(one: Measured, columns: Mapping[Place, Column], reference: Mapping[Place, Column]) -> Row:
    shown = {place: column for place, column in columns.items() if place[0] in TABLE_SPLITS}
    dev = [float(np.mean(list(column.values()))) for (split, _), column in columns.items() if split == DEV]
    return Row(
        key=one.key,
        title=one.title,
        group=one.group,
        run=one.run,
        stage=one.stage,
        search=one.search,
        cells={place: _cell(list(column.values())) for place, column in shown.items()},
        dev=float(np.mean(dev)) if dev else None,
        differences=dict(_differences(shown, reference)),
    )


def _differences(columns: Mapping[Place, Column], reference: Mapping[Place, Column]) -> Iterable[tuple[Place, Cell]]:
    """Query by query, over those that both have scored."""
    for place, column in columns.items():
        other = reference.get(place, {})
        both = [column[query] - other[query] for query in column if query in other]
        if both:
            yield place, _cell(both)


def _cell(values: Sequence[float]) -> Cell:
    [estimate] = over_queries([[value] for value in values])
    return Cell(
        value=estimate.mean,
        low=estimate.interval.low if estimate.interval else None,
        high=estimate.interval.high if estimate.interval else None,
        n=estimate.n,
    )
