"""Export: the models of one round, the index and the catalogue, in a folder that is of use without us."""

import inspect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cohyde import exported
from cohyde.catalog import fold
from cohyde.config import Config, EmbeddingConfig, RewriterConfig
from cohyde.dag.manifest import Manifest
from cohyde.data.dataset import CATALOG, dataset_checksum, dataset_folder, read_card
from cohyde.encoder.retriever import FAISS_FILE, IDS_FILE, read_index
from cohyde.errors import UserError
from cohyde.evaluation.results import MetricRow
from cohyde.filesystem import whole_folder, writing_to
from cohyde.io import write_text
from cohyde.models.provenance import base_model
from cohyde.retrieval.trained import Trained
from cohyde.rewriter.prompts import build_messages, render_chat
from stages.model_cards import Facts, encoder_card, folder_card, rewriter_card
from stages.report import read_metrics

UNWANTED = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".onnx", ".ot", ".py", ".pyc"}
"""Suffixes of what a base model's folder may hold beside its safetensors: pickled or foreign weights, and code."""
PLACEHOLDER = "{query}"
OPTION = "--to DIR"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is exported: the state that one evaluation has scored."""

    trained: Trained
    """Its models and its catalogue."""
    why: str
    """Why this state of the run's."""
    config: Config
    evaluation: Path
    """The artifact of the evaluation."""
    data: Path
    """The artifact of the data stage."""
    made_by: Mapping[str, str]
    """Ids of the stages that wrote the evaluation's inputs (data, encoder, rewriter)."""
    manifests: Sequence[Manifest]
    """Of the evaluation and of every stage that it stands on, in order."""

    def manifest(self, stage_id: str) -> Manifest:
        """The record of one of those stages."""
        return next(manifest for manifest in self.manifests if manifest.id == stage_id)


def export(source: Source, target: Path, *, overwrite: bool = False) -> list[str]:
    """Write an exported folder (see :mod:`cohyde.exported`), whole or not at all.

    Args:
        source: what is exported.
        target: the folder to write; has to be absent or empty.
        overwrite: replace an exported folder that is there.

    Returns:
        The files that were written, relative to the folder, sorted.

    Raises:
        UserError: something is there already, or the place cannot be written to.
    """
    with (
        whole_folder(target, overwrite=overwrite, card=exported.RECIPE, what="exported run", option=OPTION) as folder,
        writing_to(target, OPTION),
    ):
        _write(source, folder)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _write(source: Source, folder: Path) -> None:
    from cohyde.rewriter.load import load_tokenizer

    trained, recipe = source.trained, _recipe(source.trained)
    _copy_model(trained.encoder, folder / exported.ENCODER)
    _copy_model(trained.rewriter, folder / exported.REWRITER)
    assert trained.index is not None, "every evaluation writes one"
    _write_index(trained.index, folder / exported.INDEX)
    shutil.copyfile(source.data / CATALOG, folder / exported.CATALOG)
    exported.write_recipe(folder, recipe)
    write_text(folder / exported.SCRIPT, Path(__file__).with_name("exported_search.py").read_text(encoding="utf-8"))
    write_text(folder / exported.CLEANING, cleaning_alone())
    messages = build_messages(recipe.prompt, {"query": PLACEHOLDER})
    facts = _facts(source, render_chat(load_tokenizer(folder / exported.REWRITER), messages))
    write_text(folder / exported.CARD, folder_card(facts))
    write_text(folder / exported.ENCODER / exported.CARD, encoder_card(facts))
    write_text(folder / exported.REWRITER / exported.CARD, rewriter_card(facts))


def _recipe(trained: Trained) -> exported.Recipe:
    prompt = replace(trained.prompt, examples=(*trained.prompt.examples, *trained.examples))
    return exported.Recipe(
        encoder=_embedding_here(trained.embedding),
        rewriter=_loaded_here(trained.rewriting),
        describe=trained.sampling,
        search=trained.search,
        prompt=prompt,
        run=trained.name,
        stage=trained.state,
    )


def _embedding_here(embedding: EmbeddingConfig) -> EmbeddingConfig:
    """What of the settings matters wherever the encoder is loaded."""
    own = EmbeddingConfig()
    elsewhere = {name: getattr(own, name) for name in ("attention", "embedder", "endpoint")}
    return replace(embedding, model=exported.ENCODER, **elsewhere)


def _loaded_here(rewriter: RewriterConfig) -> RewriterConfig:
    """What of the settings matters wherever the model is loaded; where it was served is nobody's business."""
    return RewriterConfig(
        model=exported.REWRITER,
        prompt=rewriter.prompt,
        max_prompt_tokens=rewriter.max_prompt_tokens,
        batch_size=rewriter.batch_size,
        precision=rewriter.precision,
    )


def _copy_model(source: Path, target: Path) -> None:
    """Copy a model's folder without its card, which speaks of another model, and without what no loader of ours reads.

    Raises:
        UserError: no safetensors weights are left.
    """
    for path in sorted(source.rglob("*")):
        if path.is_file() and path.suffix not in UNWANTED and path != source / exported.CARD:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    if next(target.rglob("*.safetensors"), None) is None:
        raise UserError(f"{source}: no safetensors weights", "cohyde verify says whether the artifact is damaged")


def _write_index(source: Path, target: Path) -> None:
    target.mkdir()
    read_index(source)[0].save_faiss(target / FAISS_FILE)
    shutil.copyfile(source / IDS_FILE, target / IDS_FILE)


def cleaning_alone() -> str:
    """The text of :mod:`cohyde.rewriter.clean` as a module that stands alone: descriptions are cleaned by the same."""
    from cohyde.rewriter import clean

    borrowed = "from cohyde.catalog import fold\n"
    text = inspect.getsource(clean)
    assert borrowed in text and text.count("cohyde") == 1, "clean.py has other imports than it had"
    return text.replace(borrowed, "\n" + inspect.getsource(fold))


def _facts(source: Source, rendered: str) -> Facts:
    config = source.config
    return Facts(
        run=source.trained.name,
        stage=source.trained.state,
        why=source.why,
        config=config,
        encoder_base=base_model(config.encoder.model),
        rewriter_base=base_model(config.rewriter.model),
        data=_data_card(source),
        counts=read_card(source.data).get("counts", {}),
        encoder_stage=source.made_by["encoder"],
        rewriter_stage=source.made_by["rewriter"],
        manifests=source.manifests,
        rows=_rows(source),
        rendered_prompt=rendered,
    )


def _rows(source: Source) -> list[MetricRow]:
    """What is told of quality: the configured search and the request alone, over the most queries that were scored."""
    modes = (source.config.search.mode, "query")
    widest: dict[tuple[str, ...], MetricRow] = {}
    for row in read_metrics(source.evaluation):
        key = (row.split, row.tier, row.search, row.metric, str(row.k))
        if row.search in modes and row.k == 5 and (key not in widest or row.n > widest[key].n):
            widest[key] = row
    return list(widest.values())


def _data_card(source: Source) -> dict[str, str]:
    """Name, source and licence of the dataset, if the folder that it came from is there and still holds the same."""
    path = source.config.data.path
    try:
        same = dataset_checksum(path) == source.manifest(source.made_by["data"]).identity["external"]["data"]
        card = read_card(dataset_folder(path)) if same else {}
    except (UserError, OSError):
        card = {}
    return {name: fold(str(card[name])) for name in ("name", "source", "licence") if card.get(name)}
