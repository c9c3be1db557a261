"""An index that outlives the program: a folder with vectors and tools, and a card that says whose vectors they are.

::

    <folder>/index.json      the card: kind and settings, the encoder's identity, sizes and checksums
    <folder>/vectors.faiss   what ``faiss.read_index`` reads
    <folder>/catalog.jsonl   the tools, in the order of the vectors
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohyde.catalog import render, tool_to_row
from cohyde.config import EmbeddingConfig, IndexConfig, build, identity_of, plain
from cohyde.errors import UserError
from cohyde.filesystem import whole_folder, writing_to
from cohyde.io import canonical_json, check_readable, sha256_file, sha256_text, write_json, write_jsonl
from cohyde.models.reference import identity
from cohyde.retrieval.catalog import Snapshot, read_tools

FORMAT = 1
CARD = "index.json"
VECTORS = "vectors.faiss"
TOOLS = "catalog.jsonl"
OPTION = "--to DIR"
AGAIN = "build it again: cohyde index build RUN --to DIR"


@dataclass(frozen=True, kw_only=True)
class IndexCard:
    """What is known of an index without opening it."""

    config: IndexConfig
    """How it was made, and how hard a search tries."""
    encoder: str
    """Whose vectors they are: see :func:`encoder_identity`."""
    run: str
    """The run that the encoder is of, and its state: where to look for it."""
    state: str
    form: int
    """Rendering φ of the tools."""
    tools: int
    dimensions: int
    recall: Mapping[str, Any] | None = None
    """Against exact float32 vectors, when it was built (:class:`~cohyde.encoder.index_recall.Recall`). None: it was
    not measured since tools were added or removed."""


def encoder_identity(encoder: Path, embedding: EmbeddingConfig) -> str:
    """A hash of an encoder's files and of how it embeds: vectors of two encoders cannot be compared.

    Whether this process embeds or a server does makes no difference: a server's vectors are held against the encoder's.

    Raises:
        UserError: there is no such encoder.
    """
    own = EmbeddingConfig()
    how = identity_of(replace(embedding, embedder=own.embedder, endpoint=own.endpoint))
    return sha256_text(canonical_json({"model": identity(str(encoder)), "embedding": how}))


def is_index_folder(folder: Path) -> bool:
    """Whether ``cohyde index`` made a folder, to judge by its card."""
    return (folder / CARD).is_file()


def write_index_folder(
    folder: Path, snapshot: Snapshot, card: IndexCard, *, overwrite: bool = False, option: str = OPTION
) -> None:
    """Write a catalogue with its index, whole or not at all.

    Raises:
        UserError: something is there already, or the place cannot be written to.
    """
    whole = whole_folder(folder, overwrite=overwrite, card=CARD, what="index", option=option)
    with whole as scratch, writing_to(folder, option):
        snapshot.index.save_faiss(scratch / VECTORS)
        write_jsonl(scratch / TOOLS, map(tool_to_row, snapshot.tools))
        files = {
            name: {"bytes": (scratch / name).stat().st_size, "sha256": sha256_file(scratch / name)}
            for name in (VECTORS, TOOLS)
        }
        body = {"format": FORMAT, **asdict(card), "config": plain(card.config), "files": files}
        write_json(scratch / CARD, body)


def read_index_card(folder: Path) -> tuple[IndexCard, dict[str, Any]]:
    """The card of an index, and its files by name with ``bytes`` and ``sha256``.

    Raises:
        UserError: the folder is no index, its card is damaged or of a later version, or a file is not as long as it
            was.
    """
    path = folder / CARD
    check_readable(path, "give a folder that `cohyde index build` wrote")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.pop("format") != FORMAT:
            raise UserError(f"{path}: of another version; this version of cohyde reads format {FORMAT}", AGAIN)
        files = body.pop("files")
        config = build(IndexConfig, [(str(path), body.pop("config"))])
        card = IndexCard(config=config, **body)
        for name, told in files.items():
            check_readable(folder / name, AGAIN)
            if (size := (folder / name).stat().st_size) != told["bytes"]:
                raise UserError(f"{folder / name}: has {size:,} bytes, of {told['bytes']:,}", AGAIN)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}", AGAIN) from None
    return card, files


def check_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Read all of an index, and compare it with the checksums of its card.

    Raises:
        UserError: a file is not what it was.
    """
    for name, told in files.items():
        if sha256_file(folder / name) != told["sha256"]:
            raise UserError(f"{folder / name}: damaged: its checksum is another", AGAIN)


def check_encoder(folder: Path, card: IndexCard, encoder: str) -> None:
    """Refuse an index of another encoder than the one with this identity.

    Raises:
        UserError: it is one.
    """
    if card.encoder != encoder:
        raise UserError(
            f"{folder}: holds vectors of another encoder, {card.state} of {card.run} when it was built",
            "search it with that one, or build an index of this one: cohyde index build RUN --to DIR",
        )


def open_index_folder(folder: Path) -> tuple[Snapshot, IndexCard]:
    """A catalogue with its index, whose vectors are read from the file when a search comes to them.

    Raises:
        UserError: the folder is no index, or is damaged.
    """
    from cohyde.encoder.index_kinds import open_index

    card, _ = read_index_card(folder)
    try:
        index = open_index(folder / VECTORS, card.config)
    except ValueError as error:
        raise UserError(str(error), AGAIN) from None
    tools = tuple(read_tools(folder / TOOLS))
    if not len(tools) == len(index) == card.tools:
        raise UserError(f"{folder}: {len(index):,} vectors, but {len(tools):,} tools", AGAIN)
    return Snapshot(tools=tools, renderings=tuple(render(tool, card.form) for tool in tools), index=index), card
