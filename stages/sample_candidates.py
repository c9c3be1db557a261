"""S4s.r: the rewriter samples N candidate descriptions for every training query."""

from collections.abc import Mapping
from pathlib import Path

from cohyde.data.dataset import read_dataset
from cohyde.data.split import sample_queries
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from cohyde.rewriter.describe import describe, described_to_row
from cohyde.rewriter.examples import few_shot_examples, without_examples
from stages.declaration import Stage
from stages.describe import GenerationConfig
from stages.folders import CANDIDATES, REWRITER_FOLDER
from stages.relevant_tools import fields_of


def run(inputs: Mapping[str, Path], config: GenerationConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write ``candidates.jsonl``: the prompt as it was generated from, and the candidates, raw and cleaned."""
    dataset, _ = read_dataset(inputs["data"])
    examples = few_shot_examples(dataset, config.rewriter.few_shot, config.example_seed)
    queries = sample_queries(without_examples(dataset.train, examples), config.queries, config.seed)
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
    write_jsonl(out_dir / CANDIDATES, map(described_to_row, described))
    if metrics["distinct_share"] < 0.5:
        progress.warn(f"only {metrics['distinct_share']:.0%} of each query's candidates differ; pairs will be few")
    return metrics


STAGE = Stage(
    kind="candidates",
    entry="stages.sample_candidates:run",
    version="3",
    needs=("data", "rewriter"),
    optional=("tools",),
    reserves="generation",
    spreads=True,
)
