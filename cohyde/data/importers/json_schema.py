"""JSON Schema, as far as a catalogue needs it: an object's parameters, a type in a few words, a shape in short.

``$ref`` is followed inside the document alone, ``allOf`` is merged, of alternatives the first are named. Nothing here
raises, goes round in circles, or grows beyond its bounds, whatever a document holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from cohyde.data.importers.documents import child_of, key_text, list_of, mapping_of, plain_text, unescaped
from cohyde.data.validation import Findings

LONGEST = 500
"""Characters of a shape, about: some hundred tokens of the 256 that an encoder reads of a tool (ours)."""
LEVELS = 2
"""Levels of properties that a shape shows (ours)."""
ALTERNATIVES = 3
"""Alternatives that are named, and how deep those of alternatives are (ours)."""
DEEPEST = 8
"""Schemas inside schemas, arrays of arrays among them (ours)."""
CUT = "…"
STRUCTURE = frozenset(
    ("properties", "required", "items", "additionalProperties", "oneOf", "anyOf", "nullable", "readOnly")
)
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclass(slots=True)
class Flat:
    """A schema with its references followed and its ``allOf`` merged; of what is said twice, the outer counts.

    ``name`` is what it refers to, ``core`` the identity of what it comes down to in the end, which tells circles;
    ``values`` are those of a map, and a leaf has no schemas inside.
    """

    name: str = ""
    core: int = 0
    kinds: list[str] = field(default_factory=list)
    description: str = ""
    title: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    items: Any = None
    values: Any = None
    alternatives: list[Any] = field(default_factory=list)
    is_leaf: bool = True
    nullable: bool = False
    read_only: bool = False

    def add(self, part: dict[Any, Any]) -> None:
        """Merge a part in; what is there already stays."""
        self.kinds = self.kinds or _kinds(part)
        self.description = self.description or plain_text(part.get("description"))
        self.title = self.title or plain_text(part.get("title"))
        if STRUCTURE.isdisjoint(part):
            return
        self.is_leaf = False
        for name, value in mapping_of(part.get("properties")).items():
            self.properties.setdefault(key_text(name), value)
        self.required.update(name for name in list_of(part.get("required")) if isinstance(name, str))
        self.items = part.get("items") if self.items is None else self.items
        self.values = part.get("additionalProperties") if self.values is None else self.values
        self.alternatives += [*list_of(part.get("oneOf")), *list_of(part.get("anyOf"))]
        self.nullable = self.nullable or part.get("nullable") is True
        self.read_only = self.read_only or part.get("readOnly") is True


class Schemas:
    """The schemas of one document, which must not change meanwhile.

    ``unresolved`` collects references that were not followed, for :meth:`tell`.
    """

    def __init__(self, document: Any) -> None:
        """Begin with nothing looked at.

        Args:
            document: what ``#`` stands for in a ``$ref``.
        """
        self.document = document
        self.unresolved: set[str] = set()
        # By identity, and with the schema itself, so that no other takes its place in memory.
        self._flat: dict[int, tuple[Any, Flat, set[str]]] = {}

    def parameters_of(self, schema: Any) -> list[dict[str, Any]]:
        """Rows of parameters from an object schema's properties, those of its alternatives among them.

        Properties of alternatives are not marked as required, read-only ones are left out: nobody sends them.
        """
        flat = self.flat(schema)
        properties = dict(flat.properties)
        for alternative in flat.alternatives:
            properties |= {k: v for k, v in self.flat(alternative).properties.items() if k not in properties}
        return [
            {
                "name": name,
                "type": self.type_of(value),
                "description": self._description(name, value),
                "required": name in flat.required,
            }
            for name, value in properties.items()
            if not self.flat(value).read_only
        ]

    def type_of(self, schema: Any) -> str:
        """A type in a few words: ``string``, ``array of integer``, ``string or null``; empty where none is said."""
        return self._text(schema, levels=0)

    def description_of(self, schema: Any) -> str:
        """The description of a schema, or its title."""
        flat = self.flat(schema)
        return flat.description or flat.title

    def shape_of(self, schema: Any) -> str:
        """What a value looks like: ``{city: string, days: array of {date: string, rain: number}}``.

        Where two levels of properties don't fit in :data:`LONGEST` characters, there is one, of as many as fit.
        """
        text = self._text(schema, LEVELS)
        return self._text(schema, 1) if CUT in text else text

    def resolved(self, value: Any) -> dict[Any, Any] | None:
        """An object, or the one that its ``$ref`` leads to, with what stands beside the reference laid over it.

        None where it is none, or its reference can't be followed.
        """
        merged: dict[Any, Any] = {}
        chain = self._chain(value)
        for part in chain:
            merged = {**part, **merged}
        followed = chain and not isinstance(chain[-1].get("$ref"), str)
        merged.pop("$ref", None)
        return merged if followed else None

    def tell(self, where: str, findings: Findings) -> None:
        """Tell of the references that were not followed since the last call.

        One that leads nowhere inside the document is a fault. One to another document is remarked on: none is fetched.
        """
        for ref in sorted(self.unresolved):
            if _is_pointer(ref):
                findings.fault("$ref that leads nowhere", where, f"the document has no {ref!r}")
            else:
                findings.remark("$ref out of the document", where, f"{ref!r} is not followed")
        self.unresolved.clear()

    def flat(self, schema: Any) -> Flat:
        """The schema with all that it refers to and is composed of."""
        if id(schema) not in self._flat:
            before, self.unresolved = self.unresolved, set()
            self._flat[id(schema)] = (schema, self._flattened(schema), self.unresolved)
            self.unresolved = before
        _, flat, unresolved = self._flat[id(schema)]
        self.unresolved |= unresolved
        return flat

    def _flattened(self, schema: Any) -> Flat:
        waiting = self._chain(schema)[::-1]
        flat = Flat(name=_name(schema), core=id(waiting[0]) if waiting else 0)
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if id(part) not in seen:
                seen.add(id(part))
                flat.add(part)
                waiting += [link for one in list_of(part.get("allOf")) for link in self._chain(one)][::-1]
        return flat

    def _chain(self, value: Any) -> list[dict[Any, Any]]:
        """The object, and those that ``$ref`` leads to, one after another, each once."""
        chain: list[dict[Any, Any]] = []
        while isinstance(value, dict) and not any(value is one for one in chain):
            chain.append(value)
            ref = value.get("$ref")
            value = self._target(ref) if isinstance(ref, str) else None
        return chain

    def _target(self, ref: str) -> Any:
        """What a JSON pointer leads to; None, and a note of it, where there is none or it is no pointer."""
        value = self.document if _is_pointer(ref) else None
        for token in unquote(ref).split("/")[1:]:
            value = child_of(value, token)
        if value is None:
            self.unresolved.add(ref)
        return value

    def _description(self, name: str, schema: Any) -> str:
        """The description; a title that only repeats the name, as generated schemas have it, is none."""
        text = self.description_of(schema)
        return "" if text and _letters(text) == _letters(name) else text

    def _text(self, schema: Any, levels: int, path: tuple[int, ...] = ()) -> str:
        """A schema in words; ``levels`` of properties are shown, ``path`` holds the schemas that this one is in."""
        flat = self.flat(schema)
        if flat.is_leaf and flat.kinds != ["object"]:
            return " or ".join(flat.kinds)
        if flat.core in path or len(path) == DEEPEST or levels < -ALTERNATIVES:
            return flat.name or " or ".join(flat.kinds)
        path = (*path, flat.core)
        inner = [one for one in flat.alternatives if self.flat(one).kinds != ["null"]]
        if inner and not flat.properties and set(flat.kinds) <= {"object", "null"}:
            words = self._alternatives(inner, levels, path)
        else:
            words = [self._kind(kind, flat, levels, path) for kind in flat.kinds if kind != "null"]
        if "null" in flat.kinds or flat.nullable or len(inner) < len(flat.alternatives):
            words.append("null")
        return " or ".join(dict.fromkeys(filter(None, words)))

    def _alternatives(self, schemas: list[Any], levels: int, path: tuple[int, ...]) -> list[str]:
        if len(schemas) == 1:
            return [self._text(schemas[0], levels, path)]
        words = [self._text(one, min(levels, 0) - 1, path) for one in schemas[:ALTERNATIVES]]
        return words + [CUT] * (len(schemas) > ALTERNATIVES)

    def _kind(self, kind: str, flat: Flat, levels: int, path: tuple[int, ...]) -> str:
        if kind == "array":
            items = self._text(flat.items, levels, path)
            return f"array of {items}" if items else kind
        if kind != "object":
            return kind
        if not flat.properties:
            values = self._text(flat.values, min(levels, 0) - 1, path)
            return f"map of {values}" if values else flat.name or kind
        return self._object(flat, levels, path) if levels > 0 else flat.name or kind

    def _object(self, flat: Flat, levels: int, path: tuple[int, ...]) -> str:
        parts: list[str] = []
        length = 0
        for name, value in flat.properties.items():
            text = self._text(value, levels - 1, path)
            part = f"{name}: {text}" if text else name
            length += len(part) + len(", ")
            if length > LONGEST:
                parts.append(CUT)
                break
            parts.append(part)
        return "{" + ", ".join(parts) + "}"


def parameters_of(schema: Any) -> list[dict[str, Any]]:
    """Rows of parameters from an object schema that is a document of its own. Anything else has none."""
    return Schemas(schema).parameters_of(schema)


def description_of(schema: Any) -> str:
    """The description of a schema that is a document of its own, or its title."""
    return Schemas(schema).description_of(schema)


def type_of(schema: Any) -> str:
    """The type of a schema that is a document of its own; as :meth:`Schemas.type_of`."""
    return Schemas(schema).type_of(schema)


def _kinds(part: Mapping[Any, Any]) -> list[str]:
    """The types that a part of a schema says or implies."""
    kind = part.get("type")
    if isinstance(kind, str) and kind:
        return [kind]
    if kinds := [one for one in list_of(kind) if isinstance(one, str)]:
        return sorted(dict.fromkeys(kinds), key="null".__eq__)
    for key, implied in (("properties", "object"), ("items", "array")):
        if isinstance(part.get(key), Mapping):
            return [implied]
    values = [part["const"]] if "const" in part else list_of(part.get("enum"))
    return list(dict.fromkeys(KINDS[type(value)] for value in values if type(value) in KINDS))


def _name(schema: Any) -> str:
    """What the schema refers to, by itself or through an ``allOf`` of one, by the last part of the reference."""
    if isinstance(schema, Mapping) and len(list_of(schema.get("allOf"))) == 1:
        return _name_of_ref(schema) or _name_of_ref(schema["allOf"][0])
    return _name_of_ref(schema)


def _name_of_ref(schema: Any) -> str:
    ref = schema.get("$ref") if isinstance(schema, Mapping) else None
    return unescaped(unquote(ref).rpartition("/")[2]) if isinstance(ref, str) else ""


def _is_pointer(ref: str) -> bool:
    return ref == "#" or ref.startswith("#/")


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
