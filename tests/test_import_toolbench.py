"""ToolBench's instruction JSON: the union of the lists as the catalogue, gold by name within a query's own list."""

import csv
import json
from collections import Counter

import pytest

from cohyde.catalog import Parameter, Query, Tool
from cohyde.data.dataset import read_dataset
from cohyde.data.importers.api_names import readable_ids
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError


def api(name, tool="Harbour", category="Sea", **more):
    return {"category_name": category, "tool_name": tool, "api_name": name, "api_description": "", **more}


TIDES = api(
    "Tides",
    api_description="High water.\nBy port.",
    required_parameters=[{"name": "port", "type": "STRING", "description": "its code", "default": "X"}],
    optional_parameters=[{"name": "days", "type": "NUMBER", "description": "", "default": 7}],
    method="GET",
    template_response={"time": "str", "height": "float"},
)
BERTHS, BUSES = api("Berths "), api("Buses", tool="Lines", category="Land", template_response="")


def record(number, query, apis, *gold, **more):
    pairs = [[one["tool_name"], one["api_name"]] if isinstance(one, dict) else one for one in gold]
    return {"api_list": apis, "query": query, "relevant APIs": pairs, "query_id": number, **more}


ONE = record(7, "when is high water", [TIDES, BERTHS], TIDES)
TWO = record(9, "a berth, then the bus", [BUSES, BERTHS], BERTHS, BUSES)


@pytest.fixture
def write(tmp_path):
    """Write records, or any other value, as JSON to a file of this name."""

    def writer(name, *records, value=None):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(list(records) if value is None else value), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def imported(tmp_path):
    """Import sources (the data folder, where none is named), and read back what was written."""

    def importer(*sources, **options):
        more = {key: options.pop(key) for key in ("drop_invalid",) if key in options}
        places = sources or [tmp_path / "data"]
        out = tmp_path / "out"
        written, findings = import_dataset("toolbench", places, out, options=Options(**options), overwrite=True, **more)
        assert read_dataset(out)[0] == written
        return written, findings

    return importer


def gold(queries):
    return {query.id: query.tools for query in queries}


def odd(findings):
    """Remarks that the format makes, without those of the validation."""
    usual = {"tool without a description", "tools with the same text", "repeated query text"}
    return {kind: count for kind, count in findings.remarks.counts.items() if kind not in usual}


# --------------------------------------------------------------------------------------------- records and files


def test_the_union_of_the_lists_is_the_catalogue_sorted_by_its_names(write, imported):
    write("G2_query.json", ONE, TWO)
    dataset, findings = imported()
    assert [tool.id for tool in dataset.tools] == ["land/lines/buses", "sea/harbour/berths", "sea/harbour/tides"]
    assert dataset.tools[2] == Tool(
        id="sea/harbour/tides",
        category="Sea",
        title="Harbour",
        api_name="Tides",
        api_description="High water.\nBy port.",
        parameters=(
            Parameter(name="port", type="STRING", description="its code", required=True),
            Parameter(name="days", type="NUMBER"),
        ),
        schema='{"time": "str", "height": "float"}',
    )
    assert dataset.tools[1].api_name == "Berths "
    assert dataset.train == (
        Query(id="G2_query/7", text="when is high water", tools=("sea/harbour/tides",), tier="G2"),
        Query(
            id="G2_query/9", text="a berth, then the bus", tools=("sea/harbour/berths", "land/lines/buses"), tier="G2"
        ),
    )
    assert not findings.counts and not odd(findings)


@pytest.mark.parametrize(
    ("name", "identifier", "tier", "split"),
    [
        ("G1_query.json", "G1_query/7", "G1", "train"),
        ("instruction/G3_query.json", "G3_query/7", "G3", "train"),
        ("G1_instruction.json", "G1_instruction/7", "G1", "eval"),
        ("test_instruction/G2_category.json", "G2_category/7", "G2", "eval"),
        ("G1_tool.json", "G1_tool/7", "G1", "eval"),
        ("retrieval/G2/train.json", "G2_train/7", "G2", "train"),
        ("retrieval/G3/test_G3_instruction.json", "G3_instruction/7", "G3", "eval"),
    ],
)
def test_ids_tier_and_split_are_those_of_the_published_names(write, imported, name, identifier, tier, split):
    write(name, ONE)
    write("G1_answers.json", value={"no": "file of requests"})
    dataset, _ = imported()
    (query,) = [*dataset.train, *dataset.eval]
    assert (query.id, query.tier, query.split) == (identifier, tier, split)


def test_a_file_that_is_named_may_have_any_name(write, imported):
    dataset, _ = imported(write("G1/test.json", ONE), write("mine.json", TWO))
    assert [(query.id, query.tier, query.split) for query in (*dataset.train, *dataset.eval)] == [
        ("mine/9", "all", "train"),
        ("G1_test/7", "G1", "eval"),
    ]


def test_the_split_may_be_said(write, imported):
    write("G1_query.json", ONE)
    write("G2_category.json", TWO)
    dataset, _ = imported(split="eval")
    assert [query.id for query in dataset.eval] == ["G1_query/7", "G2_category/9"] and not dataset.train


def test_ids_that_restart_in_each_file_are_told_apart_by_it(write, imported):
    write("G1_query.json", ONE)
    write("G2_query.json", TWO | {"query_id": 7})
    dataset, _ = imported()
    assert [query.id for query in dataset.train] == ["G1_query/7", "G2_query/7"]


def test_a_record_without_an_id_has_its_position(write, imported):
    write("G1_query.json", ONE, {key: value for key, value in TWO.items() if key != "query_id"})
    assert [query.id for query in imported()[0].train] == ["G1_query/7", "G1_query/1"]


def test_an_import_says_what_it_looked_for(write, imported, tmp_path):
    write("other.json", ONE)
    with pytest.raises(UserError, match=r"no file of requests there\n  published are: G\?_query\.json"):
        imported()
    assert not (tmp_path / "out").exists()


def test_two_imports_are_equal_byte_for_byte(write, imported, tmp_path):
    write("G1_query.json", ONE, TWO)
    write("G2_tool.json", TWO | {"query": "a bus"})
    contents = []
    for _ in range(2):
        imported()
        contents.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 4


# ------------------------------------------------------------------------------------------------ test_query_ids


def test_records_that_test_query_ids_lacks_are_left_out_and_counted(write, imported):
    write("test_instruction/G1_tool.json", ONE, TWO)
    write("test_query_ids/G1_tool.json", value={"9": 0})
    dataset, findings = imported()
    assert [query.id for query in dataset.eval] == ["G1_tool/9"]
    assert odd(findings) == {"not in test_query_ids": 1}


def test_training_records_that_test_query_ids_holds_out_are_evaluation(write, imported):
    write("instruction/G1_query.json", ONE, TWO)
    write("instruction/G2_query.json", TWO | {"query": "a bus, then a berth"})
    write("test_query_ids/G1_category_test_query_ids.json", value={"9": 0})
    dataset, findings = imported()
    assert gold(dataset.eval) == {"G1_category/9": ("sea/harbour/berths", "land/lines/buses")}
    assert [query.id for query in dataset.train] == ["G1_query/7", "G2_query/9"]
    assert not odd(findings)


def test_ids_that_are_none_are_named_by_their_file(write, imported):
    write("G1_tool.json", ONE)
    write("test_query_ids/G1_tool.json", value=3)
    with pytest.raises(UserError, match=r"G1_tool\.json: expected an object whose keys are query ids, got int"):
        imported()


# ---------------------------------------------------------------------------------------------------------- gold


@pytest.mark.parametrize("pair", [["HARBOUR", "Tides"], ["Harbour", "tides!"], ["Hárbour", " ti-des"]])
def test_names_that_differ_in_case_accents_or_punctuation_are_matched_and_counted(write, imported, pair):
    write("G1_query.json", record(7, "when is high water", [BERTHS, TIDES], pair))
    dataset, findings = imported()
    assert gold(dataset.train) == {"G1_query/7": ("sea/harbour/tides",)}
    assert odd(findings) == {"matched by normalised name": 1}


def test_a_name_is_taken_as_it_stands_before_others_that_are_like_it(write, imported):
    apis = [api("get order"), api("Get_Order"), api("Get Order")]
    write("G1_query.json", record(7, "my order", apis, apis[1]))
    dataset, findings = imported()
    named = {tool.id: tool.api_name for tool in dataset.tools}
    assert [named[tool] for tool in dataset.train[0].tools] == ["Get_Order"]
    assert not odd(findings)


def test_a_pair_that_several_categories_have_is_all_of_them(write, imported):
    twin = api("Tides", category="Weather")
    write("G1_query.json", record(7, "when is high water", [TIDES, twin, BERTHS], TIDES))
    dataset, findings = imported()
    assert gold(dataset.train) == {"G1_query/7": ("sea/harbour/tides", "weather/harbour/tides")}
    assert odd(findings) == {"relevant API of several categories": 1}


def test_a_category_that_is_not_in_the_list_is_no_gold(write, imported):
    write("G1_query.json", ONE, record(8, "the tide", [api("Tides", category="Weather")], TIDES))
    dataset, _ = imported()
    assert gold(dataset.train) == {"G1_query/7": ("sea/harbour/tides",), "G1_query/8": ("weather/harbour/tides",)}


def test_gold_that_is_named_twice_is_remarked_on(write, imported):
    write("G1_query.json", record(7, "when is high water", [TIDES, BERTHS], TIDES, BERTHS, TIDES, TIDES))
    dataset, findings = imported()
    assert gold(dataset.train) == {"G1_query/7": ("sea/harbour/tides", "sea/harbour/berths")}
    assert odd(findings) == {"repeated relevant API": 2}


def test_a_relevant_api_that_is_not_in_the_list_is_named_by_its_pointer(write, imported):
    path = write("G1_query.json", ONE, record(8, "a bus", [TIDES], TIDES, BUSES))
    with pytest.raises(UserError) as error:
        imported()
    assert f"{path}#/1/relevant APIs/1: ['Lines', 'Buses'] is not in the query's api_list" in str(error.value)
    assert "--drop-invalid" in str(error.value)


def test_such_an_api_is_dropped_when_asked_and_the_query_if_nothing_is_left(write, imported):
    write("G1_query.json", record(7, "the tide", [TIDES], BUSES, TIDES), record(8, "a bus", [TIDES], BUSES))
    dataset, findings = imported(drop_invalid=True)
    assert gold(dataset.train) == {"G1_query/7": ("sea/harbour/tides",)}
    assert findings.counts == {"relevant API not in the list": 2, "query without gold": 1}


# ------------------------------------------------------------------------------------------------------- oddities


@pytest.mark.parametrize(
    ("wrong", "pointer", "what"),
    [
        ("text", "#/1", "expected an object, got str"),
        (ONE | {"api_list": None}, "#/1/api_list", "expected a list, got NoneType"),
        (ONE | {"api_list": [TIDES, 5]}, "#/1/api_list/1", "expected an object, got int"),
        (ONE | {"api_list": [TIDES, api("", tool="")]}, "#/1/api_list/1", "neither a 'tool_name' nor an 'api_name'"),
        (ONE | {"relevant APIs": "Tides"}, "#/1/relevant APIs", "expected a list, got str"),
        (ONE | {"relevant APIs": [["Harbour"]]}, "#/1/relevant APIs/0", "expected a pair of texts, got ['Harbour']"),
        (ONE | {"relevant APIs": [["Harbour", 1]]}, "#/1/relevant APIs/0", "expected a pair of texts"),
        (ONE | {"query": {"text": "x"}}, "#/1", "field 'text' has to be a text that is not empty"),
        (ONE | {"api_list": [TIDES | {"required_parameters": [1]}]}, "#/1/api_list/0/required_parameters/0", "object"),
    ],
)
def test_a_record_of_another_shape_is_named_by_its_pointer(write, imported, wrong, pointer, what):
    path = write("G1_query.json", record(1, "a bus", [BUSES], BUSES), wrong)
    with pytest.raises(UserError) as error:
        imported()
    assert f"{path}{pointer}: " in str(error.value) and what in str(error.value)
    assert "G1_query/1" in gold(imported(drop_invalid=True)[0].train)


def test_a_query_in_pieces_is_joined(write, imported):
    write("G1_query.json", ONE | {"query": ["when is", "high water"]}, TWO | {"query": ["a berth"]})
    dataset, findings = imported()
    assert [query.text for query in dataset.train] == ["when is high water", "a berth"]
    assert odd(findings) == {"query in a list": 2}


def test_of_several_definitions_the_first_is_kept_and_the_others_are_counted(write, imported):
    again = TIDES | {"api_description": "Low water."}
    write("G1_query.json", ONE, record(8, "low water", [again], again), record(9, "high water", [TIDES], TIDES))
    dataset, findings = imported()
    assert [tool.api_description for tool in dataset.tools if tool.api_name == "Tides"] == ["High water.\nBy port."]
    assert odd(findings) == {"API with several definitions": 1}


def test_ids_that_would_be_the_same_end_in_a_checksum_of_their_names(write, imported):
    apis = [api("get order"), api("Get_Order"), api("订单"), api("!"), api("?")]
    write("G1_query.json", record(7, "my order", apis, apis[0]))
    ids = [tool.id for tool in imported()[0].tools]
    assert "sea/harbour/订单" in ids and len(set(ids)) == 5
    assert [identifier.rpartition("-")[0] for identifier in sorted(ids)[:2]] == ["sea/harbour/-"] * 2
    assert Counter(identifier.rpartition("-")[0] for identifier in ids)["sea/harbour/get_order"] == 2


def test_an_id_means_the_same_whatever_else_is_there():
    names = [("Sea", "Harbour", "get order"), ("Sea", "Harbour", "Get Order"), ("Sea", "Harbour", "Tides")]
    all_three, first = readable_ids(names), readable_ids(names[:1])
    assert all_three[names[2]] == readable_ids(names[2:])[names[2]] == "sea/harbour/tides"
    assert first[names[0]] == "sea/harbour/get_order" not in all_three.values()
    assert readable_ids(names[:1], taken={"sea/harbour/get_order"})[names[0]] == all_three[names[0]]


# --------------------------------------------------------------------------------------------- another catalogue


@pytest.fixture
def corpus(tmp_path):
    """Write a catalogue in the form of ToolBench's corpus.tsv."""

    def writer(*contents):
        path = tmp_path / "corpus_G123.tsv"
        with path.open("w", encoding="utf-8", newline="") as handle:
            table = csv.writer(handle, delimiter="\t", lineterminator="\n")
            table.writerow(["docid", "document_content"])
            table.writerows((n, one if isinstance(one, str) else json.dumps(one)) for n, one in enumerate(contents, 1))
        return path

    return writer


def test_a_corpus_is_the_catalogue_and_what_it_lacks_is_added(write, imported, corpus):
    write("G1_query.json", ONE, TWO)
    more = api("Moorings", api_description="Free ones.")
    catalog = corpus(more, TIDES | {"category_name": "SEA", "api_description": "Tide tables."}, more, api("Berths "))
    dataset, findings = imported(catalog=catalog)
    assert [(tool.id, tool.api_description) for tool in dataset.tools] == [
        ("sea/harbour/moorings", "Free ones."),
        ("sea/harbour/tides", "Tide tables."),
        ("sea/harbour/berths", ""),
        ("land/lines/buses", ""),
    ]
    assert gold(dataset.train)["G1_query/7"] == ("sea/harbour/tides",)
    assert odd(findings) == {"repeated API": 1, "matched by normalised name": 1, "not in the given catalogue": 1}


def test_of_several_records_of_an_api_in_a_corpus_the_first_is_kept(write, imported, corpus):
    write("G1_query.json", ONE)
    dataset, findings = imported(catalog=corpus(BERTHS, TIDES, TIDES | {"api_description": "Other."}))
    assert [tool.api_description for tool in dataset.tools] == ["", "High water.\nBy port."]
    assert odd(findings) == {"API with several definitions": 1}


@pytest.mark.parametrize(
    ("content", "what"),
    [("{", "is not JSON"), ("[1]", "has to be a JSON object, got list"), ('{"a": 1}', "has neither a 'tool_name' nor")],
)
def test_a_document_that_is_no_record_is_named_by_its_line(write, imported, corpus, content, what):
    write("G1_query.json", ONE)
    with pytest.raises(UserError, match=rf"corpus_G123\.tsv:3: document_content {what}"):
        imported(catalog=corpus(TIDES, content))


def test_a_dataset_folder_is_a_catalogue_with_its_own_ids(write, imported, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    rows = [
        {"id": "t1", "category": "Sea", "title": "Harbour", "api_name": "Tides", "description": "Of all harbours."},
        {"id": "t2", "category": "Sea", "title": "Harbour", "api_name": "Berths "},
    ]
    (folder / "catalog.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write("G1_query.json", ONE, TWO)
    dataset, _ = imported(catalog=folder)
    assert [tool.id for tool in dataset.tools] == ["t1", "t2", "land/lines/buses"]
    assert gold(dataset.train) == {"G1_query/7": ("t1",), "G1_query/9": ("t2", "land/lines/buses")}


@pytest.mark.parametrize("name", ["catalog.csv", "missing.tsv"])
def test_what_is_no_catalogue_is_refused(write, imported, tmp_path, name):
    write("G1_query.json", ONE)
    (tmp_path / "catalog.csv").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match=name):
        imported(catalog=tmp_path / name)


def test_the_memorisation_file_says_what_the_providers_do(write, imported):
    def memory(text, token):
        return {"conversations": [{"role": "user", "content": text}, {"role": "assistant", "content": token}]}

    write("G1_query.json", ONE, TWO)
    write(
        "toolgen_atomic_memorization.json",
        memory(
            "Tool Name: Harbour. Tool Description: All harbours. Api Name: Tides Api Description: x.",
            "<<HARBOUR&&tides>>",
        ),
        memory("Tool Name: Lines. Tool Description: None Api Name: Buses Api Description: None.", "<<Lines&&Buses>>"),
    )
    dataset, findings = imported()
    assert [(tool.id, tool.description) for tool in dataset.tools] == [
        ("land/lines/buses", ""),
        ("sea/harbour/berths", ""),
        ("sea/harbour/tides", "All harbours."),
    ]
    assert not odd(findings)


# ------------------------------------------------------------------------------------------------ published files


def test_stabletoolbench_has_the_published_counts(shared_data, tmp_path):
    dataset, findings = import_dataset("toolbench", [shared_data / "stabletoolbench"], tmp_path / "out")
    assert (len(dataset.tools), len(dataset.eval), len(dataset.train)) == (2490, 765, 0)
    assert Counter(query.tier for query in dataset.eval) == {"G1": 474, "G2": 230, "G3": 61}
    pairs = Counter()
    for query in dataset.eval:
        pairs[query.tier] += len(query.tools)
    assert pairs == {"G1": 1057, "G2": 558, "G3": 180} and pairs.total() == 1795
    assert len({(tool.category, tool.title) for tool in dataset.tools}) == 814
    assert len({tool.category for tool in dataset.tools}) == 47
    assert not findings.counts
    assert odd(findings) == {"repeated relevant API": 1799 - 1795}
    assert findings.remarks.counts["tool without a description"] == 224
    assert findings.remarks.counts["repeated query text"] == 1


def test_stabletoolbench_is_the_evaluation_of_toolbench_mini(shared_data, tmp_path):
    ours, _ = import_dataset("toolbench", [shared_data / "stabletoolbench"], tmp_path / "out")
    mini, _ = read_dataset(shared_data / "toolbench_mini")

    def described(dataset):
        names = {tool.id: (tool.category, tool.title, tool.api_name) for tool in dataset.tools}
        queries = {query.id: (query.text, query.tier, {names[tool] for tool in query.tools}) for query in dataset.eval}
        return list(names.values()), queries

    assert described(ours) == described(mini)


def test_toolbench_s_own_example_has_the_published_counts(shared_data, tmp_path):
    dataset, findings = import_dataset("toolbench", [shared_data / "toolbench_example"], tmp_path / "out")
    assert (len(dataset.tools), len({tool.title for tool in dataset.tools})) == (26, 8)
    assert Counter(query.tier for query in dataset.train) == {"G1": 5, "G2": 3, "G3": 2}
    assert sum(len(query.tools) for query in dataset.train) == 23
    assert [len(query.tools) for query in dataset.train] == [2] * 8 + [3, 4]
    assert not findings.counts and not odd(findings)
