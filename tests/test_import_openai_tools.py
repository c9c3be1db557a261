"""Functions in OpenAI's tool schema, in every way that files hold them, and conversations that call them."""

import json

import pytest

from cohyde.data.dataset import read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError


def function(name, description="Does it"):
    return {"name": name, "description": description, "parameters": {"type": "object", "properties": {}}}


def tool(name, description="Does it"):
    return {"type": "function", "function": function(name, description)}


def user(text):
    return {"role": "user", "content": text}


def calls(*names):
    made = [{"id": f"call_{n}", "type": "function", "function": {"name": n, "arguments": "{}"}} for n in names]
    return {"role": "assistant", "content": None, "tool_calls": made}


TIDES = {
    "name": "tides",
    "description": "Tides of a harbour.",
    "parameters": {
        "type": "object",
        "properties": {"harbour": {"type": "string", "description": "Its name."}, "days": {"type": "integer"}},
        "required": ["harbour"],
    },
}


@pytest.fixture
def importing(tmp_path):
    """Write files of these names and contents, and import their folder."""

    def writer(files, out="out", **options):
        for name, content in files.items():
            path = tmp_path / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return import_dataset("openai-tools", [tmp_path / "source"], tmp_path / out, **options)

    return writer


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FORMS = {
    "an array, nested": {"sea.json": [{"type": "function", "function": TIDES}]},
    "an array, bare": {"sea.json": [TIDES]},
    "an array with types, bare": {"sea.json": [{"type": "function", **TIDES}]},
    "lines": {"sea.jsonl": lines([TIDES])},
    "lines in a .json": {"sea.json": lines([TIDES, {"tools": []}])},
    "a document of tools": {"sea.json": json.dumps({"model": "m", "tools": [{"type": "function", "function": TIDES}]})},
    "a line in a .json": {"sea.json": lines([TIDES])},
    "an indented document of functions": {"sea.json": json.dumps({"functions": [TIDES]}, indent=2)},
    "an indented function": {"sea.json": json.dumps(TIDES, indent=2)},
    "lines of lists": {"sea.jsonl": lines([{"tools": [TIDES]}, {"tools": []}])},
}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS)
def test_a_function_is_read_in_whatever_it_is_wrapped(importing, tmp_path, files):
    dataset, findings = importing(files)
    (found,) = dataset.tools
    assert (found.id, found.category, found.title, found.api_description) == (
        "tides",
        "sea",
        "tides",
        "Tides of a harbour.",
    )
    assert [(p.name, p.type, p.description, p.required) for p in found.parameters] == [
        ("harbour", "string", "Its name.", True),
        ("days", "integer", "", False),
    ]
    assert not findings.counts
    assert read_dataset(tmp_path / "out")[0].tools == dataset.tools


def test_a_document_in_one_line_may_be_longer_than_a_line_of_json_lines(importing):
    dataset, _ = importing({"sea.json": {"tools": [tool("a", "x" * (1 << 24)), tool("b")]}})
    assert [found.id for found in dataset.tools] == ["a", "b"]


def test_names_that_several_files_have_get_their_files_names_in_front(importing):
    dataset, _ = importing(
        {
            "mail.json": [tool("search", "Search mail"), tool("send")],
            "files.json": [tool("search", "Search files"), tool("open")],
        }
    )
    assert [(found.id, found.title, found.category) for found in dataset.tools] == [
        ("files/search", "search", "files"),
        ("open", "open", "files"),
        ("mail/search", "search", "mail"),
        ("send", "send", "mail"),
    ]


def test_files_of_one_name_are_told_apart_by_their_folders(importing):
    dataset, _ = importing({"mail/tools.json": [tool("search")], "files/tools.json": [tool("search", "Other")]})
    assert [found.id for found in dataset.tools] == ["files/tools/search", "mail/tools/search"]


def test_tools_that_are_no_functions_are_left_out_and_counted(importing):
    dataset, findings = importing({"sea.json": {"tools": [{"type": "web_search"}, tool("tides")]}})
    assert [found.id for found in dataset.tools] == ["tides"]
    assert findings.remarks.counts["tool that is no function"] == 1


# ------------------------------------------------------------------------------------------------- conversations


def test_conversations_are_queries_and_bring_their_functions(importing):
    first = {
        "messages": [
            {"role": "system", "content": "Help."},
            user("When is the tide?"),
            {"role": "assistant", "content": "Where?"},
            user([{"type": "text", "text": "In Hull."}]),
            calls("tides", "fog"),
            {"role": "tool", "content": "8 am"},
            calls("tides"),
            user("And book a boat"),
            calls("book"),
        ],
        "tools": [tool("tides"), tool("fog"), tool("book")],
    }
    second = {"messages": [user("Fog?"), calls("fog")], "tools": [tool("fog", "Other words"), tool("ice")]}
    dataset, findings = importing({"train.jsonl": lines([first, second])})
    assert [(found.id, found.category, found.api_description) for found in dataset.tools] == [
        ("tides", "", "Does it"),
        ("fog", "", "Does it"),
        ("book", "", "Does it"),
        ("ice", "", "Does it"),
    ]
    assert [(query.id, query.text, query.tools, query.split) for query in dataset.train] == [
        ("train/1", "When is the tide?\nIn Hull.", ("tides", "fog"), "train"),
        ("train/2", "Fog?", ("fog",), "train"),
    ]
    assert findings.remarks.counts["function described in several ways"] == 1
    assert not findings.counts


def test_the_older_form_of_calls_is_read_too(importing):
    call = {"role": "assistant", "content": None, "function_call": {"name": "fog", "arguments": "{}"}}
    dataset, _ = importing({"a.json": [{"messages": [user("Fog?"), call], "functions": [function("fog")]}]})
    assert [(query.id, query.tools) for query in dataset.train] == [("a/0", ("fog",))]


def test_a_conversation_without_a_call_makes_no_query(importing):
    rows = [{"messages": [user("Hello")], "tools": [tool("fog")]}, {"messages": [user("Fog?"), calls("fog")]}]
    dataset, findings = importing({"train.jsonl": lines(rows)})
    assert [query.id for query in dataset.train] == ["train/2"]
    assert findings.remarks.counts["conversation without a call"] == 1


@pytest.mark.parametrize(
    ("name", "option", "split"),
    [
        ("train.jsonl", "eval", "train"),
        ("support_test.jsonl", None, "eval"),
        ("2026-validation.jsonl", None, "dev"),
        ("logs.jsonl", None, "train"),
        ("logs.jsonl", "eval", "eval"),
    ],
)
def test_the_file_says_the_split_or_else_the_options_do(importing, name, option, split):
    row = {"messages": [user("Fog?"), calls("fog")], "tools": [tool("fog")]}
    dataset, _ = importing({name: lines([row])}, options=Options(split=option))
    assert len(getattr(dataset, split)) == 1


def test_functions_of_a_catalogue_file_are_what_conversations_call(importing):
    row = {"messages": [user("Fog?"), calls("fog")], "tools": [tool("fog", "As in the log")]}
    dataset, _ = importing({"a_log.jsonl": lines([row]), "sea.json": [tool("fog", "As catalogued"), tool("tides")]})
    assert [(found.id, found.api_description) for found in dataset.tools] == [
        ("fog", "As catalogued"),
        ("tides", "Does it"),
    ]
    assert dataset.train[0].tools == ("fog",)


def test_a_call_of_a_name_that_several_catalogues_have_is_at_fault(importing):
    files = {"mail.json": [tool("search")], "files.json": [tool("search", "Other")]}
    with pytest.raises(UserError, match=r"log\.jsonl:1: 'log/1' names 'search', not in the catalogue"):
        importing({**files, "log.jsonl": lines([{"messages": [user("x"), calls("search")]}])})


def test_equal_files_give_equal_bytes(importing, tmp_path):
    files = {"sea.json": [TIDES], "train.jsonl": lines([{"messages": [user("Fog?"), calls("tides")]}])}
    for out in ("a", "b"):
        importing(files, out=out)
    for file in ("catalog.jsonl", "queries.jsonl", "dataset.yaml"):
        a, b = ((tmp_path / out / file).read_text().replace("name: b", "name: a") for out in ("a", "b"))
        assert a == b


# ----------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([TIDES, 7], "sea.json#/1: expected an object, got int"),
        ([TIDES, {"description": "x"}], "sea.json#/1: expected a function with a 'name'"),
        ([TIDES, {"type": "function", "function": "x"}], "sea.json#/1: expected a function with a 'name'"),
        ([TIDES, {"name": ["x"]}], "sea.json#/1: expected a function with a 'name'"),
        ([TIDES, {"name": " "}], "sea.json#/1: expected a function with a 'name'"),
        ([TIDES, TIDES], "sea.json#/1: 'tides' says the same as at"),
        ([TIDES, {**TIDES, "description": "x"}], "sea.json#/1: 'tides' is also at"),
        (json.dumps({"tools": {"a": 1}}, indent=1), "sea.json#/tools: expected a list, got dict"),
        (lines([{"tools": [TIDES, {}]}]), "sea.json#/tools/1: expected a function with a 'name'"),
        (lines([TIDES, {"tools": [{}]}]), "sea.json:2/tools/0: expected a function with a 'name'"),
        ({"tools": []}, "the catalogue is empty"),
        ("", "sea.json: the file is empty"),
        ('{\n"name": "x",\n', "sea.json:3: not JSON: Expecting property name"),
        ('"x"', "expected a JSON array, found '\"x\"'"),
        ([TIDES, {"messages": "x"}], "sea.json#/1/messages: expected a list, got str"),
        ([TIDES, {"messages": [user("x"), {"tool_calls": [{}]}]}], "messages/1/tool_calls/0: a call needs"),
        ([TIDES, {"messages": [user("x"), {"tool_calls": 7}]}], "messages/1/tool_calls: expected a list, got int"),
        ([TIDES, {"messages": [user("x"), {"function_call": "x"}]}], "messages/1/function_call: a call needs"),
        ([TIDES, {"messages": [user("x"), calls("fog")]}], "sea.json#/1: 'sea/1' names 'fog', not in the catalogue"),
        ([TIDES, {"messages": [calls("tides")]}], "sea.json#/1: field 'text' has to be a text that is not empty"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_place(importing, tmp_path, content, message):
    with pytest.raises(UserError) as error:
        importing({"sea.json": content})
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_such_files_is_refused(importing):
    with pytest.raises(UserError, match=r"no \*\.json or \*\.jsonl there"):
        importing({"readme.md": "x"})


def test_faults_of_several_files_are_counted_once(importing):
    files = {"a.json": [tool("a"), 7], "b.json": [tool("b"), 7]}
    _, findings = importing(files, drop_invalid=True)
    assert findings.counts["malformed record"] == 2
