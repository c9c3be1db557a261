"""A dataset as a BEIR folder, which any BEIR tool reads and which our importer makes the same dataset of again.

What BEIR has no place for stands where its tools don't look: in ``metadata``, in ``vague.jsonl`` and ``dataset.yaml``.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset, Query, Tool, extras_of, render, tool_to_row
from cohyde.data.dataset import CARD, VAGUE
from cohyde.data.importers.beir import COLUMNS, CORPUS, EXPORTED, QUERIES
from cohyde.errors import UserError
from cohyde.io import write_jsonl, write_text

INDEXED = 5
"""The rendering that is the text of a document: φ5, what the index holds."""
QRELS = {"train": "train.tsv", "dev": "dev.tsv", "eval": "test.tsv"}
"""BEIR's files of judgements by our splits."""
NO_CELL = re.compile("[\t\r\n]")


def write(folder: Path, dataset: Dataset, card: Mapping[str, Any]) -> None:
    """Write the files of a dataset below a folder that is there.

    Raises:
        UserError: an id holds a tab or a line break, so that it cannot stand in a file of judgements.
    """
    queries = [*dataset.train, *dataset.dev, *dataset.eval]
    _check_ids("tool", dataset.tools)
    _check_ids("query", queries)
    write_jsonl(folder / CORPUS, map(_document, dataset.tools))
    write_jsonl(folder / QUERIES, map(_query, queries))
    for split, name in QRELS.items():
        write_text(folder / "qrels" / name, _judgements(getattr(dataset, split)))
    write_jsonl(folder / VAGUE, ({"id": query.id, "text": query.text} for query in dataset.vague))
    _write_card(folder / CARD, dataset.name, card)


def _check_ids(noun: str, records: Sequence[Tool] | Sequence[Query]) -> None:
    broken = [record.id for record in records if NO_CELL.search(record.id)]
    if broken:
        raise UserError(
            f"the {noun} id {broken[0]!r} holds a tab or a line break ({len(broken)} such {noun} ids in all)",
            "BEIR's qrels are tab-separated, one judgement a line: give such records other ids",
        )


def _document(tool: Tool) -> dict[str, Any]:
    """A line of the corpus. BEIR tools put the title before the text, where φ5 has it already: so there is none."""
    kept = {name: value for name, value in tool_to_row(tool).items() if name != "id"}
    return {"_id": tool.id, "title": "", "text": render(tool, INDEXED), "metadata": {EXPORTED: kept}}


def _query(query: Query) -> dict[str, Any]:
    kept = {"tier": query.tier} | extras_of(query)
    return {"_id": query.id, "text": query.text, "metadata": {EXPORTED: kept}}


def _judgements(queries: Iterable[Query]) -> str:
    """A file of judgements; ids that hold a quotation mark are quoted, as BEIR's reader expects."""
    text = io.StringIO()
    rows = csv.writer(text, delimiter="\t", lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows((query.id, tool, 1) for query in queries for tool in query.tools)
    return text.getvalue()


def _write_card(path: Path, name: str, card: Mapping[str, Any]) -> None:
    """The dataset's card; its checksums are of other files than these, and are left out like the counts."""
    import yaml

    said = {key: value for key, value in card.items() if key not in ("name", "counts", "sha256")}
    write_text(path, yaml.safe_dump({"name": name, **said}, sort_keys=False, allow_unicode=True, width=100))
