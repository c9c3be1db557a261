"""JSON Schema, as far as a catalogue needs it: the parameters of an object schema, and a type in one word."""

from collections.abc import Mapping
from typing import Any

from cohyde.data.reading import text_of


def parameters_of(schema: Any) -> list[dict[str, Any]]:
    """Rows of parameters from an object schema's ``properties``; required ones are marked. Anything else has none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return []
    wanted = schema.get("required")
    required = set(wanted) if isinstance(wanted, list) and all(isinstance(name, str) for name in wanted) else set()
    return [
        {
            "name": str(name),
            "type": type_of(value),
            "description": description_of(value),
            "required": name in required,
        }
        for name, value in properties.items()
    ]


def description_of(schema: Any) -> str:
    """The description of a schema, or its title."""
    return text_of(schema.get("description") or schema.get("title")) if isinstance(schema, Mapping) else ""


def type_of(schema: Any) -> str:
    """A type in one word or a few: ``string``, ``array of integer``, ``string or null``; empty where none is said."""
    if not isinstance(schema, Mapping):
        return ""
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(str(one) for one in kind)
    if kind == "array" and (item := type_of(schema.get("items"))):
        return f"array of {item}"
    return kind if isinstance(kind, str) else ""
