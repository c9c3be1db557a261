"""Statistics of a dataset: sizes, gold tools, lengths, what is empty or alike, and what its splits share."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from cohyde.catalog import Dataset, Query, Tool, fold, render, render_name, tiers_of
from cohyde.data.overlap import Overlap, overlap
from cohyde.data.validation import SPLITS, normalised
from cohyde.progress import Progress, Silent

TOP_TOOLS = 5


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How numbers are spread. The shares in between are by nearest rank, so that each is one of the numbers."""

    least: int
    p5: int
    p50: int
    p95: int
    most: int
    mean: float


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths of texts, in characters and in words (what white space separates)."""

    characters: Spread
    words: Spread


@dataclass(frozen=True, kw_only=True)
class Alike:
    """Tools that are equal to another in some respect: how many, and in how many groups."""

    groups: int
    tools: int


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The tools."""

    tools: int
    providers: int
    """Different pairs of category and title, where there is a title."""
    categories: Mapping[str, int]
    """Tools by category, the largest first; blank is a category of its own."""
    lengths: Lengths
    """Of the tools' renderings φ5."""
    empty: Mapping[str, int]
    """Tools whose field is blank, by field."""
    description_is_name: int
    """Tools whose API description only repeats the API name."""
    alike: Mapping[str, Alike]
    """Tools that are equal to another, by what is compared: ``text`` (the rendering φ5), or a key of :data:`SAME`."""
    never_gold: int
    """Tools that no query needs."""


@dataclass(frozen=True, kw_only=True)
class Needed:
    """A gold tool, and how many queries need it."""

    id: str
    name: str
    """Title and API name; the id where both are blank."""
    queries: int


@dataclass(frozen=True, kw_only=True)
class Tier:
    """The queries of one tier in one split."""

    queries: int
    pairs: int
    """Pairs of a query and a gold tool."""
    naming: int
    """Queries that contain the title of one of their gold tools, whatever the case."""


@dataclass(frozen=True, kw_only=True)
class Queries:
    """The queries of one split."""

    queries: int
    pairs: int
    tiers: Mapping[str, Tier]
    gold_per_query: Mapping[int, int]
    """Queries by their number of gold tools."""
    gold_tools: int
    """Different gold tools."""
    gold_sets: int
    """Different sets of gold tools."""
    queries_per_tool: Spread
    """Of the gold tools: how many queries need one."""
    top_tools: tuple[Needed, ...]
    """The five gold tools that most queries need."""
    repeated_texts: int
    """Queries that read as one before them."""
    naming: int
    """Queries that contain the title of one of their gold tools, whatever the case."""
    instructions: int
    """Queries with an instruction of their own."""
    lengths: Lengths


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a dataset is like. Splits without queries are left out."""

    name: str
    catalogue: Catalogue
    splits: Mapping[str, Queries]
    """By split: ``train``, ``dev``, ``eval``, and ``vague`` for paraphrases."""
    overlap: Mapping[str, Overlap]
    """What ``dev`` and ``eval`` share with ``train``."""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data."""
        content = asdict(self)
        for split in content["splits"].values():
            split["gold_per_query"] = {str(count): queries for count, queries in split["gold_per_query"].items()}
            split["top_tools"] = list(split["top_tools"])
        return content


def statistics(dataset: Dataset, *, progress: Progress | None = None) -> Statistics:
    """Count all that there is to say about a dataset.

    Args:
        dataset: as validation leaves it; texts are as published.
        progress: is told how far it is.
    """
    tools = {tool.id: tool for tool in dataset.tools}
    splits: dict[str, Queries] = {}
    overlaps: dict[str, Overlap] = {}
    parts = [(name, getattr(dataset, name)) for name in (*SPLITS, "vague")]
    for done, (name, queries) in enumerate(parts):
        (progress or Silent()).update(done, len(parts) + 1, "parts counted")
        if queries:
            splits[name] = _queries(queries, tools)
        if queries and dataset.train and name in ("dev", "eval"):
            overlaps[name] = overlap(queries, dataset.train)
    (progress or Silent()).update(len(parts), len(parts) + 1, "parts counted")
    needed = {tool for _, queries in parts for query in queries for tool in query.tools}
    return Statistics(name=dataset.name, catalogue=_catalogue(dataset.tools, needed), splits=splits, overlap=overlaps)


# --------------------------------------------------------------------------------------------------- the tools


def _content(tool: Tool) -> tuple[Hashable, ...]:
    return (tool.description, tool.api_description, tool.parameters, tool.schema)


SAME: Mapping[str, Callable[[Tool], Hashable]] = {
    "all but category": lambda tool: (tool.title, tool.api_name, _content(tool)),
    "all but category and title": lambda tool: (tool.api_name, _content(tool)),
    "all but names": _content,
}
"""What makes two tools alike besides their whole text; the names are category, title and API name."""

EMPTY: Mapping[str, Callable[[Tool], Any]] = {
    "category": lambda tool: fold(tool.category),
    "title": lambda tool: fold(tool.title),
    "description": lambda tool: fold(tool.description),
    "api_name": lambda tool: fold(tool.api_name),
    "api_description": lambda tool: fold(tool.api_description),
    "any description": lambda tool: fold(tool.description) or fold(tool.api_description),
    "parameters": lambda tool: tool.parameters,
    "schema": lambda tool: fold(tool.schema),
}
"""Fields, and what says whether one is filled."""


def _catalogue(tools: Sequence[Tool], needed: set[str]) -> Catalogue:
    texts = [render(tool, 5) for tool in tools]
    return Catalogue(
        tools=len(tools),
        providers=len({(tool.category, tool.title) for tool in tools if fold(tool.title)}),
        categories=_largest_first(Counter(tool.category for tool in tools)),
        lengths=_lengths(texts),
        empty={name: sum(not filled(tool) for tool in tools) for name, filled in EMPTY.items()},
        description_is_name=sum(_only_repeats_its_name(tool) for tool in tools),
        alike={"text": _alike(texts)} | {name: _alike(map(same, tools)) for name, same in SAME.items()},
        never_gold=sum(tool.id not in needed for tool in tools),
    )


def _only_repeats_its_name(tool: Tool) -> bool:
    description = fold(tool.api_description).casefold()
    return bool(description) and description == fold(tool.api_name).casefold()


def _alike(keys: Iterable[Hashable]) -> Alike:
    sizes = [size for size in Counter(map(hash, keys)).values() if size > 1]
    return Alike(groups=len(sizes), tools=sum(sizes))


def _largest_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# ------------------------------------------------------------------------------------------------- the queries


def _queries(queries: Sequence[Query], tools: Mapping[str, Tool]) -> Queries:
    naming = {query.id for query in queries if _names_a_tool(query, tools)}
    per_tool = Counter(tool for query in queries for tool in query.tools)
    return Queries(
        queries=len(queries),
        pairs=per_tool.total(),
        tiers={tier: _tier([query for query in queries if query.tier == tier], naming) for tier in tiers_of(queries)},
        gold_per_query=dict(sorted(Counter(len(query.tools) for query in queries).items())),
        gold_tools=len(per_tool),
        gold_sets=len({frozenset(query.tools) for query in queries}),
        queries_per_tool=_spread(list(per_tool.values())),
        top_tools=tuple(
            Needed(id=tool, name=render_name(tools[tool]) or tool, queries=count)
            for tool, count in islice(_largest_first(per_tool).items(), TOP_TOOLS)
        ),
        repeated_texts=len(queries) - len({normalised(query.text) for query in queries}),
        naming=len(naming),
        instructions=sum(bool(query.instruction) for query in queries),
        lengths=_lengths([query.text for query in queries]),
    )


def _tier(queries: Sequence[Query], naming: set[str]) -> Tier:
    return Tier(
        queries=len(queries),
        pairs=sum(len(query.tools) for query in queries),
        naming=sum(query.id in naming for query in queries),
    )


def _names_a_tool(query: Query, tools: Mapping[str, Tool]) -> bool:
    text = fold(query.text).casefold()
    titles = (fold(tools[tool].title).casefold() for tool in query.tools)
    return any(title and title in text for title in titles)


# ------------------------------------------------------------------------------------------------------ spreads


def _lengths(texts: Sequence[str]) -> Lengths:
    return Lengths(
        characters=_spread([len(text) for text in texts]), words=_spread([len(text.split()) for text in texts])
    )


def _spread(numbers: Sequence[int]) -> Spread:
    ordered = sorted(numbers)

    def at(share: float) -> int:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(
        least=ordered[0], p5=at(0.05), p50=at(0.5), p95=at(0.95), most=ordered[-1], mean=sum(ordered) / len(ordered)
    )
