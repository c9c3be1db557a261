"""E.r: score (θr+1, ψr+1) on the standard, vague and dev splits; and the untrained encoder on raw queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.config import EmbeddingConfig, EvaluationConfig, RewriterConfig, SamplingConfig, SearchConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.search import SEARCH_MODES
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER, INDEX_FOLDER, REWRITER_FOLDER
from stages.relevant_tools import fields_of
from stages.scoring import by_split, headline, splits_to_score, write_results


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
        fields_of(inputs),
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
    results = write_results(out_dir, dataset, splits, rankings)
    write_jsonl(
        out_dir / DESCRIPTIONS,
        (
            {"id": query.id, "split": split.name, "text": text, "raw": item.raw[0], "fallback": not item.texts[0]}
            for (split, query), text, item in zip(by_split(splits), texts, described, strict=True)
        ),
    )
    return {**headline(results), **health}


def untrained(inputs: Mapping[str, Path], config: UntrainedConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """The baseline that all rounds are compared with: θ0 on raw queries."""
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.models.reference import resolve

    dataset, _ = read_dataset(inputs["data"])
    splits = splits_to_score(dataset, config.evaluation, config.full, config.example_seed)
    retriever = DenseRetriever.build(resolve(config.encoder.model), dataset.tools, config.encoder)
    asked = [query.text for split in splits for query in split.queries]
    results = write_results(out_dir, dataset, splits, {"query": retriever.rank_texts(asked, config.depth)})
    return headline(results)


EVALUATE = Stage(
    kind="evaluation",
    entry="stages.evaluate:run",
    version="5",
    needs=("data", "encoder", "rewriter"),
    optional=("tools",),
    reserves="generation",
    spreads=True,
)
UNTRAINED = Stage(
    kind="untrained encoder",
    entry="stages.evaluate:untrained",
    version="3",
    needs=("data",),
    reserves="encoder",
)
