"""What ``cohyde index`` does: make an index of a catalogue, change it, and measure it."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohyde.catalog import Tool, render
from cohyde.errors import UserError
from cohyde.progress import Progress
from cohyde.retrieval.catalog import Change, Embed, LiveCatalog, Snapshot, UnknownToolError
from cohyde.retrieval.index_folder import (
    TOOLS,
    IndexCard,
    check_encoder,
    check_files,
    encoder_identity,
    open_index_folder,
    read_index_card,
    write_index_folder,
)
from cohyde.retrieval.trained import Trained

if TYPE_CHECKING:
    import numpy as np

RECALL_AT = 10
PART = 1024
"""Texts that are embedded between two looks at how far it is; enough to find many of a length."""
SAMPLED = 1000
"""Vectors of a new index whose neighbours are looked for, to see what it misses."""


def build_index(
    trained: Trained, tools: Sequence[Tool], folder: Path, progress: Progress, *, overwrite: bool = False
) -> IndexCard:
    """Embed a catalogue with a trained encoder, and write its index as ``trained.indexing`` says.

    Args:
        trained: the encoder, how it embeds, and the kind of index.
        tools: the catalogue, in the order that breaks ties.
        folder: the folder to write, whole or not at all.
        progress: is told how many texts are embedded.
        overwrite: replace an index that is there.

    Returns:
        The card, with the recall against exact float32 vectors where the index is anything else.

    Raises:
        UserError: the encoder does not load, there is no such kind, or the place cannot be written to.
    """
    from cohyde.encoder.index_kinds import check_kind, make_index
    from cohyde.encoder.index_recall import recall_of_neighbours

    config, embedding = trained.indexing, trained.embedding
    check_kind(config.kind)
    renderings = tuple(render(tool, embedding.index_form) for tool in tools)
    vectors = embedder(trained, progress)(renderings)
    progress.log(f"{len(vectors):,} vectors: making the index")
    index = make_index(vectors, config)
    missed = config.kind != "exact" or config.dtype != "float32"
    card = IndexCard(
        config=config,
        encoder=encoder_identity(trained.encoder, embedding),
        run=trained.name,
        state=trained.state,
        form=embedding.index_form,
        tools=len(tools),
        dimensions=index.dimensions,
        recall=asdict(recall_of_neighbours(index, vectors, RECALL_AT, SAMPLED)) if missed else None,
    )
    snapshot = Snapshot(tools=tuple(tools), renderings=renderings, index=index)
    write_index_folder(folder, snapshot, card, overwrite=overwrite)
    return card


def embedder(trained: Trained, progress: Progress) -> Embed:
    """What turns texts of the catalogue into vectors, as ``encoder.embedder`` says; the encoder is loaded now.

    Raises:
        UserError: it does not load, or a server that shall embed cannot be used.
    """
    import numpy as np

    from cohyde.encoder.embedder import open_embedder

    encoder = open_embedder(trained.encoder, trained.embedding)

    def embedded(texts: Sequence[str]) -> np.ndarray:
        # Equal texts have to have equal vectors, bit for bit, so none stands in two parts.
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct, parts = list(row_of), []
        for start in range(0, len(distinct), PART):
            parts.append(encoder.embed(distinct[start : start + PART], "document"))
            progress.update(min(start + PART, len(distinct)), len(distinct), "texts")
        vectors: np.ndarray = np.concatenate(parts)[[row_of[text] for text in texts]]
        return vectors

    return embedded


def add_tools(folder: Path, tools: Sequence[Tool], trained: Trained, progress: Progress) -> Change:
    """Add tools to an index, or replace those that have their ids; what it does not have yet is embedded, nothing else.

    Raises:
        UserError: the folder is no index, is damaged, or is of another encoder.
    """
    card, files = read_index_card(folder)
    check_encoder(folder, card, encoder_identity(trained.encoder, trained.embedding))
    check_files(folder, files)
    return _changed(folder, embedder(trained, progress), put=tools)


def remove_tools(folder: Path, ids: Collection[str]) -> Change:
    """Remove tools from an index; nothing is embedded.

    Raises:
        UserError: the folder is no index or is damaged, a tool is not in it, or none would be left.
    """
    _, files = read_index_card(folder)
    check_files(folder, files)
    try:
        return _changed(folder, _nothing_to_embed, remove=ids)
    except UnknownToolError as error:
        raise UserError(error.message, f"nothing was changed; {folder / TOOLS} lists what there is") from None


def _changed(folder: Path, embed: Embed, put: Sequence[Tool] = (), remove: Collection[str] = ()) -> Change:
    snapshot, card = open_index_folder(folder)
    catalog = LiveCatalog(snapshot, embed, card.form)
    change = catalog.change(put, remove)
    if catalog.current is not snapshot:
        card = replace(card, tools=change.tools, recall=None)
        write_index_folder(folder, catalog.current, card, overwrite=True, option="index that can be written to")
    return change


def _nothing_to_embed(texts: Sequence[str]) -> "np.ndarray":
    raise AssertionError(f"tools were taken away, but {len(texts)} texts are new")


@dataclass(frozen=True, kw_only=True)
class IndexStats:
    """An index in numbers."""

    card: IndexCard
    bytes: dict[str, int]
    """By file."""
    recall: dict[str, Any]
    """Against an exact search over the vectors that it holds (:class:`~cohyde.encoder.index_recall.Recall`)."""
    median_ms: float
    """Milliseconds of a search, one request at a time, embedding not included."""
    p95_ms: float


def measure_index(folder: Path, k: int, most: int) -> IndexStats:
    """Look for the ``k`` neighbours of ``most`` of its own vectors, and time it.

    Raises:
        UserError: the folder is no index, or is damaged.
    """
    from cohyde.encoder.index_recall import recall_of_neighbours, sample, search_seconds

    card, files = read_index_card(folder)
    check_files(folder, files)
    snapshot, _ = open_index_folder(folder)
    vectors = snapshot.index.vectors
    recall = recall_of_neighbours(snapshot.index, vectors, k, most)
    seconds = search_seconds(snapshot.index, vectors[sample(len(vectors), most)], k)
    return IndexStats(
        card=card,
        bytes={name: told["bytes"] for name, told in files.items()},
        recall=asdict(recall),
        median_ms=1000 * statistics.median(seconds),
        p95_ms=1000 * sorted(seconds)[int(0.95 * (len(seconds) - 1))],
    )
