"""OpenAPI 3 documents, JSON or YAML: each operation is a tool, its API the category.

``$ref`` is resolved inside a document; nothing is fetched. Webhooks, callbacks, servers and extensions are passed over.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.data.importers.documents import first_paragraph, key_text, mapping_of, plain_text, pointer
from cohyde.data.importers.format import Format, Options
from cohyde.data.importers.json_schema import Schemas
from cohyde.data.reading import Reading, objects
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Findings, Row
from cohyde.errors import UserError

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
IMPLIED_HEADERS = ("accept", "content-type", "authorization")
"""Header parameters that the specification says to pass over: others parts of a document describe them."""
MEDIA_TYPES = (r"application/json", r".*\+json", r"application/x-www-form-urlencoded|multipart/form-data")
"""Of several contents the one whose type matches first is read; else the first."""
WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class Api:
    """What a document says of itself. ``slug`` begins the ids of its tools."""

    slug: str
    title: str
    description: str


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method on one path, and what the path says for all of its methods."""

    where: str
    path_where: str
    name: str
    own: Mapping[Any, Any]
    shared: Mapping[Any, Any]


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """A catalogue without queries: an API is a category, its operations are titled by their summaries."""
    return DatasetRows(tools=_tools(sources, reading))


def _tools(sources: Sources, reading: Reading) -> Iterator[Row]:
    versions: dict[str, str] = {}
    findings = reading.findings
    for path in sources.files(".json", ".yaml", ".yml"):
        document = _document(path, reading)
        api = _api(document, path, versions)
        schemas = Schemas(document)
        for operation in _operations(f"{path}#", document, schemas, findings):
            faults = findings.counts.total()
            fields = _fields(operation, api, schemas, findings)
            schemas.tell(operation.where, findings)
            if operation.own.get("deprecated") is True:
                findings.remark("deprecated operation", operation.where, repr(fields["id"]))
            if findings.counts.total() == faults:
                yield Row(operation.where, fields)


def _document(path: Path, reading: Reading) -> Mapping[Any, Any]:
    """The document of a file.

    Raises:
        UserError: it is none of OpenAPI 3.
    """
    document = mapping_of(reading.json(path) if path.suffix == ".json" else reading.yaml(path))
    version = plain_text(document.get("openapi"))
    if "swagger" in document:
        raise UserError(
            f"{path}: a Swagger {plain_text(document['swagger'])} document; read are OpenAPI 3 documents",
            "convert it, for example with: npx swagger2openapi --outfile openapi.json FILE",
        )
    if not version.startswith("3."):
        found = f"'openapi' is {version!r}" if version else "it has no field 'openapi'"
        raise UserError(f"{path}: not an OpenAPI 3 document: {found}", "expected one with 'openapi: 3.…' and 'paths'")
    return document


def _api(document: Mapping[Any, Any], path: Path, versions: dict[str, str]) -> Api:
    """What a document says of its API; of two versions of one, the later to be read has its version in the slug."""
    info = mapping_of(document.get("info"))
    title, version = plain_text(info.get("title")) or path.stem, plain_text(info.get("version"))
    slug = _slug(title) or _slug(path.stem) or path.stem
    if versions.setdefault(slug, version) != version:
        slug = f"{slug}-{_slug(version)}"
    description = first_paragraph(plain_text(info.get("description"))) or plain_text(info.get("summary"))
    return Api(slug=slug, title=title, description=description)


def _slug(text: str) -> str:
    return "-".join(WORD.findall(text.casefold()))


def _operations(where: str, document: Mapping[Any, Any], schemas: Schemas, findings: Findings) -> Iterator[Operation]:
    for route, item in mapping_of(document.get("paths")).items():
        if not key_text(route).startswith("/"):
            continue
        path_where = where + pointer("paths", route)
        shared = schemas.resolved(item or {})
        schemas.tell(path_where, findings)
        if shared is None:
            if not isinstance(item, Mapping):
                findings.fault("malformed path", path_where, "expected an object of operations")
            continue
        more = mapping_of(shared.get("additionalOperations"))
        methods = {f"/{key}": (key, shared[key]) for key in shared if key in METHODS}
        methods |= {pointer("additionalOperations", key): (key_text(key), value) for key, value in more.items()}
        for at, (method, own) in methods.items():
            if isinstance(own, Mapping):
                name = f"{method.upper()} {route}"
                yield Operation(where=path_where + at, path_where=path_where, name=name, own=own, shared=shared)
            else:
                findings.fault("malformed operation", path_where + at, "expected an object")


def _fields(operation: Operation, api: Api, schemas: Schemas, findings: Findings) -> dict[str, Any]:
    own, shared = operation.own, operation.shared
    name = plain_text(own.get("operationId")) or operation.name
    parameters = _parameters(operation, schemas, findings)
    names = {row["name"] for row in parameters}
    return {
        "id": f"{api.slug}/{name}",
        "category": api.title,
        "title": plain_text(own.get("summary")) or name,
        "description": api.description,
        "api_name": name,
        "api_description": plain_text(own.get("description")) or plain_text(shared.get("description")),
        "parameters": [*parameters, *(row for row in _body(own, schemas) if row["name"] not in names)],
        "schema": _returned(own, schemas),
    }


def _parameters(operation: Operation, schemas: Schemas, findings: Findings) -> list[dict[str, Any]]:
    """Rows of the path's and the operation's parameters; of two with one name and place, the operation's."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for holder, where in ((operation.shared, operation.path_where), (operation.own, operation.where)):
        for place, value in objects(holder.get("parameters") or [], f"{where}/parameters", findings):
            parameter = schemas.resolved(value)
            if parameter is None:
                continue
            name, location = plain_text(parameter.get("name")), plain_text(parameter.get("in"))
            if not name:
                findings.fault("malformed parameter", place, "a parameter needs a 'name'")
            elif location != "header" or name.lower() not in IMPLIED_HEADERS:
                found[name, location] = _parameter(name, parameter, schemas)
    return list(found.values())


def _parameter(name: str, parameter: Mapping[Any, Any], schemas: Schemas) -> dict[str, Any]:
    schema = parameter.get("schema", _content(parameter, schemas).get("schema"))
    return {
        "name": name,
        "type": schemas.type_of(schema),
        "description": plain_text(parameter.get("description")) or schemas.description_of(schema),
        "required": parameter.get("required") is True,
    }


def _body(operation: Mapping[Any, Any], schemas: Schemas) -> list[dict[str, Any]]:
    """Rows of what is sent: the properties of an object, or one row for a body of any other kind."""
    body = schemas.resolved(operation.get("requestBody"))
    if not body:
        return []
    rows = schemas.parameters_of(_content(body, schemas).get("schema"))
    return rows or [_parameter("body", body, schemas)]


def _returned(operation: Mapping[Any, Any], schemas: Schemas) -> str:
    """The shape of what comes back on success, of the first such response that has one."""
    responses = {key_text(code).upper(): value for code, value in mapping_of(operation.get("responses")).items()}
    successes = sorted(code for code in responses if code.startswith("2"))
    if list(responses) == ["DEFAULT"]:
        successes = ["DEFAULT"]
    contents = (_content(schemas.resolved(responses[code]) or {}, schemas) for code in successes)
    return next((shape for content in contents if (shape := schemas.shape_of(content.get("schema")))), "")


def _content(holder: Mapping[Any, Any], schemas: Schemas) -> Mapping[Any, Any]:
    """The content of a body, a response or a parameter that is read, in the order of :data:`MEDIA_TYPES`."""
    contents = mapping_of(holder.get("content"))
    media_type = min(contents, key=_rank, default=None)
    return schemas.resolved(contents.get(media_type)) or {}


def _rank(media_type: Any) -> int:
    plain = key_text(media_type).partition(";")[0].strip().lower()
    return next((rank for rank, one in enumerate(MEDIA_TYPES) if re.fullmatch(one, plain)), len(MEDIA_TYPES))


FORMAT = Format(name="openapi", title="OpenAPI 3 documents, JSON or YAML", published="*.json, *.yaml, *.yml", read=read)
