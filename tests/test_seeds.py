"""The table over seeds, from hand-made measurements."""

from collections.abc import Mapping
from statistics import stdev
from typing import Any

import pytest

from cohyde.evaluation.bootstrap import Interval, over_seeds_and_queries
from cohyde.evaluation.results import MetricRow
from cohyde.evaluation.seeds import ByQuery, Cell, SeedRun, SeedTable, State, build_seed_table

G1, G2, DEV = ("standard", "G1"), ("vague", "G2"), ("dev", "mean over tiers")
MODE = "concatenated"
Values = Mapping[tuple[str, str], float]


def rows(values: Values, search: str = MODE, n: int = 4) -> list[MetricRow]:
    common: dict[str, Any] = {"metric": "ndcg", "k": 5, "n": n, "search": search, "scope": "sample"}
    return [MetricRow(split=split, tier=tier, value=value, **common) for (split, tier), value in values.items()]


def nothing_by_query(stage: str, search: str) -> ByQuery:
    return {}


def seed_run(seed: int, *rounds: Values, untrained: Values | None = None, by_query: Any = nothing_by_query) -> SeedRun:
    evaluations = {f"E.{number}": rows(values) for number, values in enumerate(rounds)}
    first = {"E.untrained": rows(untrained, search="query")} if untrained else {}
    return SeedRun(seed=seed, evaluations=first | evaluations, by_query=by_query)


def cell(table: SeedTable, column: tuple[str, str]) -> Cell:
    [found] = [one for one in table.cells if (one.split, one.tier) == column]
    return found


WARM = {G1: 0.5, G2: 0.2, DEV: 0.4}


def two_seeds(**settings: Any) -> list[SeedRun]:
    return [
        seed_run(0, WARM, {G1: 0.6, G2: 0.3, DEV: 0.5}, {G1: 0.7, G2: 0.4, DEV: 0.58}, **settings),
        seed_run(123, WARM, {G1: 0.8, G2: 0.3, DEV: 0.7}, {G1: 0.7, G2: 0.2, DEV: 0.6}, **settings),
    ]


def test_the_round_is_selected_by_the_mean_of_dev_over_seeds() -> None:
    table = build_seed_table(two_seeds(), MODE)
    assert (0.5 + 0.7) / 2 > (0.58 + 0.6) / 2  # seed 0 alone would choose the second round
    assert (table.selected, table.by_dev, table.seeds) == ("E.1", True, (0, 123))


def test_a_cell_has_mean_deviation_and_the_gain_over_the_warm_up() -> None:
    table = build_seed_table(two_seeds(), MODE)
    assert table.baseline == State(stage="E.0", search=MODE)
    found = cell(table, G1)
    assert found.values == {0: 0.6, 123: 0.8}
    assert (found.mean, found.sd, found.baseline) == pytest.approx((0.7, stdev([0.6, 0.8]), 0.5))
    assert found.difference == pytest.approx(0.7 - 0.5)
    assert found.interval_seeds is not None
    assert (found.interval_seeds.low, found.interval_seeds.high) == pytest.approx((0.6 - 0.5, 0.8 - 0.5))
    assert found.interval_seeds_queries is None
    assert [(one.split, one.tier) for one in table.cells] == [G1, G2, DEV]


def test_every_seed_is_shown_at_every_round() -> None:
    table = build_seed_table(two_seeds(), MODE)
    assert list(table.lines) == [(seed, stage) for seed in (0, 123) for stage in ("E.0", "E.1", "E.2")]
    assert table.lines[123, "E.2"] == {G1: 0.7, G2: 0.2, DEV: 0.6}


def test_of_equal_rounds_the_earliest_is_selected() -> None:
    table = build_seed_table([seed_run(0, WARM, {**WARM, G1: 0.9}), seed_run(1, WARM, WARM)], MODE)
    assert table.selected == "E.0"


def test_a_selected_warm_up_is_compared_with_the_untrained_encoder() -> None:
    untrained = {G1: 0.25, G2: 0.25, DEV: 0.25}
    table = build_seed_table([seed_run(seed, WARM, untrained=untrained) for seed in (0, 1)], MODE)
    assert (table.selected, table.baseline) == ("E.0", State(stage="E.untrained", search="query"))
    assert cell(table, G1).difference == 0.5 - 0.25
    assert cell(table, G2).interval_seeds == Interval(0.2 - 0.25, 0.2 - 0.25)


def test_without_a_baseline_there_is_no_difference() -> None:
    table = build_seed_table([seed_run(0, WARM), seed_run(1, WARM)], MODE)
    assert table.baseline is None
    found = cell(table, G1)
    assert (found.mean, found.baseline, found.difference, found.interval_seeds) == (0.5, None, None, None)


def test_without_dev_the_last_round_stands() -> None:
    table = build_seed_table([seed_run(seed, {G1: 0.6}, {G1: 0.5}) for seed in (0, 1)], MODE)
    assert (table.selected, table.by_dev, table.columns) == ("E.1", False, (G1,))


def test_one_seed_has_no_deviation_and_no_interval_over_seeds() -> None:
    found = cell(build_seed_table([seed_run(0, WARM, {G1: 0.6, DEV: 0.5})], MODE), G1)
    assert (found.mean, found.sd, found.interval_seeds) == (0.6, None, None)
    assert found.difference == pytest.approx(0.6 - 0.5)


def test_query_scores_give_the_interval_over_seeds_and_queries() -> None:
    gains = {0: [0.1, 0.0, 0.3, 0.0], 123: [0.4, 0.2, 0.3, 0.3]}
    asked: list[tuple[int, str, str]] = []

    def by_query(seed: int) -> Any:
        def read(stage: str, search: str) -> ByQuery:
            asked.append((seed, stage, search))
            after = gains[seed] if stage == "E.1" else [0.0] * 4
            return {G1: {f"q{number}": 0.5 + gain for number, gain in enumerate(after)}, G2: {"q0": 0.0}}

        return read

    runs = [
        seed_run(0, WARM, {G1: 0.6, G2: 0.3, DEV: 0.5}, by_query=by_query(0)),
        seed_run(123, WARM, {G1: 0.8, G2: 0.3, DEV: 0.7}, by_query=by_query(123)),
    ]
    table = build_seed_table(runs, MODE)
    expected = over_seeds_and_queries(list(gains.values()))
    found = cell(table, G1).interval_seeds_queries
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert cell(table, G2).interval_seeds_queries is None  # the mean is over 4 queries, and one score is there
    assert cell(table, DEV).interval_seeds_queries is None
    assert sorted(asked) == [(0, "E.0", MODE), (0, "E.1", MODE), (123, "E.0", MODE), (123, "E.1", MODE)]


def test_queries_beyond_the_shared_sample_are_left_out() -> None:
    def by_query(stage: str, search: str) -> ByQuery:
        scored = {"E.0": 4, "E.1": 9}[stage]  # the last round scores all
        return {G1: {f"q{number}": 0.1 * number if stage == "E.1" else 0.0 for number in range(scored)}}

    table = build_seed_table([seed_run(0, WARM, {G1: 0.15, DEV: 0.5}, by_query=by_query)], MODE)
    interval = cell(table, G1).interval_seeds_queries
    assert interval is not None
    assert interval == over_seeds_and_queries([[0.0, 0.1, 0.2, 0.1 * 3]])


def test_runs_of_different_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="the same evaluations"):
        build_seed_table([seed_run(0, WARM), seed_run(1, WARM, WARM)], MODE)
    with pytest.raises(ValueError, match="the same evaluations"):
        build_seed_table([], MODE)


def test_it_is_told_as_plain_data() -> None:
    told = build_seed_table(two_seeds(), MODE).to_json()
    assert set(told) == {"search", "seeds", "selected", "selected_by_dev", "baseline", "cells", "rounds"}
    assert told["baseline"] == {"stage": "E.0", "search": MODE}
    first = told["cells"][0]
    assert {key: first[key] for key in ("split", "tier", "metric", "k", "queries", "values")} == {
        "split": "standard", "tier": "G1", "metric": "ndcg", "k": 5, "queries": 4, "values": {"0": 0.6, "123": 0.8},
    }  # fmt: skip
    assert first["interval_seeds"] == pytest.approx([0.1, 0.3])
    assert first["interval_seeds_queries"] is None
    assert len(told["rounds"]) == 2 * 3 * 3
