"""Samples, subsets and the dev split: stratified, deterministic, disjoint."""

from collections import Counter
from dataclasses import replace

import pytest

from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.dataset import read_dataset
from cohyde.data.split import limit_queries, sample_queries, split_dataset, split_off, stratified_sample, subset_tools
from cohyde.data.validation import normalised
from cohyde.errors import UserError
from cohyde.resources import sample_folder


def query(name, tools=("t0",), tier="G1", split="train", text=""):
    return Query(id=name, text=text or f"text of {name}", tools=tuple(tools), tier=tier, split=split)


def of_tiers(*counts):
    """Queries of tiers G1, G2, … in these numbers."""
    return [query(f"G{tier}-{n}", tier=f"G{tier}") for tier, count in enumerate(counts, 1) for n in range(count)]


def tiers(queries):
    return Counter(item.tier for item in queries)


# --------------------------------------------------------------------------------------------- stratified sample


def test_strata_keep_their_proportions():
    # 10 of 100: 60% of 10, 30% of 10, 10% of 10
    drawn = sample_queries(of_tiers(60, 30, 10), 10, seed=1)
    assert tiers(drawn) == {"G1": 6, "G2": 3, "G3": 1}


def test_what_is_left_goes_to_the_largest_remainders():
    # shares of 4 over 5, 3, 2 are 2.0, 1.2, 0.8: the parts are 2, 1, 0 and the one that is left goes to G3
    assert tiers(sample_queries(of_tiers(5, 3, 2), 4, seed=1)) == {"G1": 2, "G2": 1, "G3": 1}


@pytest.mark.parametrize("size", [0, 1, 2, 7, 19, 20, 21])
def test_a_sample_has_the_size_asked_for_and_no_item_twice(size):
    drawn = sample_queries(of_tiers(11, 6, 3), size, seed=3)
    assert len(drawn) == len(set(drawn)) == min(size, 20)


def test_a_sample_keeps_the_order_and_depends_on_the_seed_alone():
    items = of_tiers(40, 40)
    drawn = sample_queries(items, 20, seed=5)
    assert drawn == [item for item in items if item in drawn]
    assert drawn == sample_queries(items, 20, seed=5) != sample_queries(items, 20, seed=6)


def test_a_stratum_is_drawn_alike_whatever_the_others_hold():
    alone = stratified_sample(of_tiers(10), 5, lambda item: item.tier, seed=1)
    among = stratified_sample(of_tiers(10, 10), 10, lambda item: item.tier, seed=1)
    assert alone == [item for item in among if item.tier == "G1"]


def test_none_keeps_all():
    items = of_tiers(3, 2)
    assert sample_queries(items, None, seed=1) == items


# ---------------------------------------------------------------------------------------------------- dev split


def test_dev_takes_its_fraction_of_each_tier():
    train, dev = split_off(of_tiers(50, 30, 20), "dev", 0.1, seed=42)
    assert tiers(dev) == {"G1": 5, "G2": 3, "G3": 2}
    assert tiers(train) == {"G1": 45, "G2": 27, "G3": 18}


def test_every_query_is_on_exactly_one_side_and_knows_which():
    items = of_tiers(13, 8)
    train, dev = split_off(items, "dev", 0.25, seed=42)
    assert sorted(item.id for item in [*train, *dev]) == sorted(item.id for item in items)
    assert {item.split for item in dev} == {"dev"} and {item.split for item in train} == {"train"}


def test_queries_that_read_alike_go_to_the_same_side():
    items = [
        query(f"{n}-{twin}", text=f"{'Same' if twin else 'SAME'} text, {n}!") for n in range(20) for twin in (0, 1)
    ]
    train, dev = split_off(items, "dev", 0.3, seed=42)
    assert not {normalised(item.text) for item in train} & {normalised(item.text) for item in dev}
    assert (len(train), len(dev)) == (28, 12)  # 0.3 of 20 texts are 6, of two queries each


def test_the_split_is_the_same_each_time_and_another_with_another_seed():
    items = of_tiers(40)
    assert split_off(items, "dev", 0.2, seed=42) == split_off(items, "dev", 0.2, seed=42)
    assert split_off(items, "dev", 0.2, seed=42) != split_off(items, "dev", 0.2, seed=43)


@pytest.mark.parametrize(("count", "fraction", "in_dev"), [(2, 0.01, 1), (2, 0.99, 1), (3, 0.01, 1), (3, 0.99, 2)])
def test_one_query_at_least_stays_on_either_side(count, fraction, in_dev):
    train, dev = split_off(of_tiers(count), "dev", fraction, seed=42)
    assert (len(train), len(dev)) == (count - in_dev, in_dev)


def test_texts_that_all_read_alike_cannot_be_split():
    items = [query("a", text="Rain?"), query("b", text="rain"), query("c", text="RAIN!")]
    with pytest.raises(UserError, match="3 training queries are too few to split off dev queries") as error:
        split_off(items, "dev", 0.5, seed=42)
    assert "at least two queries" in error.value.remedy


# ---------------------------------------------------------------------------------------------- splits of a dataset


def whole_of(train, **splits):
    return Dataset(name="mine", tools=(Tool(id="t0"),), train=tuple(train), **splits)


def test_evaluation_is_drawn_first_and_dev_from_what_is_left():
    split = split_dataset(whole_of(of_tiers(60, 40)), dev=0.1, evaluation=0.2, seed=42)
    # 20 of 100, then 10% of the 80 that are left
    assert (tiers(split.eval), tiers(split.dev)) == ({"G1": 12, "G2": 8}, {"G1": 5, "G2": 3})
    assert tiers(split.train) == {"G1": 60 - 12 - 5, "G2": 40 - 8 - 3}
    for name in ("train", "dev", "eval"):
        assert {item.split for item in getattr(split, name)} == {name}


def test_a_dataset_is_split_by_default_as_the_paper_does_it():
    whole = whole_of(of_tiers(50, 30, 20))
    train, dev = split_off(whole.train, "dev", 0.1, seed=42)
    assert split_dataset(whole) == replace(whole, train=tuple(train), dev=tuple(dev))


@pytest.mark.parametrize(("name", "shares"), [("dev", {}), ("eval", {"dev": 0, "evaluation": 0.5})])
def test_a_split_that_is_there_is_not_drawn_a_second_time(name, shares):
    whole = whole_of(of_tiers(10), **{name: (query("x", split=name),)})
    with pytest.raises(UserError, match=f"mine has 1 {name} queries already") as error:
        split_dataset(whole, **shares)
    assert f"--{name} 0" in error.value.remedy


def test_a_share_of_0_keeps_the_split_that_is_there():
    evaluation = (query("x", split="eval"),)
    whole = whole_of(of_tiers(20), eval=evaluation, vague=(query("x", split="vague", text="vaguely"),))
    split = split_dataset(whole, dev=0.1, evaluation=0)
    assert (split.eval, split.vague, len(split.dev), len(split.train)) == (evaluation, whole.vague, 2, 18)
    assert split_dataset(whole, dev=0, evaluation=0) == whole


def test_a_split_that_is_drawn_anew_is_drawn_from_its_queries_too():
    first = split_dataset(whole_of(of_tiers(60, 40)), dev=0.1, evaluation=0.2, seed=42)
    vague = tuple(replace(item, split="vague", text=f"vaguely {item.id}") for item in first.eval)
    again = split_dataset(replace(first, vague=vague), dev=0, evaluation=0.2, seed=7, anew=True)
    assert sorted(item.id for item in (*again.train, *again.eval)) == sorted(
        item.id for item in (*first.train, *first.eval)
    )
    assert len(again.eval) == 18 and again.dev == first.dev  # 0.2 of the 92 that are not in dev
    assert {item.split for item in again.train} == {"train"} and {item.split for item in again.eval} == {"eval"}
    stayed = {item.id for item in again.eval} & {item.id for item in first.eval}
    assert {item.id for item in again.vague} == stayed and len(stayed) < len(first.eval)


# ------------------------------------------------------------------------------------------------------ subsets


def catalogue(*per_category):
    counts = enumerate(per_category)
    return tuple(Tool(id=f"t{kind}-{n}", category=f"c{kind}") for kind, count in counts for n in range(count))


def dataset(**splits):
    return Dataset(name="d", tools=catalogue(60, 30, 10), **splits)


def test_a_subset_keeps_what_evaluation_needs_and_fills_up_by_category():
    whole = dataset(eval=(query("e", ["t2-9", "t2-8"], split="eval"),))
    subset, dropped = subset_tools(whole, 51, seed=1)
    kept = Counter(tool.category for tool in subset.tools)
    # 2 tools are needed; 49 of the 98 others, half of each category: 30, 15, 4
    assert kept == {"c0": 30, "c1": 15, "c2": 4 + 2}
    assert {"t2-9", "t2-8"} <= {tool.id for tool in subset.tools} and dropped == 0


def test_a_subset_keeps_every_valid_set_of_evaluation_and_of_training_those_that_are_whole():
    needed = query("e", ["t0-0"], split="eval")
    kept_set, lost_set = ("t0-0", "t1-0"), ("t0-0", "t2-0")
    whole = dataset(
        eval=(replace(needed, gold_sets=(("t1-0",),)),),
        train=(replace(query("q", ["t0-0"]), gold_sets=(kept_set, lost_set)),),
    )
    subset, _ = subset_tools(whole, 2, seed=1)
    assert [tool.id for tool in subset.tools] == ["t0-0", "t1-0"]
    assert subset.eval[0].gold_sets == (("t1-0",),)
    assert subset.train[0].gold_sets == (kept_set,)


def test_a_subset_keeps_the_proportions_of_tiers_within_a_category():
    easy = [query(f"q{n}", [f"t0-{n}"], tier="G1") for n in range(30)]
    hard = [query(f"r{n}", [f"t0-{n}"], tier="G2", split="dev") for n in range(20, 40)]
    subset, _ = subset_tools(dataset(train=tuple(easy), dev=tuple(hard)), 50, seed=1)
    kept = {tool.id for tool in subset.tools}
    # half of each: of c0, 20 of G1 alone, 10 of both, 10 of G2 alone, 20 that no query needs
    of_c0 = [sum(f"t0-{n}" in kept for n in part) for part in (range(20), range(20, 30), range(30, 40), range(40, 60))]
    assert of_c0 == [10, 5, 5, 10]
    assert Counter(tool.category for tool in subset.tools) == {"c0": 30, "c1": 15, "c2": 5}


def test_a_subset_is_the_same_each_time_and_another_with_another_seed():
    whole = dataset(train=tuple(query(f"q{n}", [f"t0-{n}"], tier=f"G{n % 3}") for n in range(60)))
    assert subset_tools(whole, 40, seed=1) == subset_tools(whole, 40, seed=1) != subset_tools(whole, 40, seed=2)


def test_a_subset_keeps_the_order_of_the_catalogue():
    subset, _ = subset_tools(dataset(), 20, seed=1)
    assert list(subset.tools) == [tool for tool in dataset().tools if tool in subset.tools]
    assert len(subset.tools) == 20


def test_gold_that_fell_out_is_dropped_and_counted_and_queries_without_gold_are_too():
    everything = [tool.id for tool in catalogue(60, 30, 10)]
    whole = dataset(
        train=tuple(query(f"q-{tool}", [tool]) for tool in everything),
        dev=(query("all", everything, split="dev"),),
        eval=(query("e", ["t0-0"], split="eval"),),
    )
    subset, dropped = subset_tools(whole, 40, seed=1)
    kept = {tool.id for tool in subset.tools}
    assert {item.tools[0] for item in subset.train} == kept == set(subset.dev[0].tools)
    assert dropped == 60 + 60  # of 100 tools 60 fell out: 60 training queries of one tool, and 60 gold tools of one dev


def test_what_evaluation_needs_is_kept_even_where_that_is_more():
    needed = [f"t0-{n}" for n in range(30)]
    subset, _ = subset_tools(dataset(eval=(query("e", needed, split="eval"),)), 5, seed=1)
    assert [tool.id for tool in subset.tools] == needed


@pytest.mark.parametrize("size", [None, 100, 1000])
def test_a_subset_as_large_as_the_catalogue_is_the_catalogue(size):
    whole = dataset(train=(query("q", ["t0-1"]),))
    assert subset_tools(whole, size, seed=1) == (whole, 0)


def test_limits_keep_paraphrases_of_the_queries_that_stay():
    evaluation = tuple(replace(item, split="eval") for item in of_tiers(10, 10))
    vague = tuple(replace(item, text="something", split="vague") for item in evaluation)
    whole = dataset(train=tuple(of_tiers(20)), eval=evaluation, vague=vague)
    limited = limit_queries(whole, 8, 6, seed=1)
    assert (len(limited.train), tiers(limited.eval)) == (8, {"G1": 3, "G2": 3})
    assert [item.id for item in limited.vague] == [item.id for item in limited.eval]
    assert limit_queries(whole, None, None, seed=1) == whole


def test_the_sample_splits_into_three_disjoint_parts():
    whole, _ = read_dataset(sample_folder())
    train, dev = split_off(whole.train, "dev", 0.1, seed=42)
    texts = [{normalised(item.text) for item in part} for part in (train, dev, whole.eval)]
    names = [{item.id for item in part} for part in (train, dev, whole.eval)]
    for parts in (texts, names):
        assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert len(dev) == round(0.1 * len(whole.train))
