"""B.refine: a rewriter refines each request by what a frozen encoder finds, and the last round's search counts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cohyde.config import EmbeddingConfig, RefineConfig, RewriterConfig
from cohyde.data.dataset import read_dataset
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER, REWRITER_FOLDER
from stages.scoring import ScoredConfig, by_split, headline, splits_of, write_results


@dataclass(frozen=True, kw_only=True)
class RefineStageConfig(ScoredConfig):
    """The slice of B.refine."""

    encoder: EmbeddingConfig
    rewriter: RewriterConfig
    refine: RefineConfig
    seed: int


def run(inputs: Mapping[str, Path], config: RefineStageConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Write metrics, rankings by query, and what was searched with at last, with every step on the way to it."""
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.rewriter.refine import health, refine

    dataset, _ = read_dataset(inputs["data"])
    splits = splits_of(dataset, config)
    labelled = by_split(splits)
    retriever = DenseRetriever.build(inputs["encoder"] / ENCODER_FOLDER, dataset.tools, config.encoder)
    refined = refine(
        inputs["rewriter"] / REWRITER_FOLDER,
        [query for _, query in labelled],
        {tool.id: tool for tool in dataset.tools},
        retriever.rank_texts,
        config.rewriter,
        config.refine,
        config.seed,
        progress,
    )
    rankings = retriever.rank_texts([one.text for one in refined], config.depth)
    results = write_results(out_dir, dataset, splits, {"description": rankings})
    write_jsonl(
        out_dir / DESCRIPTIONS,
        (
            {"id": query.id, "split": split.name, "fallback": not one.rounds, **asdict(one)}
            for (split, query), one in zip(labelled, refined, strict=True)
        ),
    )
    return {**headline(results), **health(refined)}


STAGE = Stage(
    kind="iterative refinement",
    entry="stages.refine:run",
    version="1",
    needs=("data", "encoder", "rewriter"),
    reserves="generation",
)
