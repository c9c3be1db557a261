"""Stratified samples, subsets of the catalogue, and splits. All deterministic by seed."""

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.validation import normalised
from cohyde.errors import UserError

Item = TypeVar("Item")


def stratified_sample(items: Sequence[Item], size: int, stratum: Callable[[Item], Hashable], seed: int) -> list[Item]:
    """Draw ``size`` items so that strata keep their proportions (largest remainder); the input's order is kept.

    Args:
        items: what is drawn from; all are returned when there are no more than ``size``.
        size: how many, at least 0.
        stratum: the label of an item's stratum.
        seed: of the draw; independent for each stratum.
    """
    if size >= len(items):
        return list(items)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for position, item in enumerate(items):
        groups[stratum(item)].append(position)
    labels = sorted(groups, key=str)
    shares = {label: size * len(groups[label]) / len(items) for label in labels}
    take = {label: int(shares[label]) for label in labels}
    by_remainder = sorted(labels, key=lambda label: (take[label] - shares[label], str(label)))
    for label in by_remainder[: size - sum(take.values())]:
        take[label] += 1
    chosen = [
        position for label in labels for position in random.Random(f"{seed}/{label}").sample(groups[label], take[label])
    ]
    return [items[position] for position in sorted(chosen)]


def sample_queries(queries: Sequence[Query], size: int | None, seed: int) -> list[Query]:
    """A fixed sample of queries, stratified by tier; all of them for ``None``."""
    return list(queries) if size is None else stratified_sample(queries, size, lambda query: query.tier, seed)


def split_off(queries: Sequence[Query], name: str, fraction: float, seed: int) -> tuple[list[Query], list[Query]]:
    """Split training queries into ``(train, those that are split off)``, stratified by tier.

    Queries of the same normalised text go to the same side, so that the splits are disjoint by text too. At least
    one query stays on either side.

    Args:
        queries: the training queries.
        name: the split that the second part belongs to, ``dev`` or ``eval``.
        fraction: the second part's share of the texts.
        seed: of the draw.

    Raises:
        UserError: there are fewer than two different texts.
    """
    by_text: dict[str, list[Query]] = defaultdict(list)
    for query in queries:
        by_text[normalised(query.text)].append(query)
    groups = list(by_text.values())
    if len(groups) < 2:
        raise UserError(
            f"{len(queries)} training queries are too few to split off {name} queries",
            f"give at least two queries with split 'train' that read differently, or queries with split {name!r}",
        )
    size = min(max(1, round(fraction * len(groups))), len(groups) - 1)
    drawn = stratified_sample(groups, size, lambda group: group[0].tier, seed)
    ids = {query.id for group in drawn for query in group}
    train = [query for query in queries if query.id not in ids]
    return train, [replace(query, split=name) for query in queries if query.id in ids]


def split_dataset(
    dataset: Dataset, *, dev: float = 0.1, evaluation: float = 0.0, seed: int = 42, anew: bool = False
) -> Dataset:
    """Split evaluation and dev queries off the training queries, in this order, stratified by tier.

    Args:
        dataset: what is split; its splits are disjoint by id and by normalised text, and stay so.
        dev: the dev split's share of the training queries that evaluation leaves (paper: 10%). 0 leaves dev as it is.
        evaluation: evaluation's share of the training queries. 0 leaves evaluation as it is.
        seed: of both draws (paper: 42).
        anew: where there is such a split already, draw it from its queries and the training queries together.
            Paraphrases of queries that leave evaluation are dropped.

    Raises:
        UserError: there is such a split already, or there are too few training queries.
    """
    for name, fraction in (("eval", evaluation), ("dev", dev)):
        if not fraction:
            continue
        there = getattr(dataset, name)
        if there and not anew:
            raise UserError(
                f"{dataset.name} has {len(there)} {name} queries already",
                f"a share of 0 keeps them: --{name} 0; or split another dataset",
            )
        returned = [replace(query, split="train") for query in there]
        train, drawn = split_off([*dataset.train, *returned], name, fraction, seed)
        parts: dict[str, Any] = {"train": tuple(train), name: tuple(drawn)}
        dataset = replace(dataset, **parts)
    return _with_paraphrases_of(dataset, dataset.eval)


def _with_paraphrases_of(dataset: Dataset, evaluation: Sequence[Query]) -> Dataset:
    ids = {query.id for query in evaluation}
    return replace(dataset, eval=tuple(evaluation), vague=tuple(query for query in dataset.vague if query.id in ids))


def limit_queries(dataset: Dataset, train: int | None, evaluation: int | None, seed: int) -> Dataset:
    """Keep fixed, stratified samples of the training and the evaluation queries; paraphrases follow theirs."""
    limited = replace(dataset, train=tuple(sample_queries(dataset.train, train, seed)))
    return _with_paraphrases_of(limited, sample_queries(dataset.eval, evaluation, seed))


def subset_tools(dataset: Dataset, size: int | None, seed: int) -> tuple[Dataset, int]:
    """Keep ``size`` tools: every gold tool of evaluation, of any valid set, the rest stratified by tier and category.

    The tiers of a tool are those of the training and dev queries that need it. Gold tools of these that fell out are
    dropped from them, and queries left without gold are dropped. When evaluation needs more than ``size`` tools, all
    that it needs are kept.

    Returns:
        The subset, and the number of (query, gold tool) pairs that were dropped.
    """
    if size is None or size >= len(dataset.tools):
        return dataset, 0
    needed = {tool for query in dataset.eval for one in query.valid_sets for tool in one}
    others = [tool for tool in dataset.tools if tool.id not in needed]
    tiers = _tiers_by_tool([*dataset.train, *dataset.dev])
    filling = stratified_sample(
        others, max(0, size - len(needed)), lambda tool: (tool.category, tiers.get(tool.id, ())), seed
    )
    kept = needed | {tool.id for tool in filling}
    train, dropped_train = _keep_gold(dataset.train, kept)
    dev, dropped_dev = _keep_gold(dataset.dev, kept)
    tools: tuple[Tool, ...] = tuple(tool for tool in dataset.tools if tool.id in kept)
    return replace(dataset, tools=tools, train=train, dev=dev), dropped_train + dropped_dev


def _tiers_by_tool(queries: Sequence[Query]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = defaultdict(set)
    for query in queries:
        for tool in query.tools:
            found[tool].add(query.tier)
    return {tool: tuple(sorted(tiers)) for tool, tiers in found.items()}


def _keep_gold(queries: Sequence[Query], kept: set[str]) -> tuple[tuple[Query, ...], int]:
    reduced = [
        replace(
            query,
            tools=tuple(tool for tool in query.tools if tool in kept),
            gold_sets=tuple(one for one in query.gold_sets if kept.issuperset(one)),  # a part of one fulfils nothing
        )
        for query in queries
    ]
    dropped = sum(len(before.tools) - len(after.tools) for before, after in zip(queries, reduced, strict=True))
    return tuple(query for query in reduced if query.tools), dropped
