"""Bootstrap intervals, against what can be counted by hand or is known from theory."""

import itertools
import math
import time
from statistics import NormalDist, pstdev

import numpy as np
import pytest
from scipy import stats

from cohyde.evaluation import bootstrap
from cohyde.evaluation.bootstrap import (
    RESAMPLES,
    Estimate,
    Interval,
    holm,
    over_queries,
    over_seeds,
    over_seeds_and_queries,
    over_tiers,
)

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


# ---------------------------------------------------------------------------------------------------- over queries


def estimate(flips: float | None) -> Estimate:
    return Estimate(mean=0.1, n=5, interval=Interval(0, 1), flips=flips)


def test_queries_are_drawn_as_counted_out_in_full() -> None:
    values = [-1.0, 2.0, 3.0]
    means = [sum(draw) / 3 for draw in itertools.product(values, repeat=3)]
    [found] = over_queries([[value] for value in values])
    assert (found.mean, found.n) == (pytest.approx(4 / 3), 3)
    assert found.interval == Interval(*np.quantile(means, [0.025, 0.975], method="inverted_cdf"))
    # Below or at 0: three times -1, or -1 twice and 2: (1 + 3) of 27.
    assert found.flips == pytest.approx(4 / 27, abs=4 * math.sqrt(4 / 27 * 23 / 27 / RESAMPLES))
    assert sum(mean <= 0 for mean in means) == 4


def test_intervals_are_those_of_scipy() -> None:
    random = np.random.default_rng(6)
    before = random.choice([0.0, 0.5, 1.0], size=300)
    after = np.clip(before + random.choice([-0.5, 0.0, 0.0, 0.5, 0.5], size=300), 0, 1)
    [of_before, _, difference] = over_queries(np.stack([before, after, after - before], axis=1))
    for found, values in ((of_before, before), (difference, after - before)):
        theirs = stats.bootstrap(
            (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(7)
        ).confidence_interval
        error = theirs.high - theirs.low  # of a quantile of 10,000 resamples: some hundredths of the width
        assert found.interval is not None
        assert found.interval.low == pytest.approx(theirs.low, abs=0.03 * error)
        assert found.interval.high == pytest.approx(theirs.high, abs=0.03 * error)


def test_pairs_are_drawn_together_so_that_what_both_find_hard_cancels() -> None:
    hard = np.random.default_rng(8).uniform(0, 0.9, size=200)
    [a, b, difference] = over_queries(np.stack([hard, hard + 0.1, np.full(200, 0.1)], axis=1))
    assert a.interval is not None and b.interval is not None and difference.interval is not None
    assert half_width(difference.interval) == pytest.approx(0, abs=1e-12) and half_width(a.interval) > 0.03
    assert b.interval.low - a.interval.low == pytest.approx(0.1)
    assert (difference.flips, difference.p) == (0, 2 / (RESAMPLES + 1))


def test_one_query_has_no_interval() -> None:
    [found] = over_queries([[0.25]])
    assert found == Estimate(mean=0.25, n=1, interval=None, flips=None) and found.p is None
    assert over_tiers([[0.25]], ["G1"]) == [found]


def test_no_difference_at_all_flips_always() -> None:
    [found] = over_queries([[0.0]] * 10)
    assert (found.interval, found.flips, found.p) == (Interval(0, 0), 1, 1)


def test_p_counts_both_sides_and_is_never_0() -> None:
    assert estimate(0.02).p == pytest.approx(2 * (0.02 * RESAMPLES + 1) / (RESAMPLES + 1))
    assert estimate(0.0).p == pytest.approx(2 / (RESAMPLES + 1))
    assert (estimate(0.7).p, estimate(None).p) == (1, None)


def test_memory_is_bounded_and_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(9).normal(size=(40, 2))
    whole = over_queries(values)
    monkeypatch.setattr(bootstrap, "DRAWN_AT_ONCE", 40 * 7)
    for before, after in zip(whole, over_queries(values), strict=True):
        assert before.interval is not None and after.interval is not None
        assert after.interval.low == pytest.approx(before.interval.low, abs=1e-12)
        assert after.flips == before.flips


def test_the_mean_over_tiers_weighs_them_alike_and_draws_each_among_its_own() -> None:
    random = np.random.default_rng(10)
    parts = {"G1": random.normal(0.1, 0.3, size=400), "G2": random.normal(0.2, 0.3, size=100), "G3": np.array([0.6])}
    values = np.concatenate(list(parts.values()))
    tiers = [tier for tier, part in parts.items() for _ in part]
    [found] = over_tiers(values[:, None], tiers)
    assert found.mean == pytest.approx(sum(part.mean() for part in parts.values()) / 3)
    variance = (pstdev(parts["G1"]) ** 2 / 400 + pstdev(parts["G2"]) ** 2 / 100 + 0) / 3**2
    assert found.interval is not None
    assert half_width(found.interval) == pytest.approx(Z * math.sqrt(variance), rel=0.03)


def test_every_query_needs_its_tier() -> None:
    with pytest.raises(ValueError, match="2 queries but 1 tiers"):
        over_tiers([[0.1], [0.2]], ["G1"])
    with pytest.raises(ValueError, match="not finite"):
        over_queries([[math.nan]])


def test_holm_multiplies_the_smallest_by_the_family_and_never_lets_a_larger_fall_below_it() -> None:
    # sorted: 0.01 × 4 = 0.04; 0.02 × 3 = 0.06; 0.025 × 2 = 0.05, raised to 0.06; 0.9 × 1
    assert holm([0.02, 0.9, 0.01, 0.025]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert holm([]) == [] and holm([0.03]) == [0.03]
