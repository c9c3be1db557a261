"""The table over seeds: every seed at every round, and at the selected round mean, deviation and intervals."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cohyde.evaluation.bootstrap import Interval, over_seeds, over_seeds_and_queries
from cohyde.evaluation.metrics import MEAN_OVER_TIERS
from cohyde.evaluation.report import RAW_QUERY, TABLE_SPLITS, tiers_of
from cohyde.evaluation.results import SAMPLE, MetricRow, row_of, value_of

METRIC, CUTOFF = "ndcg", 5
DEV = ("dev", MEAN_OVER_TIERS)
WARMED_UP, UNTRAINED = "E.0", "E.untrained"

Column = tuple[str, str]
"""Split and tier."""
ByQuery = Mapping[Column, Mapping[str, float]]
"""NDCG@5 by split and tier, and by query id."""


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """What one seed's run has measured."""

    seed: int
    evaluations: Mapping[str, Sequence[MetricRow]]
    """By stage id: ``E.untrained``, then ``E.0`` to the last round, all of them."""
    by_query: Callable[[str, str], ByQuery]
    """Of an evaluation (stage id) and a search mode. Asked only for what is compared."""

    def states(self) -> list[str]:
        """The evaluations of the trained pair, in order."""
        return [stage for stage in self.evaluations if stage != UNTRAINED]


@dataclass(frozen=True, kw_only=True)
class State:
    """What is measured: an evaluation, and what the index was searched with."""

    stage: str
    search: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One column at the selected round, over seeds. All are fractions."""

    split: str
    tier: str
    queries: int
    values: Mapping[int, float]
    """By seed."""
    mean: float
    sd: float | None
    """Sample standard deviation over seeds; None for one seed."""
    baseline: float | None
    """The baseline's mean over seeds."""
    difference: float | None
    """Mean over seeds of what was gained over the baseline."""
    interval_seeds: Interval | None
    """95% of ``difference``, paired bootstrap over seeds; None for one seed."""
    interval_seeds_queries: Interval | None
    """The same over seeds and queries; None where what each query scored is not known."""

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``; intervals are ``[low, high]``."""
        pairs = {
            name: None if interval is None else [interval.low, interval.high]
            for name in ("interval_seeds", "interval_seeds_queries")
            for interval in (getattr(self, name),)
        }
        values = {str(seed): value for seed, value in self.values.items()}
        return {"metric": METRIC, "k": CUTOFF, **asdict(self), "values": values, **pairs}


@dataclass(frozen=True, kw_only=True)
class SeedTable:
    """What a setting comes to over seeds. Everything is searched as configured, over the queries all rounds share."""

    search: str
    seeds: tuple[int, ...]
    columns: tuple[Column, ...]
    """Those of the table: standard and vague by tier, and dev."""
    lines: Mapping[tuple[int, str], Mapping[Column, float | None]]
    """By seed and stage; the warm-up of all seeds alike is each seed's own line here."""
    selected: str
    """The evaluation with the best dev NDCG@5 in the mean over seeds, the earliest of equals; the last one where dev
    was not scored."""
    by_dev: bool
    """Whether dev was scored."""
    baseline: State | None
    cells: tuple[Cell, ...]

    @property
    def stages(self) -> list[str]:
        """Every evaluation of the trained pair, in order."""
        return list(dict.fromkeys(stage for _, stage in self.lines))

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``."""
        rounds = [
            {"seed": seed, "stage": stage, "split": split, "tier": tier, "metric": METRIC, "k": CUTOFF, "value": value}
            for (seed, stage), values in self.lines.items()
            for (split, tier), value in values.items()
            if value is not None
        ]
        return {
            "search": self.search,
            "seeds": list(self.seeds),
            "selected": self.selected,
            "selected_by_dev": self.by_dev,
            "baseline": None if self.baseline is None else asdict(self.baseline),
            "cells": [cell.to_json() for cell in self.cells],
            "rounds": rounds,
        }


def build_seed_table(runs: Sequence[SeedRun], search: str) -> SeedTable:
    """Compare seeds that have all finished, with the same rounds.

    The baseline is ``E.0`` searched in the same way; where that is what was selected, or it was not measured,
    ``E.untrained`` on raw queries.

    Args:
        runs: one a seed.
        search: the configured search mode.

    Raises:
        ValueError: no run, or runs of different rounds.
    """
    stages = {tuple(run.states()) for run in runs}
    if len(stages) != 1 or not any(stages):
        raise ValueError(f"runs to compare have to have the same evaluations, got {sorted(stages)}")
    [states] = stages
    by_dev = {stage: _mean([_value(run, State(stage=stage, search=search), DEV) for run in runs]) for stage in states}
    scored = {stage: value for stage, value in by_dev.items() if value is not None}
    selected = max(scored, key=lambda stage: scored[stage]) if scored else states[-1]
    state = State(stage=selected, search=search)
    columns = _columns(runs, search)
    comparison = _Comparison(runs=runs, state=state, baseline=_baseline(runs, state))
    return SeedTable(
        search=search,
        seeds=tuple(run.seed for run in runs),
        columns=columns,
        lines={
            (run.seed, stage): {column: _value(run, State(stage=stage, search=search), column) for column in columns}
            for run in runs
            for stage in states
        },
        selected=selected,
        by_dev=bool(scored),
        baseline=comparison.baseline,
        cells=tuple(cell for column in columns if (cell := comparison.cell(column)) is not None),
    )


def _columns(runs: Sequence[SeedRun], search: str) -> tuple[Column, ...]:
    """The table's columns, without those that nothing was measured for."""
    rows = [row for run in runs for stage in run.states() for row in run.evaluations[stage] if row.search == search]
    wanted = [(split, tier) for split in TABLE_SPLITS for tier in tiers_of(rows)] + [DEV]
    measured = {(row.split, row.tier) for row in rows}
    return tuple(column for column in wanted if column in measured)


def _baseline(runs: Sequence[SeedRun], state: State) -> State | None:
    choices = [State(stage=WARMED_UP, search=state.search), State(stage=UNTRAINED, search=RAW_QUERY)]
    for choice in choices:
        measured = [any(row.search == choice.search for row in run.evaluations.get(choice.stage, ())) for run in runs]
        if choice.stage != state.stage and all(measured):
            return choice
    return None


def _value(run: SeedRun, state: State, column: Column) -> float | None:
    rows = run.evaluations.get(state.stage, ())
    return value_of(rows, split=column[0], tier=column[1], search=state.search, scope=SAMPLE)


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one of them is: a mean over some of the seeds is no mean over seeds."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The selected state with the baseline, column by column."""

    runs: Sequence[SeedRun]
    state: State
    baseline: State | None
    _read: dict[tuple[int, State], ByQuery] = field(default_factory=dict)

    def cell(self, column: Column) -> Cell | None:
        """None where a seed was not scored."""
        values = [_value(run, self.state, column) for run in self.runs]
        below = [_value(run, self.baseline, column) if self.baseline else None for run in self.runs]
        mean = _mean(values)
        if mean is None:
            return None
        known = [value for value in values if value is not None]
        gains = [value - base for value, base in zip(known, below, strict=True) if base is not None]
        whole = gains if len(gains) == len(self.runs) else []
        first = self.runs[0].evaluations[self.state.stage]
        row = row_of(first, split=column[0], tier=column[1], search=self.state.search, scope=SAMPLE)
        return Cell(
            split=column[0],
            tier=column[1],
            queries=row.n if row else 0,
            values={run.seed: value for run, value in zip(self.runs, known, strict=True)},
            mean=mean,
            sd=statistics.stdev(known) if len(known) > 1 else None,
            baseline=_mean(below),
            difference=_mean(whole),
            interval_seeds=over_seeds(whole) if len(whole) > 1 else None,
            interval_seeds_queries=self._over_queries(column, row.n if row else 0) if whole else None,
        )

    def _over_queries(self, column: Column, queries: int) -> Interval | None:
        """None where the queries whose scores are there are not those that the means are over."""
        assert self.baseline is not None
        pairs = [
            (self._scores(run, self.state).get(column, {}), self._scores(run, self.baseline).get(column, {}))
            for run in self.runs
        ]
        shared = set.intersection(*(set(scores) for pair in pairs for scores in pair))
        if not queries or len(shared) != queries:
            return None
        ids = sorted(shared)
        return over_seeds_and_queries([[after[id_] - before[id_] for id_ in ids] for after, before in pairs])

    def _scores(self, run: SeedRun, state: State) -> ByQuery:
        if (run.seed, state) not in self._read:
            self._read[run.seed, state] = run.by_query(state.stage, state.search)
        return self._read[run.seed, state]
