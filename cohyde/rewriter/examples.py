"""Few-shot examples for the rewriter's prompt, drawn from the training split."""

import random
from collections.abc import Mapping, Sequence

from cohyde.catalog import Dataset, Query, Tool, catalog_line, tiers_of
from cohyde.rewriter.prompts import Example

MOST_ANSWER_CHARACTERS = 600


def gold_answer(query: Query, tools: Mapping[str, Tool]) -> str:
    """What a perfect rewriter would write: one catalogue line for each gold tool, in gold order.

    Args:
        query: its gold tools are in ``tools``.
        tools: the catalogue by id.
    """
    return "\n".join(catalog_line(tools[tool]) for tool in query.tools)


def few_shot_examples(dataset: Dataset, count: int, seed: int) -> list[Example]:
    """Draw ``count`` examples from the training split, tiers in turn; the same ones for the same data and seed.

    Queries come first whose gold tools all have an API description and whose answer is short: an example teaches
    the style of the catalogue, and costs its length in every prompt.
    """
    if not count:
        return []
    tools = {tool.id: tool for tool in dataset.tools}
    suitable = [
        query
        for query in dataset.train
        if all(tools[tool].api_description.strip() for tool in query.tools)
        and len(gold_answer(query, tools)) <= MOST_ANSWER_CHARACTERS
    ]
    pool = suitable if len(suitable) >= count else list(dataset.train)
    return [Example(query=query.text, answer=gold_answer(query, tools)) for query in _in_turn(pool, count, seed)]


def without_examples(queries: Sequence[Query], examples: Sequence[Example]) -> list[Query]:
    """The queries that no example shows: a prompt must not hold the answer to its own request."""
    shown = {example.query for example in examples}
    return [query for query in queries if query.text not in shown]


def _in_turn(pool: Sequence[Query], count: int, seed: int) -> list[Query]:
    """``count`` queries, one tier after the other."""
    shuffled = random.Random(f"{seed}/few-shot").sample(list(pool), len(pool))
    by_tier = {tier: [query for query in shuffled if query.tier == tier] for tier in tiers_of(pool)}
    chosen: list[Query] = []
    while len(chosen) < min(count, len(pool)):
        chosen += [queries.pop() for queries in by_tier.values() if queries][: count - len(chosen)]
    return chosen
