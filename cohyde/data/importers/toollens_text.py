"""ToolLens packs a whole API record into one text: seven markers in a fixed order, three of them followed by JSON."""

from typing import Any

from cohyde.data.reading import json_of

MARKERS = {
    "category_name": "category_name:",
    "tool_name": ", tool_name:",
    "api_name": ", api_name:",
    "api_description": ", api_description:",
    "required_parameters": ", required_params: ",
    "optional_parameters": ", optional_params: ",
    "template_response": ", return_schema: ",
}
"""What each field of the record begins with, in order; blanks and line breaks between two markers are the field's."""
JSON_FIELDS = ("required_parameters", "optional_parameters", "template_response")


def is_packed(text: str) -> bool:
    """Whether a text is such a record: every marker is there, in order, and the first begins it."""
    return text.startswith(MARKERS["category_name"]) and len(_parts(text)) == len(MARKERS)


def unpacked(text: str) -> dict[str, Any]:
    """The API record that is packed into a text, with ToolBench's names for its fields.

    Raises:
        ValueError: one of the parts that have to be JSON is none; names it.
    """
    record: dict[str, Any] = _parts(text)
    for name in JSON_FIELDS:
        try:
            record[name] = json_of(record[name])
        except ValueError as error:
            raise ValueError(f"what follows {MARKERS[name].strip(', ')!r} is {error}") from None
    return record


def _parts(text: str) -> dict[str, str]:
    """The text after each marker, up to the next; fewer than there are markers where one is missing."""
    parts: dict[str, str] = {}
    previous = ""
    for name, marker in MARKERS.items():
        before, found, text = text.partition(marker)
        if previous:
            parts[previous] = before
        if not found:
            break
        previous = name
    else:
        parts[previous] = text
    return parts
