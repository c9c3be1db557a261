"""Seal-Tools: functions with parameters, requests with calls, splits by file name; and API-Bank's like files."""

import json

import pytest

from cohyde.data.dataset import read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

TIDES = {
    "api_name": "getTides",
    "api_description": "Tides of a harbour",
    "field": "Sea/Tides",
    "parameters": {"harbour": {"type": "str", "description": "Its name"}, "days": {"type": "int", "description": ""}},
    "required": ["harbour"],
    "responses": {"high": {"type": "str", "description": "Hours of high water"}},
}
FOG = {"api_name": "getFog", "api_description": "Fog at sea", "field": "Sea/Fog", "parameters": {}, "required": []}
FILES = {
    "tool": [TIDES, FOG],
    "train": [{"id": "train-easy-0", "query": "Fog?", "calling": [{"api": "getFog", "parameters": {}}]}],
    "dev": [{"id": "dev-easy-0", "query": "Tides?", "calling": [{"api": "getTides", "responses": ["API_call_0"]}]}],
    "test_in_domain": [{"id": "test_in_domain-easy-0", "query": "Tides of Hull?", "calling": [{"api": "getTides"}]}],
    "test_out_domain": [
        {
            "id": "test_out_domain-difficult-397",
            "query": "Fog, then tides, then fog again?",
            "calling": [{"api": "getFog"}, {"api": "getTides"}, {"api": "getFog"}],
        }
    ],
}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def source(tmp_path):
    """The published folder, with what a test changes in it."""

    def writer(**files):
        folder = tmp_path / "Seal-Tools" / "Seal-Tools_Dataset"
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (FILES | files).items():
            (folder / f"{name}.jsonl").write_text(rows if isinstance(rows, str) else lines(rows), encoding="utf-8")
        old = folder / "dataset_in_old_format"
        old.mkdir(exist_ok=True)
        (old / "dev.jsonl").write_text('[{"api": "getFog"}, "Fog?"]\n')
        return tmp_path / "Seal-Tools"

    return writer


def test_functions_are_read_with_their_parameters_and_responses(source, tmp_path):
    dataset, findings = import_dataset("seal-tools", [source()], tmp_path / "out")
    tides, fog = dataset.tools
    assert (tides.id, tides.category, tides.title, tides.api_description) == (
        "getTides",
        "Sea/Tides",
        "getTides",
        "Tides of a harbour",
    )
    assert [(p.name, p.type, p.description, p.required) for p in tides.parameters] == [
        ("harbour", "str", "Its name", True),
        ("days", "int", "", False),
    ]
    assert tides.schema == '{"high": {"description": "Hours of high water", "type": "str"}}'
    assert (fog.parameters, fog.schema) == ((), "")
    assert not findings.counts


def test_the_files_names_say_the_splits_and_the_ids_the_tiers(source, tmp_path):
    dataset, _ = import_dataset("seal-tools", [source() / "Seal-Tools_Dataset"], tmp_path / "out")
    queries = [*dataset.train, *dataset.dev, *dataset.eval]
    assert [(query.id, query.tools, query.tier, query.split) for query in queries] == [
        ("train-easy-0", ("getFog",), "easy", "train"),
        ("dev-easy-0", ("getTides",), "easy", "dev"),
        ("test_in_domain-easy-0", ("getTides",), "in_domain-easy", "eval"),
        ("test_out_domain-difficult-397", ("getFog", "getTides"), "out_domain-difficult", "eval"),
    ]
    assert read_dataset(tmp_path / "out")[0].eval == dataset.eval


def test_functions_without_requests_are_a_catalogue(source, tmp_path):
    tools = source() / "Seal-Tools_Dataset" / "tool.jsonl"
    dataset, _ = import_dataset("seal-tools", [tools], tmp_path / "out")
    assert (len(dataset.tools), len(dataset.eval)) == (2, 0)


def test_equal_files_give_equal_bytes(source, tmp_path):
    for name in ("a", "b"):
        import_dataset("seal-tools", [source()], tmp_path / name)
    for file in ("catalog.jsonl", "queries.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tool": [TIDES, FOG, {"api_description": "x"}]}, "tool.jsonl:3: field 'id' is missing or empty"),
        ({"tool": [TIDES, FOG, {"api_name": 7}]}, "tool.jsonl:3: field 'id' has to be a text, got int"),
        ({"tool": [TIDES, FOG, {**FOG, "field": "x"}]}, "tool.jsonl:3: 'getFog' is also at tool.jsonl:2"),
        ({"tool": lines([TIDES, FOG]) + "[1]\n"}, "tool.jsonl:3: expected a JSON object, got list"),
        ({"tool": ""}, "tool.jsonl: the file is empty"),
        ({"dev": [{"id": "d", "query": "x"}]}, "dev.jsonl:1/calling: expected a list, got NoneType"),
        (
            {"dev": [{"id": "d", "query": "x", "calling": ["getFog"]}]},
            "dev.jsonl:1/calling/0: expected an object, got str",
        ),
        ({"dev": [{"id": "d", "query": "x", "calling": [{"name": "getFog"}]}]}, "dev.jsonl:1/calling/0: a call needs"),
        (
            {"dev": [{"id": "d", "query": "x", "calling": [{"api": "getIce"}]}]},
            "dev.jsonl:1: 'd' names 'getIce', not in",
        ),
        (
            {"dev": [{"id": 7, "query": "x", "calling": [{"api": "getFog"}]}]},
            "dev.jsonl:1: field 'id' has to be a text",
        ),
        (
            {"dev": [{"id": "d", "query": "fog", "calling": [{"api": "getFog"}]}]},
            "'train-easy-0' (train) reads as 'd' (dev)",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_place(source, tmp_path, files, message):
    with pytest.raises(UserError) as error:
        import_dataset("seal-tools", [source(**files)], tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_names_that_are_looked_for_are_said(tmp_path):
    (tmp_path / "tools.jsonl").write_text(lines([TIDES]))
    with pytest.raises(UserError, match=r"no tool\.jsonl or Seal-Tools_Dataset/tool\.jsonl or .*level-3\.json there"):
        import_dataset("seal-tools", [tmp_path / "tools.jsonl"], tmp_path / "out")


# ------------------------------------------------------------------------------------------------------ API-Bank


def searched(keywords, answer):
    return {
        "api_name": "ToolSearcher",
        "input": {"keywords": keywords},
        "output": {"output": answer, "exception": None},
    }


def described(name, description="Does it", **inputs):
    return {"name": name, "description": description, "input_parameters": inputs, "output_parameters": {}}


MAIL = described("SendMail", recipient={"type": "str", "description": "Whom"})
LEVEL_3 = [
    {
        "requirement": "Send Ann the minutes.",
        "apis": [searched("mail", MAIL), {"api_name": "SendMail", "input": {"recipient": "ann"}}],
    },
    {
        "requirement": "Print and send them.",
        "apis": [
            searched("print", [described("Print"), MAIL, described("SendMail", "Other words")]),
            {"api_name": "Print"},
            {"api_name": "SendMail"},
        ],
    },
]


def test_functions_that_a_search_found_are_the_catalogue_and_the_search_is_no_tool(tmp_path):
    (tmp_path / "level-3.json").write_text(json.dumps(LEVEL_3))
    dataset, findings = import_dataset("seal-tools", [tmp_path], tmp_path / "out")
    assert [tool.id for tool in dataset.tools] == ["SendMail", "Print"]
    assert [(p.name, p.type, p.description) for p in dataset.tools[0].parameters] == [("recipient", "str", "Whom")]
    assert [(query.id, query.text, query.tools, query.tier) for query in dataset.eval] == [
        ("level-3/0", "Send Ann the minutes.", ("SendMail",), "level-3"),
        ("level-3/1", "Print and send them.", ("Print", "SendMail"), "level-3"),
    ]
    assert findings.remarks.counts["tool described in several ways"] == 1


def test_a_catalogue_of_the_bank_goes_first(tmp_path):
    (tmp_path / "tool_catalog.json").write_text(json.dumps([described("SendMail", "As catalogued")]))
    (tmp_path / "level-3.json").write_text(json.dumps(LEVEL_3))
    dataset, _ = import_dataset("seal-tools", [tmp_path], tmp_path / "out", options=Options(split="train"))
    assert [(tool.id, tool.api_description) for tool in dataset.tools] == [
        ("SendMail", "As catalogued"),
        ("Print", "Does it"),
    ]
    assert len(dataset.train) == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"requirement": "x"}, "level-3.json#/2/apis: expected a list, got NoneType"),
        ({"requirement": "x", "apis": [searched("x", None)]}, "level-3.json#/2: 'level-3/2' names no tool"),
        ({"requirement": "x", "apis": [{"api_name": "Fly"}]}, "level-3.json#/2: 'level-3/2' names 'Fly', not in"),
        ({"requirement": "x", "apis": [7, {"api_name": "Print"}]}, "level-3.json#/2/apis/0: expected an object"),
        ("x", "level-3.json#/2: expected an object, got str"),
    ],
)
def test_records_of_the_bank_at_fault_are_named(tmp_path, record, message):
    (tmp_path / "level-3.json").write_text(json.dumps([*LEVEL_3, record]))
    with pytest.raises(UserError) as error:
        import_dataset("seal-tools", [tmp_path], tmp_path / "out")
    assert message in str(error.value)
