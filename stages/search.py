"""Search with a trained run: the rewriter describes the request, the encoder retrieves."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cohyde.catalog import Query
from cohyde.config import Config
from cohyde.data.dataset import read_dataset
from cohyde.encoder.retriever import Answer, DenseRetriever
from cohyde.progress import Silent
from stages.folders import ENCODER_FOLDER, INDEX_FOLDER, REWRITER_FOLDER


def search_artifacts(inputs: Mapping[str, Path], evaluation: Path, config: Config, text: str, k: int) -> Answer:
    """Search with the models that an evaluation stage scored.

    Args:
        inputs: artifact folders of that stage's inputs (data, encoder, rewriter).
        evaluation: its own artifact, which holds the index.
        config: the run's configuration.
        text: the request.
        k: tools at most; a smaller catalogue gives fewer.
    """
    from cohyde.rewriter.describe import describe, or_query
    from cohyde.rewriter.examples import few_shot_examples

    started = time.perf_counter()
    dataset, _ = read_dataset(inputs["data"])
    encoder = config.encoder.embedding()
    retriever = DenseRetriever.load(inputs["encoder"] / ENCODER_FOLDER, evaluation / INDEX_FOLDER, encoder)
    loaded = time.perf_counter()
    query = Query(id="search", text=text, tools=())
    description = ""
    if config.search.mode != "query":
        examples = few_shot_examples(dataset, config.rewriter.few_shot, config.data.split_seed)
        model = inputs["rewriter"] / REWRITER_FOLDER
        described, _ = describe(model, [query], examples, config.rewriter, config.describe, 0, Silent())
        description = described[0].texts[0]
    written = time.perf_counter()
    search = replace(config.search, depth=max(config.search.depth, k))
    ranking = retriever.rank([text], [or_query(description, query)], search, k)[0]
    tools = {tool.id: tool for tool in dataset.tools}
    return Answer(
        query=text,
        description=description,
        tools=tuple((tools[tool_id], score) for tool_id, score in ranking),
        timings={
            "load": round(loaded - started, 4),
            "rewrite": round(written - loaded, 4),
            "retrieve": round(time.perf_counter() - written, 4),
        },
    )
