"""Merged datasets: equal records once, clashing ids renamed after their dataset, no query on two sides."""

from dataclasses import replace

import pytest

from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.dataset import read_dataset, write_dataset
from cohyde.data.merge import merge
from cohyde.errors import UserError
from cohyde.resources import sample_folder

NOTHING = {
    "tools shared": 0,
    "tools renamed": 0,
    "queries shared": 0,
    "queries renamed": 0,
    "training queries dropped": 0,
    "dev queries dropped": 0,
}


def tools(**titles):
    return tuple(Tool(id=name, title=title) for name, title in titles.items())


def query(name, text, *gold, split="train"):
    return Query(id=name, text=text, tools=gold, split=split)


WEATHER = Dataset(
    name="weather",
    tools=tools(a="Rain", b="Snow"),
    train=(query("q1", "will it rain", "a"),),
    eval=(query("q2", "will it snow", "b", split="eval"),),
    vague=(query("q2", "white morning", "b", split="vague"),),
)
CALENDAR = Dataset(
    name="calendar",
    tools=tools(c="Meetings"),
    train=(query("r1", "when do we meet", "c"),),
    dev=(query("r2", "is Friday free", "c", split="dev"),),
)


def ids(records):
    return [record.id for record in records]


def test_datasets_without_a_common_id_stand_one_after_the_other():
    merged, counts = merge([WEATHER, CALENDAR], "both")
    assert merged == Dataset(
        name="both",
        tools=(*WEATHER.tools, *CALENDAR.tools),
        train=(*WEATHER.train, *CALENDAR.train),
        dev=CALENDAR.dev,
        eval=WEATHER.eval,
        vague=WEATHER.vague,
    )
    assert counts == NOTHING


def test_what_is_equal_stands_once():
    merged, counts = merge([WEATHER, replace(WEATHER, name="again")], "weather")
    assert merged == WEATHER
    assert counts == NOTHING | {"tools shared": 2, "queries shared": 2}


def test_clashing_ids_are_renamed_after_their_dataset_but_for_what_is_there_already():
    other = Dataset(
        name="sky",
        tools=tools(a="Rain", b="Stars", z="Moon"),
        train=(query("q1", "which stars are these", "b", "a"), query("q9", "is the moon full", "z")),
        eval=(query("q2", "where is Orion", "b", split="eval"),),
        vague=(query("q2", "that hunter up there", "b", split="vague"),),
    )
    merged, counts = merge([WEATHER, other], "both")
    assert ids(merged.tools) == ["a", "b", "sky/b", "sky/z"]  # a is there already
    assert ids(merged.train) == ["q1", "sky/q1", "sky/q9"]
    assert [found.tools for found in merged.train] == [("a",), ("sky/b", "a"), ("sky/z",)]
    assert ids(merged.eval) == ids(merged.vague) == ["q2", "sky/q2"]
    assert merged.vague[1] == query("sky/q2", "that hunter up there", "sky/b", split="vague")
    assert counts == NOTHING | {"tools shared": 1, "tools renamed": 2, "queries renamed": 3}


def test_further_gold_sets_are_renamed_with_their_tools():
    asked = replace(query("r", "which stars are these", "b", split="eval"), gold_sets=(("a", "b"),))
    other = Dataset(name="sky", tools=tools(a="Rain", b="Stars"), eval=(asked,))
    merged, _ = merge([WEATHER, other], "both")
    assert [found.valid_sets for found in merged.eval] == [(("b",),), (("sky/b",), ("a", "sky/b"))]


def test_datasets_of_one_name_are_told_apart_by_number():
    parts = [Dataset(name="part", tools=tools(a=title)) for title in ("One", "Two", "Three")]
    merged, _ = merge(parts, "all")
    assert [(tool.id, tool.title) for tool in merged.tools] == [("a", "One"), ("part/a", "Two"), ("part-2/a", "Three")]


def test_a_query_that_names_a_renamed_tool_is_no_longer_equal():
    other = replace(WEATHER, name="other", tools=tools(a="Hail", b="Snow"))
    merged, counts = merge([WEATHER, other], "both")
    # q1 has another gold tool here, so that the ids of this dataset's queries clash; q2 is equal
    assert [(found.id, found.tools) for found in merged.train] == [("q1", ("a",)), ("other/q1", ("other/a",))]
    assert merged.eval == WEATHER.eval
    assert counts == NOTHING | {"tools shared": 1, "tools renamed": 1, "queries shared": 1, "queries renamed": 1}


@pytest.mark.parametrize("text", ["Will it SNOW?", "white  morning!"])
def test_training_and_dev_queries_that_read_like_one_held_out_are_dropped(text):
    other = replace(
        CALENDAR,
        train=(*CALENDAR.train, query("t", text, "c")),
        dev=(*CALENDAR.dev, query("d", text, "c", split="dev")),
    )
    for order in ([WEATHER, other], [other, WEATHER]):
        merged, counts = merge(order, "both")
        assert set(ids([*merged.train, *merged.dev])) == {"q1", "r1", "r2"}
        assert counts == NOTHING | {"training queries dropped": 1, "dev queries dropped": 1}


def test_a_training_query_that_reads_like_a_dev_query_is_dropped():
    merged, counts = merge([replace(WEATHER, train=(query("q1", "Is Friday free?", "a"),)), CALENDAR], "both")
    assert (ids(merged.train), ids(merged.dev)) == (["r1"], ["r2"])
    assert counts["training queries dropped"] == 1


def test_one_dataset_is_nothing_to_merge():
    with pytest.raises(UserError, match="nothing to merge"):
        merge([WEATHER], "alone")


def test_real_datasets_merge_into_one_that_is_valid(shared_data, tmp_path):
    parts = [read_dataset(sample_folder())[0], read_dataset(shared_data / "toolbench_mini")[0]]
    merged, counts = merge(parts, "both")
    assert counts == NOTHING
    write_dataset(tmp_path / "both", merged, {})
    assert read_dataset(tmp_path / "both")[0] == merged
    assert len(merged.tools) == sum(len(part.tools) for part in parts)
