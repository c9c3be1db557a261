"""Few-shot examples: drawn from the training split, tiers in turn, in the catalogue's own words."""

from collections import Counter
from dataclasses import replace

from cohyde.catalog import Dataset, Query, Tool
from cohyde.rewriter.examples import MOST_ANSWER_CHARACTERS, few_shot_examples, gold_answer, without_examples
from cohyde.rewriter.prompts import Example

TOOLS = (
    Tool(id="rain", title="Weather", api_name="forecast", api_description="Returns the forecast for a city."),
    Tool(id="wind", title="Weather", api_name="wind", api_description="Returns the speed of the wind."),
    Tool(id="mute", title="Silent", api_name="thing", description="A provider of things."),
    Tool(id="long", title="Long", api_name="one", api_description="word " * MOST_ANSWER_CHARACTERS),
)
BY_ID = {tool.id: tool for tool in TOOLS}


def query(id_: str, tier: str, *tools: str) -> Query:
    return Query(id=id_, text=f"request {id_}", tools=tools, tier=tier)


def dataset(*train: Query, **splits: tuple[Query, ...]) -> Dataset:
    return Dataset(name="test", tools=TOOLS, train=train, **splits)


MANY = dataset(
    *(query(f"a{number}", "G1", "rain") for number in range(10)),
    *(query(f"b{number}", "G2", "rain", "wind") for number in range(4)),
    *(query(f"c{number}", "G3", "wind") for number in range(2)),
    dev=(query("d", "G1", "rain"),),
    eval=(query("e", "G1", "rain"),),
)


def tier_of(text: str) -> str:
    return next(query.tier for query in MANY.train if query.text == text)


def test_a_perfect_answer_has_a_catalogue_line_for_each_gold_tool_in_order() -> None:
    assert gold_answer(query("q", "G1", "wind", "rain"), BY_ID) == (
        "Weather wind. Returns the speed of the wind\nWeather forecast. Returns the forecast for a city"
    )
    assert gold_answer(query("q", "G1", "mute"), BY_ID) == "Silent thing. A provider of things"


def test_examples_come_from_the_training_split_with_their_gold_answers() -> None:
    requests = {query.text: query for query in MANY.train}
    examples = few_shot_examples(MANY, 6, seed=0)
    assert len({example.query for example in examples}) == 6
    for example in examples:
        assert example.answer == gold_answer(requests[example.query], BY_ID)


def test_tiers_take_turns() -> None:
    drawn = [tier_of(example.query) for example in few_shot_examples(MANY, 6, seed=3)]
    assert drawn == ["G1", "G2", "G3", "G1", "G2", "G3"]
    # G3 has two queries and G2 four: G1 gives what is left of 12.
    assert Counter(tier_of(e.query) for e in few_shot_examples(MANY, 12, seed=3)) == {"G1": 6, "G2": 4, "G3": 2}


def test_the_same_data_and_seed_give_the_same_examples_and_another_seed_others() -> None:
    assert few_shot_examples(MANY, 3, seed=1) == few_shot_examples(MANY, 3, seed=1)
    assert len({tuple(few_shot_examples(MANY, 3, seed=seed)) for seed in range(8)}) > 1


def test_what_is_drawn_does_not_hang_on_the_other_splits() -> None:
    assert few_shot_examples(MANY, 3, seed=1) == few_shot_examples(replace(MANY, dev=(), eval=()), 3, seed=1)


def test_queries_without_descriptions_or_with_long_answers_come_last() -> None:
    unsuitable = [query(f"x{number}", "G1", tool) for number, tool in enumerate(["mute", "long"] * 10)]
    good = [query("good", "G1", "rain"), query("better", "G1", "wind")]
    drawn = few_shot_examples(dataset(*unsuitable, *good), 2, seed=0)
    assert {example.query for example in drawn} == {"request good", "request better"}
    assert len(few_shot_examples(dataset(*unsuitable, *good), 3, seed=0)) == 3  # too few good ones: any will do


def test_a_small_split_gives_what_it_has() -> None:
    assert len(few_shot_examples(dataset(query("q", "G1", "rain")), 5, seed=0)) == 1


def test_no_examples_are_asked_for_by_default() -> None:
    assert few_shot_examples(MANY, 0, seed=0) == []


def test_a_query_that_an_example_shows_is_left_out():
    queries = [query("a", "G1", "rain"), query("b", "G1", "rain")]
    assert without_examples(queries, [Example(query="request b", answer="")]) == [queries[0]]
