"""ToolBench's retriever data: quoted JSON in a table, one row an occurrence, ids that restart in each tier."""

import csv
import json

import pytest

from cohyde.catalog import Parameter, Tool
from cohyde.data.dataset import read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError


def api(name, tool="Harbour", category="Sea", description="", **more):
    return {"category_name": category, "tool_name": tool, "api_name": name, "api_description": description, **more}


TIDES = api(
    "Tides",
    description='High "water",\tby port\n',
    required_parameters=[{"name": "port", "type": "STRING", "description": "", "default": "X"}],
    optional_parameters=[{"name": "days", "type": "NUMBER", "description": "ahead", "default": 7}],
    method="GET",
    template_response={"time": "str"},
)
BERTHS, BUSES = api("Berths "), api("Buses", tool="Lines", category="Land")
CORPUS = [(1, TIDES), (2, BERTHS), (1, TIDES), (2, BERTHS), (2, BERTHS)]
TRAIN = [(1, 'when is "high" water', 1), (2, "a berth, and when", 2), (1, 'when is "high" water', 2)]
TEST = [(3, "may I moor", 2)]


def write_tsv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, delimiter="\t", lineterminator="\n").writerows(rows)


@pytest.fixture
def folder(tmp_path):
    """Write the folder of a tier: documents with their ids, and the pairs of each split."""

    def writer(name="retrieval", corpus=CORPUS, **splits):
        place = tmp_path / "data" / name
        place.mkdir(parents=True)
        contents = [(number, one if isinstance(one, str) else json.dumps(one)) for number, one in corpus]
        write_tsv(place / "corpus.tsv", [("docid", "document_content"), *contents])
        for split, pairs in (splits or {"train": TRAIN, "test": TEST}).items():
            write_tsv(place / f"{split}.query.txt", [(query, text) for query, text, *_ in pairs])
            write_tsv(
                place / f"qrels.{split}.tsv", [(query, 0, tool, *(label or [1])) for query, _, tool, *label in pairs]
            )
        return place

    return writer


@pytest.fixture
def imported(tmp_path):
    """Import sources, and read back what was written."""

    def importer(*sources, drop_invalid=False, options=None):
        out = tmp_path / "out"
        written, findings = import_dataset(
            "toolbench-retriever", sources, out, drop_invalid=drop_invalid, options=options, overwrite=True
        )
        assert read_dataset(out)[0] == written
        return written, findings

    return importer


def gold(queries):
    return {query.id: query.tools for query in queries}


# ------------------------------------------------------------------------------------------------------ one folder


def test_documents_and_pairs_become_tools_and_queries(folder, imported):
    dataset, findings = imported(folder())
    assert dataset.tools == (
        Tool(
            id="1",
            category="Sea",
            title="Harbour",
            api_name="Tides",
            api_description='High "water",\tby port\n',
            parameters=(
                Parameter(name="port", type="STRING", required=True),
                Parameter(name="days", type="NUMBER", description="ahead"),
            ),
            schema='{"time": "str"}',
        ),
        Tool(id="2", category="Sea", title="Harbour", api_name="Berths "),
    )
    assert gold(dataset.train) == {"1": ("1", "2"), "2": ("2",)}
    assert gold(dataset.eval) == {"3": ("2",)}
    assert [query.text for query in dataset.train] == ['when is "high" water', "a berth, and when"]
    assert {query.tier for query in (*dataset.train, *dataset.eval)} == {"all"}
    assert not findings.counts


def test_rows_that_repeat_by_design_are_counted(folder, imported):
    _, findings = imported(folder())
    assert findings.remarks.counts["repeated docid"] == 5 - 2
    assert findings.remarks.counts["repeated qid"] == 3 - 2


def test_the_query_of_a_one_element_list_is_taken_out_of_it(folder, imported):
    texts = ["['it is 5\" wide']", '["it\'s \\u00b0"]', "['a', 'b']", "[sic] as it is", "[1]", "[sea]", "[{[]: 1}]"]
    dataset, findings = imported(folder(train=[(number, text, 1) for number, text in enumerate(texts)]))
    assert [query.text for query in dataset.train] == ['it is 5" wide', "it's °", *texts[2:]]
    assert findings.remarks.counts["query in a list"] == 2


def test_a_label_of_zero_is_no_gold(folder, imported):
    dataset, findings = imported(folder(train=[(1, "when", 1, 0), (1, "when", 2, 1)]))
    assert gold(dataset.train) == {"1": ("2",)}
    assert findings.remarks.counts["judged not relevant"] == 1


@pytest.mark.parametrize(
    ("corpus", "train", "message"),
    [
        ([*CORPUS, (1, BUSES)], TRAIN, "corpus.tsv:7: '1' is also at corpus.tsv:2"),
        ([*CORPUS, (3, "{")], TRAIN, "corpus.tsv:7: document_content is not JSON: Expecting property name"),
        ([*CORPUS, (3, "[1]")], TRAIN, "corpus.tsv:7: document_content has to be a JSON object, got list"),
        ([*CORPUS, (3, '{"a": 1}')], TRAIN, "corpus.tsv:7: document_content has neither a 'tool_name' nor"),
        (
            [*CORPUS, (3, api("X", required_parameters=[1]))],
            TRAIN,
            "corpus.tsv:7/required_parameters/0: expected an object",
        ),
        (CORPUS, [(1, "when", 9)], "train.query.txt:1: '1' names '9', not in the catalogue"),
        (CORPUS, [(1, "when", 1), (1, "where", 1)], "train.query.txt:2: '1' is also at train.query.txt:1"),
        (CORPUS, [(1, "when", 1, "x")], "qrels.train.tsv:1: the score 'x' is no number"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(folder, imported, corpus, train, message):
    with pytest.raises(UserError) as error:
        imported(folder(corpus=corpus, train=train))
    assert message in str(error.value)


def test_a_second_content_of_an_id_hides_no_other_document(folder, imported):
    place = folder(corpus=[(1, TIDES), (1, BUSES), (2, BUSES)], train=[(1, "when", 2)])
    dataset, findings = imported(place, drop_invalid=True)
    assert [(tool.id, tool.api_name) for tool in dataset.tools] == [("1", "Tides"), ("2", "Buses")]
    assert (gold(dataset.train), findings.counts) == ({"1": ("2",)}, {"duplicate tool id": 1})


def test_judgements_of_a_query_that_is_not_there_are_named(folder, imported):
    place = folder(train=TRAIN)
    write_tsv(place / "train.query.txt", [(1, "when is high water")])
    with pytest.raises(UserError, match=r"qrels\.train\.tsv:2: '2' is judged, but not in train\.query\.txt"):
        imported(place)


def test_a_query_of_two_splits_is_a_fault_and_stays_in_evaluation(folder, imported):
    place = folder(train=[(1, "when", 1), (2, "where", 2)], test=[(1, "when", 2)])
    with pytest.raises(UserError, match=r"train\.query\.txt:1: '1' is also at test\.query\.txt:1"):
        imported(place)
    dataset, _ = imported(place, drop_invalid=True)
    assert (gold(dataset.train), gold(dataset.eval)) == ({"2": ("2",)}, {"1": ("2",)})


# ----------------------------------------------------------------------------------------------------------- tiers


def test_ids_that_restart_in_each_tier_are_told_apart_and_equal_apis_are_one(folder, imported):
    folder("G1", corpus=[(1, TIDES), (2, BERTHS)], train=[(1, "when", 1)])
    place = folder("G2", corpus=[(1, BUSES), (2, TIDES)], train=[(1, "how and when", 2), (1, "how and when", 1)])
    dataset, findings = imported(place.parent)
    assert [(tool.id, tool.api_name) for tool in dataset.tools] == [
        ("G1/1", "Tides"),
        ("G1/2", "Berths "),
        ("G2/1", "Buses"),
    ]
    assert gold(dataset.train) == {"G1/1": ("G1/1",), "G2/1": ("G1/1", "G2/1")}
    assert {query.id: query.tier for query in dataset.train} == {"G1/1": "G1", "G2/1": "G2"}
    assert findings.remarks.counts["API under several ids"] == 1
    assert not findings.counts


def test_an_api_that_is_defined_anew_keeps_its_first_definition(folder, imported):
    place = folder(corpus=[(1, BERTHS), (2, BERTHS | {"api_description": "Moorings."})], train=[(1, "may I", 2)])
    dataset, findings = imported(place)
    assert dataset.tools == (Tool(id="1", category="Sea", title="Harbour", api_name="Berths "),)
    assert gold(dataset.train) == {"1": ("1",)}
    assert findings.remarks.lines()[0].startswith(f"{place}/corpus.tsv:3: '2' defines '1' anew")


def test_the_folder_of_a_tier_and_its_files_say_the_tier_too(folder, imported):
    place = folder("G3", train=TRAIN)
    by_folder, _ = imported(place)
    by_files, _ = imported(*place.iterdir())
    assert by_folder == by_files
    assert {query.tier for query in by_folder.train} == {"G3"}
    assert {tool.id for tool in by_folder.tools} == {"G3/1", "G3/2"}


def test_the_current_folder_has_a_name_too(folder, imported, monkeypatch):
    monkeypatch.chdir(folder("G2"))
    assert {query.tier for query in imported(".")[0].train} == {"G2"}


# ----------------------------------------------------------------------------------------------------------- files


def test_a_split_of_another_name_is_refused_unless_it_is_said(folder, imported):
    place = folder(hard=TRAIN)
    with pytest.raises(UserError, match=r"hard\.query\.txt: 'hard' is not the name of a split"):
        imported(place)
    assert len(imported(place, options=Options(split="eval"))[0].eval) == 2


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("corpus.tsv", "no corpus.tsv there"),
        ("qrels.test.tsv", "no qrels.test.tsv there"),
        ("*.query.txt", "no *.query.txt there"),
    ],
)
def test_a_missing_file_is_named(folder, imported, gone, message):
    place = folder()
    for path in place.glob(gone):
        path.unlink()
    with pytest.raises(UserError) as error:
        imported(place)
    assert message in str(error.value)


def test_two_folders_that_are_no_tiers_are_not_mixed(folder, imported):
    with pytest.raises(UserError, match=r"2 corpus\.tsv of one tier there\n  name the folder of a tier"):
        imported(folder("one"), folder("two"))


def test_a_corpus_without_its_header_is_refused(folder, imported):
    place = folder()
    lines = (place / "corpus.tsv").read_text(encoding="utf-8").split("\n", 1)
    (place / "corpus.tsv").write_text(lines[1], encoding="utf-8")
    with pytest.raises(UserError, match=r"corpus\.tsv:1: no column 'docid' in the header"):
        imported(place)


def test_two_imports_are_equal_byte_for_byte(folder, tmp_path):
    place = folder()
    for name in ("a", "b"):
        import_dataset("toolbench-retriever", [place], tmp_path / name, card={"name": "harbour"})
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_toolbench_s_example_gives_its_published_counts(shared_data, folder, imported, tmp_path):
    """Their retriever files are not there; their instruction files, written out as these would be, are."""
    for tier in ("G1", "G2", "G3"):
        records = json.loads((shared_data / "toolbench_example" / f"{tier}_query.json").read_text(encoding="utf-8"))
        numbers, corpus, pairs = {}, [], []
        for record in records:
            for one in record["api_list"]:
                number = numbers.setdefault(json.dumps(one), len(numbers) + 1)
                corpus.append((number, one))
                if [one["tool_name"], one["api_name"]] in record["relevant APIs"]:
                    pairs.append((record["query_id"], record["query"], number))
        folder(tier, corpus=corpus, train=pairs)
    dataset, _ = imported(tmp_path / "data")
    assert (len(dataset.tools), len({tool.title for tool in dataset.tools})) == (26, 8)
    assert (len(dataset.train), sum(len(query.tools) for query in dataset.train)) == (10, 23)
