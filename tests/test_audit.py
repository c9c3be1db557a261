"""The audit of a folder: what reading it would find, all of it, without holding the catalogue."""

import json
import tracemalloc

import pytest

from cohyde.data.audit import audit
from cohyde.data.dataset import counts_of, read_dataset
from cohyde.errors import UserError
from cohyde.progress import Silent
from cohyde.resources import sample_folder

TOOLS = [{"id": "a", "title": "Alpha", "api_description": "First"}, {"id": "b", "title": "Beta", "description": "Two"}]
QUERIES = [
    {"id": "q1", "text": "first", "tools": ["a"], "split": "train"},
    {"id": "q2", "text": "second", "tools": ["a", "b"], "split": "dev"},
    {"id": "q3", "text": "third", "tools": ["b"], "split": "eval"},
]
VAGUE = [{"id": "q3", "text": "the last one"}]


@pytest.fixture
def folder(tmp_path):
    """Write a dataset folder; what is not given is as above, and rows may be raw lines."""

    def writer(tools=TOOLS, queries=QUERIES, vague=VAGUE):
        for name, rows in (("catalog", tools), ("queries", queries), ("vague", vague)):
            lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
            (tmp_path / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return tmp_path

    return writer


WRONG = {
    "nothing": {},
    "tools": {"tools": [*TOOLS, "{", TOOLS[0], TOOLS[0] | {"title": "x"}, {"id": "c", "titel": "x"}, {"id": "d"}]},
    "twins": {"tools": [*TOOLS, TOOLS[0] | {"id": "c"}, {"id": "d", "schema": "x" * 30_000}]},
    "queries": {"queries": [*QUERIES, {"id": "q4", "text": "x", "tools": ["z"]}, {"id": "q5", "text": "x"}, "[]"]},
    "leakage": {"queries": [*QUERIES, QUERIES[0] | {"id": "q6", "text": "THIRD"}], "vague": [*VAGUE, *VAGUE]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_audit_finds_what_reading_finds(folder, wrong):
    path = folder(**WRONG[wrong])
    dataset, findings = read_dataset(path, drop_invalid=True)
    found = audit(path)
    assert found.counts == counts_of(dataset)
    assert (found.findings.faults, found.findings.remarks) == (findings.faults, findings.remarks)


@pytest.mark.parametrize("name", ["sample", "toolbench_mini"])
def test_datasets_that_are_whole_have_no_faults(name, request):
    path = sample_folder() if name == "sample" else request.getfixturevalue("shared_data") / name
    found = audit(path)
    assert not found.findings.counts
    assert found.counts == counts_of(read_dataset(path)[0])


def test_faults_and_remarks_come_with_count_and_first_example(folder):
    path = folder(tools=[*TOOLS, "[]", "1", {"id": "c", "title": "no description"}])
    assert audit(path).to_json() == {
        "counts": {"tools": 3, "train": 1, "dev": 1, "eval": 1, "vague": 1},
        "faults": [
            {
                "kind": "malformed JSON",
                "count": 2,
                "first": f"{path}/catalog.jsonl:3: expected a JSON object, got list",
            }
        ],
        "remarks": [{"kind": "tool without a description", "count": 1, "first": f"{path}/catalog.jsonl:5: 'c'"}],
    }


def test_an_empty_catalogue_is_refused_and_one_of_faults_alone_is_told(folder):
    with pytest.raises(UserError, match="the catalogue is empty"):
        audit(folder(tools=[]))
    found = audit(folder(tools=["{"]))
    assert found.counts["tools"] == 0
    assert found.findings.counts == {"malformed JSON": 1, "unknown gold tool": 3, "unknown paraphrase": 1}


def test_the_catalogue_is_not_held(folder):
    path = folder(
        tools=[{"id": f"t{n}", "api_description": f"{n} " * 1_000} for n in range(4_000)], queries=[], vague=[]
    )
    size = (path / "catalog.jsonl").stat().st_size
    tracemalloc.start()
    assert audit(path).counts["tools"] == 4_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 18e6 and peak < 4e6


class Listening(Silent):
    def __init__(self):
        self.told = []

    def update(self, done, total, what=""):
        self.told.append((done, total, what))


def test_progress_is_told_in_megabytes(folder):
    path = folder(tools=[{"id": f"t{n:04}"} for n in range(2_048)], queries=[], vague=[])
    listening = Listening()
    audit(path, progress=listening)
    line = len('{"id": "t0000"}\n') / 1e6
    told = [1024 * line, 2048 * line, "MB of catalog.jsonl"], [2048 * line, 2048 * line, "MB of catalog.jsonl"]
    assert listening.told == [(pytest.approx(done), pytest.approx(total), what) for done, total, what in told]
