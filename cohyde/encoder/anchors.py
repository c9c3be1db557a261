"""What the encoder is retrained on in S3: generated descriptions, real queries, or some of both."""

from collections.abc import Callable, Mapping, Sequence

from cohyde.catalog import Query
from cohyde.encoder.pairs import Pair, joined, pairs_of, uniform
from cohyde.errors import UserError

Anchor = Callable[[Query, str | None, float, int], tuple[str, ...]]
"""``(query, its description or None, query_share, seed)`` to the texts that stand for the query."""


def description(query: Query, generated: str | None, query_share: float, seed: int) -> tuple[str, ...]:
    """The description alone; a query that has none is left out (paper: no real query in S3)."""
    return (generated,) if generated else ()


def real_query(query: Query, generated: str | None, query_share: float, seed: int) -> tuple[str, ...]:
    """The real query alone, as in the warm-up."""
    return (query.text,)


def mixed(query: Query, generated: str | None, query_share: float, seed: int) -> tuple[str, ...]:
    """The real query with probability α = ``query_share``, else the description; the query where there is none.

    The draw depends on the seed and the query's id, so that all pairs of a query have the same anchor and a larger α
    only ever turns descriptions into queries.
    """
    if generated and uniform("anchor", seed, query.id) >= query_share:
        return (generated,)
    return (query.text,)


def both(query: Query, generated: str | None, query_share: float, seed: int) -> tuple[str, ...]:
    """Two anchors, description and query; a query that has no description is left out.

    So that S3 on a described sample of the training queries trains on that sample alone.
    """
    return (generated, query.text) if generated else ()


def concatenated(query: Query, generated: str | None, query_share: float, seed: int) -> tuple[str, ...]:
    """Query and description in one text, for a run that searches with that; without a description it is left out."""
    return (joined(query.text, generated),) if generated else ()


ANCHORS: Mapping[str, Anchor] = {
    "description": description,
    "query": real_query,
    "mixed": mixed,
    "both": both,
    "concatenated": concatenated,
}


def anchored(
    queries: Sequence[Query], descriptions: Mapping[str, str], strategy: str, query_share: float, seed: int
) -> list[tuple[Query, str]]:
    """Every query with each of its anchors, in order: what S3 trains on, and what its dev split is searched with.

    Args:
        queries: of the training split, or of dev.
        descriptions: generated description by query id; may hold only a part of the queries.
        strategy: a name in :data:`ANCHORS`.
        query_share: α of ``mixed``, in [0, 1]; the others ignore it.
        seed: of the draws of ``mixed``.

    Raises:
        UserError: no strategy has that name.
    """
    if strategy not in ANCHORS:
        raise UserError(f"no anchor strategy is called {strategy!r}", f"retrain.anchor is one of: {', '.join(ANCHORS)}")
    return [
        (query, anchor)
        for query in queries
        for anchor in ANCHORS[strategy](query, descriptions.get(query.id), query_share, seed)
    ]


def anchor_pairs(
    queries: Sequence[Query], descriptions: Mapping[str, str], strategy: str, query_share: float, seed: int
) -> list[Pair]:
    """The pairs of S3: for each of the queries' anchors (:func:`anchored`) the query's gold tools."""
    return [
        pair
        for query, anchor in anchored(queries, descriptions, strategy, query_share, seed)
        for pair in pairs_of(anchor, query)
    ]
