"""``cohyde data`` as a person uses it: what it prints, what it leaves behind, how it leaves when the input is wrong."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from command_line import Call, caller

from cohyde.cli_data import app
from cohyde.data.dataset import read_card, read_dataset
from cohyde.resources import sample_folder

COMMANDS = [
    "export",
    "formats",
    "import",
    "merge",
    "prepare",
    "queries",
    "split",
    "stats",
    "subset",
    "vague",
    "validate",
]
TOOLS = [
    {"name": "list_rooms", "description": "List the rooms of a house.", "inputSchema": {"type": "object"}},
    {"name": "dim_light", "description": "Dim one light.", "inputSchema": {"type": "object"}},
]


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return caller(capfd, monkeypatch)


def written(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return name


def beir(
    corpus: str | bytes | None = None, queries: str | bytes | None = None, qrels: str | bytes | None = None
) -> str:
    """A BEIR folder of one tool and one query, but for what is given."""
    written("in/corpus.jsonl", corpus if corpus is not None else line(_id="t", title="Rain", text="Rain by the hour."))
    written("in/queries.jsonl", queries if queries is not None else line(_id="q", text="Will I get wet?"))
    written("in/qrels/test.tsv", qrels if qrels is not None else "query-id\tcorpus-id\tscore\nq\tt\t1\n")
    return "in"


def line(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


def left_behind() -> list[str]:
    return sorted(name for name in os.listdir(".") if name not in ("in", "tools.json", "loop"))


# ------------------------------------------------------------------------------------------------------- commands


def test_every_command_has_a_help_text_with_an_example(cohyde: Call) -> None:
    names = sorted(str(command.name or command.callback.__name__) for command in app.registered_commands)  # type: ignore[union-attr]
    assert names == COMMANDS
    for name in names:
        status, output, _ = cohyde("data", name, "--help")
        assert status == 0 and f"Example: cohyde data {name}" in " ".join(output.split())
        assert max(map(len, output.splitlines())) <= 80


def test_an_import_says_what_it_made_and_makes_the_same_again(cohyde: Call) -> None:
    source = written("tools.json", json.dumps({"home": {"tools": TOOLS}}))
    assert cohyde("data", "import", "mcp", source, "--out", "one", "--name", "mine", "--licence", "MIT")[:2] == (
        0,
        "one  2 tools\n",
    )
    cohyde("data", "import", "mcp", source, "--out", "two", "--name", "mine", "--licence", "MIT")
    names = sorted(os.listdir("one"))
    assert names == ["catalog.jsonl", "dataset.yaml", "queries.jsonl", "vague.jsonl"]
    for name in names:
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    card = read_card(Path("one"))
    assert (card["name"], card["licence"], card["imported"]["format"]) == ("mine", "MIT", "mcp")


def test_an_import_as_json(cohyde: Call) -> None:
    twin = line(_id="t", title="Rain", text="Rain by the hour.") + line(_id="u", title="Rain", text="Rain by the hour.")
    status, output, _ = cohyde("data", "import", "beir", beir(corpus=twin), "--out", "made", "--json")
    assert status == 0
    assert json.loads(output) == {
        "path": "made",
        "name": "made",
        "counts": {"tools": 2, "train": 0, "dev": 0, "eval": 1, "vague": 0},
        "dropped": {},
        "remarks": {"tools with the same text": 1},
    }


def test_what_is_there_is_replaced_only_when_asked(cohyde: Call) -> None:
    written("made/precious.txt", "x")
    status, output, errors = cohyde("data", "import", "beir", beir(), "--out", "made")
    assert (status, output) == (2, "") and "made exists already" in errors and "--overwrite" in errors
    status, _, errors = cohyde("data", "import", "beir", "in", "--out", "made", "--overwrite")
    assert status == 2 and "is no dataset" in errors
    assert os.listdir("made") == ["precious.txt"]
    written("made/dataset.yaml", "name: old\n")
    assert cohyde("data", "import", "beir", "in", "--out", "made", "--overwrite")[0] == 0
    assert "precious.txt" not in os.listdir("made")


@pytest.mark.parametrize("out", ["in", ".", "in/../in"])
def test_what_is_read_is_never_replaced(cohyde: Call, out: str) -> None:
    beir()
    status, _, errors = cohyde("data", "import", "beir", "in", "--out", out, "--overwrite")
    assert (status, "which it is made of" in errors) == (2, True)
    assert cohyde("data", "import", "beir", "in", "--out", "made")[0] == 0
    assert cohyde("data", "export", "beir", "made", "--out", "made", "--overwrite")[0] == 2
    assert Path("in/corpus.jsonl").is_file() and Path("made/catalog.jsonl").is_file()


def test_formats_are_listed_with_their_files(cohyde: Call) -> None:
    status, output, _ = cohyde("data", "formats")
    assert status == 0 and "corpus.jsonl" in output
    listed = [row["name"] for row in json.loads(cohyde("data", "formats", "--json")[1])["formats"]]
    wanted = {"beir", "toolbench", "toolbench-retriever", "toolgen", "toolret", "metatool", "seal-tools"}
    assert wanted | {"openai-tools", "mcp", "openapi"} == set(listed)


def test_validate_tells_faults_from_remarks_and_leaves_accordingly(cohyde: Call) -> None:
    status, output, _ = cohyde("data", "validate", "sample")
    assert status == 0 and "365 tools" in output and "no faults" in output
    cohyde("data", "import", "beir", beir(), "--out", "made")
    with open("made/queries.jsonl", "a", encoding="utf-8") as handle:
        handle.write(line(id="x", text="y", tools=["gone"], split="eval"))
    status, output, _ = cohyde("data", "validate", "made")
    assert status == 2 and "unknown gold tool" in output and "queries.jsonl:2" in output
    status, output, _ = cohyde("data", "validate", "made", "--json")
    assert status == 2 and json.loads(output)["path"] == str(Path("made").resolve())


def test_stats_fit_the_terminal_and_come_as_json(cohyde: Call) -> None:
    status, output, _ = cohyde("data", "stats", "sample")
    assert status == 0 and max(map(len, output.splitlines())) <= 100
    dataset, _ = read_dataset(sample_folder())
    figures = json.loads(cohyde("data", "stats", "sample", "--json")[1])
    assert figures["splits"]["train"]["queries"] == len(dataset.train)


def test_subset_split_and_merge_write_datasets_whose_cards_say_how(cohyde: Call) -> None:
    assert cohyde("data", "subset", "sample", "--tools", "300", "--out", "small")[0] == 0
    assert cohyde("data", "split", "small", "--dev", "0.2", "--out", "halves")[0] == 0
    dataset, _ = read_dataset(Path("halves"))
    assert len(dataset.tools) == 300 and len(dataset.dev) > 50
    assert read_card(Path("halves"))["made"]["split"] == {"dev": 0.2, "eval": 0.0, "seed": 42}
    status, output, _ = cohyde("data", "merge", "small", "sample", "--out", "both")
    assert status == 0 and "365 tools" in output
    whole, _ = read_dataset(Path("both"))
    assert {tool.id for tool in whole.tools} == {tool.id for tool in read_dataset(sample_folder())[0].tools}


def test_export_and_import_give_the_same_dataset_again(cohyde: Call) -> None:
    status, output, _ = cohyde("data", "export", "beir", "sample", "--out", "beir")
    assert status == 0 and "qrels/test.tsv" in output
    assert cohyde("data", "import", "beir", "beir", "--out", "again")[0] == 0
    assert read_dataset(Path("again"))[0] == read_dataset(sample_folder())[0]


@pytest.mark.slow
def test_a_run_trains_on_an_imported_dataset(cohyde: Call) -> None:
    assert cohyde("data", "export", "beir", "sample", "--out", "beir")[0] == 0
    assert cohyde("data", "import", "beir", "beir", "--out", "made")[0] == 0
    settings = ("data.path=made", "data.tools=60", "data.train_queries=20", "encoder.train.epochs=1")
    status, _, errors = cohyde("run", "-c", "tiny", "--until", "S1a", "--store", "store", *settings)
    assert status == 0, errors
    assert len(list(Path("store").glob("S1a-*/encoder/model.safetensors"))) == 1


# ------------------------------------------------------------------------------------------------------ bad input

BAD_BEIR: dict[str, tuple[dict[str, str | bytes], str]] = {
    "Latin-1": ({"corpus": b'{"_id": "t", "text": "caf\xe9"}\n'}, "in/corpus.jsonl:1: not UTF-8 (byte 26"),
    "NUL": ({"corpus": line(_id="t", text="a\0b")}, "in/corpus.jsonl:1: field 'api_description' holds a NUL"),
    "a line that is no JSON": ({"queries": "{\n"}, "in/queries.jsonl:1: not JSON"),
    "a missing column": ({"qrels": "query-id\tscore\nq\t1\n"}, "in/qrels/test.tsv:1: no column 'corpus-id'"),
    "a short row": ({"qrels": "query-id\tcorpus-id\tscore\nq\n"}, "in/qrels/test.tsv:2: 1 fields where there are 3"),
    "a gold id that does not exist": (
        {"qrels": "query-id\tcorpus-id\tscore\nq\tgone\t1\n"},
        "'q' names 'gone', not in the catalogue",
    ),
    "a query without gold": (
        {"queries": line(_id="q", text="Will I get wet?") + line(_id="r", text="And tomorrow?")},
        "in/queries.jsonl:2: 'r' names no tool",
    ),
    "an id twice, equal": (
        {"corpus": line(_id="t", title="Rain", text="x") * 2},
        "in/corpus.jsonl:2: 't' says the same as at corpus.jsonl:1",
    ),
    "an id twice, different": (
        {"corpus": line(_id="t", title="Rain", text="x") + line(_id="t", title="Rain", text="y")},
        "in/corpus.jsonl:2: 't' is also at corpus.jsonl:1",
    ),
    "an empty catalogue": ({"corpus": ""}, "the catalogue is empty"),
}


@pytest.mark.parametrize("fault", BAD_BEIR)
def test_bad_input_is_named_by_file_and_line_and_leaves_nothing(cohyde: Call, fault: str) -> None:
    given, message = BAD_BEIR[fault]
    status, output, errors = cohyde("data", "import", "beir", beir(**given), "--out", "made")
    assert (status, output) == (2, "") and "Traceback" not in errors
    assert message in errors
    assert left_behind() == []


def test_rows_at_fault_are_left_out_and_counted_when_asked(cohyde: Call) -> None:
    queries = line(_id="q", text="Will I get wet?") + line(_id="r", text="And tomorrow?")
    status, output, _ = cohyde("data", "import", "beir", beir(queries=queries), "--out", "made", "--drop-invalid")
    assert status == 0 and "query without gold" in output and "left out" in output
    assert read_card(Path("made"))["imported"]["dropped"] == {"query without gold": 1}


def test_a_byte_order_mark_and_windows_line_ends_are_nothing(cohyde: Call) -> None:
    cohyde("data", "import", "beir", beir(), "--out", "plain")
    for path in [*Path("in").glob("*.jsonl"), *Path("in/qrels").iterdir()]:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert cohyde("data", "import", "beir", "in", "--out", "marked")[0] == 0
    assert read_dataset(Path("plain"))[0].tools == read_dataset(Path("marked"))[0].tools
    assert read_dataset(Path("plain"))[0].eval == read_dataset(Path("marked"))[0].eval


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gone.json", "gone.json does not exist"),
        ("loop", "loop: a symbolic link that leads nowhere"),
        ("empty.json", "empty.json: the file is empty"),
        ("open.json", "open.json:1: not JSON"),
        ("folder", "folder: no *.json"),
    ],
)
def test_sources_that_cannot_be_read_are_told_apart(cohyde: Call, source: str, message: str) -> None:
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    written("empty.json", "")
    written("open.json", '{"tools": [{"name": "a"}')
    status, output, errors = cohyde("data", "import", "mcp", source, "--out", "made")
    assert (status, output) == (2, "") and message in errors
    assert not Path("made").exists() and not list(Path().glob(".made*"))


def test_a_place_that_cannot_be_written_to_is_named(cohyde: Call) -> None:
    written("file", "x")
    status, _, errors = cohyde("data", "import", "beir", beir(), "--out", "file/made")
    assert status == 2 and "--out DIR" in errors and "Traceback" not in errors
    assert Path("file").read_text() == "x"


@pytest.mark.parametrize("command", [["subset", "--tools", "200"], ["split", "--eval", "0", "--dev", "0"]])
def test_a_disk_that_is_full_is_told_and_nothing_is_left(cohyde: Call, command: list[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        status, _, errors = cohyde("data", *command, "sample", "--out", "made")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 2 and "--out DIR" in errors and "Traceback" not in errors
    assert left_behind() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "csv", "in", "--out", "made"], "there is no format 'csv'"),
        (["import", "beir", "in", "--out", "made", "--split", "tune"], "there is no split 'tune'"),
        (["import", "mcp", "in", "--out", "made", "--catalog", "."], "mcp is not joined with a catalogue"),
        (["export", "csv", "sample", "--out", "made"], "csv"),
        (["prepare", "nothing", "--source", ".", "--out", "made"], "nothing"),
        (["validate", "gone"], "gone is not a folder"),
        (["stats", "loop"], "loop is not a folder"),
        (["vague", "sample"], "the embedded sample is not written to"),
        (["vague", str(sample_folder())], "the embedded sample is not written to"),
        (["queries", "sample"], "the embedded sample is not written to"),
        (["queries", "made", "--without", "taste"], "made is not a folder"),
        (["split", "sample", "--dev", "0", "--eval", "0.1", "--out", "made"], "has 155 eval queries already"),
    ],
)
def test_wrong_arguments_are_told(cohyde: Call, arguments: list[str], message: str) -> None:
    Path("loop").symlink_to("loop")
    status, output, errors = cohyde("data", *arguments)
    assert (status, output) == (2, "") and message in errors and "Traceback" not in errors
    assert left_behind() == []
