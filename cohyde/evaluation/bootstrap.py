"""Paired bootstrap intervals of a mean difference between two states, over seeds, and over seeds and queries.

Resampled are seeds and queries, never single measurements: a query is drawn with what both states made of it under
every seed that was drawn, so whatever makes it hard for all of them cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
COVERAGE = 0.95
SEED = 0
"""Of the resampling: equal differences give equal intervals, on every machine."""
BLOCK = 1_000
"""Resamples at once; bounds memory (8 MB a thousand queries)."""


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
