"""Rows of metrics, the table that is made of them, and the round that dev selects."""

import dataclasses
import re
from io import StringIO

import pytest
from rich.console import Console

from cohyde.catalog import Query
from cohyde.evaluation.metrics import ALL, MEAN_OVER_TIERS
from cohyde.evaluation.per_query import Found, per_query_of
from cohyde.evaluation.report import Line, Report, build_report, percent, to_markdown
from cohyde.evaluation.results import (
    EVERY_QUERY,
    SAMPLE,
    MetricRow,
    metric_rows,
    row_from,
    value_of,
)
from cohyde.terminal import print_report

TIERS = ("G1", "G2", "G3")
MODES = ("description", "query", "concatenated", "fused")


def row(split: str, tier: str, value: float, *, search: str = "description", scope: str = SAMPLE) -> MetricRow:
    return MetricRow(split=split, tier=tier, metric="ndcg", k=5, value=value, n=4, search=search, scope=scope)


def dev(value: float, search: str = "description") -> MetricRow:
    return row("dev", MEAN_OVER_TIERS, value, search=search)


def evaluation(value: float, modes: tuple[str, ...] = MODES, scopes: tuple[str, ...] = (SAMPLE,)) -> list[MetricRow]:
    """A whole evaluation in which every NDCG@5 is ``value``."""
    rows = [
        row(split, tier, value, search=mode, scope=scope)
        for mode in modes
        for split in ("standard", "vague")
        for scope in scopes
        for tier in (*TIERS, ALL, MEAN_OVER_TIERS)
    ]
    return rows + [row("dev", tier, value, search=mode) for mode in modes for tier in (*TIERS, ALL, MEAN_OVER_TIERS)]


def line_of(report: Report, stage: str, search: str, scope: str = SAMPLE) -> Line:
    (found,) = [line for line in report.lines if (line.stage, line.search, line.scope) == (stage, search, scope)]
    return found


# ------------------------------------------------------------------------------------------------------- rows


def test_rankings_become_means_by_tier() -> None:
    queries = [
        Query(id="q1", text="", tools=("a",), tier="G1"),
        Query(id="q2", text="", tools=("a",), tier="G1"),
        Query(id="q3", text="", tools=("b", "c"), tier="G2"),
    ]
    rankings = [[("a", 0.9), ("b", 0.1)], [("b", 0.9), ("c", 0.8)], [("b", 0.9), ("a", 0.8)]]
    found = [
        Found(query=query, split="dev", search="query", in_sample=True, ranking=ranking)
        for query, ranking in zip(queries, rankings, strict=True)
    ]
    rows = metric_rows(per_query_of(found, "catalogue"))

    def value(tier: str, metric: str, k: int) -> float | None:
        return value_of(rows, split="dev", tier=tier, search="query", scope=SAMPLE, metric=metric, k=k)

    assert (value("G1", "hit", 1), value("G2", "hit", 1)) == ((1 + 0) / 2, 1)
    assert (value("G2", "recall", 5), value("G2", "comp", 5)) == (1 / 2, 0)
    assert value(ALL, "hit", 5) == pytest.approx((1 + 0 + 1) / 3)
    assert value(MEAN_OVER_TIERS, "hit", 5) == (1 / 2 + 1) / 2
    assert {(found.tier, found.n) for found in rows} == {("G1", 2), ("G2", 1), (ALL, 3), (MEAN_OVER_TIERS, 3)}


def test_what_was_not_measured_has_no_value_and_no_rows() -> None:
    assert value_of([dev(0.5)], split="vague", tier=ALL, search="query", scope=SAMPLE) is None
    assert metric_rows(per_query_of([], "catalogue")) == []


def test_a_row_is_read_back_as_it_was_written() -> None:
    assert row_from(dev(0.25).to_row()) == dev(0.25)


def test_where_more_than_the_sample_was_scored_there_are_means_of_both() -> None:
    found = [
        Found(
            query=Query(id=f"q{number}", text="", tools=("a",), tier="G1"),
            split="standard",
            search="query",
            in_sample=number < 2,
            ranking=[("a", 1.0)] if number == 0 else [("b", 1.0)],
        )
        for number in range(4)
    ]
    rows = metric_rows(per_query_of(found, "catalogue"))

    def value(scope: str) -> float | None:
        return value_of(rows, split="standard", tier="G1", search="query", scope=scope, metric="hit", k=1)

    assert (value(SAMPLE), value(EVERY_QUERY)) == (1 / 2, 1 / 4)


def test_with_several_gold_sets_there_are_means_of_the_best_too() -> None:
    query = Query(id="q", text="", tools=("a", "b"), tier="G1", gold_sets=(("c",),))
    single = Query(id="r", text="", tools=("a",), tier="G1")
    found = [
        Found(query=one, split="dev", search="query", in_sample=True, ranking=[("c", 0.9), ("a", 0.8)])
        for one in (query, single)
    ]
    rows = metric_rows(per_query_of(found, "catalogue"))

    def value(metric: str) -> float | None:
        return value_of(rows, split="dev", tier="G1", search="query", scope=SAMPLE, metric=metric, k=5)

    assert (value("recall"), value("recall:equivalents")) == ((1 / 2 + 1) / 2, (1 + 1) / 2)
    assert (value("comp"), value("comp:equivalents")) == ((0 + 1) / 2, (1 + 1) / 2)


# -------------------------------------------------------------------------------------------------- selection


def test_dev_selects_the_round_and_the_evaluation_split_is_never_looked_at() -> None:
    evaluations = {
        "E.0": [dev(0.3), row("standard", ALL, 0.9), row("vague", ALL, 0.9)],
        "E.1": [dev(0.5), row("standard", ALL, 0.1), row("vague", ALL, 0.1)],
        "E.2": [dev(0.4), row("standard", ALL, 0.8), row("vague", ALL, 0.8)],
    }
    assert build_report(evaluations, "description").selected == "E.1"


def test_the_earliest_of_equals_is_selected() -> None:
    assert build_report({"E.0": [dev(0.3)], "E.1": [dev(0.5)], "E.2": [dev(0.5)]}, "description").selected == "E.1"
    assert build_report({"E.0": [dev(0.0)], "E.1": [dev(0.0)]}, "description").selected == "E.0"


def test_the_configured_search_mode_decides() -> None:
    evaluations = {"E.0": [dev(0.3), dev(0.8, "fused")], "E.1": [dev(0.5), dev(0.6, "fused")]}
    assert build_report(evaluations, "description").selected == "E.1"
    assert build_report(evaluations, "fused").selected == "E.0"


def test_a_mean_over_all_queries_does_not_select() -> None:
    evaluations = {"E.0": [dev(0.3), row("dev", ALL, 0.9)], "E.1": [dev(0.4), row("dev", ALL, 0.1)]}
    assert build_report(evaluations, "description").selected == "E.1"


def test_the_untrained_baseline_is_no_round_and_never_selected() -> None:
    evaluations = {"E.untrained": evaluation(0.9, ("query",)), "E.0": evaluation(0.3), "E.1": evaluation(0.4)}
    assert build_report(evaluations, "query").selected == "E.1"
    assert build_report({"E.untrained": evaluation(0.9, ("query",))}, "query").selected is None


def test_without_dev_nothing_is_selected() -> None:
    report = build_report({"E.0": [row("standard", ALL, 0.9)]}, "description")
    assert report.selected is None
    assert "No round is selected" in to_markdown(report)


def test_a_report_of_nothing_has_no_lines() -> None:
    report = build_report({}, "description")
    assert (report.lines, report.rows, report.selected) == ((), (), None)


# ------------------------------------------------------------------------------------------------------ lines


def test_each_evaluation_has_a_line_for_the_raw_query_the_description_and_the_configured_mode() -> None:
    evaluations = {"E.untrained": evaluation(0.1, ("query",)), "E.0": evaluation(0.2), "E.1": evaluation(0.3)}
    lines = [(line.stage, line.search) for line in build_report(evaluations, "fused").lines]
    assert lines == [
        ("E.untrained", "query"),
        *[("E.0", "query"), ("E.0", "description"), ("E.0", "fused")],
        *[("E.1", "query"), ("E.1", "description"), ("E.1", "fused")],
    ]
    assert len(build_report(evaluations, "description").lines) == 1 + 2 + 2


def test_a_line_holds_both_splits_by_tier_and_dev() -> None:
    rows = [row("standard", "G1", 0.1), row("standard", "G2", 0.2), row("vague", "G1", 0.3), dev(0.4)]
    report = build_report({"E.0": rows}, "description")
    line = line_of(report, "E.0", "description")
    assert report.tiers == ("G1", "G2")
    assert line.values == {
        ("standard", "G1"): 0.1,
        ("standard", "G2"): 0.2,
        ("vague", "G1"): 0.3,
        ("vague", "G2"): None,
    }
    assert line.dev == 0.4


def test_a_sample_and_all_queries_have_lines_of_their_own() -> None:
    report = build_report({"E.0": evaluation(0.2), "E.1": evaluation(0.3, scopes=(SAMPLE, EVERY_QUERY))}, "description")
    scopes = [(line.stage, line.scope) for line in report.lines if line.search == "description"]
    assert scopes == [("E.0", SAMPLE), ("E.1", SAMPLE), ("E.1", EVERY_QUERY)]


def test_a_split_that_was_scored_whole_as_the_sample_stands_in_the_table_of_all_queries_too() -> None:
    rows = [row("standard", "G1", 0.1), row("vague", "G1", 0.2), row("vague", "G1", 0.3, scope=EVERY_QUERY), dev(0.4)]
    line = line_of(build_report({"E.1": rows}, "description"), "E.1", "description", EVERY_QUERY)
    assert line.values == {("standard", "G1"): 0.1, ("vague", "G1"): 0.3}
    assert line.dev == 0.4


def test_a_dataset_without_tiers_has_one_column_a_split() -> None:
    rows = [row(split, tier, 0.5) for split in ("standard", "dev") for tier in (ALL, MEAN_OVER_TIERS)]
    report = build_report({"E.0": rows}, "description")
    assert report.tiers == (ALL,)
    assert line_of(report, "E.0", "description").values["standard", ALL] == 0.5


# ------------------------------------------------------------------------------------------- rows for programs


def test_rows_for_programs_have_the_promised_keys() -> None:
    report = build_report({"E.untrained": evaluation(0.1, ("query",)), "E.0": evaluation(0.2)}, "description")
    promised = {"stage", "split", "tier", "metric", "k", "value", "n"}
    assert all(promised <= set(found) for found in report.rows)
    assert len(report.rows) == len(evaluation(0.1, ("query",))) + len(evaluation(0.2))
    assert {found["split"] for found in report.rows} == {"standard", "vague", "dev"}


def test_the_bare_stage_means_the_configured_search_over_all_that_was_scored() -> None:
    rows = {"E.untrained": evaluation(0.1, ("query",)), "E.1": evaluation(0.2, scopes=(SAMPLE, EVERY_QUERY))}
    report = build_report(rows, "description")
    labels = {(found["stage"], found["split"], found["search"], found["scope"]) for found in report.rows}
    assert ("E.untrained", "standard", "query", SAMPLE) in labels
    assert ("E.1", "standard", "description", EVERY_QUERY) in labels
    assert ("E.1:sample", "standard", "description", SAMPLE) in labels
    assert ("E.1", "dev", "description", SAMPLE) in labels
    assert ("E.1:query", "vague", "query", EVERY_QUERY) in labels
    assert ("E.1:query:sample", "vague", "query", SAMPLE) in labels


def test_no_two_rows_have_the_same_labels() -> None:
    report = build_report({"E.1": evaluation(0.2, scopes=(SAMPLE, EVERY_QUERY))}, "fused")
    keys = [tuple(found[key] for key in ("stage", "split", "tier", "metric", "k")) for found in report.rows]
    assert len(set(keys)) == len(keys)


# -------------------------------------------------------------------------------------------------- rendering


def full_report(search: str = "concatenated", scale: float = 1.0) -> Report:
    scopes = (SAMPLE, EVERY_QUERY)
    return build_report(
        {
            "E.untrained": evaluation(0.125, ("query",), scopes),
            **{f"E.{number}": evaluation(scale * (0.2 + number / 100), MODES, scopes) for number in range(12)},
        },
        search,
    )


def printed(report: Report, width: int = 80) -> str:
    stream = StringIO()
    print_report(Console(file=stream, width=width, highlight=False), report, "demo")
    return stream.getvalue()


@pytest.mark.parametrize("scale", [1.0, 3.2])
def test_the_table_of_three_tiers_fits_80_columns_and_loses_nothing(scale: float) -> None:
    text = printed(full_report(scale=scale))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for word in ("standard", "vague", "dev", "concatenated", "description", *TIERS, "E.untrained", "E.11"):
        assert word in text, word


def test_the_table_of_hundreds_still_fits() -> None:
    report = build_report({"E.0": evaluation(1.0)}, "concatenated")
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 80 and text.count("100.0") == 3 * (3 + 3 + 1)


def test_the_terminal_marks_the_selected_round_and_says_by_what() -> None:
    text = printed(full_report())
    assert "E.11 *" in text
    assert "* selected by dev NDCG@5 (mean over tiers), searched with: concatenated" in text
    assert "All evaluation queries" in text


def test_the_terminal_leaves_out_splits_that_were_not_scored() -> None:
    rows = [row(split, tier, 0.5) for split in ("standard", "dev") for tier in (*TIERS, ALL, MEAN_OVER_TIERS)]
    text = printed(build_report({"E.0": rows}, "description"))
    assert "vague" not in text and "–" not in text


def test_markdown_has_a_row_for_each_line_and_the_selected_round() -> None:
    rows = [row("standard", "G1", 0.1234), row("standard", "G2", 1.0), dev(0.4)]
    text = to_markdown(build_report({"E.0": rows}, "description"))
    assert "| stage | searched with | standard G1 | standard G2 | vague G1 | vague G2 | dev |" in text
    assert "| E.0 | description | 12.3 | 100.0 | – | – | 40.0 |" in text
    assert "Selected on dev NDCG@5 (searched with: description): **E.0**." in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"\|", line)) for line in table}) == 1


def test_numbers_are_per_cent_with_one_decimal() -> None:
    assert [percent(value) for value in (0.0, 0.0549, 1.0, None)] == ["0.0", "5.5", "100.0", "–"]


def test_a_report_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        full_report().selected = "E.0"  # type: ignore[misc]
