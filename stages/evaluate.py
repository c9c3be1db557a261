"""E.r: score (θr+1, ψr+1) on the standard, vague and dev splits; and the untrained encoder on raw queries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset, Query
from cohyde.config import EmbeddingConfig, EvaluationConfig, RewriterConfig, SamplingConfig, SearchConfig
from cohyde.data.dataset import read_dataset
from cohyde.data.split import sample_queries
from cohyde.encoder.search import SEARCH_MODES
from cohyde.evaluation.metrics import MEAN_OVER_TIERS, QueryScore
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE, MetricRow, metric_rows, score_queries
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER, INDEX_FOLDER, METRICS, QUERIES, REWRITER_FOLDER


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """The slice of E."""

    encoder: EmbeddingConfig
    rewriter: RewriterConfig
    describe: SamplingConfig
    evaluation: EvaluationConfig
    query_weight: float
    """Of the ``fused`` search mode."""
    depth: int
    full: bool
    """Score every standard and vague query, not the samples alone."""
    example_seed: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class UntrainedConfig:
    """The slice of the untrained baseline."""

    encoder: EmbeddingConfig
    """Its ``model`` is θ0."""
    evaluation: EvaluationConfig
    full: bool
    """Score every standard and vague query, not the samples alone."""
    depth: int
    example_seed: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """What of a split is scored, and the ids of the sample that all rounds share."""

    name: str
    queries: Sequence[Query]
    sample: frozenset[str]


def run(inputs: Mapping[str, Path], config: EvaluateConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Describe and search; write metrics, rankings by query, descriptions, and the catalogue's index.

    The description is generated once, and the index searched in every mode: which mode is best is read off dev.
    """
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.rewriter.describe import describe, or_query
    from cohyde.rewriter.examples import few_shot_examples

    dataset, _ = read_dataset(inputs["data"])
    splits = splits_to_score(dataset, config.evaluation, config.full, config.example_seed)
    queries = [query for split in splits for query in split.queries]
    examples = few_shot_examples(dataset, config.rewriter.few_shot, config.example_seed)
    described, health = describe(
        inputs["rewriter"] / REWRITER_FOLDER,
        queries,
        examples,
        config.rewriter,
        config.describe,
        config.seed,
        progress,
    )
    texts = [or_query(item.texts[0], query) for item, query in zip(described, queries, strict=True)]
    retriever = DenseRetriever.build(inputs["encoder"] / ENCODER_FOLDER, dataset.tools, config.encoder)
    retriever.save_index(out_dir / INDEX_FOLDER)
    asked = [query.text for query in queries]
    rankings = {
        mode: retriever.rank(
            asked, texts, SearchConfig(mode=mode, query_weight=config.query_weight, depth=config.depth)
        )
        for mode in SEARCH_MODES
    }
    rows = write_results(out_dir, splits, rankings)
    write_jsonl(
        out_dir / DESCRIPTIONS,
        (
            {"id": query.id, "split": split.name, "text": text, "raw": item.raw[0], "fallback": not item.texts[0]}
            for (split, query), text, item in zip(_by_split(splits), texts, described, strict=True)
        ),
    )
    return {**headline(rows), **health}


def untrained(inputs: Mapping[str, Path], config: UntrainedConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """The baseline that all rounds are compared with: θ0 on raw queries."""
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.models.reference import resolve

    dataset, _ = read_dataset(inputs["data"])
    splits = splits_to_score(dataset, config.evaluation, config.full, config.example_seed)
    retriever = DenseRetriever.build(resolve(config.encoder.model), dataset.tools, config.encoder)
    asked = [query.text for split in splits for query in split.queries]
    rows = write_results(out_dir, splits, {"query": retriever.rank_texts(asked, config.depth)})
    return headline(rows)


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


def _by_split(splits: Sequence[Split]) -> list[tuple[Split, Query]]:
    return [(split, query) for split in splits for query in split.queries]


def write_results(
    out_dir: Path, splits: Sequence[Split], rankings: Mapping[str, Sequence[Sequence[tuple[str, float]]]]
) -> list[MetricRow]:
    """Write ``metrics.jsonl`` (means) and ``queries.jsonl`` (each query's ranking and scores, by search mode)."""
    labelled = _by_split(splits)
    rows: list[MetricRow] = []
    by_query: list[dict[str, Any]] = []
    for mode, ranked in rankings.items():
        scores = score_queries([query for _, query in labelled], ranked)
        for split in splits:
            own = [score for (at, _), score in zip(labelled, scores, strict=True) if at is split]
            rows += _rows_of(split, own, mode)
        by_query += [
            {
                "id": query.id,
                "split": split.name,
                "tier": query.tier,
                "search": mode,
                "gold": list(query.tools),
                "ranked": [tool for tool, _ in ranking],
                "scores": [round(value, 6) for _, value in ranking],
                "metrics": dict(score.values),
            }
            for (split, query), ranking, score in zip(labelled, ranked, scores, strict=True)
        ]
    write_jsonl(out_dir / METRICS, (row.to_row() for row in rows))
    write_jsonl(out_dir / QUERIES, by_query)
    return rows


def _rows_of(split: Split, scores: Sequence[QueryScore], mode: str) -> list[MetricRow]:
    """Rows over the sample, and over all queries where more than the sample was scored."""
    sampled = [score for score in scores if score.id in split.sample]
    rows = metric_rows(sampled, split=split.name, search=mode, scope=SAMPLE)
    if len(scores) > len(sampled):
        rows += metric_rows(scores, split=split.name, search=mode, scope=EVERY_QUERY)
    return rows


def headline(rows: Sequence[MetricRow]) -> dict[str, float]:
    """NDCG@5 (mean over tiers, on the shared sample) of each split and search mode: what a status line shows."""
    return {
        f"{row.split}_ndcg@5 ({row.search})": row.value
        for row in rows
        if (row.tier, row.metric, row.k, row.scope) == (MEAN_OVER_TIERS, "ndcg", 5, SAMPLE)
    }


EVALUATE = Stage(
    kind="evaluation",
    entry="stages.evaluate:run",
    version="3",
    needs=("data", "encoder", "rewriter"),
    reserves="generation",
)
UNTRAINED = Stage(
    kind="untrained encoder",
    entry="stages.evaluate:untrained",
    version="1",
    needs=("data",),
    reserves="encoder",
)
