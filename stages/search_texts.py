"""Search with texts that another stage wrote, under any encoder: HyDE, query expansion, and ablations of E."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.config import EmbeddingConfig, SearchConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.search import SEARCH_MODES
from cohyde.evaluation.report import RAW_QUERY
from cohyde.io import read_rows
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER
from stages.scoring import ScoredConfig, Split, by_split, headline, splits_of, texts_of, write_results


@dataclass(frozen=True, kw_only=True)
class SearchTextsConfig(ScoredConfig):
    """The slice of a search with texts."""

    encoder: EmbeddingConfig
    """Its ``model`` is θ0, which searches where no stage's encoder is given."""
    query_weight: float
    """Of the ``fused`` search mode."""


def run(inputs: Mapping[str, Path], config: SearchTextsConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Write metrics and rankings by query, in every search mode that the texts have a part in."""
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.models.reference import resolve

    dataset, _ = read_dataset(inputs["data"])
    splits = splits_of(dataset, config)
    written = written_texts(inputs["descriptions"], splits)
    encoder = inputs["encoder"] / ENCODER_FOLDER if "encoder" in inputs else resolve(config.encoder.model)
    retriever = DenseRetriever.build(encoder, dataset.tools, config.encoder)
    asked = texts_of(splits)
    rankings = {
        mode: retriever.rank(
            asked, written, SearchConfig(mode=mode, query_weight=config.query_weight, depth=config.depth)
        )
        for mode in SEARCH_MODES
        if mode != RAW_QUERY
    }
    return headline(write_results(out_dir, dataset, splits, rankings))


def written_texts(artifact: Path, splits: Sequence[Split]) -> list[str]:
    """What was written for each query, in the order of :func:`stages.scoring.by_split`.

    Raises:
        RuntimeError: nothing was written for one of them: the two stages were given different samples.
    """
    texts = {(row["split"], row["id"]): row["text"] for row in read_rows(artifact / DESCRIPTIONS)}
    wanted = [(split.name, query.id) for split, query in by_split(splits)]
    missing = [key for key in wanted if key not in texts]
    if missing:
        raise RuntimeError(f"{len(missing)} of {len(wanted)} queries have no text, the first: {missing[0]}")
    return [texts[key] for key in wanted]


STAGE = Stage(
    kind="search with texts",
    entry="stages.search_texts:run",
    version="1",
    needs=("data", "descriptions"),
    optional=("encoder",),
    reserves="encoder",
)
