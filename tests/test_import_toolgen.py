"""ToolGen's conversations: a request and the name of an API, joined with a catalogue."""

import json

import pytest

from cohyde.catalog import Query, Tool
from cohyde.data.dataset import read_dataset
from cohyde.data.importers.format import Options
from cohyde.data.importing import import_dataset
from cohyde.errors import UserError

RETRIEVAL, MEMORY = "toolgen_atomic_retrieval_G123.json", "toolgen_atomic_memorization.json"


def turn(said, answer):
    return {
        "conversations": [
            {"role": "user", "content": said, "loss": False},
            {"role": "assistant", "content": answer, "loss": True},
        ]
    }


def memory(title, api_name, description="None", api_description="None", token=""):
    said = f"Tool Name: {title}. Tool Description: {description} Api Name: {api_name} Api Description: "
    return turn(f"{said}{api_description}.", token or f"<<{title}&&{api_name}>>")


TIDES = memory("Harbour", "/tides", "All harbours.", "High water. Api Name: none.")
BERTHS = memory("Skipper's Harbour", "Berths  free", token="<<Skippers Harbour&&Berths  free>>")
FIRST, SECOND = "When is high water, and is there a berth?", "A berth, please"


@pytest.fixture
def write(tmp_path):
    """Write records to a file of this name."""

    def writer(name, *records):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(records), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def imported(tmp_path):
    """Import sources (the data folder, where none is named), and read back what was written."""

    def importer(*sources, drop_invalid=False, **options):
        out = tmp_path / "out"
        written, findings = import_dataset(
            "toolgen",
            sources or [tmp_path / "data"],
            out,
            options=Options(**options),
            drop_invalid=drop_invalid,
            overwrite=True,
        )
        assert read_dataset(out)[0] == written
        return written, findings

    return importer


@pytest.fixture
def published(write):
    """Both files, in small."""
    write(MEMORY, TIDES, BERTHS)
    return write(
        RETRIEVAL,
        turn(FIRST, "<<Harbour&&/tides>>"),
        turn(SECOND, "<<Skippers Harbour&&Berths  free>>"),
        turn(FIRST, "<<Skippers Harbour&&Berths  free>>"),
    )


# --------------------------------------------------------------------------------------------- both files together


def test_a_request_has_the_tools_of_all_its_conversations(published, imported):
    dataset, findings = imported()
    tides, berths = "harbour/tides", "skippers_harbour/berths_free"
    stem = RETRIEVAL.removesuffix(".json")
    assert dataset.train == (
        Query(id=f"{stem}/0", text=FIRST, tools=(tides, berths)),
        Query(id=f"{stem}/1", text=SECOND, tools=(berths,)),
    )
    assert not findings.counts and "repeated query text" not in findings.remarks.counts


def test_the_memorisation_file_is_taken_apart(published, imported):
    dataset, _ = imported()
    assert dataset.tools == (
        Tool(
            id="harbour/tides",
            title="Harbour",
            description="All harbours.",
            api_name="/tides",
            api_description="High water. Api Name: none.",
        ),
        Tool(id="skippers_harbour/berths_free", title="Skipper's Harbour", api_name="Berths  free"),
    )


def test_documentation_of_another_form_is_kept_whole(write, imported):
    write(MEMORY, turn("Tells the tides.", "<<Harbour&&/tides>>"))
    write(RETRIEVAL, turn(FIRST, "<<Harbour&&/tides>>"))
    dataset, findings = imported()
    assert dataset.tools == (
        Tool(id="harbour/tides", title="Harbour", api_name="/tides", api_description="Tells the tides."),
    )
    assert findings.remarks.counts == {"documentation of another form": 1}


def test_a_name_that_is_documented_again_keeps_its_first_documentation(published, write, imported):
    write(MEMORY, TIDES, BERTHS, TIDES, memory("Harbour", "/tides", "Other harbours."))
    dataset, findings = imported()
    assert [tool.description for tool in dataset.tools] == ["All harbours.", ""]
    assert findings.remarks.counts["repeated API"] == 1
    assert findings.remarks.counts["API with several definitions"] == 1


@pytest.mark.parametrize(
    ("name", "tier", "split"),
    [
        (RETRIEVAL, "all", "train"),
        ("toolgen_retrieval_G2.json", "G2", "train"),
        ("retrieval_test_G1_category_chat.json", "G1", "eval"),
        ("retrieval_G3_eval.json", "G3", "eval"),
    ],
)
def test_tier_and_split_are_those_of_the_file_s_name(write, imported, name, tier, split):
    write(MEMORY, TIDES)
    write(name, turn(FIRST, "<<Harbour&&/tides>>"))
    dataset, _ = imported()
    (query,) = [*dataset.train, *dataset.eval]
    assert (query.tier, query.split, query.id) == (tier, split, f"{name.removesuffix('.json')}/0")
    dataset, _ = imported(split="dev")
    assert [query.split for query in dataset.dev] == ["dev"]


def test_files_that_are_named_may_have_any_name_and_folders_hold_others(published, write, imported):
    mine = write("mine.json", turn(SECOND, "<<Harbour&&/tides>>"))
    write("toolgen_atomic_G123_dfs.json", {"something": "else"})
    assert [query.id for query in imported(mine, published.with_name(MEMORY))[0].train] == ["mine/0"]
    assert len(imported()[0].train) == 2


def test_the_other_layout_of_conversations_is_read_too(write, imported):
    write(MEMORY, TIDES)
    system, user, answer = ("system", "Be brief."), ("human", FIRST), ("gpt", "<<Harbour&&/tides>>")
    write(RETRIEVAL, {"conversations": [{"from": role, "value": text} for role, text in (system, user, answer)]})
    assert imported()[0].train[0].text == FIRST


def test_an_answer_may_name_several(published, write, imported):
    write(RETRIEVAL, turn(FIRST, "<<Harbour&&/tides>><<Skippers Harbour&&Berths  free>>"))
    assert imported()[0].train[0].tools == ("harbour/tides", "skippers_harbour/berths_free")


def test_two_imports_are_equal_byte_for_byte(published, imported, tmp_path):
    contents = []
    for _ in range(2):
        imported()
        contents.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 4


# ---------------------------------------------------------------------------------------------- names and faults


@pytest.mark.parametrize("token", ["<<harbour&&tides>>", "<<Hárbour&&/Tides>>", "<<Har.bour&& tides >>"])
def test_names_that_differ_in_case_accents_or_punctuation_are_matched_and_counted(write, imported, token):
    write(MEMORY, TIDES)
    write(RETRIEVAL, turn(FIRST, token))
    dataset, findings = imported()
    assert dataset.train[0].tools == ("harbour/tides",)
    assert findings.remarks.counts == {"matched by normalised name": 1}


def test_an_unknown_name_is_a_fault_and_dropped_when_asked(published, write, imported):
    path = write(RETRIEVAL, turn(FIRST, "<<Harbour&&/tides>>"), turn(FIRST, "<<Bus&&stop>>"), turn("Bus", "<<B&&s>>"))
    with pytest.raises(UserError) as error:
        imported()
    assert f"{path}#/1: <<Bus&&stop>> is not in the catalogue (unknown tool; 2 in all)" in str(error.value)
    dataset, findings = imported(drop_invalid=True)
    assert [query.tools for query in dataset.train] == [("harbour/tides",)]
    assert findings.counts == {"unknown tool": 2, "query without gold": 1}


def test_an_answer_that_is_given_again_is_remarked_on(published, write, imported):
    write(RETRIEVAL, turn(FIRST, "<<Harbour&&/tides>>"), turn(FIRST, "<<Harbour&&/tides>>"))
    dataset, findings = imported()
    assert [query.tools for query in dataset.train] == [("harbour/tides",)]
    assert findings.remarks.counts["repeated answer"] == 1


@pytest.mark.parametrize(
    ("wrong", "pointer", "what"),
    [
        ("text", "#/1", "expected an object with a list 'conversations'"),
        ({"conversations": {"role": "user"}}, "#/1", "expected an object with a list 'conversations'"),
        ({"conversations": [5]}, "#/1/conversations/0", "expected an object, got int"),
        (turn(" ", "<<Harbour&&/tides>>"), "#/1/conversations", "lacks a message of the user"),
        (turn("a tide", "the tides"), "#/1/conversations", "lacks an answer <<Tool&&api>>"),
        (turn("a tide", "<<Finish>>"), "#/1/conversations", "lacks an answer <<Tool&&api>>"),
    ],
)
def test_a_conversation_of_another_shape_is_named_by_its_pointer(published, write, imported, wrong, pointer, what):
    path = write(RETRIEVAL, turn(FIRST, "<<Harbour&&/tides>>"), wrong)
    with pytest.raises(UserError) as error:
        imported()
    assert f"{path}{pointer}: {what}" in str(error.value)
    assert len(imported(drop_invalid=True)[0].train) == 1


# ---------------------------------------------------------------------------------------------- other catalogues


def test_a_dataset_folder_is_joined_by_the_names_of_its_tools(published, imported, tmp_path):
    rows = [
        {"id": "t1", "category": "Sea", "title": "Harbour", "api_name": "/tides"},
        {"id": "t2", "category": "Weather", "title": "Harbour", "api_name": "/tides"},
        {"id": "t3", "category": "Sea", "title": "Skipper’s Harbour", "api_name": "Berths free"},
    ]
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "catalog.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    dataset, findings = imported(catalog=folder)
    assert [query.tools for query in dataset.train] == [("t1", "t2", "t3"), ("t3",)]
    assert [tool.id for tool in dataset.tools] == ["t1", "t2", "t3"]
    assert findings.remarks.counts["name of several tools"] == 1
    assert findings.remarks.counts["matched by normalised name"] == 2


def test_a_corpus_is_joined_too(published, imported, tmp_path):
    record = {"category_name": "Sea", "tool_name": "Harbour", "api_name": "/tides"}
    content = json.dumps(record).replace('"', '""')
    (tmp_path / "corpus.tsv").write_text(f'docid\tdocument_content\n1\t"{content}"\n', encoding="utf-8")
    dataset, findings = imported(catalog=tmp_path / "corpus.tsv", drop_invalid=True)
    assert [query.tools for query in dataset.train] == [("sea/harbour/tides",)]
    assert findings.counts == {"unknown tool": 2, "query without gold": 1}


def test_without_a_catalogue_it_says_what_to_give(write, imported):
    path = write(RETRIEVAL, turn(FIRST, "<<Harbour&&/tides>>"))
    with pytest.raises(UserError, match=r"no catalogue there\n  give toolgen_atomic_memorization\.json .*--catalog"):
        imported()
    assert len(imported(path, catalog=write("memory.json", TIDES))[0].train) == 1


def test_without_requests_it_says_what_it_looked_for(write, imported):
    write(MEMORY, TIDES)
    with pytest.raises(UserError, match=r"no file of requests there\n  published are: toolgen_atomic_retrieval"):
        imported()
