"""S1a and S3.r: InfoNCE on (anchor, tool) pairs. The two differ in their anchors and in what they start from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohyde.catalog import Query, Tool
from cohyde.config import EncoderConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.pairs import Pair, pairs_of
from cohyde.io import read_rows, write_json
from cohyde.progress import Progress
from cohyde.tracking import write_steps
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER, NEGATIVES, STEPS


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """The slice of S1a."""

    encoder: EncoderConfig
    """Its ``model`` is θ0, whose identity is an external of the stage; its ``training_forms`` are the index's form."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class RetrainStageConfig:
    """The slice of S3."""

    encoder: EncoderConfig
    """With the round's learning rate and epochs."""
    anchor: str
    query_share: float
    seed: int


def warm_up(inputs: Mapping[str, Path], config: WarmupConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """S1a: (query, φ5(tool)) pairs, from θ0."""
    from cohyde.models.reference import resolve

    dataset, _ = read_dataset(inputs["data"])
    pairs = [pair for query in dataset.train for pair in pairs_of(query.text, query)]
    dev = [(query, query.text) for query in dataset.dev]
    start = resolve(config.encoder.model)
    return _train(start, dataset.tools, pairs, dev, config.encoder, config.seed, out_dir, progress)


def retrain(
    inputs: Mapping[str, Path], config: RetrainStageConfig, out_dir: Path, progress: Progress
) -> dict[str, float]:
    """S3: (description, φ(tool)) pairs, φ drawn uniformly; no real query, unless the anchor strategy says so.

    Checkpoints are compared on dev queries that are anchored in the same way: an encoder of descriptions is judged by
    descriptions. Where none of dev was described, raw dev queries have to do. Where hard negatives were mined for the
    anchors, they are negatives too.
    """
    from cohyde.encoder.anchors import anchor_pairs, anchored

    dataset, _ = read_dataset(inputs["data"])
    descriptions = {row["id"]: row["text"] for row in read_rows(inputs["descriptions"] / DESCRIPTIONS)}
    how = (descriptions, config.anchor, config.query_share, config.seed)
    pairs = anchor_pairs(dataset.train, *how)
    dev = anchored(dataset.dev, *how) or [(query, query.text) for query in dataset.dev]
    start = inputs["encoder"] / ENCODER_FOLDER
    mined = read_rows(inputs["negatives"] / NEGATIVES) if "negatives" in inputs else []
    hard = {row["anchor"]: tuple(row["tools"]) for row in mined}
    return _train(start, dataset.tools, pairs, dev, config.encoder, config.seed, out_dir, progress, hard)


def _train(
    start: Path,
    tools: Sequence[Tool],
    pairs: Sequence[Pair],
    dev: Sequence[tuple[Query, str]],
    encoder: EncoderConfig,
    seed: int,
    out_dir: Path,
    progress: Progress,
    hard_negatives: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, float]:
    from cohyde.encoder.model import load_encoder
    from cohyde.encoder.train import DevSet, train_encoder

    result = train_encoder(
        load_encoder(start, encoder),
        pairs,
        tools,
        encoder,
        forms=encoder.training_forms,
        seed=seed,
        dev=DevSet(
            texts=tuple(text for _, text in dev),
            gold=tuple(frozenset(query.tools) for query, _ in dev),
            tiers=tuple(query.tier for query, _ in dev),
        ),
        out=out_dir / ENCODER_FOLDER,
        progress=progress,
        negatives=encoder.train.negatives,
        hard_negatives=hard_negatives or {},
    )
    write_steps(out_dir / STEPS, result.history)
    write_json(out_dir / "training.json", result.metrics)
    return result.metrics | result.speed


WARM_UP = Stage(
    kind="encoder warm-up",
    entry="stages.train_encoder:warm_up",
    version="3",
    needs=("data",),
    reserves="encoder",
)
RETRAIN = Stage(
    kind="encoder retrain",
    entry="stages.train_encoder:retrain",
    version="5",
    needs=("data", "descriptions", "encoder"),
    optional=("negatives",),
    reserves="encoder",
)
