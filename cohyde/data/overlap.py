"""What held-out queries share with the training queries: gold tools, gold sets, and wording."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cohyde.catalog import Query
from cohyde.data.validation import normalised

NEAR = (0.6, 0.7, 0.8, 0.9)
"""Thresholds of similarity from which a query counts as a near copy of another."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Held-out queries beside the training queries, counted."""

    queries: int
    same_text: int
    """Queries whose normalised text a training query has too. Validation lets none of these through."""
    gold_seen: Mapping[str, int]
    """Queries of whose gold tools ``all``, ``some`` or ``none`` are gold of a training query."""
    gold_set_seen: int
    """Queries whose gold tools are exactly those of a training query."""
    gold_tools: int
    """Different gold tools."""
    gold_tools_seen: int
    """Those of them that are gold of a training query."""
    near_copies: Mapping[str, int]
    """Queries that are at least this similar to a training query of the same gold tools; see :func:`similarity`."""


def overlap(held_out: Sequence[Query], train: Sequence[Query]) -> Overlap:
    """Count what held-out queries share with the training queries."""
    texts = [normalised(query.text) for query in held_out]
    alike: dict[frozenset[str], list[frozenset[str]]] = {frozenset(query.tools): [] for query in held_out}
    known, seen_texts = set(texts), set()
    for query in train:
        text, gold = normalised(query.text), frozenset(query.tools)
        if gold in alike:
            alike[gold].append(frozenset(text.split()))
        if text in known:
            seen_texts.add(text)
    same_gold = [alike[frozenset(query.tools)] for query in held_out]
    nearest = [_nearest(frozenset(text.split()), others) for text, others in zip(texts, same_gold, strict=True)]
    trained = frozenset(tool for query in train for tool in query.tools)
    needed = {tool for query in held_out for tool in query.tools}
    return Overlap(
        queries=len(held_out),
        same_text=sum(text in seen_texts for text in texts),
        gold_seen=_seen(held_out, trained),
        gold_set_seen=sum(bool(others) for others in same_gold),
        gold_tools=len(needed),
        gold_tools_seen=len(needed & trained),
        near_copies={str(least): sum(found >= least for found in nearest) for least in NEAR},
    )


def _seen(queries: Sequence[Query], trained: frozenset[str]) -> dict[str, int]:
    seen = [len(trained.intersection(query.tools)) for query in queries]
    whole = sum(count == len(query.tools) for count, query in zip(seen, queries, strict=True))
    none = seen.count(0)
    return {"all": whole, "some": len(queries) - whole - none, "none": none}


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity of two sets of words: the share of their words that both have."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)


def _nearest(words: frozenset[str], others: Collection[frozenset[str]]) -> float:
    """The similarity of the most similar of some texts; 0 where none can reach the first threshold."""
    best = 0.0
    for other in others:
        least = max(best, NEAR[0])
        if len(other) >= least * len(words) and len(words) >= least * len(other):
            best = max(best, similarity(words, other))
    return best
