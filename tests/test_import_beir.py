"""BEIR folders: ToolLens, plain ones, judgements of every kind; each fault by file and line."""

import json

import pytest

from cohyde.catalog import Parameter, Tool
from cohyde.data.dataset import read_card, read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

CORPUS = [
    {"_id": "t1", "title": "Tide Table", "text": "High water by port.\n Days ahead: 7 ", "metadata": {"url": "x"}},
    {"_id": "t2", "title": "", "text": "Rents kayaks."},
    {"_id": "t3", "title": "Bus Times", "text": ""},
]
QUERIES = [
    {"_id": "q1", "text": "when may I paddle out", "metadata": {}},
    {"_id": "q2", "text": "a boat for two"},
    {"_id": "q3", "text": "how do I get to the beach"},
]
QRELS = {"train": [("q1", "t1", 1), ("q1", "t2", 1)], "dev": [("q2", "t2", 1)], "test": [("q3", "t3", 1)]}


def packed(category="Sea", tool="Tides ", api="High\nWater", description="By port, daily", **parts):
    """A text as ToolLens packs it."""
    port = {"name": "port", "type": "STRING", "description": "its, name"}
    days = {"name": "days", "type": "NUMBER", "description": ""}
    required = parts.get("required", json.dumps([port]))
    optional = parts.get("optional", json.dumps([days]))
    schema = parts.get("schema", '{"time": "str", "height": "float"}')
    return (
        f"category_name:{category}, tool_name:{tool}, api_name:{api}, api_description:{description}, "
        f"required_params: {required}, optional_params: {optional}, return_schema: {schema}"
    )


@pytest.fixture
def folder(tmp_path):
    """Write a BEIR folder; judgements are rows, or a file's whole text."""

    def writer(corpus=CORPUS, queries=QUERIES, qrels=QRELS):
        place = tmp_path / "beir"
        (place / "qrels").mkdir(parents=True)
        for name, rows in (("corpus", corpus), ("queries", queries)):
            (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        for name, rows in qrels.items():
            lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
            text = rows if isinstance(rows, str) else "\n".join(lines)
            (place / "qrels" / f"{name}.tsv").write_text(text, encoding="utf-8", newline="")
        return place

    return writer


@pytest.fixture
def imported(tmp_path):
    """Import sources, and read back what was written."""

    def importer(*sources, drop_invalid=False, options=None, vague=None):
        out = tmp_path / "out"
        written, findings = import_dataset(
            "beir", sources, out, drop_invalid=drop_invalid, options=options, vague=vague, overwrite=True
        )
        assert read_dataset(out)[0] == written
        return written, findings

    return importer


def gold(queries):
    return {query.id: query.tools for query in queries}


# -------------------------------------------------------------------------------------------------------- corpora


def test_a_plain_folder_gives_titles_and_texts_as_published(folder, imported):
    dataset, findings = imported(folder())
    assert dataset.tools == (
        Tool(id="t1", title="Tide Table", api_description="High water by port.\n Days ahead: 7 "),
        Tool(id="t2", api_description="Rents kayaks."),
        Tool(id="t3", title="Bus Times"),
    )
    assert [gold(part) for part in (dataset.train, dataset.dev, dataset.eval)] == [
        {"q1": ("t1", "t2")},
        {"q2": ("t2",)},
        {"q3": ("t3",)},
    ]
    assert {query.tier for query in dataset.train} == {"all"}
    assert not findings.counts


def test_a_packed_text_is_taken_apart_and_nothing_in_it_is_stripped(folder, imported):
    dataset, _ = imported(folder(corpus=[{"_id": "t1", "title": "", "text": packed()}, *CORPUS[1:]]))
    assert dataset.tools[0] == Tool(
        id="t1",
        category="Sea",
        title="Tides ",
        api_name="High\nWater",
        api_description="By port, daily",
        parameters=(
            Parameter(name="port", type="STRING", description="its, name", required=True),
            Parameter(name="days", type="NUMBER"),
        ),
        schema='{"time": "str", "height": "float"}',
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('""', ""),
        ("{}", ""),
        ("null", ""),
        ('"a list"', "a list"),
        ('{"b": "\\u00b0", "a": []}', '{"b": "°", "a": []}'),
    ],
)
def test_a_schema_is_its_own_text_and_an_empty_one_is_none(folder, imported, schema, text):
    dataset, _ = imported(folder(corpus=[{"_id": "t1", "text": packed(schema=schema)}, *CORPUS[1:]]))
    assert dataset.tools[0].schema == text


@pytest.mark.parametrize("text", ["category_name:Sea, tool_name:Tides", packed().removeprefix("c"), f" {packed()}"])
def test_a_text_that_only_resembles_a_packed_one_is_kept_whole(folder, imported, text):
    dataset, _ = imported(folder(corpus=[{"_id": "t1", "text": text}, *CORPUS[1:]]))
    assert dataset.tools[0] == Tool(id="t1", api_description=text)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"required": "[{]"}, "what follows 'required_params:' is not JSON: Expecting property name"),
        ({"optional": ""}, "what follows 'optional_params:' is not JSON: Expecting value at character 1"),
        ({"schema": "{} more"}, "what follows 'return_schema:' is not JSON: Extra data at character 4"),
        ({"schema": "[" * 100_000}, "what follows 'return_schema:' is not JSON that can be read"),
    ],
)
def test_a_part_that_is_no_json_is_named_by_line_and_marker(folder, imported, parts, message):
    place = folder(corpus=[CORPUS[0], {"_id": "t2", "text": packed(**parts)}, *CORPUS[2:]])
    with pytest.raises(UserError) as error:
        imported(place)
    assert f"corpus.jsonl:2/text: {message}" in str(error.value)


def test_a_parameter_that_is_no_object_is_named_by_its_pointer(folder, imported):
    place = folder(corpus=[{"_id": "t1", "text": packed(optional='[{"name": "a"}, 2]')}, *CORPUS[1:]])
    with pytest.raises(UserError, match=r"corpus\.jsonl:1/text/optional_parameters/1: expected an object, got int"):
        imported(place)


# ----------------------------------------------------------------------------------------------------- judgements


@pytest.mark.parametrize(
    ("name", "split"), [("train", "train"), ("dev", "dev"), ("valid", "dev"), ("Validation", "dev"), ("test", "eval")]
)
def test_the_split_is_that_of_the_file_name(folder, imported, name, split):
    dataset, _ = imported(folder(queries=QUERIES[:1], qrels={name: [("q1", "t1", 1)]}))
    assert gold(getattr(dataset, split)) == {"q1": ("t1",)}


def test_another_file_name_is_refused_unless_its_split_is_said(folder, imported):
    place = folder(queries=QUERIES[:1], qrels={"tune": [("q1", "t1", 1)]})
    with pytest.raises(UserError, match=r"tune\.tsv: 'tune' is not the name of a split\n  known are: train, .*, test"):
        imported(place)
    dataset, _ = imported(place, options=Options(split="dev"))
    assert gold(dataset.dev) == {"q1": ("t1",)}


def test_what_is_judged_not_relevant_is_no_gold_and_counted(folder, imported):
    rows = [("q1", "t1", 0), ("q1", "t2", 2), ("q1", "t3", -1)]
    dataset, findings = imported(folder(queries=QUERIES[:1], qrels={"train": rows}))
    assert gold(dataset.train) == {"q1": ("t2",)}
    assert findings.remarks.counts["judged not relevant"] == 2
    assert findings.remarks.first["judged not relevant"].endswith("train.tsv:2: 't1' scores 0 for 'q1'")


def test_repeated_judgements_are_one_and_counted(folder, imported):
    rows = [("q1", "t2", 1), ("q1", "t1", 1), ("q1", "t2", 1), ("q1", "t2", 1)]
    dataset, findings = imported(folder(queries=QUERIES[:1], qrels={"train": rows}))
    assert gold(dataset.train) == {"q1": ("t2", "t1")}
    assert findings.remarks.counts["repeated judgement"] == 4 - 2


@pytest.mark.parametrize("score", ["yes", "", "nan", "inf"])
def test_a_score_that_is_no_number_is_a_fault(folder, imported, score):
    place = folder(queries=QUERIES[:1], qrels={"train": [("q1", "t1", 1), ("q1", "t2", score)]})
    with pytest.raises(UserError, match=f"train\\.tsv:3: the score '{score}' is no number"):
        imported(place)
    assert gold(imported(place, drop_invalid=True)[0].train) == {"q1": ("t1",)}


def test_a_query_in_two_splits_is_named_with_both_files_and_stays_in_evaluation(folder, imported):
    place = folder(queries=QUERIES[:1], qrels={"test": [("q1", "t1", 1)], "train": [("q1", "t2", 1), ("q1", "t3", 1)]})
    with pytest.raises(UserError) as error:
        imported(place)
    assert f"{place}/qrels/train.tsv:2: 'q1' is train here, but eval at test.tsv:2" in str(error.value)
    dataset, findings = imported(place, drop_invalid=True)
    assert (gold(dataset.train), gold(dataset.eval)) == ({}, {"q1": ("t1",)})
    assert findings.counts == {"query in two splits": 1}


def test_two_files_of_one_split_make_one_set_of_gold(folder, imported):
    place = folder(queries=QUERIES[:1], qrels={"dev": [("q1", "t2", 1)], "valid": [("q1", "t1", 1)]})
    assert gold(imported(place)[0].dev) == {"q1": ("t2", "t1")}


@pytest.mark.parametrize(
    ("queries", "rows", "message"),
    [
        (QUERIES[:1], [("q1", "t1", 1), ("q9", "t1", 1)], "train.tsv:3: 'q9' is judged, but not in queries.jsonl"),
        (QUERIES[:1], [("q1", "t9", 1)], "queries.jsonl:1: 'q1' names 't9', not in the catalogue"),
        (QUERIES[:2], [("q1", "t1", 1)], "queries.jsonl:2: 'q2' names no tool"),
        (QUERIES[:1], [("q1", "t1", 0)], "queries.jsonl:1: 'q1' names no tool"),
        ([{"_id": "q1"}], [("q1", "t1", 1)], "queries.jsonl:1: field 'text' has to be a text"),
        ([{"text": "x"}], [("q1", "t1", 1)], "queries.jsonl:1: field 'id' has to be a text"),
        ([QUERIES[0], QUERIES[0]], [("q1", "t1", 1)], "queries.jsonl:2: 'q1' says the same as at queries.jsonl:1"),
    ],
)
def test_what_does_not_belong_together_is_named_by_file_and_line(folder, imported, queries, rows, message):
    with pytest.raises(UserError) as error:
        imported(folder(queries=queries, qrels={"train": rows}))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1\t0\tt1\t1\n", r"train\.tsv:1: no column 'query-id' in the header: q1, 0, t1, 1"),
        ("query-id\tscore\n", r"train\.tsv:1: no column 'corpus-id' in the header"),
        ("", r"train\.tsv:1: no column 'query-id' in the header: the file is empty"),
        ("query-id\tcorpus-id\tscore\nq1\tt1\n", r"train\.tsv:2: 2 fields where there are 3 columns"),
    ],
)
def test_judgements_in_another_form_are_refused(folder, imported, text, message):
    with pytest.raises(UserError, match=message):
        imported(folder(qrels={"train": text}))


def test_windows_line_ends_a_byte_order_mark_and_quoted_ids_are_read(folder, imported):
    text = '\ufeffquery-id\tcorpus-id\tscore\r\nq1\t"t ""1"""\t1\r\n'
    corpus = [{"_id": 't "1"', "text": "Tides"}]
    assert gold(imported(folder(corpus, QUERIES[:1], {"train": text}))[0].train) == {"q1": ('t "1"',)}


# --------------------------------------------------------------------------------------------------- whole folders


def test_files_may_be_named_one_by_one(folder, imported):
    place = folder()
    files = [place / "corpus.jsonl", place / "queries.jsonl", *sorted((place / "qrels").iterdir())]
    assert imported(*files)[0] == imported(place)[0]


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels/*.tsv"])
def test_a_missing_file_is_named_with_those_there_are(folder, imported, missing, tmp_path):
    place = folder()
    for path in place.glob(missing):
        path.unlink()
    with pytest.raises(UserError, match=f"no {missing.replace('*', '.')} there\n  there is: ".replace(".", r"\S")):
        imported(place)
    assert not (tmp_path / "out").exists()


def test_paraphrases_beside_are_picked_up_and_others_may_be_given(folder, imported, tmp_path):
    place = folder(qrels={"test": [("q1", "t1", 1), ("q2", "t2", 1), ("q3", "t3", 1)]})
    (place / "vague.jsonl").write_text('{"id": "q1", "text": "when is it deep"}\n', encoding="utf-8")
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "q3", "text": "far from the sea, no car"}\n', encoding="utf-8")
    dataset, _ = imported(place, vague=more)
    assert gold(dataset.vague) == {"q1": ("t1",), "q3": ("t3",)}


def test_a_card_beside_is_taken_over_and_what_is_said_on_the_command_line_counts_more(folder, tmp_path):
    place = folder()
    (place / "dataset.yaml").write_text("name: seaside\nlicence: MIT\nsource: a pier\n", encoding="utf-8")
    import_dataset("beir", [place], tmp_path / "out", card={"licence": "CC0-1.0"})
    card = read_card(tmp_path / "out")
    assert (card["name"], card["licence"], card["source"]) == ("seaside", "CC0-1.0", "a pier")
    (place / "dataset.yaml").write_text("- seaside\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dataset\.yaml: expected a mapping"):
        import_dataset("beir", [place], tmp_path / "other")


def test_two_imports_are_equal_byte_for_byte(folder, tmp_path):
    place = folder()
    for name in ("a", "b"):
        import_dataset("beir", [place], tmp_path / name, card={"name": "seaside"})
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_toollens_gives_the_figures_of_its_publishers(shared_data, imported):
    vague = shared_data / "toollens_vague" / "vague.jsonl"
    dataset, findings = imported(shared_data / "toollens", vague=vague)
    assert (len(dataset.tools), len(dataset.train), len(dataset.eval), len(dataset.vague)) == (464, 16_893, 1_877, 179)
    assert [sum(len(query.tools) for query in part) for part in (dataset.train, dataset.eval)] == [44_865, 4_987]
    assert findings.remarks.counts["repeated judgement"] == 170 + 23
    assert not findings.counts
    assert len({(tool.category, tool.title, tool.api_name) for tool in dataset.tools}) == 464
    assert len({tool.title for tool in dataset.tools}) == 314
    assert len({tool.category for tool in dataset.tools}) == 19
    assert sum(tool.title.endswith(" ") for tool in dataset.tools) == 12
    assert sum(not tool.parameters for tool in dataset.tools) == 252
    assert all(parameter.required for tool in dataset.tools for parameter in tool.parameters)
    assert sum(not tool.schema for tool in dataset.tools) == 131
    assert all(tool.api_description for tool in dataset.tools)
