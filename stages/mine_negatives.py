"""S3n.r: hard negatives for S3.r, mined with θr. Optional, off by default."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cohyde.config import EmbeddingConfig, MiningConfig
from cohyde.data.dataset import read_dataset
from cohyde.io import read_rows, write_jsonl
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER, NEGATIVES


@dataclass(frozen=True, kw_only=True)
class MineConfig:
    """The slice of S3n."""

    encoder: EmbeddingConfig
    mining: MiningConfig
    anchor: str
    query_share: float
    seed: int
    """That of S3, whose anchors these are."""


def run(inputs: Mapping[str, Path], config: MineConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write ``negatives.jsonl``: for each distinct anchor of S3 the tools that θr ranks high and that are not right."""
    from cohyde.encoder.anchors import anchor_pairs
    from cohyde.encoder.embedder import open_embedder
    from cohyde.encoder.mining import mine
    from cohyde.encoder.pairs import right_tools, same_texts

    dataset, _ = read_dataset(inputs["data"])
    descriptions = {row["id"]: row["text"] for row in read_rows(inputs["descriptions"] / DESCRIPTIONS)}
    pairs = anchor_pairs(dataset.train, descriptions, config.anchor, config.query_share, config.seed)
    right = right_tools(pairs, same_texts(dataset.tools, config.encoder.index_form))
    embedder = open_embedder(inputs["encoder"] / ENCODER_FOLDER, config.encoder)
    found = dict(mine(embedder, right, dataset.tools, config.encoder.index_form, config.mining, progress))
    write_jsonl(
        out_dir / NEGATIVES,
        (
            {"anchor": anchor, "tools": [tool for tool, _ in mined], "scores": [score for _, score in mined]}
            for anchor, mined in found.items()
        ),
    )
    counts = [len(mined) for mined in found.values()]
    if not any(counts):
        progress.warn("no tool is a hard negative of any anchor: S3 trains on in-batch negatives alone")
    return {
        "anchors": len(counts),
        "negatives_per_anchor": sum(counts) / max(1, len(counts)),
        "anchors_without": counts.count(0),
    }


STAGE = Stage(
    kind="hard negatives",
    entry="stages.mine_negatives:run",
    version="1",
    needs=("data", "descriptions", "encoder"),
    reserves="encoder",
)
