"""MetaTool: descriptions by name, a table of single-tool requests, a list of multi-tool requests."""

import json

import pytest

from cohyde.data.dataset import read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

PLUGINS = {"tides": "When the water is high.", "PDF&URL/Tool": "Read documents.", "NewsTool": "News of the day."}
MERGED = {"NewsTool": "News of the day.", "MapTool": "Draw maps."}
SINGLE = 'Query,Tool\nWhen is high tide?,tides\n"Is it high, or low?\nTell me ""now""",tides\n'
MULTI = [{"query": "A map of today's news, please", "tool": ["NewsTool", "MapTool"]}]


@pytest.fixture
def source(tmp_path):
    """The published folder, with what a test changes in it."""

    def writer(**files):
        contents = {
            "plugin_des.json": json.dumps(PLUGINS),
            "big_tool_des.json": json.dumps(MERGED),
            "data/all_clean_data.csv": SINGLE,
            "data/multi_tool_query_golden.json": json.dumps(MULTI),
            "plugin_info.json": "[]",
        }
        for name, content in (contents | files).items():
            path = tmp_path / "MetaTool" / "dataset" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return tmp_path / "MetaTool"

    return writer


def test_a_published_folder_becomes_a_dataset_of_two_tiers(source, tmp_path):
    dataset, findings = import_dataset("metatool", [source()], tmp_path / "out")
    assert [(tool.id, tool.title, tool.api_description) for tool in dataset.tools] == [
        ("tides", "tides", "When the water is high."),
        ("PDF&URL/Tool", "PDF&URL/Tool", "Read documents."),
        ("NewsTool", "NewsTool", "News of the day."),
        ("MapTool", "MapTool", "Draw maps."),
    ]
    assert [(query.id, query.text, query.tools, query.tier) for query in dataset.train] == [
        ("single/2", "When is high tide?", ("tides",), "single"),
        ("single/4", 'Is it high, or low?\nTell me "now"', ("tides",), "single"),
        ("multi/0", "A map of today's news, please", ("NewsTool", "MapTool"), "multi"),
    ]
    assert not findings.counts and not findings.remarks.counts
    assert read_dataset(tmp_path / "out")[0].train == dataset.train


def test_files_that_are_named_one_by_one_do_as_well(source, tmp_path):
    folder = source() / "dataset"
    files = [folder / "big_tool_des.json", folder / "data" / "multi_tool_query_golden.json"]
    dataset, _ = import_dataset("metatool", files, tmp_path / "out", options=Options(split="eval"))
    assert ([tool.id for tool in dataset.tools], len(dataset.train), len(dataset.eval)) == (
        ["NewsTool", "MapTool"],
        0,
        1,
    )


def test_the_first_of_two_descriptions_is_kept_and_the_other_remarked_on(source, tmp_path):
    merged = json.dumps(MERGED | {"PDF&URL/Tool": "Read them all."})
    dataset, findings = import_dataset("metatool", [source(**{"big_tool_des.json": merged})], tmp_path / "out")
    assert dataset.tools[1].api_description == "Read documents."
    assert "big_tool_des.json#/PDF&URL~1Tool: the first description of 'PDF&URL/Tool' is kept" in str(
        findings.remarks.lines()
    )


def test_equal_files_give_equal_bytes(source, tmp_path):
    for name in ("a", "b"):
        import_dataset("metatool", [source()], tmp_path / name)
    for file in ("catalog.jsonl", "queries.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"plugin_des.json": "[]"}, "plugin_des.json: expected an object of descriptions by name, got list"),
        ({"plugin_des.json": ""}, "plugin_des.json: the file is empty"),
        ({"plugin_des.json": '{"a": '}, "plugin_des.json:1: not JSON"),
        ({"plugin_des.json": '{"a/b": ["x"]}'}, "plugin_des.json#/a~1b: field 'api_description' has to be a text"),
        ({"data/all_clean_data.csv": ""}, "all_clean_data.csv:1: no column 'Query' in the header: the file is empty"),
        ({"data/all_clean_data.csv": "Query,Name\nx,tides\n"}, "all_clean_data.csv:1: no column 'Tool' in the header"),
        (
            {"data/all_clean_data.csv": SINGLE + "What, now?,tides\n"},
            "all_clean_data.csv:5: 3 fields where there are 2",
        ),
        ({"data/all_clean_data.csv": SINGLE + "What?,fog\n"}, "all_clean_data.csv:5: 'single/5' names 'fog', not in"),
        ({"data/all_clean_data.csv": SINGLE.encode() + b"caf\xe9,tides\n"}, "all_clean_data.csv:5: not UTF-8"),
        ({"data/multi_tool_query_golden.json": "{}"}, "golden.json#: expected a list, got dict"),
        ({"data/multi_tool_query_golden.json": '["x"]'}, "golden.json#/0: expected an object, got str"),
        ({"data/multi_tool_query_golden.json": '[{"query": "x"}]'}, "golden.json#/0: field 'tools' has to be a list"),
        (
            {"data/multi_tool_query_golden.json": '[{"tool": ["tides"]}]'},
            "golden.json#/0: field 'text' has to be a text",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_place(source, tmp_path, files, message):
    with pytest.raises(UserError) as error:
        import_dataset("metatool", [source(**files)], tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_names_that_are_looked_for_are_said(source, tmp_path):
    folder = source(**{"plugin_des.json": None, "big_tool_des.json": None})
    with pytest.raises(UserError, match=r"no \*\*/plugin_des\.json or \*\*/big_tool_des\.json there"):
        import_dataset("metatool", [folder], tmp_path / "out")
