"""A catalogue that an import is joined with: a dataset folder of ours, or ToolBench's corpus of API records."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cohyde.data.dataset import CATALOG
from cohyde.data.importers.api_names import Name, readable_ids
from cohyde.data.importers.api_record import CORPUS_COLUMNS, record_in, tool_fields
from cohyde.data.reading import Reading
from cohyde.data.validation import Findings, Row
from cohyde.errors import UserError

API = ("category", "title", "api_name")
"""The fields of a row that tell an API from all others."""


def given_tools(path: Path, reading: Reading) -> list[Row]:
    """The tools of a catalogue, each with an id, in its order.

    Args:
        path: a dataset folder, or a file in the form of ToolBench's ``corpus.tsv`` (ToolGen's ``corpus_G123.tsv``).
        reading: reads it, and is told what is wrong.

    Raises:
        UserError: it is neither of the two, or holds no tool.
    """
    if path.is_dir():
        rows = [Row(where, fields) for where, fields in reading.jsonl(path / CATALOG)]
    elif path.suffix == ".tsv":
        records = ((name_of(row.fields, API), row) for row in _corpus(path, reading))
        rows = [row for _, row in identified(records, reading.findings)]
    else:
        raise UserError(f"{path} is no catalogue", "give a dataset folder, or a corpus.tsv")
    if not rows:
        reading.findings.raise_if_any()
        raise UserError(f"{path}: no tools there", "give a catalogue with at least one tool")
    return rows


def name_of(fields: Mapping[str, Any], parts: Iterable[str]) -> Name:
    """These texts of a row; one that is missing is empty."""
    return tuple(str(fields.get(part) or "") for part in parts)


def identified(named: Iterable[tuple[Name, Row]], findings: Findings) -> list[tuple[Name, Row]]:
    """The first row of each name, with an id made of that name; others of it are remarked on."""
    first: dict[Name, Row] = {}
    for name, row in named:
        known = first.setdefault(name, row)
        if known is row:
            continue
        if known.fields == row.fields:
            findings.remark("repeated API", row.where, f"{' / '.join(name)!r} says the same as before")
        else:
            what = f"{' / '.join(name)!r} is defined anew; the first definition is kept"
            findings.remark("API with several definitions", row.where, what)
    ids = readable_ids(first)
    return [(name, Row(row.where, {"id": ids[name], **row.fields})) for name, row in first.items()]


def _corpus(path: Path, reading: Reading) -> Iterator[Row]:
    for where, line in reading.table(path, CORPUS_COLUMNS, delimiter="\t"):
        try:
            record = record_in(line["document_content"])
        except ValueError as error:
            reading.findings.fault("malformed document", where, str(error))
        else:
            yield Row(where, tool_fields(record, where, reading.findings))
