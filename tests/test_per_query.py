"""The per-query file: what is written comes back, byte for byte the same every time, and what is wrong is named."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from cohyde.catalog import Query
from cohyde.errors import UserError
from cohyde.evaluation.lists import Lists
from cohyde.evaluation.metrics import CUTOFFS, METRICS
from cohyde.evaluation.per_query import Found, PerQuery, per_query_of, read_per_query, write_per_query

RANKINGS = {"q1": [("b", 0.9), ("a", 0.5)], "q2": [("a", 0.25)], "q3": []}
GOLD = {"q1": ("a",), "q2": ("a", "c"), "q3": ("b",)}


def found(identifier: str, split: str = "standard", search: str = "query") -> Found:
    query = Query(
        id=identifier, text=f"say {identifier}", tools=GOLD[identifier], tier="G1" if split == "dev" else "G2"
    )
    return Found(
        query=query,
        split=split,
        search=search,
        in_sample=identifier != "q2",
        ranking=RANKINGS[identifier],
    )


ROWS = [found("q1"), found("q2"), found("q3"), found("q1", search="fused"), found("q2", split="dev")]


def listed(lists: Lists) -> list[list[str]]:
    return [lists[row] for row in range(len(lists))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "queries.parquet"
    write_per_query(file, per_query_of(ROWS, "sum of the catalogue"))
    return file


def check_rows(read: PerQuery) -> None:
    assert list(read.id) == ["q1", "q2", "q3", "q1", "q2"]
    assert list(read.text)[:2] == ["say q1", "say q2"]
    assert list(read.split) == ["standard"] * 4 + ["dev"]
    assert list(read.tier) == ["G2"] * 4 + ["G1"]
    assert list(read.search) == ["query"] * 3 + ["fused", "query"]
    assert list(read.in_sample) == [True, False, True, True, False]
    assert listed(read.gold) == [["a"], ["a", "c"], ["b"], ["a"], ["a", "c"]]
    assert list(read.values) == [f"{metric}@{k}" for metric in METRICS for k in CUTOFFS]
    assert list(read.values["hit@1"]) == [0, 1, 0, 0, 1]  # b is above a; a is gold; nothing was found
    assert list(read.values["recall@5"]) == [1, 1 / 2, 0, 1, 1 / 2]
    assert read.catalogue == "sum of the catalogue"


def test_what_is_written_comes_back(path: Path) -> None:
    read = read_per_query(path)
    check_rows(read)
    assert listed(read.ranked) == [["b", "a"], ["a"], [], ["b", "a"], ["a"]]
    assert read.scores.tolist() == pytest.approx([0.9, 0.5, 0.25, 0.9, 0.5, 0.25])


def test_rankings_can_be_left_where_they_are(path: Path) -> None:
    read = read_per_query(path, rankings=False)
    check_rows(read)
    assert listed(read.ranked) == [[]] * 5
    assert listed(read.select(search="query").gold) == [["a"], ["a", "c"], ["b"], ["a", "c"]]


def test_rows_are_selected_with_all_that_belongs_to_them(path: Path) -> None:
    read = read_per_query(path)
    chosen = read.select(split="standard", search="query", in_sample=True)
    assert list(chosen.id) == ["q1", "q3"]
    assert listed(chosen.ranked) == [["b", "a"], []]
    assert listed(chosen.gold) == [["a"], ["b"]]
    assert chosen.scores.tolist() == pytest.approx([0.9, 0.5])
    backwards = read.take(np.array([4, 3, 1]))
    assert listed(backwards.ranked) == [["a"], ["b", "a"], ["a"]]
    assert backwards.scores.tolist() == pytest.approx([0.25, 0.9, 0.5, 0.25])
    assert len(read.select(tier="G3")) == 0


def test_any_reader_of_parquet_sees_plain_lists_of_texts(path: Path) -> None:
    table = pyarrow.parquet.read_table(path)
    assert table["ranked"].to_pylist() == [["b", "a"], ["a"], [], ["b", "a"], ["a"]]
    assert table["n_gold"].to_pylist() == [1, 2, 1, 1, 2]
    assert str(table.schema.field("gold").type) == "list<element: string>"


def test_equal_rows_give_equal_bytes_in_any_process(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    write_per_query(again, read_per_query(path))
    assert again.read_bytes() == path.read_bytes()
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from test_per_query import ROWS, per_query_of, write_per_query;"
        "write_per_query(Path(sys.argv[2]), per_query_of(ROWS, 'sum of the catalogue'))"
    )
    elsewhere = tmp_path / "elsewhere.parquet"
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), str(elsewhere)], check=True)
    assert elsewhere.read_bytes() == path.read_bytes()


def test_no_row_at_all_is_a_file_too(tmp_path: Path) -> None:
    write_per_query(tmp_path / "empty.parquet", per_query_of([], "c"))
    read = read_per_query(tmp_path / "empty.parquet")
    assert len(read) == 0
    assert len(read.select(split="standard")) == 0


def test_a_score_that_is_no_number_is_refused_by_the_name_of_its_query() -> None:
    row = found("q1")
    bad = replace(row, ranking=[("b", 0.9), ("a", math.nan)])
    with pytest.raises(ValueError, match=r"query 'q1' \(standard, searched with query\): 'a' at rank 2 .* \(NaN\)"):
        per_query_of([row, bad], "c")


def test_a_query_without_gold_is_refused_by_its_name() -> None:
    bad = replace(found("q1"), query=Query(id="q7", text="x", tools=()))
    with pytest.raises(ValueError, match=r"'q7' \(standard\) has no gold tools"):
        per_query_of([bad], "c")


def test_a_file_that_is_none_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_per_query(tmp_path / "gone.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"queries\.parquet: not a Parquet file, or cut short"):
        read_per_query(path)
    table = pyarrow.table({"id": ["q1"], "hit@1": [1.0]})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(UserError, match="has no column 'text'"):
        read_per_query(path)


def test_lists_of_names_know_what_they_were_made_of() -> None:
    lists = Lists.of([["b", "a"], [], ["a", "a", "c"]], names=["a"])
    assert list(lists.names) == ["a", "b", "c"]
    assert listed(lists) == [["b", "a"], [], ["a", "a", "c"]]
    assert listed(lists.take(np.array([2, 1, 0, 2]))) == [["a", "a", "c"], [], ["b", "a"], ["a", "a", "c"]]
    assert listed(lists.take(np.array([], dtype=np.int64))) == []
