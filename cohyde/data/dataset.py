"""Dataset folders: ``catalog.jsonl``, ``queries.jsonl``, ``vague.jsonl`` and a ``dataset.yaml`` card."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset, Tool, query_to_row, tool_to_row
from cohyde.data.reading import Reading
from cohyde.data.validation import SPLITS, DatasetRows, Findings, Row, validated
from cohyde.errors import UserError
from cohyde.io import canonical_json, read_jsonl, sha256_file, sha256_text, write_jsonl, write_text
from cohyde.progress import Progress, Silent
from cohyde.resources import resource_folder, sample_folder

CATALOG = "catalog.jsonl"
QUERIES = "queries.jsonl"
VAGUE = "vague.jsonl"
CARD = "dataset.yaml"


def dataset_folder(path: str) -> Path:
    """The folder that ``data.path`` names; ``sample`` is the embedded one.

    Raises:
        UserError: there is no such folder, or it holds no catalogue.
    """
    folder = sample_folder() if path == "sample" else Path(os.path.realpath(Path(path).expanduser()))
    if not folder.is_dir():
        raise UserError(f"data.path: {folder} is not a folder", f"give a dataset folder, or 'sample'{_recipe_of(path)}")
    for name in (CATALOG, QUERIES):
        if not (folder / name).is_file():
            raise UserError(f"data.path: {folder} holds no {name}", "a dataset has catalog.jsonl and queries.jsonl")
    return folder


def _recipe_of(path: str) -> str:
    """How to make a dataset that there is a recipe of; empty for any other."""
    name = Path(path).name
    known = (resource_folder("configs") / "data" / f"{name}.yaml").is_file()
    return f"; or make it: cohyde data prepare {name} --source FOLDER --out {path}" if known else ""


def dataset_checksum(path: str) -> str:
    """One checksum over the files of a dataset that can change a result (the card cannot)."""
    folder = dataset_folder(path)
    files = [folder / name for name in (CATALOG, QUERIES, VAGUE) if (folder / name).is_file()]
    return sha256_text("\n".join(f"{file.name} {sha256_file(file)}" for file in files))


def catalogue_checksum(tools: Iterable[Tool]) -> str:
    """One checksum over the records of a catalogue, in order: their order breaks ties."""
    return sha256_text("".join(canonical_json(tool_to_row(tool)) + "\n" for tool in tools))


def read_dataset(
    folder: Path, *, drop_invalid: bool = False, progress: Progress | None = None
) -> tuple[Dataset, Findings]:
    """Read and validate a dataset folder.

    Args:
        folder: holds ``catalog.jsonl`` and ``queries.jsonl``, and ``vague.jsonl`` where there are paraphrases.
        drop_invalid: leave out and count the rows at fault instead of raising.
        progress: is told how far it is.

    Raises:
        UserError: the first fault of each kind, by file and line, and how many there are.
    """
    findings = Findings(drop_invalid=drop_invalid)
    dataset = validated(str(folder / CATALOG), dataset_rows(folder, findings, progress), findings)
    return replace(dataset, name=_name(folder)), findings


def dataset_rows(folder: Path, findings: Findings, progress: Progress | None = None) -> DatasetRows:
    """The rows of a dataset folder, read as they are asked for."""
    listener = progress or Silent()

    def rows(name: str) -> Iterator[Row]:
        path = str(folder / name)

        def how_far(done: int, size: int) -> None:
            listener.update(done / 1e6, size / 1e6, f"MB of {name}")

        for number, fields in read_jsonl(folder / name, findings.fault, how_far):
            yield Row(f"{path}:{number}", fields)

    paraphrases = rows(VAGUE) if (folder / VAGUE).exists() else ()
    return DatasetRows(tools=rows(CATALOG), queries=rows(QUERIES), paraphrases=paraphrases)


def _name(folder: Path) -> str:
    card = read_card(folder)
    name = card.get("name")
    return name if isinstance(name, str) and name else folder.name


def read_card(folder: Path) -> dict[str, Any]:
    """The ``dataset.yaml`` card; empty where there is none."""
    path = folder / CARD
    if not path.is_file():
        return {}
    card = Reading(Findings()).yaml(path) if path.read_bytes().strip() else {}
    return card if isinstance(card, dict) else {}


def write_dataset(folder: Path, dataset: Dataset, card: Mapping[str, Any]) -> None:
    """Write a dataset folder that :func:`read_dataset` reads back equal; the same input gives the same bytes.

    The card gets the dataset's name, what ``card`` says, the counts and the files' checksums.
    """
    queries = [*dataset.train, *dataset.dev, *dataset.eval]
    write_jsonl(folder / CATALOG, map(tool_to_row, dataset.tools))
    write_jsonl(folder / QUERIES, map(query_to_row, queries))
    write_jsonl(folder / VAGUE, ({"id": query.id, "text": query.text} for query in dataset.vague))
    write_card(folder, dataset, card)


def counts_of(dataset: Dataset) -> dict[str, int]:
    """How many tools, and how many queries in each split and among the paraphrases."""
    return {"tools": len(dataset.tools)} | {name: len(getattr(dataset, name)) for name in (*SPLITS, "vague")}


def write_card(folder: Path, dataset: Dataset, card: Mapping[str, Any]) -> None:
    """Write ``dataset.yaml`` beside files that are there: counts and checksums are made, all else is ``card``'s."""
    import yaml

    made = ("name", "counts", "sha256")
    checksums = {name: sha256_file(folder / name) for name in (CATALOG, QUERIES, VAGUE) if (folder / name).is_file()}
    said = {key: value for key, value in card.items() if key not in made}
    content = {"name": dataset.name, **said, "counts": counts_of(dataset), "sha256": checksums}
    write_text(folder / CARD, yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100))
