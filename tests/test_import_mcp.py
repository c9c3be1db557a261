"""MCP ``tools/list`` results in every way in which they are saved; what is missing or wrong is named by its pointer."""

import json
from pathlib import Path

import pytest

from cohyde.catalog import Parameter, Tool, render
from cohyde.data.dataset import read_dataset
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

RAIN = {
    "name": "rain_today",
    "title": "Rain today",
    "description": "How much rain is to come.",
    "inputSchema": {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "Town"}, "hours": {"type": "integer"}},
        "required": ["place"],
    },
    "outputSchema": {"type": "object", "properties": {"mm": {"type": "number"}}},
    "annotations": {"readOnlyHint": True},
}
SEARCH = {"name": "search", "description": "Search it.", "inputSchema": {"type": "object"}}
RAIN_TOOL = Tool(
    id="tools/rain_today",
    category="tools",
    title="Rain today",
    api_name="rain_today",
    api_description="How much rain is to come.",
    parameters=(
        Parameter(name="place", type="string", description="Town", required=True),
        Parameter(name="hours", type="integer"),
    ),
    schema="{mm: number}",
)


def response(result, identity=1):
    return {"jsonrpc": "2.0", "id": identity, "result": result}


def lines(*messages):
    return "".join(json.dumps(message) + "\n" for message in messages)


@pytest.fixture
def file(tmp_path):
    """Write a document, or a text, under a name."""

    def writer(content, name="tools.json"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def imported(tmp_path):
    """Import sources, read back what was written; its tools and the findings."""

    def importer(*sources, drop_invalid=False):
        out = tmp_path / "out"
        written, findings = import_dataset("mcp", sources, out, drop_invalid=drop_invalid, overwrite=True)
        assert read_dataset(out)[0] == written
        assert not (written.train or written.dev or written.eval or written.vague)
        return written.tools, findings

    return importer


def ids(tools):
    return [tool.id for tool in tools]


# ------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    "document",
    [
        {"tools": [RAIN]},
        {"tools": [RAIN], "nextCursor": None, "ttlMs": 5, "resultType": "complete"},
        response({"tools": [RAIN]}),
        {"result": {"tools": [RAIN]}},
        [{"tools": [RAIN]}],
        [response({"tools": []}), response({"tools": [RAIN]})],
        [RAIN],
        RAIN,
        {"tools": {"tools": [RAIN]}},
        {"tools": response({"tools": [RAIN]})},
        {"tools": {"tools": [{key.replace("S", "_s"): value for key, value in RAIN.items()}]}},
        {"mcpServers": {"tools": {"command": "rain-server", "tools": [RAIN]}}},
    ],
)
def test_every_way_of_saving_one_tool_gives_the_same_tool(file, imported, document):
    tools, findings = imported(file(document))
    assert tools == (RAIN_TOOL,)
    assert not findings.counts
    assert not findings.remarks.counts


def test_the_renderings_say_what_each_is_for(file, imported):
    info = {"name": "wx", "title": "Weather station", "version": "1", "description": "Readings of one garden."}
    (tool,), _ = imported(file({"serverInfo": info, "tools": [RAIN]}))
    assert [render(tool, form) for form in (1, 2, 3, 4, 5)] == [
        "Rain today",
        "Rain today rain_today",
        "Rain today rain_today. Readings of one garden",
        "Rain today rain_today. How much rain is to come",
        "Weather station. Rain today rain_today. How much rain is to come. Readings of one garden. "
        "Parameters: place (Town), hours. Returns: {mm: number}",
    ]


def test_pages_follow_each_other(file, imported):
    pages = [response({"tools": [RAIN], "nextCursor": "2"}), response({"tools": [SEARCH]}, 2)]
    tools, findings = imported(file(pages))
    assert ids(tools) == ["tools/rain_today", "tools/search"]
    assert not findings.remarks.counts


def test_several_servers_may_name_their_tools_alike(file, imported):
    tools, findings = imported(
        file({"mail": {"tools": [SEARCH]}, "files": [{"tools": [SEARCH]}], "a/b~c": {"tools": [RAIN]}})
    )
    assert ids(tools) == ["mail/search", "files/search", "a/b~c/rain_today"]
    assert [tool.category for tool in tools] == ["mail", "files", "a/b~c"]
    assert not findings.counts


def test_in_a_folder_each_file_is_a_server(file, imported):
    file({"tools": [SEARCH]}, "mail.json")
    file(lines({"tools": [SEARCH]}, {"tools": [RAIN]}), "files.jsonl")
    file("not looked at", "notes.txt")
    tools, findings = imported(file({"tools": [RAIN]}, "weather.json").parent)
    assert ids(tools) == ["files/search", "files/rain_today", "mail/search", "weather/rain_today"]
    assert not findings.counts


@pytest.mark.parametrize(
    ("tool", "title"),
    [
        ({"title": "One", "annotations": {"title": "Two"}}, "One"),
        ({"annotations": {"title": "Two"}}, "Two"),
        ({"annotations": None}, "search"),
        ({"title": {"en": "One"}}, "search"),
    ],
)
def test_a_tool_is_titled_as_the_protocol_has_it(file, imported, tool, title):
    tools, _ = imported(file({"tools": [SEARCH | tool]}))
    assert tools[0].title == title


# ------------------------------------------------------------------------------------------------------ servers


def test_a_session_s_log_names_its_server_and_other_messages_are_passed_over(file, imported):
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "garden", "title": "Garden", "version": "1"},
        "instructions": "# Garden\n\nReadings of one garden.\r\n\r\nDo not poll.",
    }
    log = lines(
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
        response(hello),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "resources/list"},
        {"jsonrpc": "2.0", "id": 2, "error": {"code": -32601, "message": "Method not found"}},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}},
        response({"tools": [RAIN]}, 3),
        response({"content": [{"type": "text", "text": "3 mm"}]}, 4),
        response(None, 5),
    )
    tools, findings = imported(file(log, "session.jsonl"))
    assert tools == (
        Tool(
            id="garden/rain_today",
            category="Garden",
            title="Rain today",
            description="Readings of one garden.",
            api_name="rain_today",
            api_description="How much rain is to come.",
            parameters=RAIN_TOOL.parameters,
            schema="{mm: number}",
        ),
    )
    assert not findings.counts


def test_a_result_s_own_note_of_its_server_counts_but_not_against_a_key(file, imported):
    page = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "garden", "version": "1"}}, "tools": [RAIN]}
    assert ids(imported(file(page))[0]) == ["garden/rain_today"]
    assert ids(imported(file({"north": page, "south": page}))[0]) == ["north/rain_today", "south/rain_today"]


def test_servers_in_a_list_have_their_names_beside_their_tools(file, imported):
    mail = {"name": "mail", "title": "Mail", "description": "One mailbox.", "tools": [SEARCH]}
    tools, _ = imported(file([mail, {"name": "files", "tools": [SEARCH], "description": "Documents."}]))
    assert [(tool.id, tool.category, tool.description) for tool in tools] == [
        ("mail/search", "Mail", "One mailbox."),
        ("files/search", "files", "Documents."),
    ]


# ------------------------------------------------------------------------------------------------------ schemas


def test_references_inside_a_schema_are_followed(file, imported):
    day = {"type": "object", "properties": {"date": {"type": "string"}}}
    tool = SEARCH | {
        "inputSchema": {
            "type": "object",
            "properties": {"from": {"$ref": "#/$defs/Point", "description": "Start"}},
            "required": ["from"],
            "$defs": {"Point": {"type": "object", "properties": {"lat": {"type": "number"}}}},
        },
        "outputSchema": {"$ref": "#/definitions/Days", "definitions": {"Days": {"type": "array", "items": day}}},
    }
    (tool,), findings = imported(file({"tools": [tool]}))
    assert tool.parameters == (Parameter(name="from", type="Point", description="Start", required=True),)
    assert tool.schema == "array of {date: string}"
    assert not findings.counts


def test_a_circular_reference_is_cut(file, imported):
    node = {"type": "object", "properties": {"value": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}}
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    (tool,), _ = imported(file({"tools": [SEARCH | {"inputSchema": schema, "outputSchema": schema}]}))
    assert [(one.name, one.type) for one in tool.parameters] == [("value", "string"), ("next", "Node")]
    assert tool.schema == "{value: string, next: Node}"


def test_a_reference_that_leads_nowhere_is_a_fault_of_its_tool(file, imported):
    bad = SEARCH | {"name": "bad", "inputSchema": {"properties": {"a": {"$ref": "#/$defs/A"}}}}
    path = file({"mail/x": {"tools": [SEARCH, bad]}})
    with pytest.raises(UserError) as error:
        imported(path)
    assert f"{path}#/mail~1x/tools/1/inputSchema: the document has no '#/$defs/A'" in str(error.value)
    tools, findings = imported(path, drop_invalid=True)
    assert ids(tools) == ["mail/x/search"]
    assert findings.counts == {"$ref that leads nowhere": 1}


# ---------------------------------------------------------------------------------------------- faults, remarks


def test_a_tool_without_a_description_is_kept_and_remarked_on(file, imported):
    path = file({"tools": [{"name": "search", "inputSchema": {}}]})
    tools, findings = imported(path)
    assert tools == (Tool(id="tools/search", category="tools", title="search", api_name="search"),)
    assert findings.remarks.lines() == [
        f"{path}#/tools/0: 'tools/search' (tool without a description; 1 in all)",
    ]


@pytest.mark.parametrize(
    ("document", "place", "name"),
    [
        (response({"tools": [RAIN], "nextCursor": "abc"}), "#/result", "tools"),
        ([{"tools": [SEARCH]}, {"tools": [RAIN], "nextCursor": "abc"}], "#/1", "tools"),
        ({"mail": {"tools": [RAIN], "next_cursor": "abc"}, "files": {"tools": [SEARCH]}}, "#/mail", "mail"),
    ],
)
def test_pages_that_are_missing_are_remarked_on(file, imported, document, place, name):
    path = file(document)
    _, findings = imported(path)
    assert findings.remarks.lines() == [
        f"{path}{place}: {name!r} has more pages than the file; ask for them with the nextCursor "
        "(incomplete list of tools; 1 in all)"
    ]


@pytest.mark.parametrize(
    ("document", "place", "said"),
    [
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "No"}}, "#/error", "error -32601: 'No'"),
        ({"mail": {"error": "timed out"}}, "#/mail/error", "error: 'timed out'"),
        ([{"error": {"message": "x" * 5000}}], "#/0/error", f"error: '{'x' * 200}'"),
    ],
)
def test_an_error_instead_of_a_list_is_quoted(file, imported, document, place, said):
    path = file(document)
    with pytest.raises(UserError) as error:
        imported(path)
    assert f"{path}{place}: the server answered with {said} (error instead of tools; 1 in all)" in str(error.value)


def test_the_servers_that_answered_are_kept_where_others_did_not(file, imported):
    document = {"a": {"error": {"code": 1, "message": "x"}}, "b": [SEARCH], "c": {"capabilities": {}}}
    tools, findings = imported(file(document), drop_invalid=True)
    assert ids(tools) == ["b/search"]
    assert findings.counts == {"error instead of tools": 1, "server without a list of tools": 1}


@pytest.mark.parametrize("tool", [{"description": "x"}, {"name": " "}, {"name": 3}, {"name": None}, "search", None, []])
def test_a_tool_without_a_name_is_a_fault(file, imported, tool):
    path = file({"tools": [SEARCH, tool]})
    with pytest.raises(UserError) as error:
        imported(path)
    assert f"{path}#/tools/1: expected an object with a 'name' (malformed tool; 1 in all)" in str(error.value)


def test_two_tools_of_one_name_in_one_server_are_told_apart(file, imported):
    path = file({"tools": [SEARCH, SEARCH, SEARCH | {"description": "Other."}]})
    with pytest.raises(UserError) as error:
        imported(path)
    assert f"{path}#/tools/1: 'tools/search' says the same as at" in str(error.value)
    assert f"{path}#/tools/2: 'tools/search' is also at" in str(error.value)
    tools, findings = imported(path, drop_invalid=True)
    assert [tool.api_description for tool in tools] == ["Search it."]
    assert findings.counts == {"repeated tool": 1, "duplicate tool id": 1}


@pytest.mark.parametrize(
    "tool", [{"name": "a\0b"}, {"name": "a", "description": "\0"}, {"name": "a", "title": "\ud800"}]
)
def test_nul_and_broken_characters_are_faults(file, imported, tool):
    path = file({"tools": [SEARCH | tool]})
    with pytest.raises(UserError, match=r"tools\.json#/tools/0: field '(id|title|api_description)' holds"):
        imported(path)


# ------------------------------------------------------------------------------------------ files of other kinds


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "tools.json: no tools/list result there"),
        ([], "tools.json: no tools/list result there"),
        ("3", "tools.json: no tools/list result there"),
        ({"name": "my-package", "version": "1.0", "description": "x"}, "tools.json: no tools/list result there"),
        ({"mail": {}}, 'tools.json#/mail: expected {"tools": [...]}'),
        ({"mail": [SEARCH], "files": {"a": 1}}, 'tools.json#/files: expected {"tools": [...]}'),
        ({"mail": None}, "tools.json: no tools/list result there"),
        (response({"content": []}), "tools.json: no tools/list result there"),
        ({"mcpServers": {"mail": {"command": "npx"}}}, "tools.json#/mcpServers/mail: how to reach a server"),
        ({"servers": {}, "mail": {"url": "https://mail.example/mcp"}}, "tools.json#/mail: how to reach a server"),
        ({"tools": []}, "the catalogue is empty"),
        ("", "tools.json: the file is empty"),
        ('{"tools": [', "the file ends in the middle"),
    ],
)
def test_a_file_without_tools_is_refused_and_nothing_is_written(file, imported, tmp_path, document, message):
    with pytest.raises(UserError) as error:
        imported(file(document))
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_log_without_tools_is_refused(file, imported):
    path = file(lines({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}), "session.jsonl")
    with pytest.raises(UserError, match="no tools/list result there"):
        imported(path)


def test_a_folder_without_files_of_the_kind_is_refused(file, imported):
    with pytest.raises(UserError, match=r"no \*\.json or \*\.jsonl or \*\.ndjson there"):
        imported(file("x", "notes.txt").parent)


def test_a_line_of_a_log_that_is_no_json_is_a_fault_by_its_number(file, imported):
    path = file(lines({"tools": [SEARCH]}) + "server started\n", "session.jsonl")
    with pytest.raises(UserError, match=r"session\.jsonl:2: not JSON"):
        imported(path)


# ---------------------------------------------------------------------------------------------------- the example


def test_the_example_imports_without_a_remark_and_twice_the_same(tmp_path):
    example = Path(__file__).resolve().parents[1] / "examples" / "mcp_tools.json"
    written = []
    for out in (tmp_path / "one" / "out", tmp_path / "two" / "out"):
        dataset, findings = import_dataset("mcp", [example], out)
        assert not findings.counts
        assert not findings.remarks.counts
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1]
    assert len(dataset.tools) == 27
    assert {tool.category for tool in dataset.tools} == {"Calendar", "Files", "Help desk", "Home energy"}
    assert {"files/search", "tickets/search"} <= set(ids(dataset.tools))
