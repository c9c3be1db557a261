"""A tool's documentation in whatever shape it was published: JSON of many kinds, a Python literal, plain text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from cohyde.data.importers.json_schema import description_of, parameters_of, type_of
from cohyde.data.reading import literal_of, text_of

FIELDS = {
    "title": ("name", "api_name", "tool_name", "name_for_human", "name_for_model"),
    "category": ("category", "category_name", "domain", "field"),
    "description": ("tool_description", "functionality"),
    "api_description": (
        "description",
        "api_description",
        "func_description",
        "description_for_human",
        "functionality",
    ),
}
"""Fields of ours by the keys that documents give them, the first that holds a text counts."""
RETURNS = ("responses", "response", "output_parameters", "outputs", "returns")
"""Keys under which a document says what comes back."""
PARAMETERS = {
    "parameters": False,
    "required_parameters": True,
    "optional_parameters": False,
    "input_parameters": False,
    "inputs": False,
    "input_schema": False,
    "inputSchema": False,
    "arguments": False,
    "doc_arguments": False,
    "api_arguments": False,
    "additional_required_arguments": True,
    "optional_arguments": False,
}
"""Keys under which parameters stand, and whether those are required even if they don't say so."""
NAME_AND_TYPE = re.compile(r"(.+?)\s*\(([^()]*)\)")


def document_of(documentation: Any) -> Mapping[str, Any] | None:
    """The object that a documentation is, or that its text holds as JSON or as a Python literal; None for any other."""
    value = documentation
    for _ in range(2):  # some are JSON inside a JSON text
        value = _decoded(value) if isinstance(value, str) else value
    return value if isinstance(value, Mapping) else None


def document_fields(documentation: Any) -> dict[str, Any]:
    """The fields of a tool's row, all but its id; a document without name and description is kept as one text.

    Parameters are read from JSON Schema, from mappings of names to what is said of them, and from lists of names or of
    objects; where they are described in a sentence, that sentence is left out.
    """
    document = document_of(documentation)
    fields = {field: _first_text(document, keys) for field, keys in FIELDS.items()} if document is not None else {}
    if document is None or not (fields["title"] or fields["api_description"]):
        return {"api_description": text_of(documentation)}
    if fields["description"] == fields["api_description"]:
        fields["description"] = ""
    returns = next((document[key] for key in RETURNS if document.get(key)), None)
    return fields | {"parameters": _parameters(document), "schema": text_of(returns)}


def _decoded(text: str) -> Any:
    if not text.lstrip().startswith(("{", '"')):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return literal_of(text)


def _first_text(document: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    texts = (document.get(key) for key in keys)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def _parameters(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for key, required in PARAMETERS.items():
        for row in _rows(document.get(key), document.get("required")):
            rows.setdefault(row["name"], row | {"required": required or row["required"]})
    return list(rows.values())


def _rows(value: Any, required: Any) -> list[dict[str, Any]]:
    """The parameters that a value describes; ``required`` is the document's own list of names, if it has one."""
    if isinstance(value, list):
        return [row for item in value if (row := _row(item))]
    if not isinstance(value, Mapping):
        return []
    # A parameter may itself be called "type" or "properties": a schema's type is a word.
    if isinstance(value.get("type"), str) and value["type"] in ("object", "dict"):
        return parameters_of(value)
    if isinstance(value.get("properties"), Mapping) and not isinstance(value.get("type"), Mapping):
        return parameters_of(value)
    said = {name: spec if isinstance(spec, Mapping) else {"description": spec} for name, spec in value.items()}
    return [_split_name(row) for row in parameters_of({"properties": said, "required": required})]


def _row(item: Any) -> dict[str, Any] | None:
    """A parameter of a list: an object with a name, or the name alone."""
    if isinstance(item, str):
        return {"name": item, "required": False}
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        return None
    return {
        "name": item["name"],
        "type": type_of(item),
        "description": description_of(item),
        "required": item.get("required") is True,
    }


def _split_name(row: dict[str, Any]) -> dict[str, Any]:
    """``where_to (str)`` is a name and its type."""
    match = NAME_AND_TYPE.fullmatch(row["name"])
    return row | {"name": match[1], "type": row["type"] or match[2]} if match else row
