"""Means and 95% intervals of many systems over the same queries: one set of resamples for all, so all are paired."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cohyde.evaluation.bootstrap import BLOCK, COVERAGE, RESAMPLES, SEED, Interval, share_of_flips
from cohyde.evaluation.metrics import MEAN_OVER_TIERS
from cohyde.evaluation.results import EVERY_QUERY
from stages.reporting.views import RunView, Scored


@dataclass(frozen=True, kw_only=True)
class Source:
    """A system, wherever it was measured: a stage under a search mode, in one run a seed."""

    runs: tuple[RunView, ...]
    stage: str
    search: str


@dataclass(frozen=True)
class Value:
    """One number, a fraction in [0, 1] or a difference of two; ``interval`` is None for a single query."""

    mean: float
    interval: Interval | None
    n: int
    """Queries."""
    flips: float | None = None
    """Share of the resamples that have not this sign; None for a single query."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is no difference at all, in any resample: for differences."""
        return self.mean == 0 and (self.interval is None or self.interval.low == self.interval.high == 0)

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the interval leaves out zero: for differences."""
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)


@dataclass(frozen=True)
class _Cell:
    """A system in one split and tier: its mean, and its mean in each resample.

    Those of ``stratified`` are drawn apart from other tiers', for the mean over tiers.
    """

    mean: float
    resampled: npt.NDArray[np.float64]
    stratified: npt.NDArray[np.float64]
    ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Values of a metric by source, split and tier, over seeds and queries (crossed bootstrap, see there)."""

    sources: Mapping[str, Source]
    """By name."""
    splits: tuple[str, ...]
    tiers: tuple[str, ...]
    scope: str
    """Which queries of a split: the sample that all rounds share, or every one."""
    metric: str = "ndcg@5"

    def value(self, name: str, split: str, tier: str) -> Value | None:
        """Mean and interval; None where it was not measured. ``tier`` may be the mean over tiers."""
        found = self._parts(name, split, tier)
        if found is None:
            return None
        return _value([cell.mean for cell in found], [_draws(cell, tier) for cell in found], found)

    def difference(self, name: str, other: str, split: str, tier: str) -> Value | None:
        """How much more ``name`` reaches than ``other`` over the same queries; None where those differ."""
        left, right = self._parts(name, split, tier), self._parts(other, split, tier)
        if left is None or right is None or [one.ids for one in left] != [one.ids for one in right]:
            return None
        pairs = list(zip(left, right, strict=True))
        return _value([a.mean - b.mean for a, b in pairs], [_draws(a, tier) - _draws(b, tier) for a, b in pairs], left)

    def queries(self, split: str, tier: str) -> int:
        """How many there are; the most where systems differ."""
        if tier == MEAN_OVER_TIERS:
            return sum(self.queries(split, one) for one in self.tiers)
        return max((len(cell.ids) for (_, *where), cell in self._cells.items() if where == [split, tier]), default=0)

    def _parts(self, name: str, split: str, tier: str) -> list[_Cell] | None:
        wanted = self.tiers if tier == MEAN_OVER_TIERS else (tier,)
        found = [cell for one in wanted if (cell := self._cells.get((name, split, one))) is not None]
        there = [one for one in wanted if self.queries(split, one)]
        return found if found and len(found) == len(there) else None

    @cached_property
    def _cells(self) -> dict[tuple[str, str, str], _Cell]:
        found: dict[tuple[str, str, str], _Cell] = {}
        for split in self.splits:
            alike = {tier: groups for tier in self.tiers if (groups := self._alike(split, tier))}
            for seed, (tier, groups) in enumerate(alike.items()):
                for (ids, _), named in groups.items():
                    stacked = np.stack([values for _, values in named])  # (systems, seeds, queries)
                    means = _resampled(stacked, SEED)
                    apart = means if seed == SEED else _resampled(stacked, seed)
                    for at, (name, values) in enumerate(named):
                        found[name, split, tier] = _Cell(float(values.mean()), means[at], apart[at], ids)
        return found

    def _alike(
        self, split: str, tier: str
    ) -> dict[tuple[tuple[str, ...], int], list[tuple[str, npt.NDArray[np.float64]]]]:
        """Names and values (seeds × queries) of the systems that answered the same queries under as many seeds."""
        found: dict[tuple[tuple[str, ...], int], list[tuple[str, npt.NDArray[np.float64]]]] = defaultdict(list)
        for name, source in self.sources.items():
            scored = [self._scored(run, source, split, tier) for run in source.runs]
            known = [one for one in scored if one is not None]
            if known and len(known) == len(scored) and len({one.ids for one in known}) == 1:
                found[known[0].ids, len(known)].append((name, np.stack([one.values for one in known])))
        return found

    def _scored(self, run: RunView, source: Source, split: str, tier: str) -> Scored | None:
        evaluation = run.evaluations.get(source.stage)
        if evaluation is None or (self.scope == EVERY_QUERY and not self._is_whole(run, source.stage, split)):
            return None
        return evaluation.scored(split, tier, source.search, self.metric, self.scope)

    def _is_whole(self, run: RunView, stage: str, split: str) -> bool:
        """Whether a stage scored all of a split: what is wider than the sample, or where no stage was."""
        wider = {one for one, found in run.evaluations.items() if found.is_wider_than_sample(split)}
        return stage in wider or not wider


def _draws(cell: _Cell, tier: str) -> npt.NDArray[np.float64]:
    return cell.stratified if tier == MEAN_OVER_TIERS else cell.resampled


def _value(means: Sequence[float], resampled: Sequence[npt.NDArray[np.float64]], cells: Sequence[_Cell]) -> Value:
    """Over tiers, each is resampled by itself: how many queries a tier has is no matter of chance."""
    n = sum(len(cell.ids) for cell in cells)
    mean, draws = float(np.mean(means)), np.mean(resampled, axis=0)
    if n == 1:
        return Value(mean=mean, interval=None, n=n)
    low, high = np.quantile(draws, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    flips = float(share_of_flips(np.array([mean]), draws[:, None])[0])
    return Value(mean=mean, interval=Interval(float(low), float(high)), n=n, flips=flips)


def _resampled(values: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Means over drawn queries under drawn seeds: (systems, seeds, queries) → (systems, resamples).

    With one seed these are the draws of :func:`cohyde.evaluation.bootstrap.over_queries`: equal numbers everywhere.
    """
    systems, seeds, queries = values.shape
    random = np.random.default_rng(seed)
    flat = np.ascontiguousarray(values.reshape(-1, queries).T)
    out = np.empty((systems, RESAMPLES))
    for start in range(0, RESAMPLES, BLOCK):
        by_query = _drawn(random, queries) @ flat
        by_seed = _drawn(random, seeds) if seeds > 1 else np.ones((BLOCK, 1))
        out[:, start : start + BLOCK] = np.einsum("rks,rs->kr", by_query.reshape(BLOCK, systems, seeds), by_seed)
    return out


def _drawn(random: np.random.Generator, units: int) -> npt.NDArray[np.float64]:
    """How often each unit was drawn in each resample of a block, as a share."""
    drawn = random.integers(units, size=(BLOCK, units)) + units * np.arange(BLOCK)[:, None]
    counts: npt.NDArray[np.int64] = np.bincount(drawn.ravel(), minlength=BLOCK * units)
    return counts.reshape(BLOCK, units) / units
