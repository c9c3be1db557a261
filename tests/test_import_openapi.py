"""OpenAPI documents: operations as tools, references inside the document, what is wrong by its JSON pointer."""

import copy
import json
import time

import pytest
import yaml

from cohyde.catalog import Parameter, Tool, render
from cohyde.data.dataset import read_dataset
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

TEXT = {"type": "string"}
DOCUMENT = {
    "openapi": "3.0.3",
    "info": {
        "title": "Orchard Billing",
        "version": "1.2.0",
        "description": "# About\n\nInvoices of the *orchard*,\nand what is paid.\n\nAsk for a key first.",
    },
    "servers": [{"url": "https://billing.example/v1"}],
    "x-team": {"get": {}},
    "paths": {
        "x-notes": {"get": {"operationId": "none"}},
        "/invoices/{number}": {
            "description": "One invoice.",
            "servers": [],
            "parameters": [
                {"name": "number", "in": "path", "required": True, "description": "As printed", "schema": TEXT},
                {"name": "lang", "in": "query", "description": "Of the path", "schema": TEXT},
            ],
            "get": {
                "operationId": "getInvoice",
                "summary": "Get an invoice",
                "description": "The invoice with its lines.",
                "tags": ["invoices"],
                "parameters": [
                    {"name": "lang", "in": "query", "required": True, "schema": {"type": "integer"}},
                    {"name": "lang", "in": "cookie", "schema": TEXT},
                    {"$ref": "#/components/parameters/Fields"},
                    {"name": "Authorization", "in": "header", "schema": TEXT},
                    {"name": "If-None-Match", "in": "header", "schema": TEXT},
                ],
                "responses": {
                    "default": {"description": "Wrong", "content": {"application/json": {"schema": TEXT}}},
                    "200": {"$ref": "#/components/responses/Invoice"},
                },
            },
            "delete": {"responses": {"204": {"description": "Gone"}}},
        },
        "/invoices": {
            "post": {
                "operationId": "createInvoice",
                "summary": "Write an invoice",
                "requestBody": {"$ref": "#/components/requestBodies/Invoice"},
                "responses": {"201": {"description": "Made", "content": {"application/json": {"schema": TEXT}}}},
                "callbacks": {"paid": {"{$request.body#/url}": {"post": {"operationId": "paid"}}}},
            }
        },
    },
    "webhooks": {"paid": {"post": {"operationId": "onPaid"}}},
    "components": {
        "parameters": {
            "Fields": {
                "name": "fields",
                "in": "query",
                "content": {"application/json": {"schema": {"type": "array", "items": TEXT, "title": "Which fields"}}},
            }
        },
        "requestBodies": {
            "Invoice": {
                "content": {
                    "multipart/form-data": {"schema": {"type": "object", "properties": {"pdf": TEXT}}},
                    "application/json; charset=utf-8": {"schema": {"$ref": "#/components/schemas/Invoice"}},
                }
            }
        },
        "responses": {
            "Invoice": {
                "description": "Found",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Invoice"}}},
            }
        },
        "schemas": {
            "Invoice": {
                "allOf": [
                    {"$ref": "#/components/schemas/Entity"},
                    {
                        "type": "object",
                        "required": ["lines"],
                        "properties": {
                            "lines": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}},
                            "corrects": {"$ref": "#/components/schemas/Invoice"},
                        },
                    },
                ]
            },
            "Entity": {
                "type": "object",
                "required": ["id"],
                "properties": {
                    "id": {"type": "string", "readOnly": True},
                    "note": {"type": "string", "nullable": True},
                },
            },
            "Line": {
                "type": "object",
                "properties": {
                    "text": TEXT,
                    "amount": {"type": "number"},
                    "of": {"$ref": "#/components/schemas/Invoice"},
                },
            },
        },
    },
}
INVOICE = (
    "{id: string, note: string or null, lines: array of {text: string, amount: number, of: Invoice}, corrects: Invoice}"
)
TOOLS = (
    Tool(
        id="orchard-billing/getInvoice",
        category="Orchard Billing",
        title="Get an invoice",
        description="Invoices of the *orchard*,\nand what is paid.",
        api_name="getInvoice",
        api_description="The invoice with its lines.",
        parameters=(
            Parameter(name="number", type="string", description="As printed", required=True),
            Parameter(name="lang", type="integer", required=True),
            Parameter(name="lang", type="string"),
            Parameter(name="fields", type="array of string", description="Which fields"),
            Parameter(name="If-None-Match", type="string"),
        ),
        schema=INVOICE,
    ),
    Tool(
        id="orchard-billing/DELETE /invoices/{number}",
        category="Orchard Billing",
        title="DELETE /invoices/{number}",
        description="Invoices of the *orchard*,\nand what is paid.",
        api_name="DELETE /invoices/{number}",
        api_description="One invoice.",
        parameters=(
            Parameter(name="number", type="string", description="As printed", required=True),
            Parameter(name="lang", type="string", description="Of the path"),
        ),
    ),
    Tool(
        id="orchard-billing/createInvoice",
        category="Orchard Billing",
        title="Write an invoice",
        description="Invoices of the *orchard*,\nand what is paid.",
        api_name="createInvoice",
        parameters=(
            Parameter(name="note", type="string or null"),
            Parameter(name="lines", type="array of Line", required=True),
            Parameter(name="corrects", type="Invoice"),
        ),
        schema="string",
    ),
)


def a_document(paths, **more):
    return {"openapi": "3.1.0", "info": {"title": "Api", "version": "1"}, "paths": paths} | more


def answer(schema):
    return {"200": {"description": "", "content": {"application/json": {"schema": schema}}}}


@pytest.fixture
def file(tmp_path):
    """Write a document as JSON, or as YAML where its name says so, or a text."""

    def writer(content, name="api.json"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        as_text = json.dumps if name.endswith(".json") else lambda value: yaml.safe_dump(value, sort_keys=False)
        path.write_text(content if isinstance(content, str) else as_text(content), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def imported(tmp_path):
    """Import sources, read back what was written; its tools and the findings."""

    def importer(*sources, drop_invalid=False):
        out = tmp_path / "out"
        written, findings = import_dataset("openapi", sources, out, drop_invalid=drop_invalid, overwrite=True)
        assert read_dataset(out)[0] == written
        return written.tools, findings

    return importer


# --------------------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("name", ["api.json", "api.yaml", "api.yml"])
def test_each_operation_is_a_tool_in_json_as_in_yaml(file, imported, name):
    tools, findings = imported(file(copy.deepcopy(DOCUMENT), name))
    assert tools == TOOLS
    assert not findings.counts
    assert not findings.remarks.counts


def test_two_imports_are_equal_byte_for_byte(file, tmp_path):
    source = file(DOCUMENT)
    written = []
    for out in (tmp_path / "one" / "out", tmp_path / "two" / "out"):
        import_dataset("openapi", [source], out)
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1]


def test_the_renderings_say_what_each_is_for():
    assert [render(TOOLS[0], form) for form in (1, 2, 3, 4)] == [
        "Get an invoice",
        "Get an invoice getInvoice",
        "Get an invoice getInvoice. Invoices of the *orchard*, and what is paid",
        "Get an invoice getInvoice. The invoice with its lines",
    ]
    assert render(TOOLS[0], 5).startswith("Orchard Billing. Get an invoice getInvoice. The invoice with its lines. ")


def test_a_path_may_be_referred_to_and_have_any_method(file, imported):
    item = {method: {"summary": method} for method in ("get", "put", "query", "summary", "x-get")}
    item |= {"additionalOperations": {"COPY": {"operationId": "copy"}}}
    document = a_document({"/a": {"$ref": "#/components/pathItems/A"}, "/b": {}, "/c": None})
    tools, findings = imported(file(document | {"components": {"pathItems": {"A": item}}}))
    assert [tool.id for tool in tools] == ["api/GET /a", "api/PUT /a", "api/QUERY /a", "api/copy"]
    assert not findings.counts


def test_a_deprecated_operation_is_kept_and_remarked_on(file, imported):
    path = file(a_document({"/a": {"get": {"deprecated": True, "description": "Old."}}}))
    tools, findings = imported(path)
    assert len(tools) == 1
    assert findings.remarks.lines() == [f"{path}#/paths/~1a/get: 'api/GET /a' (deprecated operation; 1 in all)"]


# ------------------------------------------------------------------------------------------------ what is sent


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"application/json": {"schema": TEXT}}, [("body", "string", "The text", True)]),
        ({"application/octet-stream": {}}, [("body", "", "The text", True)]),
        (
            {"application/json": {"schema": {"type": "array", "items": TEXT}}},
            [("body", "array of string", "The text", True)],
        ),
        (
            {
                "text/csv": {"schema": TEXT},
                "application/x-www-form-urlencoded": {"schema": {"properties": {"a": TEXT}, "required": ["a"]}},
            },
            [("a", "string", "", True)],
        ),
        (
            {
                "multipart/form-data": {"schema": {"properties": {"a": TEXT}}},
                "application/merge-patch+json": {"schema": {"properties": {"b": TEXT}}},
            },
            [("b", "string", "", False)],
        ),
        ({"application/json": {"schema": {"properties": {"id": TEXT, "c": TEXT}}}}, [("c", "string", "", False)]),
        ({}, [("body", "", "The text", True)]),
    ],
)
def test_a_body_gives_its_properties_or_is_one_parameter(file, imported, content, expected):
    operation = {
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": TEXT}],
        "requestBody": {"description": "The text", "required": True, "content": content},
    }
    tools, _ = imported(file(a_document({"/a/{id}": {"post": operation}})))
    rows = [(one.name, one.type, one.description, one.required) for one in tools[0].parameters]
    assert rows == [("id", "string", "", True), *expected]


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ({"404": answer({"type": "null"})["200"], "201": answer(TEXT)["200"]}, "string"),
        ({"204": {"description": ""}, "206": answer(TEXT)["200"]}, "string"),
        ({"2XX": answer(TEXT)["200"], "default": answer({"type": "null"})["200"]}, "string"),
        ({"default": answer(TEXT)["200"]}, "string"),
        ({"default": answer(TEXT)["200"], "404": {}}, ""),
        ({200: answer(TEXT)["200"]}, "string"),
        (
            {"200": {"content": {"text/html": {"schema": {"type": "null"}}, "application/json": {"schema": TEXT}}}},
            "string",
        ),
        (answer({"oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}]}), "Cat or Dog"),
        ([], ""),
        (None, ""),
    ],
)
def test_the_schema_is_that_of_success(file, imported, responses, expected):
    animals = {name: {"type": "object", "properties": {"name": TEXT}} for name in ("Cat", "Dog")}
    document = a_document({"/a": {"get": {"responses": responses}}}, components={"schemas": animals})
    for name in ("api.json", "api.yaml"):
        assert imported(file(document, name))[0][0].schema == expected


def test_yaml_is_read_as_openapi_means_it(file, imported):
    text = """
        openapi: 3.1.0
        info: {title: 2026-01-31, version: 1.0}
        paths:
          /a:
            get:
              summary: no
              parameters:
              - &page {name: on, in: query, description: 12:30, schema: {type: integer}}
              - <<: *page
                name: 7
              responses:
                200: {content: {application/json: {schema: {properties: {y: {type: boolean}, null: {}}}}}}
    """
    (tool,), _ = imported(file(text, "api.yaml"))
    assert (tool.category, tool.title, tool.schema) == ("2026-01-31", "no", "{y: boolean, null}")
    assert [(one.name, one.type, one.description) for one in tool.parameters] == [
        ("on", "integer", "12:30"),
        ("7", "integer", "12:30"),
    ]


# ---------------------------------------------------------------------------------------------------------- ids


def test_a_document_without_a_title_is_called_by_its_file(file, imported):
    document = a_document({"/a": {"get": {}}}) | {"info": {}}
    (tool,), _ = imported(file(document, "my_shop.v2.json"))
    assert (tool.id, tool.category) == ("my-shop-v2/GET /a", "my_shop.v2")


def test_two_versions_of_an_api_are_told_apart_and_one_given_twice_is_not(file, imported):
    document = a_document({"/a": {"get": {}}})
    file(document, "a.json")
    newer = file(document | {"info": {"title": "API", "version": "2.0"}}, "b.json")
    assert [tool.id for tool in imported(newer.parent)[0]] == ["api/GET /a", "api-2-0/GET /a"]
    file(document, "c.yaml")
    tools, findings = imported(newer.parent, drop_invalid=True)
    assert [tool.id for tool in tools] == ["api/GET /a", "api-2-0/GET /a"]
    assert findings.counts == {"repeated tool": 1}


def test_an_operation_id_that_occurs_twice_is_a_fault_by_both_places(file, imported):
    path = file(a_document({"/a": {"get": {"operationId": "x", "summary": "A"}}, "/b": {"get": {"operationId": "x"}}}))
    with pytest.raises(UserError) as error:
        imported(path)
    assert f"{path}#/paths/~1b/get: 'api/x' is also at {path}#/paths/~1a/get" in str(error.value)
    assert imported(path, drop_invalid=True)[1].counts == {"duplicate tool id": 1}


# --------------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    "operation",
    [
        {"parameters": [{"$ref": "#/components/None"}]},
        {"parameters": [{"name": "a", "schema": {"items": {"$ref": "#/components/None"}, "type": "array"}}]},
        {"requestBody": {"$ref": "#/components/None"}},
        {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/None"}}}}},
        {"responses": {"200": {"$ref": "#/components/None"}}},
        {"responses": answer({"properties": {"a": {"allOf": [{"$ref": "#/components/None"}]}}})},
    ],
)
def test_a_reference_that_leads_nowhere_is_a_fault_of_its_operation(file, imported, operation):
    path = file(a_document({"/a~b": {"get": operation, "put": {}}}))
    with pytest.raises(UserError) as error:
        imported(path)
    what = "the document has no '#/components/None' ($ref that leads nowhere; 1 in all)"
    assert f"{path}#/paths/~1a~0b/get: {what}" in str(error.value)
    tools, findings = imported(path, drop_invalid=True)
    assert [tool.id for tool in tools] == ["api/PUT /a~b"]
    assert findings.counts == {"$ref that leads nowhere": 1}


def test_a_path_that_is_referred_to_in_vain_is_a_fault(file, imported):
    path = file(a_document({"/a": {"$ref": "#/components/pathItems/A"}, "/b": {"get": {}}}))
    with pytest.raises(UserError, match=r"api\.json#/paths/~1a: the document has no '#/components/pathItems/A'"):
        imported(path)


def test_references_to_other_documents_are_counted_and_never_fetched(file, imported):
    outside = {"$ref": "https://schemas.example/pet.json#/Pet"}
    operation = {
        "parameters": [{"$ref": "parameters.yaml#/Page"}, {"name": "a", "in": "query", "schema": outside}],
        "requestBody": {"$ref": "bodies.yaml"},
        "responses": answer({"properties": {"pet": outside, "n": TEXT}}),
    }
    path = file(a_document({"/a": {"get": operation}, "/b": {"$ref": "paths.yaml#/b"}}))
    (tool,), findings = imported(path)
    assert [one.name for one in tool.parameters] == ["a"]
    assert tool.schema == "{pet, n: string}"
    assert not findings.counts
    assert findings.remarks.counts["$ref out of the document"] == 4
    assert f"{path}#/paths/~1a/get: 'bodies.yaml' is not followed" in findings.remarks.lines()[0]


def test_circles_of_every_kind_are_cut(file, imported):
    schemas = {
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}},
        "Self": {"$ref": "#/components/schemas/Self"},
        "List": {"type": "array", "items": {"$ref": "#/components/schemas/List"}},
        "All": {"allOf": [{"$ref": "#/components/schemas/All"}], "properties": {"a": TEXT}},
    }
    paths = {
        f"/{name}": {
            "post": {
                "requestBody": {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}},
                "responses": answer({"$ref": f"#/components/schemas/{name}"}),
            }
        }
        for name in schemas
    }
    tools, findings = imported(file(a_document(paths, components={"schemas": schemas})))
    assert [tool.schema for tool in tools] == ["{next: Node}", "", "array of List", "{a: string}"]
    assert [[one.name for one in tool.parameters] for tool in tools] == [["next"], ["body"], ["body"], ["a"]]
    assert not findings.counts


def test_yaml_that_refers_to_itself_by_anchors_ends(file, imported):
    text = """
        openapi: 3.0.0
        info: {title: Loop, version: "1"}
        paths:
          /a:
            get: &get
              parameters: [{name: a, in: query, schema: &loop {type: array, items: *loop, description: *loop}}]
              responses: {200: {content: {application/json: {schema: *loop}}}}
              x-self: *get
    """
    (tool,), _ = imported(file(text, "loop.yaml"))
    assert (tool.parameters[0].type, tool.schema) == ("array of array", "array of array")


# ----------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"/a": []}, None),
        ({"/a": "x"}, "#/paths/~1a: expected an object of operations (malformed path; 1 in all)"),
        ({"/a": {"get": []}}, "#/paths/~1a/get: expected an object (malformed operation; 1 in all)"),
        ({"/a": {"get": {"parameters": {}}}}, None),
        ({"/a": {"get": {"parameters": "x"}}}, "#/paths/~1a/get/parameters: expected a list, got str"),
        ({"/a": {"get": {"parameters": [3]}}}, "#/paths/~1a/get/parameters/0: expected an object, got int"),
        ({"/a": {"parameters": [3], "get": {}}}, "#/paths/~1a/parameters/0: expected an object, got int"),
        (
            {"/a": {"get": {"parameters": [{"in": "query"}]}}},
            "#/paths/~1a/get/parameters/0: a parameter needs a 'name'",
        ),
        ({"/a": {"get": {"operationId": "a\0b"}}}, "#/paths/~1a/get: field 'id' holds a NUL character at position 6"),
        ({"/a": {"get": {"operationId": {"a": 1}, "summary": [], "responses": 3, "requestBody": "x"}}}, None),
    ],
)
def test_what_is_malformed_is_a_fault_by_its_pointer(file, imported, paths, message):
    path = file(a_document({**paths, "/z": {"get": {}}}))
    if message is None:
        assert imported(path)[0][-1].id == "api/GET /z"
        return
    with pytest.raises(UserError) as error:
        imported(path)
    assert f"{path}{message}" in str(error.value)
    assert [tool.id for tool in imported(path, drop_invalid=True)[0]] == ["api/GET /z"]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ({"swagger": "2.0", "paths": {}}, "api.json", "api.json: a Swagger 2.0 document"),
        ("swagger: 2.0\n", "api.yaml", "npx swagger2openapi --outfile openapi.json FILE"),
        ({"openapi": "4.0.0"}, "api.json", "not an OpenAPI 3 document: 'openapi' is '4.0.0'"),
        ({"info": {}}, "api.json", "not an OpenAPI 3 document: it has no field 'openapi'"),
        ([], "api.json", "not an OpenAPI 3 document"),
        ("just a text", "api.yaml", "not an OpenAPI 3 document"),
        ("a: [1", "api.yaml", "api.yaml: not YAML"),
        ("{", "api.json", "the file ends in the middle"),
        ("", "api.yaml", "api.yaml: the file is empty"),
        ("", "api.json", "api.json: the file is empty"),
        (a_document({}), "api.json", "the catalogue is empty"),
        (a_document(None), "api.json", "the catalogue is empty"),
    ],
)
def test_another_file_is_refused_and_nothing_is_written(file, imported, tmp_path, content, name, message):
    with pytest.raises(UserError) as error:
        imported(file(content, name))
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_documents_is_refused(file, imported):
    with pytest.raises(UserError, match=r"no \*\.json or \*\.yaml or \*\.yml there"):
        imported(file("x", "notes.txt").parent)


# --------------------------------------------------------------------------------------------------------- scale


def test_two_thousand_operations_take_a_moment(file, imported):
    def schema(i):
        fields = {f"field_{j}": {"type": "string", "description": "What it is"} for j in range(20)}
        return {"type": "object", "properties": fields | {"next": {"$ref": f"#/components/schemas/S{(i * 7) % 500}"}}}

    def operation(i, method):
        ref = {"$ref": f"#/components/schemas/S{i}"}
        body = {"requestBody": {"content": {"application/json": {"schema": ref}}}} if method == "post" else {}
        return {"operationId": f"{method}{i}", "description": f"{method} {i}", "responses": answer(ref)} | body

    methods = ("get", "put", "post", "delete")
    paths = {f"/things/{i}": {method: operation(i, method) for method in methods} for i in range(500)}
    document = a_document(paths, components={"schemas": {f"S{i}": schema(i) for i in range(500)}})
    path = file(document)
    start = time.process_time()
    tools, _ = imported(path)
    assert len(tools) == 500 * 4
    assert time.process_time() - start < 4
