"""B.bm25: raw queries against the catalogue by BM25."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.config import Bm25Config
from cohyde.data.dataset import read_dataset
from cohyde.evaluation.bm25 import Bm25Index
from cohyde.evaluation.report import RAW_QUERY
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.scoring import ScoredConfig, headline, splits_of, texts_of, write_results


@dataclass(frozen=True, kw_only=True)
class Bm25StageConfig(ScoredConfig):
    """The slice of B.bm25."""

    bm25: Bm25Config
    index_form: int
    """Rendering φ that is indexed."""


def run(inputs: Mapping[str, Path], config: Bm25StageConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Write metrics and rankings by query."""
    dataset, _ = read_dataset(inputs["data"])
    splits = splits_of(dataset, config)
    index = Bm25Index(dataset.tools, config.index_form, config.bm25)
    progress.log(f"{len(index)} tools are indexed")
    rankings = index.rank(texts_of(splits), config.depth)
    found = {"queries_without_a_match": sum(not ranking for ranking in rankings)}
    return {**headline(write_results(out_dir, dataset, splits, {RAW_QUERY: rankings})), **found}


STAGE = Stage(
    kind="BM25",
    entry="stages.bm25:run",
    version="1",
    needs=("data",),
    reserves="light",
)
