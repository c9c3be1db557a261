"""S1a and S3.r: InfoNCE on (anchor, tool) pairs. The two differ in their anchors and in what they start from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohyde.catalog import Dataset
from cohyde.config import EncoderConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.pairs import Pair
from cohyde.io import read_rows, write_json, write_jsonl
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER


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
    pairs = [Pair(anchor=query.text, tool=tool) for query in dataset.train for tool in query.tools]
    forms = config.encoder.training_forms
    return _train(resolve(config.encoder.model), dataset, pairs, config.encoder, forms, config.seed, out_dir, progress)


def retrain(
    inputs: Mapping[str, Path], config: RetrainStageConfig, out_dir: Path, progress: Progress
) -> dict[str, float]:
    """S3: (description, φ(tool)) pairs, φ drawn uniformly; no real query, unless the anchor strategy says so."""
    from cohyde.encoder.anchors import anchor_pairs

    dataset, _ = read_dataset(inputs["data"])
    descriptions = {row["id"]: row["text"] for row in read_rows(inputs["descriptions"] / DESCRIPTIONS)}
    pairs = anchor_pairs(dataset.train, descriptions, config.anchor, config.query_share, config.seed)
    forms = config.encoder.training_forms
    return _train(
        inputs["encoder"] / ENCODER_FOLDER, dataset, pairs, config.encoder, forms, config.seed, out_dir, progress
    )


def _train(
    start: Path,
    dataset: Dataset,
    pairs: Sequence[Pair],
    encoder: EncoderConfig,
    forms: tuple[int, ...],
    seed: int,
    out_dir: Path,
    progress: Progress,
) -> dict[str, float]:
    from cohyde.encoder.model import load_encoder
    from cohyde.encoder.train import DevSet, train_encoder

    dev = DevSet(
        texts=tuple(query.text for query in dataset.dev),
        gold=tuple(frozenset(query.tools) for query in dataset.dev),
        tiers=tuple(query.tier for query in dataset.dev),
    )
    result = train_encoder(
        load_encoder(start, encoder),
        pairs,
        dataset.tools,
        encoder,
        forms=forms,
        seed=seed,
        dev=dev,
        out=out_dir / ENCODER_FOLDER,
        progress=progress,
    )
    write_jsonl(out_dir / "history.jsonl", result.history)
    write_json(out_dir / "training.json", result.metrics)
    return result.metrics


WARM_UP = Stage(kind="encoder warm-up", entry="stages.train_encoder:warm_up", version="1", needs=("data",))
RETRAIN = Stage(
    kind="encoder retrain",
    entry="stages.train_encoder:retrain",
    version="2",
    needs=("data", "descriptions", "encoder"),
)
