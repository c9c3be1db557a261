"""Statistics: what is counted, by hand on small datasets, and as their README has it on the public ones."""

import json

import pytest

from cohyde.catalog import Dataset, Parameter, Query, Tool
from cohyde.data.dataset import read_dataset
from cohyde.data.importing import import_dataset
from cohyde.data.overlap import overlap, similarity
from cohyde.data.stats import Alike, Needed, Spread, Tier, statistics


def query(name, text, *gold, tier="G1", split="train"):
    return Query(id=name, text=text, tools=gold, tier=tier, split=split)


TOOLS = (
    Tool(id="a", category="Sky", title="Rain Watch", api_name="today", api_description="Rain of a day"),
    Tool(id="b", category="Sky", title="Rain Watch", api_name="list", api_description=" List "),
    Tool(id="c", category="Sea", title="Tides", api_name="today", api_description="Rain of a day"),
    Tool(id="d", category="Sea", title="Tides", description="Tides", parameters=(Parameter(name="p"),), schema="s"),
    Tool(id="e", category=" "),
)
SMALL = Dataset(
    name="small",
    tools=TOOLS,
    train=(
        query("t1", "Will it rain today", "a"),
        query("t2", "will it rain, today?", "a"),
        query("t3", "ask RAIN  WATCH and the tides", "a", "b", tier="G2"),
        query("t4", "what is on", "b"),
    ),
    eval=(
        query("e1", "will it rain today or not", "a", split="eval"),
        query("e2", "rain and tides", "a", "d", tier="G2", split="eval"),
        query("e3", "when is low water", "d", split="eval"),
    ),
    vague=(query("e3", "can I walk over", "d", split="vague"),),
)


def spread(least, p5, p50, p95, most, mean):
    return Spread(least=least, p5=p5, p50=p50, p95=p95, most=most, mean=mean)


def test_the_catalogue_is_counted():
    found = statistics(SMALL).catalogue
    assert (found.tools, found.providers, found.never_gold) == (5, 2, 2)  # no query needs c or e
    assert list(found.categories.items()) == [("Sea", 2), ("Sky", 2), (" ", 1)]
    assert found.empty == {
        "category": 1,
        "title": 1,
        "description": 4,
        "api_name": 2,
        "api_description": 2,
        "any description": 1,
        "parameters": 4,
        "schema": 4,
    }
    assert found.description_is_name == 1  # b


def test_tools_are_alike_in_what_is_compared():
    found = statistics(SMALL).catalogue.alike
    nothing, pair = Alike(groups=0, tools=0), Alike(groups=1, tools=2)
    assert found == {
        "text": nothing,
        "all but category": nothing,
        "all but category and title": pair,  # a and c
        "all but names": pair,
    }
    twins = Dataset(name="x", tools=(*TOOLS, *(Tool(id=f"f{n}", title=" Tides ", category="Tides") for n in range(3))))
    found = statistics(twins).catalogue.alike
    assert found["text"] == Alike(groups=1, tools=3)
    assert found["all but names"] == Alike(groups=2, tools=2 + 4)  # f0, f1, f2 and e have nothing else


def test_the_queries_of_a_split_are_counted():
    found = statistics(SMALL).splits["train"]
    assert (found.queries, found.pairs, found.gold_tools, found.gold_sets) == (4, 5, 2, 3)
    assert found.tiers == {"G1": Tier(queries=3, pairs=3, naming=0), "G2": Tier(queries=1, pairs=2, naming=1)}
    assert (found.gold_per_query, found.repeated_texts, found.naming, found.instructions) == ({1: 3, 2: 1}, 1, 1, 0)
    assert found.top_tools == (
        Needed(id="a", name="Rain Watch today", queries=3),
        Needed(id="b", name="Rain Watch list", queries=2),
    )
    assert found.queries_per_tool == spread(2, 2, 2, 3, 3, 2.5)


def test_lengths_are_in_characters_and_words():
    lengths = statistics(SMALL).splits["eval"].lengths
    assert lengths.words == spread(3, 3, 4, 6, 6, (6 + 3 + 4) / 3)
    assert lengths.characters == spread(14, 14, 17, 25, 25, (25 + 14 + 17) / 3)


def test_shares_are_by_nearest_rank():
    train = tuple(query(f"q{n}", "w " * n, "a") for n in range(1, 101))
    words = statistics(Dataset(name="x", tools=TOOLS, train=train)).splits["train"].lengths.words
    assert words == spread(1, 5, 50, 95, 100, 50.5)


def test_splits_without_queries_are_left_out():
    found = statistics(SMALL)
    assert (list(found.splits), list(found.overlap)) == (["train", "eval", "vague"], ["eval"])
    alone = statistics(Dataset(name="x", tools=TOOLS, eval=SMALL.eval))
    assert (list(alone.splits), dict(alone.overlap)) == (["eval"], {})


def test_what_evaluation_shares_with_training_is_counted():
    found = statistics(SMALL).overlap["eval"]
    assert found.gold_seen == {"all": 1, "some": 1, "none": 1}  # e1; e2: a but not d; e3
    assert (found.gold_set_seen, found.gold_tools, found.gold_tools_seen, found.same_text) == (1, 2, 1, 0)
    assert found.near_copies == {"0.6": 1, "0.7": 0, "0.8": 0, "0.9": 0}  # e1 has 4 of 6 words in common with t1


@pytest.mark.parametrize(
    ("text", "gold", "near"),
    [
        ("one two three four five six seven eight nine TEN!", "ab", [1, 1, 1, 1]),
        ("one two three four five six seven eight nine", "ab", [1, 1, 1, 1]),  # 9 of 10
        ("one two three four five six seven eight", "ba", [1, 1, 1, 0]),
        ("one two three four five six", "ab", [1, 0, 0, 0]),
        ("one two three four five", "ab", [0, 0, 0, 0]),
        ("one two three four five six seven eight nine ten", "a", [0, 0, 0, 0]),  # other gold
        ("one two three four five six seven eight nine ten eleven twelve", "ab", [1, 1, 1, 0]),  # 10 of 12
    ],
)
def test_a_near_copy_has_the_gold_and_most_words_of_a_training_query(text, gold, near):
    train = [query("t", "One, two, three, four, five, six, seven, eight, nine, ten", "a", "b")]
    found = overlap([query("e", text, *gold, split="eval")], train)
    assert list(found.near_copies.values()) == near


def test_similarity_is_the_share_of_common_words():
    assert similarity(frozenset("abc"), frozenset("bcd")) == 2 / 4


def test_leakage_is_counted_where_validation_has_not_dropped_it():
    train = [query("t", "will it rain", "a")]
    assert overlap([query("e", "Will it rain?", "b", split="eval")], train).same_text == 1


def test_json_has_everything_and_only_what_json_knows():
    found = statistics(SMALL).to_json()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"name", "catalogue", "splits", "overlap"}
    assert found["splits"]["train"]["gold_per_query"] == {"1": 3, "2": 1}
    assert found["catalogue"]["lengths"]["words"]["most"] == 8  # Sky Rain Watch today. Rain of a day


# -------------------------------------------------------------------------- public data: the figures of its README


def test_figures_of_toolbench_mini(shared_data):
    found = statistics(read_dataset(shared_data / "toolbench_mini")[0])
    assert (found.catalogue.tools, found.catalogue.providers, len(found.catalogue.categories)) == (2490, 814, 47)
    assert found.catalogue.empty["description"] == 2490
    train, evaluation, vague = (found.splits[name] for name in ("train", "eval", "vague"))
    tiers = {name: [tier.queries for tier in part.tiers.values()] for name, part in found.splits.items()}
    assert tiers == {"train": [838, 451, 272], "eval": [474, 230, 61], "vague": [86, 79, 43]}
    assert (train.queries, train.pairs, round(train.pairs / train.queries, 2)) == (1561, 3052, 1.96)
    assert (evaluation.queries, evaluation.gold_tools, evaluation.repeated_texts) == (765, 1225, 1)
    assert round(evaluation.pairs / evaluation.queries, 2) == 2.35 and vague.queries == 208
    shared = found.overlap["eval"]
    assert (shared.gold_tools, shared.gold_tools_seen, shared.gold_seen["all"]) == (1225, 848, 389)
    assert shared.gold_set_seen == shared.near_copies["0.6"] == shared.same_text == 0


def test_figures_of_toollens(shared_data, tmp_path):
    found = statistics(import_dataset("beir", [shared_data / "toollens"], tmp_path / "toollens")[0])
    catalogue, train, evaluation = found.catalogue, found.splits["train"], found.splits["eval"]
    assert (catalogue.tools, catalogue.providers, len(catalogue.categories), catalogue.never_gold) == (464, 314, 19, 0)
    assert list(catalogue.categories.values())[:6] == [45, 41, 37, 37, 35, 35]
    assert (catalogue.empty["api_description"], catalogue.description_is_name) == (0, 24)
    assert (catalogue.empty["parameters"], catalogue.empty["schema"]) == (252, 131)
    assert catalogue.alike["text"] == Alike(groups=0, tools=0)
    assert catalogue.alike["all but names"] == Alike(groups=1, tools=2)
    assert (train.gold_per_query, train.pairs) == ({1: 1458, 2: 2898, 3: 12537}, 44865)
    assert (evaluation.gold_per_query, evaluation.pairs) == ({1: 159, 2: 326, 3: 1392}, 4987)
    assert (train.gold_sets, train.naming + evaluation.naming) == (463, 557)
    assert (train.lengths.words.least, train.lengths.words.most, round(train.lengths.words.mean, 1)) == (4, 103, 22.6)
    spread = train.queries_per_tool
    assert (spread.least, spread.p50, spread.most) == (20, 38, 3595)
    assert train.top_tools[0].name == "WeatherAPI.com Search/Autocomplete API"
    shared = found.overlap["eval"]
    assert (shared.gold_seen["all"], shared.gold_set_seen, train.gold_tools - shared.gold_tools) == (1877, 1877, 2)
    assert shared.near_copies == {"0.6": 787, "0.7": 430, "0.8": 173, "0.9": 32}


def test_figures_of_stabletoolbench(shared_data, tmp_path):
    found = statistics(import_dataset("toolbench", [shared_data / "stabletoolbench"], tmp_path / "stable")[0])
    catalogue, evaluation = found.catalogue, found.splits["eval"]
    assert (catalogue.tools, catalogue.providers, len(catalogue.categories)) == (2490, 814, 47)
    assert (catalogue.empty["api_description"], catalogue.description_is_name) == (224, 157)
    assert (catalogue.empty["parameters"], 2490 - catalogue.empty["schema"]) == (615, 1606)
    assert catalogue.never_gold == 2490 - 1225
    # The README's 29 groups of 86 and 46 of 151 compare the parameters' defaults too, which are not kept.
    assert catalogue.alike == {
        "text": Alike(groups=0, tools=0),
        "all but category": Alike(groups=5, tools=10),
        "all but category and title": Alike(groups=30, tools=90),
        "all but names": Alike(groups=47, tools=160),
    }
    assert evaluation.tiers == {
        "G1": Tier(queries=474, pairs=1057, naming=61),
        "G2": Tier(queries=230, pairs=558, naming=85),
        "G3": Tier(queries=61, pairs=180, naming=28),
    }
    assert (evaluation.pairs, evaluation.gold_sets, evaluation.repeated_texts) == (1795, 656, 1)
    words = evaluation.lengths.words
    assert (words.least, words.most, round(words.mean, 1)) == (14, 155, 43.9)
