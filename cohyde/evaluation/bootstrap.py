"""Paired bootstrap of means and of differences between two states: over queries, over seeds, over seeds and queries.

Resampled are seeds and queries, never single measurements: a query is drawn with what both states made of it under
every seed that was drawn, so whatever makes it hard for all of them cancels. And Holm's correction over a family.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
COVERAGE = 0.95
CERTAIN = 0.05
"""Below this p, after correction for many comparisons, a difference is set off."""
SEED = 0
"""Of the resampling: equal differences give equal intervals, on every machine."""
BLOCK = 1_000
"""Resamples at once at most."""
DRAWN_AT_ONCE = 4_000_000
"""Queries drawn at once at most, over all resamples of a block; bounds memory (three arrays of 32 MB)."""

ROUNDING = 1e-12
"""What is no further from 0 is 0: gains and losses that cancel come to that in another order of the sum."""


@dataclass(frozen=True)
class Interval:
    """A percentile interval that covers 95%."""

    low: float
    high: float


def over_seeds(differences: Sequence[float]) -> Interval:
    """Interval of the mean of one difference a seed.

    Of two or three seeds it is hardly more than their span: it can't be narrower than what so few seeds can tell.

    Raises:
        ValueError: no seed, or a difference that is not finite.
    """
    values = _checked(np.asarray(differences, dtype=float)[:, None])
    weights = _weights(np.random.default_rng(SEED), RESAMPLES, len(values))
    return _interval(weights @ values[:, 0])


def over_seeds_and_queries(differences: Sequence[Sequence[float]]) -> Interval:
    """Interval of the mean of one difference a seed (rows) and query (columns; the same queries under every seed).

    Seeds and queries are drawn independently of each other, both with replacement, and a resample is all drawn
    queries under all drawn seeds (the crossed, or pigeonhole, bootstrap). Drawing queries anew for every seed would
    take them for more queries than there are. With one seed this is the usual paired bootstrap over queries.

    Raises:
        ValueError: no seed, no query, rows of different length, or a difference that is not finite.
    """
    values = _checked(np.asarray(differences, dtype=float))
    random = np.random.default_rng(SEED)
    by_seed = _weights(random, RESAMPLES, values.shape[0])
    means = [
        np.einsum("rs,rs->r", by_seed[start : start + BLOCK], _weights(random, BLOCK, values.shape[1]) @ values.T)
        for start in range(0, RESAMPLES, BLOCK)
    ]
    return _interval(np.concatenate(means))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over ``n`` queries, and what other queries of the same kind might have made of it."""

    mean: float
    n: int
    interval: Interval | None
    """None for one query, which says nothing of others."""
    flips: float | None
    """Share of the resamples whose mean has not the sign of ``mean``: is on the other side of 0, or 0 itself."""

    @property
    def p(self) -> float | None:
        """Two-sided: see :func:`two_sided`."""
        return None if self.flips is None else two_sided(self.flips)


def two_sided(flips: float) -> float:
    """The p of a share of resamples that flip the sign; never 0, of which no number of resamples can tell.

    The resample that was observed counts as one that flips (Davison & Hinkley 1997, section 4.2).
    """
    return min(1.0, 2 * (round(flips * RESAMPLES) + 1) / (RESAMPLES + 1))


def share_of_flips(means: npt.NDArray[Any], resampled: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Share of the resamples (rows) whose means have not the sign of the observed ``means``, by column."""
    signs = np.sign(means) * (np.abs(means) > ROUNDING)
    share: npt.NDArray[Any] = (resampled * signs <= ROUNDING).mean(axis=0)
    return share


def over_queries(values: npt.ArrayLike) -> list[Estimate]:
    """Estimates of the means of c columns over n queries; the columns are resampled together.

    Args:
        values: (n, c), such as what one system scored, what another did, and the difference.

    Raises:
        ValueError: no query, no column, or a value that is not finite.
    """
    array = _checked(np.asarray(values, dtype=float))
    return _estimates(array.mean(axis=0), len(array), _resampled_means(array) if len(array) > 1 else None)


def over_tiers(values: npt.ArrayLike, tiers: Sequence[str]) -> list[Estimate]:
    """The same for the unweighted mean of the tiers' means: stratified, each tier's queries drawn among themselves.

    A tier of one query is what it is in every resample.

    Args:
        values: (n, c).
        tiers: n labels.

    Raises:
        ValueError: as :func:`over_queries`, or another number of labels.
    """
    array, labels = _checked(np.asarray(values, dtype=float)), np.asarray(tiers, dtype=object)
    if len(labels) != len(array):
        raise ValueError(f"{len(array)} queries but {len(labels)} tiers")
    parts = [array[labels == label] for label in sorted(set(tiers))]
    observed = np.mean([part.mean(axis=0) for part in parts], axis=0)
    if len(array) == 1:
        return _estimates(observed, 1, None)
    resampled = np.mean([_resampled_means(part, seed) for seed, part in enumerate(parts)], axis=0)
    return _estimates(observed, len(array), resampled)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for a family of comparisons (Holm 1979): what is below α has a family-wise error of α at most."""
    adjusted, floor = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = floor
    return adjusted


def _resampled_means(values: npt.NDArray[Any], seed: int = SEED) -> npt.NDArray[Any]:
    """(n, c) to (resamples, c): the means of each resample of the rows."""
    random, block = np.random.default_rng(seed), max(1, min(BLOCK, DRAWN_AT_ONCE // len(values)))
    sizes = [min(block, RESAMPLES - start) for start in range(0, RESAMPLES, block)]
    return np.concatenate([_weights(random, size, len(values)) @ values for size in sizes])


def _estimates(means: npt.NDArray[Any], n: int, resampled: npt.NDArray[Any] | None) -> list[Estimate]:
    if resampled is None:
        return [Estimate(mean=float(mean), n=n, interval=None, flips=None) for mean in means]
    flips = share_of_flips(means, resampled)
    return [
        Estimate(mean=float(mean), n=n, interval=_interval(column), flips=float(flip))
        for mean, column, flip in zip(means, resampled.T, flips, strict=True)
    ]


def _checked(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.ndim != 2 or not values.size:
        raise ValueError(f"differences have to be seeds × queries, at least one of each, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("a difference is not finite")
    return values


def _weights(random: np.random.Generator, resamples: int, units: int) -> npt.NDArray[Any]:
    """How often each of the units was drawn in each resample, as a share: every row sums to 1."""
    drawn = random.integers(units, size=(resamples, units))
    drawn += units * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * units).reshape(resamples, units) / units


def _interval(means: npt.NDArray[Any]) -> Interval:
    low, high = np.quantile(means, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Interval(float(low), float(high))
