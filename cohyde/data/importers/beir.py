"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/SPLIT.tsv``. ToolLens comes as one, and so do exports."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohyde.data.dataset import CARD, VAGUE
from cohyde.data.importers.api_record import tool_fields
from cohyde.data.importers.format import Format, Options, split_named
from cohyde.data.importers.judgements import check_queries_known, gold_of
from cohyde.data.importers.toollens_text import is_packed, unpacked
from cohyde.data.reading import Reading, text_of
from cohyde.data.sources import Sources
from cohyde.data.validation import SPLITS, DatasetRows, Findings, Row
from cohyde.errors import UserError

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels/*.tsv"
COLUMNS = ("query-id", "corpus-id", "score")
EXPORTED = "cohyde"
"""The key of ``metadata`` under which an export keeps the fields of a record that BEIR has no place for."""
KEPT = ("tier", "instruction", "gold_sets")
"""Those of a query."""


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """A catalogue and its judged queries; an export's paraphrases and card, where they lie beside."""
    vague, card = sources.optional(VAGUE), sources.optional(CARD)
    return DatasetRows(
        tools=_tools(sources.one(CORPUS), reading),
        queries=_queries(sources.one(QUERIES), _qrels(sources, options), reading),
        paraphrases=(Row(where, fields) for where, fields in reading.jsonl(vague)) if vague else (),
        card=_card(card, reading) if card else {},
    )


def _card(path: Path, reading: Reading) -> Mapping[str, Any]:
    card = reading.yaml(path)
    if not isinstance(card, dict):
        raise UserError(f"{path}: expected a mapping, such as 'name: weather', found {type(card).__name__}")
    return card


def _qrels(sources: Sources, options: Options) -> list[tuple[str, Path]]:
    """The files of judgements with their splits, evaluation first: what is judged twice then stays there."""
    files = [(split_named(path.stem, path, options), path) for path in sources.some(QRELS)]
    return sorted(files, key=lambda file: -SPLITS.index(file[0]))


# -------------------------------------------------------------------------------------------------------- corpus


@dataclass(frozen=True)
class Document:
    """One way in which a row of the corpus describes a tool."""

    holds: Callable[[Mapping[str, Any]], bool]
    fields: Callable[[Mapping[str, Any], str, Findings], Mapping[str, Any]]
    """From a row and its place, the tool's fields but for its id; raises ValueError where it is malformed."""


def _is_exported(row: Mapping[str, Any]) -> bool:
    return bool(_exported(row))


def _exported(row: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = row.get("metadata")
    kept = metadata.get(EXPORTED) if isinstance(metadata, dict) else None
    return kept if isinstance(kept, dict) else {}


def _from_export(row: Mapping[str, Any], where: str, findings: Findings) -> Mapping[str, Any]:
    return _exported(row)


def _is_toollens(row: Mapping[str, Any]) -> bool:
    return is_packed(text_of(row.get("text")))


def _from_toollens(row: Mapping[str, Any], where: str, findings: Findings) -> Mapping[str, Any]:
    return tool_fields(unpacked(row["text"]), f"{where}/text", findings)


def _from_any(row: Mapping[str, Any], where: str, findings: Findings) -> Mapping[str, Any]:
    return {"title": text_of(row.get("title")), "api_description": text_of(row.get("text"))}


DOCUMENTS: Mapping[str, Document] = {
    "export": Document(_is_exported, _from_export),
    "toollens": Document(_is_toollens, _from_toollens),
    "plain": Document(lambda row: True, _from_any),
}
"""What a row of the corpus may be, in the order of asking; the last is any row."""


def _tools(path: Path, reading: Reading) -> Iterator[Row]:
    for where, row in reading.jsonl(path):
        document = next(document for document in DOCUMENTS.values() if document.holds(row))
        try:
            fields = document.fields(row, where, reading.findings)
        except ValueError as error:
            reading.findings.fault("malformed document", f"{where}/text", str(error))
        else:
            yield Row(where, {**fields, "id": text_of(row.get("_id"))})


# ------------------------------------------------------------------------------------------------------- queries


@dataclass(frozen=True)
class _Judged:
    """What all files of judgements say of one query."""

    where: str
    split: str
    tools: dict[str, None] = field(default_factory=dict)


def _queries(path: Path, qrels: list[tuple[str, Path]], reading: Reading) -> Iterator[Row]:
    judged = _judged(qrels, reading)
    known = set()
    for where, row in reading.jsonl(path):
        identifier = text_of(row.get("_id"))
        known.add(identifier)
        kept = _exported(row)
        fields = {"id": identifier, "text": row.get("text")} | {name: kept[name] for name in KEPT if name in kept}
        if identifier in judged:
            fields |= {"split": judged[identifier].split, "tools": list(judged[identifier].tools)}
        yield Row(where, fields)
    check_queries_known({query: one.where for query, one in judged.items()}, known, path.name, reading.findings)


def _judged(qrels: list[tuple[str, Path]], reading: Reading) -> dict[str, _Judged]:
    judged: dict[str, _Judged] = {}
    for split, path in qrels:
        rows = reading.table(path, COLUMNS, delimiter="\t")
        for query, gold in gold_of(rows, *COLUMNS, reading.findings).items():
            one = judged.setdefault(query, _Judged(gold.where, split))
            if one.split == split:
                one.tools.update(gold.tools)
            else:
                what = f"{query!r} is {split} here, but {one.split} at {one.where.rpartition('/')[2]}"
                reading.findings.fault("query in two splits", gold.where, what)
    return judged


FORMAT = Format(
    name="beir",
    title="BEIR folders, ToolLens among them, and what cohyde exports",
    published=f"{CORPUS}, {QUERIES}, {QRELS}",
    read=read,
)
