"""Merge: several datasets into one. What is equal stands once, what clashes is renamed, no query is on two sides."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import TypeVar

from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.validation import SPLITS, Findings, without_twins
from cohyde.errors import UserError

Record = TypeVar("Record", Tool, Query)


def merge(datasets: Sequence[Dataset], name: str) -> tuple[Dataset, dict[str, int]]:
    """Merge datasets, in their order; the same datasets in the same order always give the same result.

    A tool or query of equal id and content stands once. Where an id of a dataset has another content in one before
    it, all ids of that dataset, but those of records that are there already, get its name in front: ``weather/17``.
    A training query that reads like a dev or evaluation query or a paraphrase of another dataset is dropped, and so is
    a dev query that reads like an evaluation query or a paraphrase.

    Args:
        datasets: two or more, each as validation leaves it.
        name: the name of the result.

    Returns:
        The merged dataset, and what was merged, renamed and dropped, counted.

    Raises:
        UserError: there are fewer than two datasets.
    """
    if len(datasets) < 2:
        raise UserError("there is nothing to merge", "give two datasets or more")
    counts: Counter[str] = Counter()
    tools: dict[str, Tool] = {}
    queries: dict[str, Query] = {}
    vague: dict[str, Query] = {}
    for dataset in datasets:
        tool_ids = _add(dataset.tools, tools, "tools", dataset.name, counts)
        theirs = [_renamed(query, query.id, tool_ids) for query in (*dataset.train, *dataset.dev, *dataset.eval)]
        query_ids = _add(theirs, queries, "queries", dataset.name, counts)
        for query in dataset.vague:
            vague.setdefault(query_ids[query.id], _renamed(query, query_ids[query.id], tool_ids))
    merged = Dataset(name=name, tools=tuple(tools.values()), vague=tuple(vague.values()))
    return _without_leakage(merged, list(queries.values()), counts), dict(counts)


def _without_leakage(merged: Dataset, queries: Sequence[Query], counts: Counter[str]) -> Dataset:
    by_split = {split: [("", query) for query in queries if query.split == split] for split in SPLITS}
    unseen, findings = [query for _, query in by_split["eval"]], Findings()
    dev = tuple(without_twins(by_split["dev"], [*unseen, *merged.vague], findings))
    train = tuple(without_twins(by_split["train"], [*unseen, *merged.vague, *dev], findings))
    counts["training queries dropped"] = len(by_split["train"]) - len(train)
    counts["dev queries dropped"] = len(by_split["dev"]) - len(dev)
    return replace(merged, train=train, dev=dev, eval=tuple(unseen))


def _add(
    records: Sequence[Record], known: dict[str, Record], noun: str, name: str, counts: Counter[str]
) -> dict[str, str]:
    """Add a dataset's records to those that are known; returns the id of each by the one that it had."""
    new = [record for record in records if known.get(record.id) != record]
    prefix = _prefix(name, [record.id for record in new], known)
    ids = {record.id: record.id for record in records} | {record.id: prefix + record.id for record in new}
    for record in new:
        known[ids[record.id]] = replace(record, id=ids[record.id])
    counts[f"{noun} shared"] += len(records) - len(new)
    counts[f"{noun} renamed"] += len(new) if prefix else 0
    return ids


def _prefix(name: str, ids: Sequence[str], known: Mapping[str, object]) -> str:
    """What goes before ids so that all are free: nothing, or the dataset's name, or that with a number."""
    prefixes = chain(("", f"{name}/"), (f"{name}-{number}/" for number in count(2)))
    return next(prefix for prefix in prefixes if not any(prefix + identifier in known for identifier in ids))


def _renamed(query: Query, identifier: str, tool_ids: Mapping[str, str]) -> Query:
    tools, *others = (tuple(tool_ids[tool] for tool in one) for one in query.valid_sets)
    return replace(query, id=identifier, tools=tools, gold_sets=tuple(others))
