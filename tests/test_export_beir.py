"""A dataset as a BEIR folder: what BEIR tools read there, and that importing it gives the same dataset again."""

import csv
import json

import pytest
import yaml

from cohyde.catalog import Dataset, Parameter, Query, Tool, render
from cohyde.data.dataset import dataset_folder, read_card, read_dataset, write_dataset
from cohyde.data.exporting import EXPORTERS, export_dataset
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

EQUIVALENT = (("only an id", ' " id with a quote'), ("z last\u2028first",))
NASTY = Dataset(
    name='a "name": with # signs',
    tools=(
        Tool(id="z last\u2028first", title="tab\there", description="line\nbreak\r\n", api_name='"quoted"'),
        Tool(id=' " id with a quote', category="カテゴリ", api_description="emoji 👋 and \\u0041", schema='{"a": [1]}'),
        Tool(id="only an id"),
        Tool(
            id="null",
            title="category_name:A, tool_name:B",
            parameters=(
                Parameter(name="q", type="STRING", description='say "x"\t', required=True),
                Parameter(name="", description="without a name"),
            ),
        ),
    ),
    train=(
        Query(id="2", text=" blanks around\t", tools=("null", "z last\u2028first"), tier="G2"),
        Query(id="1", text='it\'s 20° — "now"\nor never', tools=(' " id with a quote',), instruction='find\n"it"'),
    ),
    dev=(Query(id='"dev" query', text="[1]", tools=("only an id",), tier="a b", split="dev"),),
    eval=(Query(id="e\u00a01", text="العربية", tools=("null",), tier="G3", split="eval", gold_sets=EQUIVALENT),),
    vague=(
        Query(id="e\u00a01", text="left\nto right", tools=("null",), tier="G3", split="vague", gold_sets=EQUIVALENT),
    ),
)
"""What a careless writer would lose: order, tabs, line breaks, quotation marks, blanks, empty fields."""


@pytest.fixture
def written(tmp_path):
    """The folder of a dataset, with its card."""

    def writer(dataset, **card):
        folder = tmp_path / "dataset"
        folder.mkdir()
        write_dataset(folder, dataset, card)
        return folder

    return writer


def catalogue(*ids):
    return Dataset(name="few", tools=tuple(Tool(id=identifier, title="tides") for identifier in ids))


def assert_nothing_is_lost(folder, tmp_path):
    before, _ = read_dataset(folder)
    export_dataset("beir", folder, tmp_path / "exported")
    import_dataset("beir", [tmp_path / "exported"], tmp_path / "back")
    assert read_dataset(tmp_path / "back")[0] == before
    card, again = ({**read_card(place), "sha256": None} for place in (folder, tmp_path / "back"))
    assert again.pop("imported")["format"] == "beir"
    assert again == {**card, "name": before.name, "counts": again["counts"]}


def test_nothing_is_lost_of_a_nasty_dataset(written, tmp_path):
    folder = written(NASTY, source="tests\nof ours: 'all'", licence="MIT", notes=[{"deep": ["ä", None, 1.5]}])
    assert read_dataset(folder)[0] == NASTY
    assert_nothing_is_lost(folder, tmp_path)


def test_nothing_is_lost_of_the_sample(tmp_path):
    assert_nothing_is_lost(dataset_folder("sample"), tmp_path)


def test_nothing_is_lost_of_a_catalogue_without_queries(written, tmp_path):
    assert_nothing_is_lost(written(catalogue("t1", "t2")), tmp_path)


def test_nothing_is_lost_of_toolbench_mini(shared_data, tmp_path):
    assert_nothing_is_lost(shared_data / "toolbench_mini", tmp_path)


def test_the_same_files_come_back_byte_for_byte(written, tmp_path):
    folder = written(NASTY)
    export_dataset("beir", folder, tmp_path / "exported")
    import_dataset("beir", [tmp_path / "exported"], tmp_path / "back")
    for name in ("catalog.jsonl", "queries.jsonl", "vague.jsonl"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()


def test_what_an_earlier_import_said_stays_in_the_card(written, tmp_path):
    folder = written(catalogue("t1"), imported={"format": "mcp", "files": []})
    export_dataset("beir", folder, tmp_path / "exported")
    import_dataset("beir", [tmp_path / "exported"], tmp_path / "back")
    imported = read_card(tmp_path / "back")["imported"]
    assert (imported["format"], imported["before"]) == ("beir", {"format": "mcp", "files": []})


def test_the_files_are_those_that_beir_reads(written, tmp_path):
    out = tmp_path / "exported"
    export_dataset("beir", written(NASTY), out)
    corpus = [json.loads(line) for line in (out / "corpus.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [row["_id"] for row in corpus] == [tool.id for tool in NASTY.tools]
    assert [row["text"] for row in corpus] == [render(tool, 5) for tool in NASTY.tools]
    assert {row["title"] for row in corpus} == {""}
    queries = [json.loads(line) for line in (out / "queries.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert {row["_id"]: row["text"] for row in queries} == {
        query.id: query.text for query in (*NASTY.train, *NASTY.dev, *NASTY.eval)
    }


def test_judgements_are_read_by_a_plain_csv_reader(written, tmp_path):
    out = tmp_path / "exported"
    export_dataset("beir", written(NASTY), out)
    found = {}
    for name in ("train", "dev", "test"):
        with (out / "qrels" / f"{name}.tsv").open(encoding="utf-8") as handle:  # as BEIR's loader opens it
            found[name] = list(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_MINIMAL))
    head = ["query-id", "corpus-id", "score"]
    assert found == {
        "train": [head, ["2", "null", "1"], ["2", "z last\u2028first", "1"], ["1", ' " id with a quote', "1"]],
        "dev": [head, ['"dev" query', "only an id", "1"]],
        "test": [head, ["e\u00a01", "null", "1"]],
    }


def test_the_card_makes_no_claim_about_other_files(written, tmp_path):
    export_dataset("beir", written(catalogue("t1"), licence="MIT"), tmp_path / "exported")
    card = yaml.safe_load((tmp_path / "exported" / "dataset.yaml").read_text(encoding="utf-8"))
    assert card == {"name": "few", "licence": "MIT"}


@pytest.mark.parametrize("broken", ["a\tb", "a\nb", "a\r"])
def test_an_id_that_no_judgement_can_hold_is_refused(written, tmp_path, broken):
    with pytest.raises(UserError) as error:
        export_dataset("beir", written(catalogue("t1", broken, f"{broken}c")), tmp_path / "exported")
    assert f"the tool id {broken!r} holds a tab or a line break (2 such tool ids in all)" in str(error.value)
    assert not (tmp_path / "exported").exists()


def test_a_query_id_with_a_tab_is_refused_too(written, tmp_path):
    query = Query(id="q\t1", text="when is it deep", tools=("t1",))
    folder = written(Dataset(name="few", tools=(Tool(id="t1"),), train=(query,)))
    with pytest.raises(UserError, match="the query id 'q"):
        export_dataset("beir", folder, tmp_path / "exported")


def test_two_exports_are_equal_byte_for_byte(written, tmp_path):
    folder = written(NASTY, licence="MIT")
    for name in ("a", "b"):
        export_dataset("beir", folder, tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert len(files) == 7
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_what_is_there_is_replaced_only_when_asked(written, tmp_path):
    folder = written(catalogue("t1"))
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"):
        export_dataset("beir", folder, tmp_path / "exported")
    (tmp_path / "exported" / "dataset.yaml").write_text("name: old", encoding="utf-8")
    export_dataset("beir", folder, tmp_path / "exported", overwrite=True)
    assert not (tmp_path / "exported" / "mine.txt").exists()


def test_an_unknown_format_is_answered_with_those_there_are(written, tmp_path):
    with pytest.raises(UserError, match=f"formats are: {', '.join(EXPORTERS)}"):
        export_dataset("trec", written(catalogue("t1")), tmp_path / "exported")
