"""ToolRet: requests of 35 tool benchmarks over one catalogue, with an instruction a request.

Published by mangopy/tool-retrieval-benchmark as three data sets: ToolRet-Queries (35 folders such as ``apibank``, with
``queries-*.parquet``: id, query, instruction, labels, category), ToolRet-Tools (``code``, ``customized`` and ``web``,
with ``tools-*.parquet``: id, documentation) and ToolRet-Training-20w (``train-*.parquet``: query, prompt, positive,
negative; or ``pos`` and ``neg``). ``labels`` and ``documentation`` are JSON in a text. Copies of the files as JSON
Lines or JSON arrays are read too.

Training rows name no tools, they hold their documents: such a document stands for the first tool that has the same, and
where none has, becomes a tool of its own. Their negatives are not read: mined from the same tools, they are not judged
to be irrelevant.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cohyde.data.importers.format import Format, Options
from cohyde.data.importers.tool_document import document_fields, document_of
from cohyde.data.reading import Reading, json_of, objects, text_of
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Findings, Row
from cohyde.io import sha256_text

QUERIES = ("**/queries*.parquet", "**/queries*.jsonl", "**/queries*.json")
TOOLS = ("**/tools*.parquet", "**/tools*.jsonl", "**/tools*.json")
TRAINING = ("**/train*.parquet", "**/train*.jsonl", "**/train*.json")
POSITIVE = ("positive", "pos")
INSTRUCTION = ("instruction", "prompt")
SUBSET = re.compile(r"(.+)_query_\d+")


@dataclass(frozen=True)
class Documents:
    """Ids of tools by their documentation; what says the same in other JSON is the same."""

    by_text: dict[str, str] = field(default_factory=dict)
    by_content: dict[str, str] = field(default_factory=dict)

    def add(self, documentation: Any, identifier: str) -> None:
        """Remember a tool; of several with the same documentation the first counts."""
        self.by_text.setdefault(text_of(documentation), identifier)
        self.by_content.setdefault(_content(documentation), identifier)

    def find(self, documentation: Any) -> str | None:
        """The id of the tool that has this documentation, or None."""
        text = text_of(documentation)
        found = self.by_text.get(text) or self.by_content.get(_content(documentation))
        if found is not None:
            self.by_text[text] = found
        return found


def _content(documentation: Any) -> str:
    document = document_of(documentation)
    return text_of(documentation).strip() if document is None else text_of(document)


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """Requests are evaluation unless the options say otherwise; training rows are training.

    The tier is the published category (``code``, ``customized``, ``web``), else the benchmark that the id names.

    Raises:
        UserError: there are neither tools nor training rows.
    """
    sources.some(*TOOLS, *TRAINING)
    training, documents = sources.named(*TRAINING), Documents()
    trained: list[Row] = []  # filled while the tools are read, which comes before the queries
    tools = _tools(sources.named(*TOOLS), documents if training else None, reading)
    queries = _queries(sources.named(*QUERIES), options.split or "eval", reading)
    return DatasetRows(
        tools=chain(tools, _training_tools(training, documents, trained, reading)), queries=chain(queries, trained)
    )


def _tools(files: Sequence[Path], documents: Documents | None, reading: Reading) -> Iterator[Row]:
    for path in files:
        for where, record in _records(path, ("id",), ("documentation", "doc"), reading):
            documentation = record.get("documentation", record.get("doc"))
            if documentation is None:
                reading.findings.fault("malformed tool", where, "it has no 'documentation'")
                continue
            identifier = _identifier(record.get("id"))
            if documents is not None:
                documents.add(documentation, identifier)
            yield Row(where, {"id": identifier, **document_fields(documentation)})


def _queries(files: Sequence[Path], split: str, reading: Reading) -> Iterator[Row]:
    for path in files:
        for where, record in _records(path, ("id", "query", "labels"), ("instruction", "category"), reading):
            gold = _gold(record.get("labels"), f"{where}/labels", reading.findings)
            if gold is None:
                continue
            identifier = _identifier(record.get("id"))
            subset = SUBSET.fullmatch(identifier) if isinstance(identifier, str) else None
            tier = text_of(record.get("category")) or (subset[1] if subset else "")
            yield Row(where, _query(identifier, record, gold) | {"tier": tier, "split": split})


def _training_tools(files: Sequence[Path], documents: Documents, queries: list[Row], reading: Reading) -> Iterator[Row]:
    """The tools that training rows alone have; the rows themselves are added to ``queries``."""
    for path in files:
        for where, record in _records(path, ("query",), (*POSITIVE, *INSTRUCTION), reading):
            key = next((key for key in POSITIVE if record.get(key) is not None), POSITIVE[0])
            positive = record.get(key)
            if not isinstance(positive, list):
                what = f"expected a list of documents, got {type(positive).__name__}"
                reading.findings.fault("malformed record", f"{where}/{key}", what)
                continue
            gold = []
            for position, documentation in enumerate(positive):
                identifier = documents.find(documentation)
                if identifier is None:
                    fields = document_fields(documentation)
                    identifier = _new_identifier(fields, documentation)
                    documents.add(documentation, identifier)
                    yield Row(f"{where}/{key}/{position}", {"id": identifier, **fields})
                gold.append(identifier)
            queries.append(Row(where, _query(f"train/{len(queries) + 1}", record, gold) | {"split": "train"}))


def _query(identifier: Any, record: Mapping[str, Any], gold: list[str]) -> dict[str, Any]:
    instruction = next((record[key] for key in INSTRUCTION if record.get(key)), "")
    return {"id": identifier, "text": record.get("query"), "tools": gold, "instruction": text_of(instruction)}


def _records(
    path: Path, columns: Sequence[str], optional: Sequence[str], reading: Reading
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return reading.parquet(path, columns, optional) if path.suffix == ".parquet" else reading.json_objects(path)


def _gold(labels: Any, where: str, findings: Findings) -> list[str] | None:
    """The ids that are labelled relevant; None, and a fault, where the labels cannot be read at all."""
    try:
        labels = json_of(labels) if isinstance(labels, str) else labels
    except ValueError as error:
        findings.fault("malformed labels", where, str(error))
        return None
    if not isinstance(labels, list):
        findings.fault("malformed labels", where, f"expected a list, got {type(labels).__name__}")
        return None
    gold = []
    for place, label in objects(labels, where, findings):
        identifier, relevance = _identifier(label.get("id")), label.get("relevance", 1)
        if not isinstance(identifier, str) or not isinstance(relevance, int | float):
            findings.fault("malformed label", place, "a label needs an 'id', and a number as its 'relevance'")
        elif relevance > 0:
            gold.append(identifier)
        else:
            findings.remark("label of no relevance", place, f"{identifier!r} is labelled {relevance}: no gold tool")
    return gold


def _identifier(value: Any) -> Any:
    """An id as a text; what is neither a text nor a number is left for the validation to refuse."""
    return str(value) if isinstance(value, int) else value


def _new_identifier(fields: Mapping[str, Any], documentation: Any) -> str:
    digest = sha256_text(_content(documentation))[:12]
    return f"train/{fields['title']}/{digest}" if fields.get("title") else f"train/{digest}"


FORMAT = Format(
    name="toolret",
    title="ToolRet: queries, tools and training rows",
    published="queries*, tools*, train* (.parquet, .jsonl, .json)",
    read=read,
)
