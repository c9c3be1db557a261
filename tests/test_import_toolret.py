"""ToolRet: queries with instructions and labels, tools with documentation of many shapes, and training rows."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from cohyde.data.dataset import read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importers.tool_document import document_fields
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

GROWTH = {
    "name": "bacterial_growth",
    "description": "Population after a time.",
    "parameters": {"start": {"type": "int", "description": "Bacteria at first."}, "minutes": {"type": "float"}},
}
TOOLS = [
    {"id": "apigen_tool_1", "documentation": json.dumps(GROWTH)},
    {"id": "apigen_tool_2", "documentation": json.dumps({"name": "tide", "description": "Tides of a harbour."})},
    {"id": "craft_tool_3", "documentation": "Counts the birds in a picture."},
]
QUERIES = [
    {
        "id": "apigen_query_5",
        "query": "How many bacteria after 45 minutes?",
        "instruction": "Given a growth task, retrieve tools that calculate populations.",
        "labels": json.dumps([{"id": "apigen_tool_1", "doc": GROWTH, "relevance": 1}]),
        "category": "web",
    },
    {
        "id": "craft_query_0",
        "query": "How many birds, and when is high tide?",
        "instruction": "",
        "labels": json.dumps([{"id": "craft_tool_3"}, {"id": "apigen_tool_2", "relevance": 0}]),
        "category": "code",
    },
]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return path


def imported(tmp_path, tools=TOOLS, queries=QUERIES, training=(), suffix=".jsonl", **options):
    source = tmp_path / "source"
    for name, rows in (("web/tools", tools), ("apigen/queries", queries), ("train", training)):
        if rows:
            write(source / f"{name}{suffix}", rows)
    return import_dataset("toolret", [source], tmp_path / "out", **options)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_queries_and_tools_are_read_with_their_instructions(tmp_path, suffix):
    dataset, findings = imported(tmp_path, suffix=suffix)
    assert [tool.id for tool in dataset.tools] == ["apigen_tool_1", "apigen_tool_2", "craft_tool_3"]
    growth, _, birds = dataset.tools
    assert (growth.title, growth.api_description) == ("bacterial_growth", "Population after a time.")
    assert [(p.name, p.type, p.description) for p in growth.parameters] == [
        ("start", "int", "Bacteria at first."),
        ("minutes", "float", ""),
    ]
    assert (birds.title, birds.api_description) == ("", "Counts the birds in a picture.")
    assert [(query.id, query.tools, query.tier, query.split) for query in dataset.eval] == [
        ("apigen_query_5", ("apigen_tool_1",), "web", "eval"),
        ("craft_query_0", ("craft_tool_3",), "code", "eval"),
    ]
    assert dataset.eval[0].instruction == "Given a growth task, retrieve tools that calculate populations."
    assert not findings.counts
    assert findings.remarks.counts["label of no relevance"] == 1
    assert read_dataset(tmp_path / "out")[0].eval == dataset.eval


def test_the_published_folders_are_read_together(tmp_path):
    source = tmp_path / "source"
    write(source / "ToolRet-Tools" / "web" / "tools-00000-of-00001.parquet", TOOLS[:2])
    write(source / "ToolRet-Tools" / "code" / "tools-00000-of-00001.parquet", TOOLS[2:])
    for row in QUERIES:
        subset = row["id"].partition("_")[0]
        write(source / "ToolRet-Queries" / subset / "queries-00000-of-00001.parquet", [row])
    dataset, _ = import_dataset("toolret", [source], tmp_path / "out")
    assert (len(dataset.tools), len(dataset.eval)) == (2 + 1, 2)


def test_labels_may_be_lists_and_the_benchmark_in_the_id_is_the_tier_where_no_category_is_said(tmp_path):
    query = {"id": "apigen_query_5", "query": "x", "labels": [{"id": "apigen_tool_1"}, {"id": "apigen_tool_2"}]}
    dataset, _ = imported(tmp_path, queries=[query, {**query, "id": "q", "query": "y"}])
    assert [(query.tools, query.tier) for query in dataset.eval] == [
        (("apigen_tool_1", "apigen_tool_2"), "apigen"),
        (("apigen_tool_1", "apigen_tool_2"), "all"),
    ]


def test_queries_may_be_meant_for_training(tmp_path):
    dataset, _ = imported(tmp_path, options=Options(split="train"))
    assert (len(dataset.train), len(dataset.eval)) == (2, 0)


def test_training_rows_find_the_tools_that_they_hold_the_documents_of(tmp_path):
    fog = {"name": "fog", "description": "Fog at sea."}
    training = [
        {
            "query": "Growth?",
            "prompt": "Given growth, …",
            "positive": [str(GROWTH), json.dumps(fog)],
            "negative": ["x"],
        },
        {"query": "Fog?", "prompt": "", "positive": [json.dumps(fog, indent=2)], "negative": ["y", "z"]},
        {"query": "Birds?", "prompt": "", "positive": ["Counts the birds in a picture."], "negative": []},
    ]
    dataset, _ = imported(tmp_path, training=training)
    assert len(dataset.tools) == 3 + 1
    made = dataset.tools[-1]
    assert made.id.startswith("train/fog/") and made.api_description == "Fog at sea."
    assert [(query.id, query.tools, query.instruction) for query in dataset.train] == [
        ("train/1", ("apigen_tool_1", made.id), "Given growth, …"),
        ("train/2", (made.id,), ""),
        ("train/3", ("craft_tool_3",), ""),
    ]


def test_training_rows_alone_are_a_dataset_with_the_same_ids(tmp_path):
    training = [{"query": "Growth?", "pos": [json.dumps(GROWTH)], "neg": []}]
    dataset, _ = imported(tmp_path, tools=(), queries=(), training=training, suffix=".parquet")
    again, _ = import_dataset("toolret", [write(tmp_path / "train_2.jsonl", training)], tmp_path / "again")
    assert dataset.tools == again.tools and dataset.train == again.train
    assert dataset.train[0].tools == (dataset.tools[0].id,)


def test_equal_files_give_equal_bytes(tmp_path):
    training = [{"query": "Fog?", "pos": ["Fog at sea.", str(GROWTH)], "neg": []}]
    for name in ("a", "b"):
        imported(tmp_path / name, training=training)
    for file in ("catalog.jsonl", "queries.jsonl"):
        assert (tmp_path / "a/out" / file).read_bytes() == (tmp_path / "b/out" / file).read_bytes()


# ------------------------------------------------------------------------------------------------- documentation


@pytest.mark.parametrize(
    ("document", "parameters"),
    [
        # JSON Schema, also under other names and with an object called "dict"
        (
            {"parameters": {"type": "dict", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
            [("a", "string", "", True)],
        ),
        (
            {"doc_arguments": {"type": "object", "properties": {"a": {"description": "x"}}}},
            [("a", "", "x", False)],
        ),
        ({"parameters": {"type": "object"}}, []),
        ({"parameters": {"type": "object", "properties": {}, "required": []}}, []),
        # names with what is said of them
        (
            {"parameters": {"a": {"type": "str", "description": "x"}, "b": None}},
            [("a", "str", "x", False), ("b", "", "", False)],
        ),
        ({"parameters": {"a": {"type": "int"}}, "required": ["a"]}, [("a", "int", "", True)]),
        (
            {"parameters": {"type": {"type": "str", "description": "kind"}, "properties": {"type": "str"}}},
            [("type", "str", "kind", False), ("properties", "str", "", False)],
        ),
        # two lists, a list of inputs, names alone
        (
            {
                "required_parameters": [{"name": "a", "type": "STRING", "description": "x", "default": "1"}],
                "optional_parameters": [{"name": "b", "type": "NUMBER"}],
            },
            [("a", "STRING", "x", True), ("b", "NUMBER", "", False)],
        ),
        ({"inputs": [{"name": "a", "type": "text", "description": None}]}, [("a", "text", "", False)]),
        ({"api_arguments": ["a", "b"]}, [("a", "", "", False), ("b", "", "", False)]),
        # names that hold their types
        (
            {"additional_required_arguments": {"to (str)": "a city"}, "optional_arguments": {"stars (float)": "0-5"}},
            [("to", "str", "a city", True), ("stars", "float", "0-5", False)],
        ),
        # sentences, numbers and other oddities have none
        ({"api_arguments": "question, context"}, []),
        ({"parameters": 7, "inputs": [7, {"type": "str"}, {"name": 7}]}, []),
    ],
)
def test_parameters_of_every_published_shape_are_read(document, parameters):
    rows = document_fields({"name": "f", **document})["parameters"]
    found = [(row["name"], row.get("type", ""), row.get("description", ""), row["required"]) for row in rows]
    assert found == parameters


@pytest.mark.parametrize(
    ("documentation", "fields"),
    [
        ({"name": "f", "description": "d", "category_name": "Food"}, ("f", "Food", "d")),
        ({"name": "f", "domain": "Vision", "functionality": "Find objects"}, ("f", "Vision", "Find objects")),
        ({"api_name": "f", "field": "Sports/Golf", "api_description": "d"}, ("f", "Sports/Golf", "d")),
        ({"name_for_human": "F", "name_for_model": "f", "description_for_human": "d"}, ("F", "", "d")),
        ({"name": " ", "tool_name": "f", "description": ["x"]}, ("f", "", "")),
    ],
)
def test_names_categories_and_descriptions_are_found_under_their_many_keys(documentation, fields):
    for text in (documentation, json.dumps(documentation), str(documentation), json.dumps(json.dumps(documentation))):
        found = document_fields(text)
        assert (found["title"], found["category"], found["api_description"]) == fields


@pytest.mark.parametrize(
    "text",
    [
        "Finds fish.",
        "",
        "{not json",
        "{1, 2}",
        "{'a': b'x'}",
        '"quoted"',
        '{"path": "x"}',
        "[1]",
        "{" * 100_000,
        '{"\\d',
    ],
)
def test_a_document_of_another_kind_is_kept_as_one_text(text):
    assert document_fields(text) == {"api_description": text}


def test_what_a_tool_is_for_is_kept_beside_its_description_and_not_said_twice():
    model = {"api_name": "m", "functionality": "Find objects", "description": "Trained on photographs."}
    found = document_fields(model)
    assert (found["description"], found["api_description"]) == ("Find objects", "Trained on photographs.")
    found = document_fields({"api_name": "m", "functionality": "Find objects"})
    assert (found["description"], found["api_description"]) == ("", "Find objects")


def test_what_comes_back_is_the_schema():
    found = document_fields({"name": "f", "responses": {"score": {"type": "int"}}})
    assert found["schema"] == '{"score": {"type": "int"}}'


# ----------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ('[{"id": "apigen_tool_1"', "queries.jsonl:1/labels: not JSON: Expecting ',' delimiter at character 24"),
        (None, "queries.jsonl:1/labels: expected a list, got NoneType"),
        ('{"id": "apigen_tool_1"}', "queries.jsonl:1/labels: expected a list, got dict"),
        (["apigen_tool_1"], "queries.jsonl:1/labels/0: expected an object, got str"),
        ([{"relevance": 1}], "queries.jsonl:1/labels/0: a label needs an 'id'"),
        ([{"id": "apigen_tool_1", "relevance": "high"}], "queries.jsonl:1/labels/0: a label needs an 'id'"),
        ([{"id": "gone"}], "queries.jsonl:1: 'apigen_query_5' names 'gone', not in the catalogue"),
        ([{"id": "apigen_tool_1", "relevance": 0}], "queries.jsonl:1: 'apigen_query_5' names no tool"),
        ([], "queries.jsonl:1: 'apigen_query_5' names no tool"),
    ],
)
def test_labels_at_fault_are_named_by_their_place(tmp_path, labels, message):
    queries = [{**QUERIES[0], "labels": labels}, QUERIES[1]]
    with pytest.raises(UserError) as error:
        imported(tmp_path, queries=queries)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()
    dataset, _ = imported(tmp_path, queries=queries, drop_invalid=True)
    assert [query.id for query in dataset.eval] == ["craft_query_0"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"tools": [*TOOLS, {"id": "t"}]}, "tools.jsonl:4: it has no 'documentation'"),
        ({"tools": [*TOOLS, {"documentation": "x"}]}, "tools.jsonl:4: field 'id' is missing or empty"),
        ({"tools": [*TOOLS, {"id": ["t"], "documentation": "x"}]}, "tools.jsonl:4: field 'id' has to be a text"),
        ({"queries": [*QUERIES, {**QUERIES[0], "id": "mnms_query_17", "query": ""}]}, "queries.jsonl:3: field 'text'"),
        (
            {"training": [{"query": "x", "positive": "y"}]},
            "train.jsonl:1/positive: expected a list of documents, got str",
        ),
        ({"training": [{"query": "x", "pos": []}]}, "train.jsonl:1: 'train/1' names no tool"),
    ],
)
def test_rows_at_fault_are_named_by_their_place(tmp_path, rows, message):
    with pytest.raises(UserError) as error:
        imported(tmp_path, **rows)
    assert message in str(error.value)


def test_items_that_are_no_objects_are_named(tmp_path):
    with pytest.raises(UserError, match="expected an object, got int"):
        imported(tmp_path, tools=[*TOOLS, 7], suffix=".json")


def test_a_parquet_file_without_labels_is_refused(tmp_path):
    write(tmp_path / "tools.parquet", TOOLS)
    write(tmp_path / "queries.parquet", [{"id": "q", "query": "x"}])
    with pytest.raises(UserError, match="no column 'labels' among id, query"):
        import_dataset("toolret", [tmp_path], tmp_path / "out")


def test_columns_of_other_types_than_text_are_no_end(tmp_path):
    tools = [{"id": "t", "documentation": b"caf\xe9"}, {"id": "u", "documentation": [{"name": b"x"}]}]
    for row in tools:
        path = write(tmp_path / f"tools_{row['id']}.parquet", [row])
        dataset, _ = import_dataset("toolret", [path], tmp_path / row["id"])
        assert dataset.tools[0].id == row["id"]


def test_the_names_that_are_looked_for_are_said(tmp_path):
    (tmp_path / "source").mkdir()
    write(tmp_path / "source" / "corpus.jsonl", TOOLS)
    with pytest.raises(UserError, match=r"no \*\*/tools\*\.parquet or .*\n  there is: corpus\.jsonl"):
        import_dataset("toolret", [tmp_path / "source"], tmp_path / "out")


def test_an_empty_file_is_refused(tmp_path):
    path = write(tmp_path / "tools.json", TOOLS)
    path.write_text("\n")
    with pytest.raises(UserError, match=r"tools\.json: the file is empty"):
        import_dataset("toolret", [path], tmp_path / "out")
