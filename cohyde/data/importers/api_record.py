"""One API as ToolBench records it, whatever kind of file carries it, as a row of the catalogue."""

import json
from collections.abc import Mapping
from typing import Any

from cohyde.data.reading import json_of, objects, text_of
from cohyde.data.validation import Findings

CORPUS_COLUMNS = ("docid", "document_content")
"""Of ``corpus.tsv``; the second is an API record as JSON."""


def record_in(content: str) -> Mapping[str, Any]:
    """The API record of a ``document_content``.

    Raises:
        ValueError: it is no JSON object, or names no API; says so of ``document_content``.
    """
    try:
        record = json_of(content)
    except ValueError as error:
        raise ValueError(f"document_content is {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"document_content has to be a JSON object, got {type(record).__name__}")
    if not record.get("tool_name") and not record.get("api_name"):
        raise ValueError("document_content has neither a 'tool_name' nor an 'api_name'")
    return record


def tool_fields(record: Mapping[str, Any], where: str, findings: Findings) -> dict[str, Any]:
    """The row of an API, but for its id; the provider's own description is not in such records.

    Args:
        record: ``category_name``, ``tool_name``, ``api_name``, ``api_description``, ``required_parameters``,
            ``optional_parameters`` and ``template_response``, each of which may be missing.
        where: the record's place, for what is wrong with its parameters.
        findings: is told of parameters that are no objects, which are left out.
    """
    required, optional = (
        [
            {
                "name": text_of(parameter.get("name")),
                "type": text_of(parameter.get("type")),
                "description": text_of(parameter.get("description")),
                "required": key == "required_parameters",
            }
            for _, parameter in objects(record.get(key) or [], f"{where}/{key}", findings)
        ]
        for key in ("required_parameters", "optional_parameters")
    )
    return {
        "category": text_of(record.get("category_name")),
        "title": text_of(record.get("tool_name")),
        "api_name": text_of(record.get("api_name")),
        "api_description": text_of(record.get("api_description")),
        "parameters": required + optional,
        "schema": _schema(record.get("template_response")),
    }


def _schema(response: Any) -> str:
    """What the API returns, its fields in the published order; nothing, an empty text and an empty object are none."""
    if isinstance(response, str) or not response:
        return response if isinstance(response, str) else ""
    return json.dumps(response, ensure_ascii=False)
