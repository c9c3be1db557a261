"""The main table and the ablation table: means, intervals, differences, and what is said of what is missing."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from cohyde.catalog import Query
from cohyde.evaluation.main_table import Measured, tables
from cohyde.evaluation.per_query import Found, per_query_of
from cohyde.terminal_systems import print_ablation_table, print_main_table

Scores = Mapping[tuple[str, str], Mapping[str, float]]
"""NDCG@5 by split and tier, and by query id; an id in capitals is outside the sample."""


def measured(key: str, scores: Scores) -> Measured:
    rows = [(place, query, value) for place, own in scores.items() for query, value in own.items()]
    found = [
        Found(
            query=Query(id=query, text=query, tools=("t",), tier=tier),
            split=split,
            search="query",
            in_sample=query.islower(),
            ranking=[("t", 1.0)],
        )
        for (split, tier), query, _ in rows
    ]
    values = {"ndcg@5": np.array([value for _, _, value in rows])}
    return Measured(
        key=key,
        title=f"System {key}",
        group="baseline",
        run="r",
        stage="B.x",
        search="query",
        results=replace(per_query_of(found, "sum"), values=values),
    )


BOTH: Scores = {
    ("standard", "G1"): {"a": 1.0, "b": 0.5},
    ("standard", "G2"): {"c": 0.25},
    ("vague", "G1"): {"a": 0.5, "b": 0.0},
    ("dev", "G1"): {"d": 1.0, "e": 0.0},
    ("dev", "G2"): {"f": 0.25},
}


def printed(which: str, *rows: Measured, width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as shown:
        if which == "main":
            print_main_table(console, "run", tables(rows), "description")
        else:
            print_ablation_table(console, "run", tables(rows, rows[0].key), rows[0].key)
    return shown.get()


def test_a_cell_is_a_mean_over_queries_and_dev_a_mean_over_tiers() -> None:
    [table] = tables([measured("x", BOTH)])
    [row] = table.rows
    assert table.places == (("standard", "G1"), ("standard", "G2"), ("vague", "G1"))
    assert row.cells["standard", "G1"].value == (1.0 + 0.5) / 2 and row.cells["standard", "G1"].n == 2
    assert row.dev == ((1.0 + 0.0) / 2 + 0.25) / 2


def test_an_interval_of_two_queries_reaches_from_one_to_the_other_and_one_query_has_none() -> None:
    [table] = tables([measured("x", BOTH)])
    cell, single = table.rows[0].cells["standard", "G1"], table.rows[0].cells["standard", "G2"]
    assert (cell.low, cell.high, cell.half) == (0.5, 1.0, 0.25)
    assert (single.low, single.high, single.half) == (None, None, None)
    assert table.single == [("standard", "G2")]


def test_differences_are_query_by_query_over_those_that_both_have() -> None:
    main = measured("main", {("standard", "G1"): {"a": 0.5, "b": 0.5, "c": 0.0}})
    other = measured("other", {("standard", "G1"): {"a": 1.0, "b": 0.75, "d": 0.0}})
    [table] = tables([main, other], "main")
    assert table.rows[0].differences == {}
    cell = table.rows[1].differences["standard", "G1"]
    assert (cell.value, cell.n) == ((0.5 + 0.25) / 2, 2)
    assert (cell.low, cell.high, cell.is_certain) == (0.25, 0.5, True)


def test_a_difference_whose_interval_holds_nought_is_not_certain() -> None:
    main = measured("main", {("standard", "G1"): {"a": 0.5, "b": 0.5}})
    other = measured("other", {("standard", "G1"): {"a": 1.0, "b": 0.25}})
    assert not tables([main, other], "main")[0].rows[1].differences["standard", "G1"].is_certain


def test_what_more_than_the_sample_was_scored_of_has_a_table_of_its_own() -> None:
    sampled = measured("sampled", {("standard", "G1"): {"a": 1.0}})
    whole = measured("whole", {("standard", "G1"): {"a": 1.0, "B": 0.0}, ("dev", "G1"): {"d": 1.0}})
    sample, every = tables([sampled, whole])
    assert [row.cells["standard", "G1"].value for row in sample.rows] == [1.0, 1.0]
    assert [(row.key, row.cells["standard", "G1"].value) for row in every.rows] == [("whole", 0.5)]
    assert every.rows[0].dev == 1.0


def test_a_system_that_lacks_a_column_has_a_dash_there() -> None:
    shown = printed("main", measured("x", BOTH), measured("y", {("standard", "G1"): {"a": 1.0}}))
    lines = {line.split("  ")[0]: line.split() for line in shown.splitlines() if line.startswith("System")}
    assert lines["System x"][2:] == ["75.0", "25.0", "25.0", "37.5"]
    assert lines["System y"][2:] == ["100.0", "–", "–", "–"]


def test_columns_without_paraphrases_are_left_out_and_that_is_said() -> None:
    standard = {place: own for place, own in BOTH.items() if place[0] != "vague"}
    shown = printed("main", measured("x", standard))
    assert "no vague paraphrases in this data: those columns are left out" in shown
    assert "vague" not in shown.splitlines()[2]
    assert "no vague paraphrases" not in printed("main", measured("x", BOTH))


def test_a_single_query_is_said() -> None:
    shown = printed("main", measured("x", BOTH))
    assert "n=1: standard G2: a single query has no interval" in shown
    assert "queries: standard G1 2, G2 1; vague G1 2" in shown


def test_the_ablation_table_marks_what_is_certain() -> None:
    main = measured("main", {("standard", "G1"): {"a": 0.5, "b": 0.5}, ("vague", "G1"): {"a": 0.5, "b": 0.5}})
    other = measured("other", {("standard", "G1"): {"a": 0.0, "b": 0.25}, ("vague", "G1"): {"a": 1.0, "b": 0.25}})
    lines = printed("ablations", main, other).splitlines()
    assert lines[lines.index(next(line for line in lines if "System other" in line)) + 1].split() == ["-37.5*", "+12.5"]


@pytest.mark.parametrize("which", ["main", "ablations"])
def test_a_table_of_six_cells_fits_80_columns(which: str) -> None:
    cells = {
        (split, tier): {"a": 1.0, "b": 0.0} for split in ("standard", "vague", "dev") for tier in ("G1", "G2", "G3")
    }
    rows = [measured("x" * 23, cells), measured("y", {place: {"a": 0.0, "b": 0.0} for place in cells})]
    table = [line for line in printed(which, *rows).splitlines() if line.startswith(("System", " "))]
    assert len(table) > 3 and max(len(line.rstrip()) for line in table) <= 80 and "…" not in "".join(table)


def test_json_holds_every_cell_with_its_interval() -> None:
    row = tables([measured("x", BOTH)])[0].to_json()["rows"][0]
    assert row["cells"][0] == {
        "split": "standard",
        "tier": "G1",
        "metric": "ndcg",
        "k": 5,
        "value": 0.75,
        "low": 0.5,
        "high": 1.0,
        "n": 2,
    }
