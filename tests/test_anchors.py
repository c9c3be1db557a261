"""Anchor strategies of S3 and the seeded draws."""

import subprocess
import sys

import pytest

from cohyde.catalog import Query
from cohyde.encoder.anchors import ANCHORS, anchor_pairs
from cohyde.encoder.pairs import Pair, draw_form, uniform
from cohyde.errors import UserError

QUERIES = [
    Query(id="q1", text="will it rain", tools=("weather", "radar")),
    Query(id="q2", text="wake me", tools=("alarm",)),
]
DESCRIPTIONS = {"q1": "Returns a forecast."}


def pairs(strategy: str, share: float = 0.5) -> list[tuple[str, str]]:
    return [(pair.anchor, pair.tool) for pair in anchor_pairs(QUERIES, DESCRIPTIONS, strategy, share, seed=0)]


def test_the_paper_s_strategy_comes_first() -> None:
    assert next(iter(ANCHORS)) == "description"


def test_description_leaves_out_queries_that_have_none() -> None:
    assert pairs("description") == [("Returns a forecast.", "weather"), ("Returns a forecast.", "radar")]


def test_query_uses_every_query_s_text() -> None:
    assert pairs("query") == [("will it rain", "weather"), ("will it rain", "radar"), ("wake me", "alarm")]


def test_both_gives_two_pairs_a_gold_tool_and_leaves_out_queries_without_a_description() -> None:
    assert pairs("both") == [
        ("Returns a forecast.", "weather"),
        ("Returns a forecast.", "radar"),
        ("will it rain", "weather"),
        ("will it rain", "radar"),
    ]


def test_mixed_at_its_ends_is_description_with_fallback_and_query() -> None:
    assert pairs("mixed", share=0.0) == [*pairs("description"), ("wake me", "alarm")]
    assert pairs("mixed", share=1.0) == pairs("query")


def many(share: float, seed: int, reverse: bool = False) -> set[Pair]:
    queries = [Query(id=f"q{number}", text=f"query {number}", tools=("a",)) for number in range(2000)]
    descriptions = {query.id: f"description of {query.id}" for query in queries}
    return set(anchor_pairs(queries[::-1] if reverse else queries, descriptions, "mixed", share, seed))


def test_mixed_anchors_about_the_given_share_in_queries() -> None:
    in_queries = sum(pair.anchor.startswith("query") for pair in many(0.3, seed=0))
    assert in_queries / 2000 == pytest.approx(0.3, abs=0.03)


def test_mixed_draws_by_seed_and_query_id_not_by_order() -> None:
    assert many(0.5, seed=1) == many(0.5, seed=1, reverse=True)
    assert many(0.5, seed=1) != many(0.5, seed=2)


def test_an_unknown_strategy_is_an_error_that_names_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"'descriptions'(.|\n)*description, query, mixed, both"):
        pairs("descriptions")


def test_forms_are_drawn_uniformly_and_by_seed_epoch_and_pair() -> None:
    drawn = [draw_form((1, 3, 5), 7, 0, index) for index in range(3000)]
    assert {form: round(drawn.count(form) / 3000, 1) for form in (1, 3, 5)} == {1: 0.3, 3: 0.3, 5: 0.3}
    assert drawn == [draw_form((1, 3, 5), 7, 0, index) for index in range(3000)]
    assert drawn != [draw_form((1, 3, 5), 7, 1, index) for index in range(3000)]
    assert drawn != [draw_form((1, 3, 5), 8, 0, index) for index in range(3000)]


def test_a_draw_lies_in_the_unit_interval_and_tells_its_keys_apart() -> None:
    draws = [uniform("a", number) for number in range(1000)]
    assert min(draws) >= 0.0 and max(draws) < 1.0
    assert len(set(draws)) == 1000
    assert uniform("a", "b,c") != uniform("a,b", "c")


def test_strategies_are_importable_without_torch_or_faiss() -> None:
    code = (
        "import sys, cohyde.encoder.anchors, cohyde.encoder.search, cohyde.encoder.infonce, cohyde.evaluation.metrics; "
        "print([name for name in ('torch', 'transformers', 'sentence_transformers', 'faiss') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_concatenated_anchors_are_what_a_concatenated_search_embeds():
    query = Query(id="q", text="wet tomorrow?", tools=("rain",))
    pairs = anchor_pairs([query], {"q": "Forecast of rain."}, "concatenated", 0.5, 0)
    assert pairs == [Pair(anchor="wet tomorrow? Forecast of rain.", tool="rain")]
    assert anchor_pairs([query], {}, "concatenated", 0.5, 0) == []
