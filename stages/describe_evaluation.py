"""B.*.texts: a rewriter writes one text for every query that is evaluated, for whichever encoders search with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cohyde.config import EvaluationConfig, RewriterConfig, SamplingConfig
from cohyde.data.dataset import read_dataset
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from cohyde.rewriter.describe import describe, or_query
from cohyde.rewriter.examples import few_shot_examples
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, REWRITER_FOLDER
from stages.scoring import by_split, splits_to_score


@dataclass(frozen=True, kw_only=True)
class DescribeEvaluationConfig:
    """The slice of B.*.texts."""

    rewriter: RewriterConfig
    sampling: SamplingConfig
    evaluation: EvaluationConfig
    full: bool
    """Describe every standard and vague query, not the samples alone."""
    example_seed: int
    seed: int


def run(
    inputs: Mapping[str, Path], config: DescribeEvaluationConfig, out_dir: Path, progress: Progress
) -> dict[str, float]:
    """Write ``descriptions.jsonl``, as an evaluation does for its own rewriter."""
    dataset, _ = read_dataset(inputs["data"])
    labelled = by_split(splits_to_score(dataset, config.evaluation, config.full, config.example_seed))
    examples = few_shot_examples(dataset, config.rewriter.few_shot, config.example_seed)
    model, queries = inputs["rewriter"] / REWRITER_FOLDER, [query for _, query in labelled]
    described, health = describe(model, queries, examples, config.rewriter, config.sampling, config.seed, progress)
    write_jsonl(
        out_dir / DESCRIPTIONS,
        (
            {
                "id": query.id,
                "split": split.name,
                "text": or_query(item.texts[0], query),
                "raw": item.raw[0],
                "fallback": not item.texts[0],
            }
            for (split, query), item in zip(labelled, described, strict=True)
        ),
    )
    return health


STAGE = Stage(
    kind="texts to search with",
    entry="stages.describe_evaluation:run",
    version="1",
    needs=("data", "rewriter"),
    reserves="generation",
    spreads=True,
)
