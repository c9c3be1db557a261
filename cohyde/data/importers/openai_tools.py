"""Functions in the tool schema of OpenAI's API: name, description, and parameters as JSON Schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from cohyde.data.importers.format import Format, Options
from cohyde.data.importers.json_schema import parameters_of
from cohyde.data.reading import Reading, text_of
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Row


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """A catalogue without queries; each file's name is the category of its functions."""
    return DatasetRows(tools=_tools(sources, reading))


def _tools(sources: Sources, reading: Reading) -> Iterator[Row]:
    for path in sources.files(".json", ".jsonl"):
        for where, item in reading.json_items(path):
            function = item.get("function", item) if isinstance(item, dict) else None
            if not isinstance(function, dict):
                reading.findings.fault("malformed tool", where, "expected an object with a 'function'")
                continue
            yield Row(where, tool_fields(function, category=path.stem))


def tool_fields(function: Mapping[str, Any], category: str) -> dict[str, Any]:
    """The row of a function: its name is its id."""
    name = text_of(function.get("name"))
    return {
        "id": name,
        "category": category,
        "title": name,
        "api_description": text_of(function.get("description")),
        "parameters": parameters_of(function.get("parameters")),
    }


FORMAT = Format(name="openai-tools", title="functions in OpenAI's tool schema", published="*.json, *.jsonl", read=read)
