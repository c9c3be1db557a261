"""Catalogue records, queries, datasets, and the five renderings φ1…φ5 of a tool."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SURROGATE = re.compile("[\ud800-\udfff]")


def fold(text: str) -> str:
    """Fold every run of white space into one blank and strip the ends."""
    return " ".join(text.split())


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of an API."""

    name: str
    type: str = ""
    description: str = ""
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One API of the catalogue: what is retrieved.

    ``title`` and ``description`` are the provider's, ``api_name`` and ``api_description`` the endpoint's. Every text
    may be empty; ``id`` may not.
    """

    id: str
    category: str = ""
    title: str = ""
    description: str = ""
    api_name: str = ""
    api_description: str = ""
    parameters: tuple[Parameter, ...] = ()
    schema: str = ""


@dataclass(frozen=True, kw_only=True)
class Query:
    """A request with its gold tools.

    ``tier`` is G1, G2, G3 or any other label; ``instruction`` says in the data's own words what kind of tools is
    sought (ToolRet has one a query), for encoders that take instructions. ``gold_sets`` are further sets of tools, each
    of which fulfils the request as well as ``tools`` does (ToolEq): evaluation takes the best of them all.
    """

    id: str
    text: str
    tools: tuple[str, ...]
    tier: str = "all"
    split: str = "train"
    instruction: str = ""
    gold_sets: tuple[tuple[str, ...], ...] = ()

    @property
    def valid_sets(self) -> tuple[tuple[str, ...], ...]:
        """Every set of tools that fulfils the request, ``tools`` first."""
        return (self.tools, *self.gold_sets)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A catalogue with its queries by split; ``vague`` holds paraphrases of evaluation queries, with the same ids."""

    name: str
    tools: tuple[Tool, ...]
    train: tuple[Query, ...] = ()
    dev: tuple[Query, ...] = ()
    eval: tuple[Query, ...] = ()
    vague: tuple[Query, ...] = ()

    def position_of(self) -> dict[str, int]:
        """Catalogue position of each tool id: the order that breaks ties of score."""
        return {tool.id: position for position, tool in enumerate(self.tools)}


def _joined(*parts: str) -> str:
    stripped = [fold(part).rstrip(". ") for part in parts]
    return ". ".join(part for part in stripped if part)


def _name(tool: Tool) -> str:
    """Title and API name; an API name that only repeats the title is not said twice."""
    title, api_name = fold(tool.title), fold(tool.api_name)
    return title if api_name == title else fold(f"{title} {api_name}")


def _parameters(tool: Tool) -> str:
    if not tool.parameters:
        return ""
    described = [
        fold(f"{parameter.name} ({about})" if (about := fold(parameter.description)) else parameter.name)
        for parameter in tool.parameters
    ]
    named = [text for text in described if text]
    return "Parameters: " + ", ".join(named) if named else ""


def render_title(tool: Tool) -> str:
    """φ1: title."""
    return fold(tool.title)


def render_name(tool: Tool) -> str:
    """φ2: title and API name."""
    return _name(tool)


def render_tool_description(tool: Tool) -> str:
    """φ3: title, API name and the tool's description."""
    return _joined(_name(tool), tool.description)


def render_api_description(tool: Tool) -> str:
    """φ4: title, API name and the API's description."""
    return _joined(_name(tool), tool.api_description)


def render_full(tool: Tool) -> str:
    """φ5: the full record. What an endpoint does comes early, so that a cut at the maximum length keeps it."""
    folded = fold(tool.schema)
    schema = f"Returns: {folded}" if folded else ""
    return _joined(fold(tool.category), _name(tool), tool.api_description, tool.description, _parameters(tool), schema)


RENDERINGS: Mapping[int, Callable[[Tool], str]] = {
    1: render_title,
    2: render_name,
    3: render_tool_description,
    4: render_api_description,
    5: render_full,
}


def render(tool: Tool, form: int) -> str:
    """Render a tool as φ``form`` (1…5; DESIGN: φ5 for the index, φ1…φ5 for training).

    A field that is empty or blank leaves no trace. A tool whose fields of this form are all empty is rendered in full,
    and one without any text by its id, so that the encoder never sees an empty text.

    Raises:
        KeyError: there is no such form.
    """
    return RENDERINGS[form](tool) or render_full(tool) or tool.id


def catalog_line(tool: Tool) -> str:
    """A tool in one line of catalogue style: name, then what the endpoint does, else what its provider does."""
    return _joined(_name(tool), fold(tool.api_description) or tool.description) or tool.id


def check_text(name: str, value: str) -> None:
    """Refuse NUL characters and halves of surrogate pairs: signs of text that was decoded in the wrong way.

    Half a pair cannot be written as UTF-8 at all.

    Raises:
        ValueError: names the field.
    """
    if "\0" in value:
        raise ValueError(f"field {name!r} holds a NUL character at position {value.index(chr(0)) + 1}")
    if not value.isascii() and (broken := SURROGATE.search(value)):
        raise ValueError(f"field {name!r} holds half a surrogate pair at position {broken.start() + 1}")


TEXTS = ("id", "category", "title", "description", "api_name", "api_description", "schema")
FIELDS = {*TEXTS, "parameters"}


def tool_from_row(row: Mapping[str, Any]) -> Tool:
    """Build a tool from a row of ``catalog.jsonl``; missing texts are empty.

    Raises:
        ValueError: a field has the wrong type, is unknown, or the id is missing; names the field.
    """
    texts = {}
    for name in TEXTS:
        value = row.get(name, "")
        value = "" if value is None else value
        if not isinstance(value, str):
            raise ValueError(f"field {name!r} has to be a text, got {type(value).__name__}")
        check_text(name, value)
        texts[name] = value
    if not texts["id"].strip():
        raise ValueError("field 'id' is missing or empty")
    if unknown := row.keys() - FIELDS:
        raise ValueError(f"unknown field {min(unknown)!r}")
    return Tool(**texts, parameters=_parameters_from(row.get("parameters") or []))


def _parameters_from(rows: Any) -> tuple[Parameter, ...]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("field 'parameters' has to be a list of objects")
    if any(not isinstance(row.get("name"), str) for row in rows):
        raise ValueError("every parameter needs a 'name'")
    parameters = tuple(
        Parameter(
            name=row["name"],
            type=str(row.get("type") or ""),
            description=str(row.get("description") or ""),
            required=bool(row.get("required", False)),
        )
        for row in rows
    )
    for parameter in parameters:
        check_text("parameters", f"{parameter.name} {parameter.type} {parameter.description}")
    return parameters


def query_from_row(row: Mapping[str, Any]) -> Query:
    """Build a query from a row of ``queries.jsonl``; repeated gold ids are kept once.

    Raises:
        ValueError: a field is missing or has the wrong type; names the field.
    """
    for name in ("id", "text"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"field {name!r} has to be a text that is not empty")
        check_text(name, row[name])
    tools = row.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
        raise ValueError("field 'tools' has to be a list of tool ids")
    tier, instruction = str(row.get("tier") or "all"), str(row.get("instruction") or "")
    check_text("tier", tier)
    check_text("instruction", instruction)
    return Query(
        id=row["id"],
        text=row["text"],
        tools=tuple(dict.fromkeys(tools)),
        tier=tier,
        split=str(row.get("split") or "train"),
        instruction=instruction,
        gold_sets=_gold_sets_from(row.get("gold_sets") or [], set(tools)),
    )


def _gold_sets_from(sets: Any, tools: set[str]) -> tuple[tuple[str, ...], ...]:
    """Sets that say the same as ``tools``, or as another, are kept once."""
    if not isinstance(sets, list) or not all(isinstance(one, list) for one in sets):
        raise ValueError("field 'gold_sets' has to be a list of lists of tool ids")
    if not all(isinstance(tool, str) for one in sets for tool in one):
        raise ValueError("field 'gold_sets' has to be a list of lists of tool ids")
    if [] in sets:
        raise ValueError(f"field 'gold_sets' holds an empty set, number {sets.index([]) + 1}")
    distinct: dict[frozenset[str], tuple[str, ...]] = {}
    for one in sets:
        distinct.setdefault(frozenset(one), tuple(dict.fromkeys(one)))
    distinct.pop(frozenset(tools), None)
    return tuple(distinct.values())


def query_to_row(query: Query) -> dict[str, Any]:
    """The row of ``queries.jsonl`` that :func:`query_from_row` reads; what is empty and optional is left out."""
    row: dict[str, Any] = {
        "id": query.id,
        "text": query.text,
        "tools": list(query.tools),
        "tier": query.tier,
        "split": query.split,
    }
    return row | extras_of(query)


def extras_of(query: Query) -> dict[str, Any]:
    """The fields of a query's row that few queries have: those of them that this one has."""
    extras = {"instruction": query.instruction, "gold_sets": [list(one) for one in query.gold_sets]}
    return {name: value for name, value in extras.items() if value}


def tool_to_row(tool: Tool) -> dict[str, Any]:
    """The row of ``catalog.jsonl`` that :func:`tool_from_row` reads; an empty schema is left out."""
    row: dict[str, Any] = {
        "id": tool.id,
        "category": tool.category,
        "title": tool.title,
        "description": tool.description,
        "api_name": tool.api_name,
        "api_description": tool.api_description,
        "parameters": [
            {"name": p.name, "type": p.type, "description": p.description, "required": p.required}
            for p in tool.parameters
        ],
    }
    return row | {"schema": tool.schema} if tool.schema else row


def tiers_of(queries: Sequence[Query]) -> list[str]:
    """The tiers that occur, sorted."""
    return sorted({query.tier for query in queries})
