"""Metrics: values by hand, and agreement with an independent implementation."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from cohyde.catalog import Query
from cohyde.evaluation.metrics import (
    CUTOFFS,
    METRICS,
    QueryScore,
    comp_at,
    hit_at,
    ndcg_at,
    recall_at,
    score_query,
    score_run,
    summarise,
)

SEVEN = [f"g{number}" for number in range(7)]


def discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def test_ndcg_is_1_when_the_top_k_holds_nothing_but_gold_though_more_gold_exists() -> None:
    assert ndcg_at(SEVEN[:5], SEVEN, 5) == 1.0


def test_ndcg_takes_the_ideal_over_the_smaller_of_k_and_gold() -> None:
    ranked = [*SEVEN[:3], "x", "y"]
    expected = sum(map(discount, (1, 2, 3))) / sum(map(discount, (1, 2, 3, 4, 5)))
    assert ndcg_at(ranked, SEVEN, 5) == pytest.approx(expected) == pytest.approx(0.7227, abs=5e-5)


def test_ndcg_takes_the_ideal_from_the_gold_and_not_from_what_was_retrieved() -> None:
    expected = discount(1) / (discount(1) + discount(2))
    assert ndcg_at(["a", "x", "y"], ["a", "b"], 5) == pytest.approx(expected) == pytest.approx(0.6131, abs=5e-5)


def test_ndcg_discounts_by_log2_of_rank_plus_1() -> None:
    assert ndcg_at(["x", "a"], ["a"], 5) == pytest.approx(discount(2)) == pytest.approx(0.6309, abs=5e-5)


def test_an_id_that_comes_again_is_ignored_and_what_follows_moves_up() -> None:
    ranked = ["a", "a", "a", "b"]
    assert ndcg_at(ranked, ["a", "b"], 2) == 1.0
    assert recall_at(ranked, ["a", "b"], 2) == 1.0
    assert comp_at(ranked, ["a", "b"], 2) == 1.0


def test_gold_that_comes_again_counts_once() -> None:
    assert recall_at(["a"], ["a", "a"], 1) == 1.0


def test_hit_recall_and_comp_by_hand() -> None:
    ranked, gold = ["x", "a", "y", "b"], ["a", "b", "c"]
    assert [hit_at(ranked, gold, k) for k in (1, 2, 4)] == [0.0, 1.0, 1.0]
    assert [recall_at(ranked, gold, k) for k in (1, 2, 4)] == [0 / 3, 1 / 3, 2 / 3]
    assert [comp_at([*ranked, "c"], gold, k) for k in (4, 5)] == [0.0, 1.0]


def test_comp_is_0_where_there_is_more_gold_than_k() -> None:
    assert comp_at(SEVEN, SEVEN, 5) == 0.0


def test_an_empty_ranking_scores_0() -> None:
    assert set(score_query([], ["a"]).values()) == {0.0}


@pytest.mark.parametrize("name", METRICS)
def test_a_query_without_gold_raises(name: str) -> None:
    with pytest.raises(ValueError, match="without gold"):
        METRICS[name](["a"], [], 5)


@pytest.mark.parametrize("name", METRICS)
def test_a_cutoff_below_1_raises(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        METRICS[name](["a"], ["a"], 0)


def naive(ranked: Sequence[str], gold: set[str], k: int) -> dict[str, float]:
    """The definitions again, on gain vectors, from an ideal ranking that is really sorted."""
    distinct: list[str] = []
    for identifier in ranked:
        if identifier not in distinct:
            distinct.append(identifier)
    universe = distinct + sorted(gold - set(distinct))
    gains = np.array([identifier in gold for identifier in universe], dtype=float)
    shown = np.where(np.arange(len(universe)) < len(distinct), gains, 0.0)[:k]
    ideal = np.sort(gains)[::-1][:k]
    weights = 1 / np.log2(np.arange(2, k + 2))
    return {
        "hit": float(shown.max(initial=0.0)),
        "recall": float(shown.sum() / len(gold)),
        "ndcg": float((shown @ weights[: len(shown)]) / (ideal @ weights[: len(ideal)])),
        "comp": float(gold <= set(distinct[:k])),
    }


def test_agreement_with_an_independent_implementation_on_random_rankings() -> None:
    draw = random.Random(0)
    ids = [str(number) for number in range(40)]
    for _ in range(300):
        ranked = draw.choices(ids, k=draw.randint(0, 60))
        gold = set(draw.sample(ids, draw.randint(1, 25)))
        scores = score_query(ranked, gold)
        for k in CUTOFFS:
            for name, value in naive(ranked, gold, k).items():
                assert scores[f"{name}@{k}"] == pytest.approx(value, abs=1e-12)
                assert 0.0 <= scores[f"{name}@{k}"] <= 1.0


def row(identifier: str, tier: str, value: float) -> QueryScore:
    return QueryScore(id=identifier, tier=tier, values={"ndcg@5": value})


def test_means_within_tiers_over_all_and_over_tiers() -> None:
    summary = summarise([row("1", "G2", 1.0), row("2", "G1", 0.5), row("3", "G1", 0.0), row("4", "G1", 0.1)])
    assert list(summary.tiers) == ["G1", "G2"]
    assert (summary.tiers["G1"].n, summary.tiers["G1"].values["ndcg@5"]) == (3, pytest.approx((0.5 + 0.0 + 0.1) / 3))
    assert (summary.all.n, summary.all.values["ndcg@5"]) == (4, pytest.approx((1.0 + 0.5 + 0.0 + 0.1) / 4))
    assert summary.mean_over_tiers.n == 4
    assert summary.mean_over_tiers.values["ndcg@5"] == pytest.approx((0.2 + 1.0) / 2)


def test_rows_name_tier_metric_and_cutoff() -> None:
    rows = summarise([row("1", "G1", 1.0), row("2", "G2", 0.0)]).rows()
    assert rows[0] == {"tier": "G1", "metric": "ndcg", "k": 5, "value": 1.0, "n": 1}
    assert [r["tier"] for r in rows] == ["G1", "G2", "all", "mean over tiers"]


def test_a_tier_called_all_is_not_reported_twice() -> None:
    assert [r["tier"] for r in summarise([row("1", "all", 1.0)]).rows()] == ["all", "mean over tiers"]


def test_means_do_not_depend_on_the_order_of_the_queries() -> None:
    draw = random.Random(1)
    rows = [row(str(number), draw.choice("ab"), draw.random()) for number in range(200)]
    assert summarise(rows) == summarise(rows[::-1])


def test_a_summary_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="no query"):
        summarise([])


def test_rows_with_other_metrics_raise() -> None:
    with pytest.raises(ValueError, match="'2' has other metrics than query '1'"):
        summarise([row("1", "a", 1.0), QueryScore(id="2", tier="a", values={"hit@1": 1.0})])


def test_a_query_absent_from_the_run_scores_0_and_one_without_gold_is_counted() -> None:
    queries = [
        Query(id="1", text="?", tools=("a",), tier="G1"),
        Query(id="2", text="?", tools=("b",), tier="G2"),
        Query(id="3", text="?", tools=(), tier="G2"),
    ]
    scores, without_gold = score_run({"1": ["a"], "3": ["a"]}, queries)
    assert [(score.id, score.tier, score.values["hit@1"]) for score in scores] == [("1", "G1", 1.0), ("2", "G2", 0.0)]
    assert without_gold == 1
