"""Datasets on disk: what is read, what is refused by file and line, and what is dropped only when asked."""

import json

import pytest

from cohyde.catalog import Dataset, Parameter, Query, Tool
from cohyde.data.dataset import dataset_checksum, dataset_folder, read_card, read_dataset, write_dataset
from cohyde.data.validation import normalised
from cohyde.errors import UserError

TOOLS = [{"id": "a", "title": "Alpha"}, {"id": "b", "title": "Beta"}]
QUERIES = [
    {"id": "q1", "text": "first", "tools": ["a"], "tier": "G1", "split": "train"},
    {"id": "q2", "text": "second", "tools": ["a", "b"], "tier": "G2", "split": "train"},
    {"id": "q3", "text": "third", "tools": ["b"], "tier": "G1", "split": "eval"},
]
VAGUE = [{"id": "q3", "text": "the last one"}]


def as_lines(rows):
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path):
    """Write a dataset folder; what is not given is as above, and rows may be raw lines."""

    def writer(tools=TOOLS, queries=QUERIES, vague=VAGUE):
        for name, rows in (("catalog", tools), ("queries", queries), ("vague", vague)):
            if rows is not None:
                (tmp_path / f"{name}.jsonl").write_text(as_lines(rows), encoding="utf-8")
        return tmp_path

    return writer


def error_of(path, **arguments):
    with pytest.raises(UserError) as error:
        read_dataset(path, **arguments)
    return str(error.value)


def ids(queries):
    return [query.id for query in queries]


# ------------------------------------------------------------------------------------------------------ reading


def test_a_folder_is_read_into_tools_and_splits(folder):
    dataset, findings = read_dataset(folder())
    assert [tool.id for tool in dataset.tools] == ["a", "b"]
    assert (ids(dataset.train), ids(dataset.dev), ids(dataset.eval)) == (["q1", "q2"], [], ["q3"])
    assert not findings.counts


def test_a_paraphrase_has_the_gold_and_the_tier_of_its_query(folder):
    dataset, _ = read_dataset(folder())
    assert dataset.vague == (Query(id="q3", text="the last one", tools=("b",), tier="G1", split="vague"),)


def test_paraphrases_are_optional(folder):
    assert read_dataset(folder(vague=None))[0].vague == ()


def test_byte_order_mark_and_windows_line_ends_change_nothing(folder):
    plain = read_dataset(folder())[0]
    for path in folder().glob("*.jsonl"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_dataset(folder(None, None, None))[0] == plain


def test_a_query_of_100000_characters_is_read_whole(folder):
    text = "rain " * 20_000
    dataset, _ = read_dataset(folder(queries=[*QUERIES, {"id": "long", "text": text, "tools": ["a"]}]))
    assert len(text) == 100_000 and dataset.train[-1].text == text


def test_zero_width_and_right_to_left_text_survive_reading_and_writing(folder, tmp_path):
    text = "\u202bمرحبا\u202c zero\u200bwidth می\u200cخواهم שלום 👩‍👩‍👧"
    queries = [*QUERIES, {"id": "q4", "text": text, "tools": ["a"]}]
    dataset, _ = read_dataset(folder(tools=[*TOOLS, {"id": "c", "description": text}], queries=queries))
    write_dataset(tmp_path / "copy", dataset, {})
    again, _ = read_dataset(tmp_path / "copy")
    assert again.train[-1].text == again.tools[-1].description == text


# ------------------------------------------------------------------------------------- one fault, named by line


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"tools": [*TOOLS, "{"]}, "catalog.jsonl:3", "not JSON"),
        ({"tools": [*TOOLS, "[]"]}, "catalog.jsonl:3", "expected a JSON object, got list"),
        ({"tools": [*TOOLS, {"title": "x"}]}, "catalog.jsonl:3", "field 'id' is missing or empty"),
        ({"tools": [*TOOLS, {"id": "c", "titel": "x"}]}, "catalog.jsonl:3", "unknown field 'titel'"),
        ({"tools": [*TOOLS, {"id": "c", "title": "x\0"}]}, "catalog.jsonl:3", "'title' holds a NUL character"),
        (
            {"tools": [*TOOLS, TOOLS[0]]},
            "catalog.jsonl:3",
            "'a' says the same as at catalog.jsonl:1 (repeated tool; 1 in all)",
        ),
        ({"queries": [*QUERIES, '{"id": "q4"']}, "queries.jsonl:4", "not JSON"),
        ({"queries": [*QUERIES, {"id": "q4", "tools": ["a"]}]}, "queries.jsonl:4", "field 'text'"),
        (
            {"queries": [*QUERIES, '{"id": "q4", "text": "\\ud83d", "tools": ["a"]}']},
            "queries.jsonl:4",
            "'text' holds half a surrogate pair",
        ),
        ({"queries": [*QUERIES, QUERIES[1] | {"text": "x"}]}, "queries.jsonl:4", "'q2' is also at queries.jsonl:2"),
        ({"queries": [*QUERIES, {"id": "q4", "text": "x", "tools": ["z"]}]}, "queries.jsonl:4", "'q4' names 'z', not"),
        (
            {"queries": [*QUERIES, {"id": "q4", "text": "x", "tools": ["a"], "gold_sets": [["b"], ["a", "y"]]}]},
            "queries.jsonl:4",
            "'q4' names 'y', not",
        ),
        ({"queries": [*QUERIES, {"id": "q4", "text": "x", "tools": []}]}, "queries.jsonl:4", "'q4' names no tool"),
        ({"queries": [*QUERIES, {"id": "q4", "text": "x"}]}, "queries.jsonl:4", "'q4' names no tool"),
        (
            {"queries": [*QUERIES, QUERIES[0] | {"id": "q4", "text": "x", "split": "test"}]},
            "queries.jsonl:4",
            "'test' of 'q4' is none of train, dev, eval",
        ),
        (
            {"queries": [*QUERIES, QUERIES[0] | {"id": "q4", "text": "Third!"}]},
            "queries.jsonl:4",
            "'q4' (train) reads as 'q3' (eval)",
        ),
        (
            {"queries": [*QUERIES, QUERIES[0] | {"id": "q4", "text": "THIRD", "split": "dev"}]},
            "queries.jsonl:4",
            "'q4' (dev) reads as 'q3' (eval)",
        ),
        (
            {"queries": [QUERIES[0] | {"id": "q0", "split": "dev"}, *QUERIES]},
            "queries.jsonl:2",
            "'q1' (train) reads as 'q0' (dev)",
        ),
        ({"vague": [{"id": "q3", "text": "First."}]}, "queries.jsonl:1", "'q1' (train) reads as 'q3' (vague)"),
        ({"vague": [*VAGUE, {"id": "q1", "text": "x"}]}, "vague.jsonl:2", "'q1' is not an evaluation query"),
        ({"vague": [*VAGUE, {"id": "q3", "text": "x"}]}, "vague.jsonl:2", "'q3' occurs before"),
        ({"vague": [{"id": "q3", "text": " "}]}, "vague.jsonl:1", "a 'text' that is not empty"),
        ({"vague": [{"id": "q3", "text": "a\0"}]}, "vague.jsonl:1", "holds a NUL character"),
    ],
)
def test_a_fault_is_named_by_file_and_line_and_stops_unless_it_may_be_dropped(folder, given, where, message):
    path = folder(**given)
    said = error_of(path)
    assert f"{path}/{where}: " in said and message in said
    assert "1 in all" in said and "data.drop_invalid=true" in said

    dataset, findings = read_dataset(path, drop_invalid=True)
    assert findings.counts.total() == 1
    assert where in findings.lines()[0]
    assert {query.split for query in dataset.train} == {"train"}


def test_text_that_is_not_utf8_is_named_by_its_byte(folder):
    path = folder()
    with (path / "queries.jsonl").open("ab") as handle:
        handle.write(b'{"id": "caf\xe9"}\n')
    assert f"{path / 'queries.jsonl'}:4: not UTF-8 (byte 12 of the line is 0xe9)" in error_of(path)
    dataset, findings = read_dataset(path, drop_invalid=True)
    assert (len(dataset.train), dict(findings.counts)) == (2, {"not UTF-8": 1})


def test_faults_are_counted_by_kind_with_the_first_of_each(folder):
    queries = [
        *QUERIES,
        {"id": "q4", "text": "x", "tools": ["y"]},
        {"id": "q5", "text": "x", "tools": ["z"]},
        {"id": "q6", "text": "x", "tools": []},
        "{",
    ]
    path = folder(queries=queries)
    said = error_of(path)
    assert f"{path}/queries.jsonl:4: 'q4' names 'y', not in the catalogue (unknown gold tool; 2 in all)" in said
    assert f"{path}/queries.jsonl:6: 'q6' names no tool (query without gold; 1 in all)" in said
    assert "q5" not in said

    dataset, findings = read_dataset(path, drop_invalid=True)
    assert dict(findings.counts) == {"unknown gold tool": 2, "query without gold": 1, "malformed JSON": 1}
    assert ids(dataset.train) == ["q1", "q2"]


def test_dropping_a_tool_drops_the_queries_that_need_it_and_their_paraphrases(folder):
    path = folder(tools=[TOOLS[0], {"id": "b", "titel": "Beta"}])
    dataset, findings = read_dataset(path, drop_invalid=True)
    assert (ids(dataset.train), ids(dataset.eval), dataset.vague) == (["q1"], [], ())
    assert dict(findings.counts) == {"malformed tool": 1, "unknown gold tool": 2, "unknown paraphrase": 1}


# ------------------------------------------------------------------------------------------- folders and files


@pytest.mark.parametrize("tools", [[], ["", "  "]])
def test_an_empty_catalogue_is_called_empty(folder, tools):
    path = folder(tools=tools)
    for drop_invalid in (False, True):
        said = error_of(path, drop_invalid=drop_invalid)
        assert f"{path / 'catalog.jsonl'}: the catalogue is empty" in said and "q1" not in said


def test_a_catalogue_whose_every_line_is_wrong_says_what_is_wrong(folder):
    path = folder(tools=[{"titel": "x"}])
    assert "field 'id' is missing" in error_of(path)
    assert "the catalogue is empty" in error_of(path, drop_invalid=True)


def test_a_directory_in_place_of_a_file_is_called_one(folder, tmp_path):
    path = folder(vague=None)
    (path / "vague.jsonl").mkdir()
    assert "vague.jsonl: is a directory, not a file" in error_of(path)


def test_a_folder_is_checked_before_anything_is_read(tmp_path, folder):
    for path, message in ((tmp_path / "none", "is not a folder"), (tmp_path, "holds no catalog.jsonl")):
        with pytest.raises(UserError, match=message):
            dataset_folder(str(path))
    path = folder(queries=None)
    with pytest.raises(UserError, match=r"holds no queries\.jsonl"):
        dataset_folder(str(path))
    with pytest.raises(UserError, match="is not a folder"):
        dataset_folder(str(path / "catalog.jsonl"))


def test_sample_is_the_embedded_dataset():
    assert (dataset_folder("sample") / "catalog.jsonl").is_file()


def test_the_checksum_follows_the_data_and_not_the_card(folder):
    path = folder()
    before = dataset_checksum(str(path))
    (path / "dataset.yaml").write_text("name: other\n", encoding="utf-8")
    assert dataset_checksum(str(path)) == before
    folder(vague=[{"id": "q3", "text": "other words"}])
    assert dataset_checksum(str(path)) != before


def test_the_card_names_the_dataset_else_its_folder_does(folder):
    path = folder()
    assert read_dataset(path)[0].name == path.name
    (path / "dataset.yaml").write_text("name: mine\nlicence: MIT\n", encoding="utf-8")
    assert read_dataset(path)[0].name == "mine"
    assert read_card(path) == {"name": "mine", "licence": "MIT"}


def test_a_card_that_is_no_yaml_is_named(folder):
    path = folder()
    (path / "dataset.yaml").write_text("name: [", encoding="utf-8")
    assert f"{path / 'dataset.yaml'}: not YAML" in error_of(path)


def test_a_card_may_hold_a_day_that_does_not_exist_or_nothing(folder):
    path = folder()
    (path / "dataset.yaml").write_text("released: 2026-02-30\n", encoding="utf-8")
    assert read_card(path) == {"released": "2026-02-30"}
    (path / "dataset.yaml").write_text("\n", encoding="utf-8")
    assert read_card(path) == {}


# ----------------------------------------------------------------------------------------------------- writing


def test_a_dataset_survives_writing_and_a_second_writing_gives_the_same_bytes(tmp_path):
    tools = (
        Tool(id="a", title="Alpha", parameters=(Parameter(name="p", type="STRING", required=True),), schema="s"),
        Tool(id="b", description="Ünïcode \u2028 and\ttabs"),
    )
    dataset = Dataset(
        name="round trip",
        tools=tools,
        train=(Query(id="q1", text="one", tools=("a",), tier="G1"),),
        dev=(Query(id="q2", text="two", tools=("b", "a"), tier="G2", split="dev"),),
        eval=(Query(id="q3", text="three", tools=("b",), tier="G1", split="eval"),),
        vague=(Query(id="q3", text="iii", tools=("b",), tier="G1", split="vague"),),
    )
    write_dataset(tmp_path / "one", dataset, {"source": "a test"})
    again, _ = read_dataset(tmp_path / "one")
    assert again == dataset
    write_dataset(tmp_path / "two", again, {"source": "a test"})
    for name in ("catalog.jsonl", "queries.jsonl", "vague.jsonl", "dataset.yaml"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    card = read_card(tmp_path / "two")
    assert (card["source"], card["counts"]) == ("a test", {"tools": 2, "train": 1, "dev": 1, "eval": 1, "vague": 1})


# -------------------------------------------------------------------------------------------- normalised texts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Rain today?", "rain  TODAY"),
        ("rain-today", "rain today"),
        ("wea\u200bther", "weather"),
        ("caf\u00e9", "cafe\u0301"),
        ("STRASSE", "straße"),
        ("ﬁne", "fine"),
    ],
)
def test_texts_that_read_alike_are_the_same_query(one, other):
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("rain", "train"), ("???", "!!!"), ("🎈", "🎉"), ("10", "1 0")])
def test_texts_that_read_differently_are_not(one, other):
    assert normalised(one) != normalised(other)


def test_normalising_twice_changes_nothing():
    for text in ("Rain today?", "???", "ÅNGSTRÖM ½", "שָׁלוֹם", "İstanbul"):
        assert normalised(normalised(text)) == normalised(text)
