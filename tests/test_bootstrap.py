"""Bootstrap intervals, against what can be counted by hand or is known from theory."""

import itertools
import math
import time
from statistics import NormalDist, pstdev

import numpy as np
import pytest

from cohyde.evaluation.bootstrap import Interval, over_seeds, over_seeds_and_queries

Z = NormalDist().inv_cdf(0.975)


def half_width(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def test_of_two_seeds_it_is_their_span() -> None:
    # The mean of two draws is 0, 0.5 or 1, with 1/4, 1/2 and 1/4: 2.5% of the resamples lie at either end.
    assert over_seeds([0.0, 1.0]) == Interval(0.0, 1.0)


def test_of_four_seeds_it_leaves_out_what_is_rarer_than_its_tail() -> None:
    # Draws of the 4 are binomial(4, 1/4) and so is the mean: P(0) = 31.6%, P(3 or 4) = 5.1%, P(4) = 0.4%.
    assert over_seeds([0.0, 0.0, 0.0, 4.0]) == Interval(0.0, 3.0)


def test_of_one_seed_it_is_a_point() -> None:
    assert over_seeds([0.25]) == Interval(0.25, 0.25)


def test_of_many_seeds_it_is_that_of_the_normal_distribution() -> None:
    differences = np.random.default_rng(1).normal(0.02, 0.01, size=400)
    interval = over_seeds(list(differences))
    assert half_width(interval) == pytest.approx(Z * pstdev(differences) / math.sqrt(400), rel=0.03)
    assert (interval.low + interval.high) / 2 == pytest.approx(differences.mean(), abs=1e-4)


def test_seeds_and_queries_are_drawn_as_counted_out_in_full() -> None:
    differences = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 8.0]])
    seed_draws, query_draws = itertools.product(range(2), repeat=2), list(itertools.product(range(3), repeat=3))
    means = [differences[np.ix_(seeds, queries)].mean() for seeds in seed_draws for queries in query_draws]
    assert len(means) == 2**2 * 3**3
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    interval = over_seeds_and_queries(differences.tolist())
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))


def test_the_spread_of_seeds_and_of_queries_adds_up() -> None:
    random = np.random.default_rng(2)
    of_seed, of_query = random.normal(0, 0.02, size=50), random.normal(0, 0.3, size=400)
    interval = over_seeds_and_queries((of_seed[:, None] + of_query[None, :]).tolist())
    variance = pstdev(of_seed) ** 2 / 50 + pstdev(of_query) ** 2 / 400
    assert half_width(interval) == pytest.approx(Z * math.sqrt(variance), rel=0.03)


def test_more_seeds_do_not_make_more_queries() -> None:
    row = list(np.random.default_rng(3).normal(0, 0.3, size=100))
    alone, repeated = over_seeds_and_queries([row]), over_seeds_and_queries([row] * 20)
    assert half_width(alone) == pytest.approx(Z * pstdev(row) / math.sqrt(100), rel=0.03)
    assert half_width(repeated) == pytest.approx(half_width(alone), rel=0.03)


def test_what_is_equal_everywhere_has_no_width() -> None:
    assert half_width(over_seeds_and_queries([[0.1] * 7] * 3)) == pytest.approx(0, abs=1e-12)


def test_it_is_the_same_every_time() -> None:
    rows = np.random.default_rng(4).normal(size=(3, 30)).tolist()
    assert over_seeds_and_queries(rows) == over_seeds_and_queries(rows)


def test_the_papers_evaluation_takes_less_than_two_seconds() -> None:
    random = np.random.default_rng(5)
    start = time.process_time()
    for queries in (593, 399, 100) * 2:  # G1, G2 and G3, standard and vague
        over_seeds_and_queries(random.normal(size=(5, queries)).tolist())
    assert time.process_time() - start < 2


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_nothing_has_no_interval(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        over_seeds_and_queries(rows)


def test_a_difference_that_was_not_measured_is_no_number() -> None:
    with pytest.raises(ValueError, match="not finite"):
        over_seeds([0.1, math.nan])
    with pytest.raises(ValueError, match="not finite"):
        over_seeds_and_queries([[0.1, math.inf]])
