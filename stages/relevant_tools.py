"""tools: the names of the tools that θ1 finds for each request, for a prompt that is given such names.

Names of gold tools would not be there when somebody asks, so they are not used in training either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cohyde.catalog import render
from cohyde.config import EmbeddingConfig
from cohyde.data.dataset import read_dataset
from cohyde.io import read_rows, write_jsonl
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import ENCODER_FOLDER, RELEVANT

NAME_FORM = 2
"""φ2 is a tool's name: title and API name."""


@dataclass(frozen=True, kw_only=True)
class RelevantToolsConfig:
    """The slice of the names of relevant tools."""

    encoder: EmbeddingConfig
    tools: int
    """Names a request."""


def run(inputs: Mapping[str, Path], config: RelevantToolsConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write ``relevant.jsonl``: each request of any split, once, with the names."""
    from cohyde.encoder.retriever import DenseRetriever

    dataset, _ = read_dataset(inputs["data"])
    splits = (dataset.train, dataset.dev, dataset.eval, dataset.vague)
    texts = list(dict.fromkeys(query.text for split in splits for query in split))
    names = {tool.id: render(tool, NAME_FORM) for tool in dataset.tools}
    retriever = DenseRetriever.build(inputs["encoder"] / ENCODER_FOLDER, dataset.tools, config.encoder)
    rankings = retriever.rank_texts(texts, config.tools)
    write_jsonl(
        out_dir / RELEVANT,
        (
            {"query": text, "tools": "; ".join(dict.fromkeys(names[tool] for tool, _ in ranking))}
            for text, ranking in zip(texts, rankings, strict=True)
        ),
    )
    return {"requests": len(texts)}


def fields_of(inputs: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """What a prompt is told of each request beside its text, where a pipeline has this stage; else nothing."""
    if "tools" not in inputs:
        return {}
    return {row["query"]: {"tools": row["tools"]} for row in read_rows(inputs["tools"] / RELEVANT)}


STAGE = Stage(
    kind="names of tools",
    entry="stages.relevant_tools:run",
    version="1",
    needs=("data", "encoder"),
    reserves="encoder",
)
