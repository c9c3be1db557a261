"""Stratified samples, subsets of the catalogue, and the dev split. All deterministic by seed."""

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.validation import normalised

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


def split_dev(queries: Sequence[Query], fraction: float, seed: int) -> tuple[list[Query], list[Query]]:
    """Split training queries into ``(train, dev)``, stratified by tier.

    Queries of the same normalised text go to the same side, so that the splits are disjoint by text too. At least
    one query stays on either side.
    """
    by_text: dict[str, list[Query]] = defaultdict(list)
    for query in queries:
        by_text[normalised(query.text)].append(query)
    groups = list(by_text.values())
    size = min(max(1, round(fraction * len(groups))), len(groups) - 1)
    dev_groups = stratified_sample(groups, size, lambda group: group[0].tier, seed)
    dev_ids = {query.id for group in dev_groups for query in group}
    train = [query for query in queries if query.id not in dev_ids]
    dev = [replace(query, split="dev") for query in queries if query.id in dev_ids]
    return train, dev


def limit_queries(dataset: Dataset, train: int | None, evaluation: int | None, seed: int) -> Dataset:
    """Keep fixed, stratified samples of the training and the evaluation queries; paraphrases follow theirs."""
    kept = sample_queries(dataset.eval, evaluation, seed)
    ids = {query.id for query in kept}
    return replace(
        dataset,
        train=tuple(sample_queries(dataset.train, train, seed)),
        eval=tuple(kept),
        vague=tuple(query for query in dataset.vague if query.id in ids),
    )


def subset_tools(dataset: Dataset, size: int | None, seed: int) -> tuple[Dataset, int]:
    """Keep ``size`` tools: every gold tool of evaluation, the rest stratified by category (DESIGN, section 3).

    Gold tools of other queries that fell out are dropped from those queries, and queries left without gold are
    dropped. When evaluation needs more than ``size`` tools, all that it needs are kept.

    Returns:
        The subset, and the number of (query, gold tool) pairs that were dropped.
    """
    if size is None or size >= len(dataset.tools):
        return dataset, 0
    needed = {tool for query in dataset.eval for tool in query.tools}
    others = [tool for tool in dataset.tools if tool.id not in needed]
    filling = stratified_sample(others, max(0, size - len(needed)), lambda tool: tool.category, seed)
    kept = needed | {tool.id for tool in filling}
    train, dropped_train = _keep_gold(dataset.train, kept)
    dev, dropped_dev = _keep_gold(dataset.dev, kept)
    tools: tuple[Tool, ...] = tuple(tool for tool in dataset.tools if tool.id in kept)
    return replace(dataset, tools=tools, train=train, dev=dev), dropped_train + dropped_dev


def _keep_gold(queries: Sequence[Query], kept: set[str]) -> tuple[tuple[Query, ...], int]:
    reduced = [replace(query, tools=tuple(tool for tool in query.tools if tool in kept)) for query in queries]
    dropped = sum(len(before.tools) - len(after.tools) for before, after in zip(queries, reduced, strict=True))
    return tuple(query for query in reduced if query.tools), dropped
