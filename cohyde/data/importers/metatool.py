"""MetaTool (ToolE): requests for plugins by name, single-tool in a table, multi-tool in JSON.

Published by HowieHwong/MetaTool below ``dataset/``: ``plugin_des.json`` and ``big_tool_des.json`` (name to
description; the second has the tools that similar plugins were merged into), ``data/all_clean_data.csv`` (Query, Tool)
and ``data/multi_tool_query_golden.json`` (query, tool: a list of names).

``plugin_info.json``, the plugins before they were merged, is not read: as tools of their own they would be twins of
gold tools that nobody labelled.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cohyde.data.importers.documents import pointer
from cohyde.data.importers.format import Format, Options
from cohyde.data.reading import Reading, objects
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Row
from cohyde.errors import UserError

DESCRIPTIONS = ("**/plugin_des.json", "**/big_tool_des.json")
SINGLE = "**/all_clean_data.csv"
MULTI = "**/multi_tool_query_golden.json"


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """Tiers are ``single`` and ``multi``. No split is published: all is training unless the options say otherwise.

    Raises:
        UserError: there are no descriptions, or a file is there several times.
    """
    single, multi = sources.optional(SINGLE), sources.optional(MULTI)
    return DatasetRows(
        tools=_tools(sources.some(*DESCRIPTIONS), reading),
        queries=_queries(single, multi, options.split or "train", reading),
    )


def _tools(files: Sequence[Path], reading: Reading) -> Iterator[Row]:
    first: dict[str, object] = {}
    for path in files:
        descriptions = reading.json(path)
        if not isinstance(descriptions, dict):
            raise UserError(f"{path}: expected an object of descriptions by name, got {type(descriptions).__name__}")
        for name, description in descriptions.items():
            where = f"{path}#{pointer(name)}"
            if name not in first:
                first[name] = description
                yield Row(where, {"id": name, "title": name, "api_description": description})
            elif first[name] != description:
                reading.findings.remark("tool described twice", where, f"the first description of {name!r} is kept")


def _queries(single: Path | None, multi: Path | None, split: str, reading: Reading) -> Iterator[Row]:
    if single is not None:
        for where, row in reading.table(single, ("Query", "Tool"), delimiter=","):
            number = where.rpartition(":")[2]
            yield Row(where, _query(f"single/{number}", row["Query"], [row["Tool"]], "single", split))
    if multi is not None:
        for where, record in objects(reading.json(multi), f"{multi}#", reading.findings):
            number = where.rpartition("/")[2]
            yield Row(where, _query(f"multi/{number}", record.get("query"), record.get("tool"), "multi", split))


def _query(identifier: str, text: object, tools: object, tier: str, split: str) -> dict[str, object]:
    """The row of a query; its id ends in the line or the position at which it stands in its file."""
    return {"id": identifier, "text": text, "tools": tools, "tier": tier, "split": split}


FORMAT = Format(
    name="metatool",
    title="MetaTool (ToolE): single- and multi-tool queries for plugins",
    published="plugin_des.json, big_tool_des.json, all_clean_data.csv, multi_tool_query_golden.json",
    read=read,
)
