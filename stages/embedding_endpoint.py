"""B.endpoint: raw queries against the catalogue, both embedded by a server."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.catalog import render
from cohyde.config import EmbeddingEndpointConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.search import rank
from cohyde.evaluation.report import RAW_QUERY
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.scoring import ScoredConfig, headline, splits_of, texts_of, write_results


@dataclass(frozen=True, kw_only=True)
class EndpointStageConfig(ScoredConfig):
    """The slice of B.endpoint."""

    endpoint: EmbeddingEndpointConfig
    index_form: int
    """Rendering φ that is indexed."""


def run(inputs: Mapping[str, Path], config: EndpointStageConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Write metrics and rankings by query."""
    from cohyde.encoder.embedding_endpoint import EmbeddingEndpoint
    from cohyde.encoder.index import ExactIndex

    dataset, _ = read_dataset(inputs["data"])
    splits = splits_of(dataset, config)
    catalogue = [render(tool, config.index_form) for tool in dataset.tools]
    endpoint = EmbeddingEndpoint(config.endpoint, config.endpoint.dimensions)
    try:
        # In one go, so that a server whose dimension changes in between is seen.
        vectors = endpoint.embed([*catalogue, *texts_of(splits)], progress)
    finally:
        endpoint.close()
    index, asked = ExactIndex(vectors[: len(catalogue)]), vectors[len(catalogue) :]
    rankings = rank(index, asked, [tool.id for tool in dataset.tools], config.depth)
    return {**headline(write_results(out_dir, dataset, splits, {RAW_QUERY: rankings})), "dimensions": vectors.shape[1]}


STAGE = Stage(
    kind="embedding endpoint",
    entry="stages.embedding_endpoint:run",
    version="1",
    needs=("data",),
    reserves="light",
)
