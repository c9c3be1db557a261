"""BM25 over rendered tools."""

import math

import pytest

from cohyde.catalog import Tool
from cohyde.config import Bm25Config
from cohyde.evaluation.bm25 import Bm25Index

TOOLS = (
    Tool(id="b", title="Weather Station", api_description="hourly weather forecast"),
    Tool(id="a", title="Weather Station", api_description="hourly weather forecast"),
    Tool(id="c", title="Currency", api_description="converts money"),
)
WHOLE = Bm25Config(stop_words=False)


def test_a_score_is_that_of_lucene_s_formula() -> None:
    index = Bm25Index(TOOLS, 4, Bm25Config(k1=1.2, b=0.5, stop_words=False))
    # φ4 of the third tool is "Currency. converts money": 3 words; the others have 5: "Weather Station. hourly …".
    mean_length = (5 + 5 + 3) / 3
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 1 / (1 + 1.2 * (1 - 0.5 + 0.5 * 3 / mean_length))
    [[(tool, score)]] = index.rank(["money"], 10)
    assert (tool, score) == ("c", pytest.approx(expected, rel=1e-6))


def test_ties_stand_in_catalogue_order_also_where_they_reach_over_the_end() -> None:
    index = Bm25Index(TOOLS, 5, WHOLE)
    assert [tool for tool, _ in index.rank(["weather"], 10)[0]] == ["b", "a"]
    assert [tool for tool, _ in index.rank(["weather"], 1)[0]] == ["b"]


def test_what_shares_no_word_is_not_found() -> None:
    index = Bm25Index(TOOLS, 5, WHOLE)
    assert index.rank(["zebra", "", "the weather"], 10)[:2] == [[], []]
    assert [tool for tool, _ in index.rank(["CURRENCY zebra"], 10)[0]] == ["c"]


def test_stop_words_count_only_where_they_are_asked_for() -> None:
    tools = (Tool(id="x", title="the list"), Tool(id="y", title="list"))
    assert Bm25Index(tools, 1, Bm25Config()).rank(["the"], 5) == [[]]
    assert [tool for tool, _ in Bm25Index(tools, 1, WHOLE).rank(["the"], 5)[0]] == ["x"]


def test_a_catalogue_of_nothing_but_stop_words_is_indexed_all_the_same() -> None:
    index = Bm25Index((Tool(id="x", title="the"),), 1, Bm25Config())
    assert len(index) == 1 and index.rank(["the", "weather"], 5) == [[], []]
