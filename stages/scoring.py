"""What every evaluation does, whatever system it scores: choose the queries, write each one's results and the means."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohyde.catalog import Dataset, Query
from cohyde.config import EvaluationConfig
from cohyde.data.dataset import catalogue_checksum
from cohyde.data.split import sample_queries
from cohyde.evaluation.metrics import MEAN_OVER_TIERS
from cohyde.evaluation.per_query import Found, per_query_of, write_per_query
from cohyde.evaluation.results import SAMPLE, MetricRow, Ranking, metric_rows
from cohyde.io import write_jsonl
from stages.folders import METRICS, QUERIES


@dataclass(frozen=True, kw_only=True)
class Split:
    """What of a split is scored, and the ids of the sample that all rounds share."""

    name: str
    queries: Sequence[Query]
    sample: frozenset[str]


def splits_to_score(dataset: Dataset, evaluation: EvaluationConfig, full: bool, seed: int) -> list[Split]:
    """The splits of this evaluation; a dataset without paraphrases has no vague one.

    The vague sample takes the paraphrases of the standard sample first, so that the two can be compared by query.
    """
    standard = sample_queries(dataset.eval, evaluation.standard_sample, seed)
    vague = _vague_sample(dataset.vague, _ids(standard), evaluation.vague_sample, seed)
    dev = sample_queries(dataset.dev, evaluation.dev_sample, seed)
    splits = [
        Split(name="standard", queries=dataset.eval if full else standard, sample=_ids(standard)),
        Split(name="vague", queries=dataset.vague if full else vague, sample=_ids(vague)),
        Split(name="dev", queries=dev, sample=_ids(dev)),
    ]
    return [split for split in splits if split.queries]


def _vague_sample(vague: Sequence[Query], standard: frozenset[str], size: int | None, seed: int) -> list[Query]:
    if size is None:
        return list(vague)
    first = sample_queries([query for query in vague if query.id in standard], size, seed)
    rest = sample_queries([query for query in vague if query.id not in standard], size - len(first), seed)
    chosen = _ids([*first, *rest])
    return [query for query in vague if query.id in chosen]


def _ids(queries: Iterable[Query]) -> frozenset[str]:
    return frozenset(query.id for query in queries)


def by_split(splits: Sequence[Split]) -> list[tuple[Split, Query]]:
    """Every query with its split, in the order in which rankings are given."""
    return [(split, query) for split in splits for query in split.queries]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What an evaluation comes to."""

    rows: Sequence[MetricRow]
    counts: Mapping[str, int]
    """``standard_scored``, and ``standard_skipped: WHY`` where queries of a split were not scored."""


def write_results(
    out_dir: Path, dataset: Dataset, splits: Sequence[Split], rankings: Mapping[str, Sequence[Ranking]]
) -> Results:
    """Write ``metrics.jsonl`` (means) and ``queries.parquet`` (each query's ranking and scores, by search mode).

    Queries without gold are left out and counted.

    Args:
        out_dir: the stage's folder.
        dataset: what was searched.
        splits: what was asked.
        rankings: by search mode, one for each query of :func:`by_split`, in that order.

    Raises:
        ValueError: a score that is no number; names the query.
    """
    found = [
        Found(query=query, split=split.name, search=mode, in_sample=query.id in split.sample, ranking=ranking)
        for mode, ranked in rankings.items()
        for (split, query), ranking in zip(by_split(splits), ranked, strict=True)
        if query.tools
    ]
    per_query = per_query_of(found, catalogue_checksum(dataset.tools))
    rows = metric_rows(per_query)
    write_jsonl(out_dir / METRICS, (row.to_row() for row in rows))
    write_per_query(out_dir / QUERIES, per_query)
    return Results(rows=rows, counts=_counts(dataset, splits))


def _counts(dataset: Dataset, splits: Sequence[Split]) -> dict[str, int]:
    """How many queries of each split were scored, and how many were not, by reason."""
    counts = {}
    there = {"standard": dataset.eval, "vague": dataset.vague, "dev": dataset.dev}
    for split in splits:
        scored = sum(bool(query.tools) for query in split.queries)
        counts[f"{split.name}_scored"] = scored
        skipped = {"no gold": len(split.queries) - scored, "not sampled": len(there[split.name]) - len(split.queries)}
        counts |= {f"{split.name}_skipped: {why}": number for why, number in skipped.items() if number}
    return counts


def headline(results: Results) -> dict[str, float]:
    """What a status line shows: NDCG@5 (mean over tiers, on the shared sample) by split and search mode; and counts."""
    means = {
        f"{row.split}_ndcg@5 ({row.search})": row.value
        for row in results.rows
        if (row.tier, row.metric, row.k, row.scope) == (MEAN_OVER_TIERS, "ndcg", 5, SAMPLE)
    }
    return {**means, **results.counts}


@dataclass(frozen=True, kw_only=True)
class ScoredConfig:
    """What the slices of all evaluations that stand beside the rounds have in common."""

    evaluation: EvaluationConfig
    full: bool
    """Score every standard and vague query, not the samples alone."""
    depth: int
    """Tools kept a query."""
    example_seed: int
    """Of the samples."""


def splits_of(dataset: Dataset, config: ScoredConfig) -> list[Split]:
    """The splits that such an evaluation scores."""
    return splits_to_score(dataset, config.evaluation, config.full, config.example_seed)


def texts_of(splits: Sequence[Split]) -> list[str]:
    """The raw queries, in the order of :func:`by_split`."""
    return [query.text for _, query in by_split(splits)]
