"""Training pairs and the seeded draws about them, free of torch so that the pipeline may import them."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cohyde.catalog import Query, Tool, render

Side = Literal["query", "document"]
"""Which side of a search a text is on: what is searched with, or the catalogue. Sentence-transformers' own words."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One positive pair: a text and the id of a tool that fulfils it. The tool is rendered when it is trained on."""

    anchor: str
    tool: str
    equivalents: tuple[str, ...] = ()
    """Tools of the query's other gold sets: no positives, but no negatives either."""


def joined(query: str, description: str) -> str:
    """Query and description as one text, in search and in training alike (query2doc, Wang et al. 2023)."""
    return f"{query} {description}"


def uniform(*key: str | int) -> float:
    """A number in [0, 1) that depends on ``key`` alone: the same whenever, wherever and in whatever order it's drawn.

    The first 53 bits of the BLAKE2b hash of the key's JSON, as a fraction.
    """
    digest = hashlib.blake2b(json.dumps(key).encode("utf-8"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def draw_form(forms: tuple[int, ...], seed: int, epoch: int, pair: int) -> int:
    """The rendering φ of the ``pair``-th pair in an epoch, uniform over ``forms`` (DESIGN: per pair and epoch)."""
    return forms[int(uniform("form", seed, epoch, pair) * len(forms))]


def same_texts(tools: Sequence[Tool], form: int) -> dict[str, set[str]]:
    """For each tool id the ids of all tools, itself included, with the same text under φ``form``."""
    tools_of: dict[str, set[str]] = {}
    for tool in tools:
        tools_of.setdefault(render(tool, form), set()).add(tool.id)
    return {tool: alike for alike in tools_of.values() for tool in alike}


def pairs_of(anchor: str, query: Query) -> list[Pair]:
    """An anchor of a query with each of its gold tools."""
    equivalents = tuple(tool for tools in query.gold_sets for tool in tools)
    return [Pair(anchor=anchor, tool=tool, equivalents=equivalents) for tool in query.tools]


def right_tools(pairs: Sequence[Pair], alike: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """For each anchor the tools that are right for it: those of all its pairs, equivalents, and what is ``alike``."""
    right: dict[str, set[str]] = {}
    for pair in pairs:
        for tool in (pair.tool, *pair.equivalents):
            right.setdefault(pair.anchor, set()).update(alike[tool])
    return right
