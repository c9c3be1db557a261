"""Seal-Tools, and API-Bank: functions with their parameters, and requests with the functions that were called.

Published by fairyshine/Seal-Tools in ``Seal-Tools_Dataset/``: ``tool.jsonl`` (api_name, api_description, field,
parameters by name, required, responses) and ``train.jsonl``, ``dev.jsonl``, ``test_in_domain.jsonl``,
``test_out_domain.jsonl`` (id, query, calling: a list of calls with their ``api``). The older form of those files, a
list ``[call, …, query]`` a line, is not read.

API-Bank, published by AlibabaResearch/DAMO-ConvAI in ``api-bank/``, has the same in other words:
``tool_catalog.json`` (name, description, input_parameters, output_parameters) and ``level-3.json`` (requirement, apis:
a list of calls with their ``api_name``). Its calls of ``ToolSearcher`` are answered with functions: these are part of
the catalogue, the search itself is not. Its dialogues of level 1 and 2 are not read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from cohyde.data.importers.format import SPLIT_NAMES, Format, Options
from cohyde.data.importers.tool_document import document_fields
from cohyde.data.reading import Reading, objects
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Row

FOLDERS = ("", "Seal-Tools_Dataset/")
TOOLS = tuple(f"{folder}tool.jsonl" for folder in FOLDERS)
INSTRUCTIONS = tuple(
    f"{folder}{name}.jsonl"
    for folder in FOLDERS
    for name in ("train", "dev", "test", "test_in_domain", "test_out_domain")
)
BANK_TOOLS = "**/tool_catalog.json"
BANK_INSTRUCTIONS = "**/level-3.json"
SEARCHER = "ToolSearcher"
Item = tuple[str, Mapping[str, Any]]
"""A place, and the object that stands there."""
TIER = re.compile(r"(?:train|dev|test)[-_](.+)-\d+")


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """Splits are those that the files' names say; API-Bank's requests are evaluation unless the options say otherwise.

    The tier is what stands between split and number in an id: ``easy`` in ``dev-easy-0``, ``out_domain-difficult`` in
    ``test_out_domain-difficult-0``.

    Raises:
        UserError: there are no tools.
    """
    sources.some(*TOOLS, BANK_TOOLS, BANK_INSTRUCTIONS)
    bank = [item for path in sources.named(BANK_INSTRUCTIONS) for item in reading.json_objects(path)]
    queries = _queries(sources.named(*INSTRUCTIONS), reading)
    return DatasetRows(
        tools=_tools(sources.named(*TOOLS, BANK_TOOLS), bank, reading),
        queries=chain(queries, _bank_queries(bank, options.split or "eval", reading)),
    )


def _tools(files: Sequence[Path], bank: Sequence[Item], reading: Reading) -> Iterator[Row]:
    known: dict[str, Row] = {}
    for path in files:
        for where, tool in reading.json_objects(path):
            row = _tool(where, tool)
            known.setdefault(str(row.fields["id"]), row)
            yield row
    for where, found in _found_tools(bank):
        row = _tool(where, found)
        first = known.setdefault(str(row.fields["id"]), row)
        if first is row:
            yield row
        elif first.fields != row.fields:
            what = f"the first description of {row.fields['id']!r} is kept"
            reading.findings.remark("tool described in several ways", where, what)


def _tool(where: str, tool: Mapping[str, Any]) -> Row:
    return Row(where, {"id": tool.get("api_name", tool.get("name")), **document_fields(tool)})


def _found_tools(bank: Sequence[Item]) -> Iterator[Item]:
    """The functions that the calls of the searcher were answered with."""
    for where, instruction in bank:
        calls = instruction.get("apis")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if not isinstance(call, dict) or call.get("api_name") != SEARCHER:
                continue
            output = call.get("output")
            answer = output.get("output") if isinstance(output, dict) else None
            for tool in answer if isinstance(answer, list) else [answer]:
                if isinstance(tool, dict):
                    yield f"{where}/apis/{position}/output/output", tool


def _queries(files: Sequence[Path], reading: Reading) -> Iterator[Row]:
    for path in files:
        split = SPLIT_NAMES[path.stem.partition("_")[0]]
        for where, record in reading.json_objects(path):
            gold = _called(record.get("calling"), "api", f"{where}/calling", reading)
            identifier = record.get("id")
            tier = TIER.fullmatch(identifier) if isinstance(identifier, str) else None
            fields = {"id": identifier, "text": record.get("query"), "tools": gold, "split": split}
            yield Row(where, fields | {"tier": tier[1] if tier else ""})


def _bank_queries(bank: Sequence[Item], split: str, reading: Reading) -> Iterator[Row]:
    for number, (where, record) in enumerate(bank):
        names = _called(record.get("apis"), "api_name", f"{where}/apis", reading)
        gold = [name for name in names if name != SEARCHER]
        fields = {"id": f"level-3/{number}", "text": record.get("requirement"), "tools": gold}
        yield Row(where, fields | {"tier": "level-3", "split": split})


def _called(calls: Any, key: str, where: str, reading: Reading) -> list[str]:
    names = []
    for place, call in objects(calls, where, reading.findings):
        if isinstance(name := call.get(key), str):
            names.append(name)
        else:
            reading.findings.fault("malformed call", place, f"a call needs the name of a function as its {key!r}")
    return names


FORMAT = Format(
    name="seal-tools",
    title="Seal-Tools and API-Bank: functions, and requests with their calls",
    published="tool.jsonl, train.jsonl, dev.jsonl, test*_domain.jsonl; tool_catalog.json, level-3.json",
    read=read,
)
