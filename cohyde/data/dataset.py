"""Dataset folders: ``catalog.jsonl``, ``queries.jsonl``, ``vague.jsonl`` and a ``dataset.yaml`` card."""

import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cohyde.catalog import (
    Dataset,
    Query,
    Tool,
    check_text,
    fold,
    query_from_row,
    query_to_row,
    tool_from_row,
    tool_to_row,
)
from cohyde.data.validation import Findings
from cohyde.errors import UserError
from cohyde.io import read_jsonl, sha256_file, sha256_text, write_jsonl, write_text
from cohyde.resources import sample_folder

CATALOG = "catalog.jsonl"
QUERIES = "queries.jsonl"
VAGUE = "vague.jsonl"
CARD = "dataset.yaml"
SPLITS = ("train", "dev", "eval")


def dataset_folder(path: str) -> Path:
    """The folder that ``data.path`` names; ``sample`` is the embedded one.

    Raises:
        UserError: there is no such folder, or it holds no catalogue.
    """
    folder = sample_folder() if path == "sample" else Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"data.path: {folder} is not a folder", "give a dataset folder, or 'sample'")
    for name in (CATALOG, QUERIES):
        if not (folder / name).is_file():
            raise UserError(f"data.path: {folder} holds no {name}", "a dataset has catalog.jsonl and queries.jsonl")
    return folder


def dataset_checksum(path: str) -> str:
    """One checksum over the files of a dataset that can change a result (the card cannot)."""
    folder = dataset_folder(path)
    files = [folder / name for name in (CATALOG, QUERIES, VAGUE) if (folder / name).is_file()]
    return sha256_text("\n".join(f"{file.name} {sha256_file(file)}" for file in files))


def read_dataset(folder: Path, *, drop_invalid: bool = False) -> tuple[Dataset, Findings]:
    """Read and validate a dataset folder.

    Args:
        folder: holds ``catalog.jsonl`` and ``queries.jsonl``, and ``vague.jsonl`` where there are paraphrases.
        drop_invalid: leave out and count the rows at fault instead of raising.

    Raises:
        UserError: the first fault, by file and line, and how many there are of each kind.
    """
    findings = Findings(drop_invalid=drop_invalid)
    tools = tuple(_read_tools(folder / CATALOG, findings))
    if not tools:
        findings.raise_if_any()
        raise UserError(f"{folder / CATALOG}: the catalogue is empty", "a catalogue needs at least one tool")
    read = _read_queries(folder / QUERIES, {tool.id for tool in tools}, findings)
    by_split = {name: {line: query for line, query in read.items() if query.split == name} for name in SPLITS}
    evaluation = by_split["eval"].values()
    vague = tuple(_read_vague(folder / VAGUE, {query.id: query for query in evaluation}, findings))
    dev = _without_twins(by_split["dev"], [*evaluation, *vague], folder / QUERIES, findings)
    train = _without_twins(by_split["train"], [*evaluation, *vague, *dev], folder / QUERIES, findings)
    findings.raise_if_any()
    return Dataset(name=_name(folder), tools=tools, train=train, dev=dev, eval=tuple(evaluation), vague=vague), findings


def _read_tools(path: Path, findings: Findings) -> Iterable[Tool]:
    first_line: dict[str, int] = {}
    for number, row in read_jsonl(path, findings.fault):
        where = f"{path}:{number}"
        try:
            tool = tool_from_row(row)
        except ValueError as error:
            findings.fault("malformed tool", where, str(error))
            continue
        if tool.id in first_line:
            findings.fault("duplicate tool id", where, f"{tool.id!r} is also on line {first_line[tool.id]}")
            continue
        first_line[tool.id] = number
        yield tool


def _read_queries(path: Path, known: set[str], findings: Findings) -> dict[int, Query]:
    """The queries by line number, in the file's order."""
    first_line: dict[str, int] = {}
    queries = {}
    for number, row in read_jsonl(path, findings.fault):
        where = f"{path}:{number}"
        try:
            query = query_from_row(row)
        except ValueError as error:
            findings.fault("malformed query", where, str(error))
            continue
        unknown = [tool for tool in query.tools if tool not in known]
        if query.id in first_line:
            findings.fault("duplicate query id", where, f"{query.id!r} is also on line {first_line[query.id]}")
        elif query.split not in SPLITS:
            findings.fault("unknown split", where, f"{query.split!r} of {query.id!r} is none of {', '.join(SPLITS)}")
        elif not query.tools:
            findings.fault("query without gold", where, f"{query.id!r} names no tool")
        elif unknown:
            findings.fault("unknown gold tool", where, f"{query.id!r} names {unknown[0]!r}, not in the catalogue")
        else:
            queries[number] = query
        first_line.setdefault(query.id, number)
    return queries


def _read_vague(path: Path, evaluation: Mapping[str, Query], findings: Findings) -> Iterable[Query]:
    if not path.exists():
        return
    seen: set[str] = set()
    for number, row in read_jsonl(path, findings.fault):
        where = f"{path}:{number}"
        try:
            identifier, text = _paraphrase_from(row)
        except ValueError as error:
            findings.fault("malformed paraphrase", where, str(error))
            continue
        if identifier not in evaluation:
            findings.fault("unknown paraphrase", where, f"{identifier!r} is not an evaluation query")
        elif identifier in seen:
            findings.fault("duplicate paraphrase", where, f"{identifier!r} occurs before")
        else:
            seen.add(identifier)
            original = evaluation[identifier]
            yield Query(id=identifier, text=text, tools=original.tools, tier=original.tier, split="vague")


def _paraphrase_from(row: Mapping[str, Any]) -> tuple[str, str]:
    identifier, text = row.get("id"), row.get("text")
    if not isinstance(identifier, str) or not isinstance(text, str) or not text.strip():
        raise ValueError("needs an 'id' and a 'text' that is not empty")
    check_text("text", text)
    return identifier, text


def normalised(text: str) -> str:
    """Letters and digits only, without case or invisible characters: texts equal in this form are the same query.

    A text without letters or digits stands for itself.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    visible = (c for c in folded if unicodedata.category(c) != "Cf")
    return " ".join("".join(c if c.isalnum() else " " for c in visible).split()) or fold(text)


def _without_twins(
    queries: Mapping[int, Query], held_out: Iterable[Query], path: Path, findings: Findings
) -> tuple[Query, ...]:
    """The queries, by line number, that do not read like one that is held out."""
    texts = {normalised(query.text): query for query in held_out}
    kept = []
    for line, query in queries.items():
        twin = texts.get(normalised(query.text))
        if twin is None:
            kept.append(query)
        else:
            what = f"{query.id!r} ({query.split}) reads as {twin.id!r} ({twin.split})"
            findings.fault("leakage between splits", f"{path}:{line}", what)
    return tuple(kept)


def _name(folder: Path) -> str:
    card = read_card(folder)
    name = card.get("name")
    return name if isinstance(name, str) and name else folder.name


def read_card(folder: Path) -> dict[str, Any]:
    """The ``dataset.yaml`` card; empty where there is none."""
    path = folder / CARD
    if not path.is_file():
        return {}
    import yaml

    try:
        card = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    return card if isinstance(card, dict) else {}


def write_dataset(folder: Path, dataset: Dataset, card: Mapping[str, Any]) -> None:
    """Write a dataset folder that :func:`read_dataset` reads back equal; the same input gives the same bytes."""
    import yaml

    queries = [*dataset.train, *dataset.dev, *dataset.eval]
    write_jsonl(folder / CATALOG, map(tool_to_row, dataset.tools))
    write_jsonl(folder / QUERIES, map(query_to_row, queries))
    write_jsonl(folder / VAGUE, ({"id": query.id, "text": query.text} for query in dataset.vague))
    counts = {"tools": len(dataset.tools)} | {name: len(getattr(dataset, name)) for name in (*SPLITS, "vague")}
    checksums = {name: sha256_file(folder / name) for name in (CATALOG, QUERIES, VAGUE)}
    content = {"name": dataset.name, **card, "counts": counts, "sha256": checksums}
    write_text(folder / CARD, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
