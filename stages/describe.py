"""S2.r: the rewriter writes one description for every training query, and for the dev queries that S3 is judged by."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.data.dataset import read_dataset
from cohyde.data.split import sample_queries
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from cohyde.rewriter.describe import describe, or_query
from cohyde.rewriter.examples import few_shot_examples, without_examples
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, REWRITER_FOLDER
from stages.relevant_tools import fields_of


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """What S2 and S4s have in common."""

    rewriter: RewriterConfig
    sampling: SamplingConfig
    queries: int | None
    """Size of the sample of training queries; None takes all."""
    example_seed: int
    seed: int
    """Of the sample, and of sampling where the temperature is above 0."""


@dataclass(frozen=True, kw_only=True)
class DescribeConfig(GenerationConfig):
    """The slice of S2."""

    dev_queries: int | None
    """Size of the fixed sample of dev queries; None takes all."""


def run(inputs: Mapping[str, Path], config: DescribeConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write ``descriptions.jsonl``: id, text, and whether it is the query itself because nothing was left."""
    dataset, _ = read_dataset(inputs["data"])
    examples = few_shot_examples(dataset, config.rewriter.few_shot, config.example_seed)
    queries = sample_queries(without_examples(dataset.train, examples), config.queries, config.seed)
    queries += sample_queries(dataset.dev, config.dev_queries, config.example_seed)
    described, metrics = describe(
        inputs["rewriter"] / REWRITER_FOLDER,
        queries,
        examples,
        config.rewriter,
        config.sampling,
        config.seed,
        progress,
        fields_of(inputs),
    )
    write_jsonl(
        out_dir / DESCRIPTIONS,
        (
            {"id": item.id, "text": or_query(item.texts[0], query), "fallback": not item.texts[0], "raw": item.raw[0]}
            for item, query in zip(described, queries, strict=True)
        ),
    )
    if metrics["empty_after_clean"]:
        progress.warn(f"{metrics['empty_after_clean']:.0f} descriptions were empty after cleaning; the query stands in")
    return metrics


STAGE = Stage(
    kind="descriptions",
    entry="stages.describe:run",
    version="4",
    needs=("data", "rewriter"),
    optional=("tools",),
    reserves="generation",
    spreads=True,
)
