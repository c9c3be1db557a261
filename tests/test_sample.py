"""An audit of the embedded sample: what its card promises holds for every line of it."""

import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest

from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.dataset import read_card, read_dataset
from cohyde.resources import sample_folder

# Words of four and more letters that stand in names of endpoints and in any sentence.
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
about also been being came come could does doing each every from have into just like made make more most much
only other over same should some such than that their them then there they this very what when where which
will with would your
""",
    )
)
SUFFIXES = ("ies", "es", "s", "ing", "ed")


def words(text: str) -> list[str]:
    """Words in lower case; ``camelCase`` is two."""
    parted = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return [word.lower() for word in re.findall(r"[^\W\d_][^\W_]*|\d+", parted)]


def stem(word: str) -> str:
    """The word without a common ending, so that ``booking`` and ``books`` are one."""
    suffix = next((s for s in SUFFIXES if word.endswith(s) and len(word) - len(s) >= 3), "")
    return word.removesuffix(suffix)


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


@pytest.fixture(scope="module")
def sample() -> Dataset:
    return read_dataset(sample_folder())[0]


@pytest.fixture(scope="module")
def tools(sample: Dataset) -> dict[str, Tool]:
    return {tool.id: tool for tool in sample.tools}


@pytest.fixture(scope="module")
def queries(sample: Dataset) -> tuple[Query, ...]:
    return (*sample.train, *sample.eval)


def test_words_and_stems_are_what_the_audit_takes_them_for():
    assert words("hourlyForecast for Łódź, 14 May") == ["hourly", "forecast", "for", "łódź", "14", "may"]
    assert [stem(word) for word in ("parcels", "booked", "booking", "cities", "bus")] == [
        "parcel",
        "book",
        "book",
        "cit",
        "bus",
    ]


def test_it_is_as_large_as_the_demo_needs(sample, tools):
    assert len(tools) >= 240
    assert len({tool.category for tool in tools.values()}) >= 20
    assert len(sample.train) >= 450
    assert len(sample.eval) >= 120
    assert not sample.dev  # made by the split, so that its share is configuration


def test_its_card_says_whose_it_is():
    card = read_card(sample_folder())
    assert card["name"] == "sample" and card["licence"] == "Apache-2.0" and card["source"] and card["description"]


def test_ids_are_readable_and_used_once(tools, queries):
    assert all(re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", name) for name in tools)
    assert all(re.fullmatch(rf"{query.split}/[a-z0-9-]+", query.id) for query in queries)
    assert len({query.id for query in queries}) == len(queries)


def test_no_tool_lacks_its_names_and_no_two_have_the_same(tools):
    assert all(tool.category and tool.title and tool.api_name for tool in tools.values())
    assert all(parameter.name for tool in tools.values() for parameter in tool.parameters)
    assert not [name for name, n in Counter((t.title, t.api_name) for t in tools.values()).items() if n > 1]


def test_a_query_has_one_to_four_gold_tools(queries):
    sizes = Counter(len(query.tools) for query in queries)
    assert set(sizes) == {1, 2, 3, 4}


def test_the_tier_of_a_query_follows_from_its_gold(tools, queries):
    """G1: one provider; G2: several of one category; G3: several categories."""
    wrong = []
    for query in queries:
        gold = [tools[name] for name in query.tools]
        categories, providers = {tool.category for tool in gold}, {tool.title for tool in gold}
        tier = "G3" if len(categories) > 1 else "G2" if len(providers) > 1 else "G1"
        if query.tier != tier:
            wrong.append((query.id, query.tier, tier))
    assert not wrong


@pytest.mark.parametrize("split", ["train", "eval"])
def test_every_tier_has_a_fair_share_of_every_split(sample, split):
    part = getattr(sample, split)
    shares = {tier: count / len(part) for tier, count in Counter(query.tier for query in part).items()}
    assert set(shares) == {"G1", "G2", "G3"}
    assert min(shares.values()) > 0.15


def test_training_knows_every_category_and_nearly_every_tool(sample, tools):
    trained = {name for query in sample.train for name in query.tools}
    assert {tools[name].category for name in trained} == {tool.category for tool in tools.values()}
    assert len(trained) >= 0.9 * len(tools)


def test_evaluation_does_not_only_ask_for_combinations_that_training_has_seen(sample):
    seen = {frozenset(query.tools) for query in sample.train}
    fresh = [query for query in sample.eval if frozenset(query.tools) not in seen]
    assert len(fresh) >= 0.5 * len(sample.eval)


def test_no_two_queries_are_nearly_the_same(queries):
    bags = [(query.id, frozenset(words(query.text))) for query in queries]
    twins = [(a, b) for (a, one), (b, other) in combinations(bags, 2) if jaccard(one, other) >= 0.6]
    assert not twins


def test_every_evaluation_query_has_a_vague_paraphrase_in_other_words(sample):
    texts = {query.id: query.text for query in sample.vague}
    assert set(texts) == {query.id for query in sample.eval}
    close = [
        query.id
        for query in sample.eval
        if jaccard(frozenset(words(query.text)), frozenset(words(texts[query.id]))) > 0.5
    ]
    assert not close


def test_no_vague_paraphrase_leaks_a_word_of_its_tools_names(sample, tools):
    leaks = []
    for query in sample.vague:
        said = {stem(word) for word in words(query.text)}
        names = {word for name in query.tools for word in words(f"{tools[name].title} {tools[name].api_name}")}
        telling = {word for word in names if len(word) >= 4 and not word.isdigit()} - FUNCTION_WORDS
        leaks += [(query.id, word) for word in sorted(telling) if stem(word) in said]
    assert not leaks


def test_several_providers_serve_most_categories(tools):
    providers = defaultdict(set)
    for tool in tools.values():
        providers[tool.category].add(tool.title)
    assert min(map(len, providers.values())) >= 2
    assert sum(len(titles) >= 3 for titles in providers.values()) >= 0.8 * len(providers)


def test_some_descriptions_are_missing_as_they_are_in_the_wild(tools):
    without_api = sum(not tool.api_description.strip() for tool in tools.values())
    without_tool = sum(not tool.description.strip() for tool in tools.values())
    assert 0.03 <= without_api / len(tools) <= 0.3
    assert 0.03 <= without_tool / len(tools) <= 0.5
    assert all(tool.parameters or tool.api_description or tool.description for tool in tools.values())


@pytest.mark.parametrize("split", ["train", "eval", "vague"])
def test_queries_are_not_stamped_from_templates(sample, split):
    part = getattr(sample, split)
    openings = {tuple(words(query.text)[:4]) for query in part}
    endings = {tuple(words(query.text)[-4:]) for query in part}
    assert len(openings) >= 0.95 * len(part)
    assert len(endings) >= 0.95 * len(part)
    lengths = [len(words(query.text)) for query in part]
    assert max(lengths) >= 2 * min(lengths)


def test_descriptions_are_not_stamped_from_templates(tools):
    texts = [tool.api_description for tool in tools.values() if tool.api_description.strip()]
    assert len(set(texts)) == len(texts)
    assert len({tuple(words(text)[:4]) for text in texts}) >= 0.9 * len(texts)


def test_it_is_small_enough_to_travel_with_the_package():
    assert sum(path.stat().st_size for path in sample_folder().iterdir()) < 1_000_000
