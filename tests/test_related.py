"""Seed groups: each tool alone, and pairs and triples of tools that have something to do with each other."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from cohyde.catalog import Tool, tool_from_row
from cohyde.data.related import Neighbours, due, seed_groups, tier_of
from cohyde.io import read_rows
from cohyde.resources import sample_folder

SAMPLE = tuple(tool_from_row(row) for row in read_rows(Path(sample_folder(), "catalog.jsonl")))


def tool(identifier: str, text: str = "", title: str = "", category: str = "") -> Tool:
    return Tool(id=identifier, title=title, category=category, api_description=text)


def ids(group: tuple[Tool, ...]) -> tuple[str, ...]:
    return tuple(member.id for member in group)


# -------------------------------------------------------------------------------------------------------- tiers


@pytest.mark.parametrize(
    ("tools", "tier"),
    [
        ([tool("a")], "G1"),
        ([tool("a", title="Rain", category="W"), tool("b", title="Rain", category="W")], "G1"),
        ([tool("a", title="Rain", category="W"), tool("b", title="Snow", category="W")], "G2"),
        ([tool("a", title="Rain", category="W"), tool("b", title="Rain", category="V")], "G3"),
        ([tool("a", title="Rain", category="W"), tool("b", title="Snow")], "G3"),
        ([tool("a", title="Rain"), tool("b", title="Snow")], "G3"),
        ([tool("a", category="W"), tool("b", category="W")], "G2"),
        ([tool("a"), tool("b")], "G3"),
    ],
)
def test_tier_is_by_provider_and_category(tools: list[Tool], tier: str) -> None:
    assert tier_of(tools) == tier


# --------------------------------------------------------------------------------------------------- neighbours


def test_neighbours_share_words_and_come_nearest_first() -> None:
    tools = [
        tool("rain", "hourly rain forecast city"),
        tool("music", "lyrics song"),
        tool("wind", "hourly wind forecast sea"),
        tool("snow", "hourly snow depth"),
    ]
    assert Neighbours(tools).of(0) == [2, 3]
    assert Neighbours(tools).of(1) == []
    assert Neighbours(tools, most=1).of(0) == [2]


def test_neighbours_of_one_score_are_in_catalogue_order() -> None:
    tools = [tool("a", "rain"), *(tool(str(number), f"rain word{number}") for number in range(9))]
    assert Neighbours(tools, most=4).of(0) == [1, 2, 3, 4]


def test_tools_that_read_the_same_are_no_neighbours_and_count_once() -> None:
    tools = [tool("a", "rain city"), tool("b", "Rain, city!"), tool("c", "rain sea"), tool("d", "rain sea")]
    assert Neighbours(tools).of(0) == [2]
    assert Neighbours(tools).of(2) == [0]


@pytest.mark.parametrize("tools", [[tool("a"), tool("b")], [tool("a", "the of"), tool("b", "rain")]])
def test_tool_without_words_that_matter_has_no_neighbours(tools: list[Tool]) -> None:
    assert Neighbours(tools).of(0) == []


# ------------------------------------------------------------------------------------------------------- groups


def test_each_tool_alone_comes_in_rounds_over_the_catalogue() -> None:
    groups = list(seed_groups(SAMPLE[:10], per_tool=3, multi_share=0.0, seed=1))
    assert len(groups) == 3 * 10
    first = groups[:10]
    assert {ids(group) for group in first} == {(each.id,) for each in SAMPLE[:10]}
    assert first != [(each,) for each in SAMPLE[:10]]
    assert groups == 3 * first


def test_share_of_groups_is_met_from_the_beginning() -> None:
    groups = list(seed_groups(SAMPLE, per_tool=2, multi_share=0.5, seed=1))
    assert len(groups) == 2 * (2 * 365)
    assert [len(group) > 1 for group in groups[:6]] == [False, True, False, True, False, True]
    fewer = list(seed_groups(SAMPLE, per_tool=4, multi_share=1 / 3, seed=1))
    assert sum(len(group) > 1 for group in fewer) == 4 * 365 // 2


def test_share_falls_due_evenly() -> None:
    assert [due(number, 0.25) for number in range(8)] == [0, 1, 0, 0, 0, 1, 0, 0]
    assert [due(number, 1.5) for number in range(4)] == [2, 1, 2, 1]
    assert sum(due(number, 1 / 3) for number in range(300)) == 100


def test_groups_are_distinct_pairs_and_triples_of_related_tools_of_all_tiers() -> None:
    groups = [group for group in seed_groups(SAMPLE, per_tool=4, multi_share=0.5, seed=1) if len(group) > 1]
    assert len({frozenset(ids(group)) for group in groups}) == len(groups) == 4 * 365
    assert {len(group) for group in groups} == {2, 3}
    assert set(Counter(map(tier_of, groups))) == {"G1", "G2", "G3"}
    neighbours, position = Neighbours(SAMPLE), {each.id: place for place, each in enumerate(SAMPLE)}
    for first, *others in map(ids, groups):
        near = neighbours.of(position[first])
        assert all(position[other] in near for other in others)


def test_groups_are_drawn_by_seed() -> None:
    def drawn(seed: int) -> list[tuple[str, ...]]:
        return [ids(group) for group in seed_groups(SAMPLE[:50], per_tool=1, multi_share=0.5, seed=seed)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_longer_sequence_begins_with_the_shorter() -> None:
    short = list(seed_groups(SAMPLE[:50], per_tool=1, multi_share=0.5, seed=1))
    long = seed_groups(SAMPLE[:50], per_tool=3, multi_share=0.5, seed=1)
    assert list(islice(long, len(short))) == short


def test_small_catalogue_has_the_groups_that_there_are() -> None:
    tools = [tool("a", "rain city"), tool("b", "rain sea"), tool("c", "song")]
    groups = [ids(group) for group in seed_groups(tools, per_tool=4, multi_share=0.5, seed=1)]
    assert [group for group in groups if len(group) > 1] in ([("a", "b")], [("b", "a")])
    assert len(groups) == 4 * 3 + 1
    assert [ids(group) for group in seed_groups(tools[:1], per_tool=2, multi_share=0.5, seed=1)] == [("a",), ("a",)]


def test_tools_that_read_the_same_are_in_no_group_together() -> None:
    tools = [tool(str(number), f"rain {'city' if number % 2 else 'sea'}") for number in range(6)]
    groups = [group for group in seed_groups(tools, per_tool=4, multi_share=0.5, seed=1) if len(group) > 1]
    assert groups
    assert all(len({member.api_description for member in group}) == len(group) for group in groups)
