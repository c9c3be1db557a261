"""Which tools a request may need: each alone, and pairs and triples of related ones. Deterministic by seed."""

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from cohyde.catalog import Tool, fold, render
from cohyde.data.validation import normalised

NEIGHBOURS = 20
"""Tools that count as related to one: its nearest under BM25 (ours)."""
NEAREST = 5
"""A group grows by one of this many of those, the nearest that fit (ours)."""
TRIPLES = 1 / 3
"""Share of triples among groups of several tools; the rest are pairs (ours)."""
TIERS = ("G1", "G2", "G3")


def tier_of(tools: Sequence[Tool]) -> str:
    """The tier of a request for these tools, as ToolBench has it.

    G1: all of one provider; G2: of several providers in one category; G3: across categories, or where no category
    is said.
    """
    if len({(fold(tool.category), fold(tool.title)) for tool in tools}) == 1 and (len(tools) == 1 or tools[0].title):
        return "G1"
    categories = {fold(tool.category) for tool in tools}
    return "G2" if len(categories) == 1 and "" not in categories else "G3"


def seed_groups(tools: Sequence[Tool], *, per_tool: int, multi_share: float, seed: int) -> Iterator[tuple[Tool, ...]]:
    """The gold tools of each request that is to be written, one group a request.

    Every tool alone occurs ``per_tool`` times, in rounds over the catalogue; groups of related tools occur once each,
    strewn in evenly. So the beginning of the sequence is a fair sample of the whole, and a longer one begins with a
    shorter one.

    Args:
        tools: the catalogue.
        per_tool: requests for each tool alone.
        multi_share: share of the requests that need several tools, at least 0 and below 1. A small catalogue may have
            fewer such groups than that.
        seed: of the order and of the draw.
    """
    order = list(range(len(tools)))
    random.Random(f"{seed}/order").shuffle(order)
    groups = _related_groups(tools, seed) if multi_share else iter(())
    for number in range(per_tool * len(tools)):
        yield (tools[order[number % len(tools)]],)
        yield from islice(groups, due(number, multi_share / (1 - multi_share)))


def due(number: int, rate: float) -> int:
    """How many fall due at a place of a sequence, counted from 0, so that each beginning has ``rate`` times its length.

    That is how shares are met evenly and without a draw, whatever the sequence's length.
    """
    return int((number + 1) * rate + 0.5) - int(number * rate + 0.5)


def _related_groups(tools: Sequence[Tool], seed: int) -> Iterator[tuple[Tool, ...]]:
    """Distinct pairs and triples of related tools, tier by tier in turn, until a round has no new one."""
    rng = random.Random(f"{seed}/groups")
    order = list(range(len(tools)))
    rng.shuffle(order)
    neighbours = Neighbours(tools)
    tiers = cycle(TIERS)
    seen: set[frozenset[int]] = set()
    before = -1
    while len(seen) > before:
        before = len(seen)
        for position in order:
            group = _draw(tools, position, neighbours.of(position), next(tiers), rng)
            if len(group) > 1 and frozenset(group) not in seen:
                seen.add(frozenset(group))
                yield tuple(tools[member] for member in group)


def _draw(tools: Sequence[Tool], position: int, near: Sequence[int], tier: str, rng: random.Random) -> list[int]:
    """A tool and one or two of its neighbours, of the wanted tier if there are such."""
    group = [position]
    for _ in range(2 if rng.random() < TRIPLES else 1):
        others = [other for other in near if other not in group]
        fitting = [other for other in others if tier_of([tools[member] for member in (*group, other)]) == tier]
        if others:
            group.append(rng.choice((fitting or others)[:NEAREST]))
    return group


class Neighbours:
    """The nearest tools of each under BM25 over φ5, found when they are asked for."""

    def __init__(self, tools: Sequence[Tool], most: int = NEIGHBOURS) -> None:
        """Index a catalogue.

        Args:
            tools: the catalogue.
            most: neighbours of a tool at most.
        """
        import bm25s
        from bm25s.stopwords import STOPWORDS_EN

        self.most = most
        self.texts = [normalised(render(tool, 5)) for tool in tools]
        ids: dict[str, int] = {}
        stopwords = frozenset(STOPWORDS_EN)
        self.tokens = [
            [ids.setdefault(word, len(ids)) for word in text.split() if word not in stopwords] for text in self.texts
        ]
        self.index: Any = bm25s.BM25()
        if ids:
            self.index.index((self.tokens, ids), show_progress=False)
        self.found: dict[int, list[int]] = {}

    def of(self, position: int) -> list[int]:
        """Positions of the neighbours of a tool, nearest first; tools that read the same are none of each other's.

        Of tools that read the same as each other, the first alone is a neighbour.
        """
        if position not in self.found:
            self.found[position] = self._search(position)
        return self.found[position]

    def _search(self, position: int) -> list[int]:
        import numpy as np

        query = list(dict.fromkeys(self.tokens[position]))
        if not query:
            return []
        scores = self.index.get_scores_from_ids(query)
        # Ties are broken by position: what a library's partial sort does with them depends on the processor.
        deep = min(4 * self.most, len(scores))
        least = np.partition(scores, -deep)[-deep]
        candidates = np.flatnonzero((scores >= least) & (scores > 0))
        nearest = candidates[np.argsort(-scores[candidates], kind="stable")]
        texts = {self.texts[position]}
        found: list[int] = []
        for other in nearest.tolist():
            if self.texts[other] not in texts:
                texts.add(self.texts[other])
                found.append(other)
            if len(found) == self.most:
                break
        return found
