"""Bad input: what is wrong, where, and what would be right; exit status 2, no traceback, and nothing is lost."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call, caller
from test_dag_store import manifest

from cohyde.catalog import Dataset, Query, Tool
from cohyde.config import EncoderConfig, EncoderTrainConfig, load_config
from cohyde.dag.plan import make_plan
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store
from cohyde.data.dataset import read_dataset, write_dataset
from cohyde.io import read_rows
from cohyde.progress import Silent
from cohyde.rewriter.generate import Completion, Request
from stages.pipeline import pipeline

ROOT = Path(__file__).resolve().parent.parent
TOOLS = [
    {"id": "w/now", "title": "Weather", "api_name": "now", "api_description": "The weather at a place right now."},
    {"id": "m/rate", "title": "Money", "api_name": "rate", "api_description": "Exchange rates of currencies."},
    {"id": "s/song", "title": "Songs", "api_name": "song", "api_description": "Find a song by a line of it."},
]
QUERIES = [
    {"id": "q1", "text": "do I need an umbrella", "tools": ["w/now"], "tier": "G1", "split": "train"},
    {"id": "q2", "text": "what is a euro worth", "tools": ["m/rate"], "tier": "G1", "split": "train"},
    {"id": "q3", "text": "that tune with the line about rain", "tools": ["s/song"], "tier": "G1", "split": "train"},
    {"id": "q4", "text": "will it snow", "tools": ["w/now"], "tier": "G1", "split": "eval"},
]
EVERYDAY = "show me the w\u200beather \u202bمرحبا بالعالم\u202c in e\u0301vian"


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """The command line, whose store is ``tmp_path/store`` unless told otherwise."""
    monkeypatch.setenv("COHYDE_STORE", str(tmp_path / "store"))
    return caller(capfd, monkeypatch)


def dataset(folder: Path, tools: Sequence[Any] = TOOLS, queries: Sequence[Any] = QUERIES) -> Path:
    """A dataset folder of rows, or of lines as they are."""
    folder.mkdir()
    for name, rows in (("catalog", tools), ("queries", queries)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def check_refused(answer: tuple[int, str, str], *expected: str) -> None:
    """The person is told, on standard error alone, with exit status 2."""
    code, output, errors = answer
    assert (code, output) == (2, "")
    assert "Traceback" not in errors
    assert "error: " in errors
    for text in expected:
        assert text in errors


# --------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("tools", "queries", "expected"),
    [
        (TOOLS, [*QUERIES[:2], '{"id": "q3", "text": '], ["queries.jsonl:3: not JSON: ", "at column 22"]),
        ([*TOOLS, "[1, 2]"], QUERIES, ["catalog.jsonl:4: expected a JSON object, got list"]),
        (
            TOOLS,
            [{**QUERIES[0], "tools": ["w/now", "gone"]}, *QUERIES[1:]],
            ["queries.jsonl:1: 'q1' names 'gone', not in the catalogue (unknown gold tool; 1 in all)"],
        ),
        (
            [*TOOLS, TOOLS[0]],
            QUERIES,
            ["catalog.jsonl:4: 'w/now' says the same as at catalog.jsonl:1 (repeated tool; 1 in all)"],
        ),
        (TOOLS, [*QUERIES, {**QUERIES[0], "text": "x"}], ["queries.jsonl:5: 'q1' is also at queries.jsonl:1"]),
        ([*TOOLS, {"title": "nameless"}], QUERIES, ["catalog.jsonl:4: field 'id' is missing or empty"]),
    ],
)
def test_faults_of_the_data_are_told_by_file_and_line(
    cohyde: Call, tmp_path: Path, tools: list[Any], queries: list[Any], expected: list[str]
) -> None:
    folder = dataset(tmp_path / "data", tools, queries)
    remedy = "mend the file, or drop such rows: --drop-invalid (with cohyde run, data.drop_invalid=true)"
    check_refused(cohyde("run", "-c", "tiny", f"data.path={folder}"), str(folder), *expected, remedy)
    assert not (tmp_path / "store").exists()


def test_an_empty_catalogue_is_told(cohyde: Call, tmp_path: Path) -> None:
    folder = dataset(tmp_path / "data", tools=[])
    answer = cohyde("run", "-c", "tiny", f"data.path={folder}")
    check_refused(answer, f"{folder}/catalog.jsonl: the catalogue is empty", "a catalogue needs at least one tool")


def test_what_is_no_dataset_is_told(cohyde: Call, tmp_path: Path) -> None:
    check_refused(
        cohyde("run", "-c", "tiny", f"data.path={tmp_path / 'gone'}"), "gone is not a folder", "dataset folder"
    )
    check_refused(cohyde("run", "-c", "tiny", f"data.path={tmp_path}"), "holds no catalog.jsonl", "and queries.jsonl")


def test_all_faults_are_counted(cohyde: Call, tmp_path: Path) -> None:
    folder = dataset(tmp_path / "data", [*TOOLS, TOOLS[0], TOOLS[1]], [*QUERIES, {"id": "q9", "text": "x"}])
    _, _, errors = cohyde("run", "-c", "tiny", f"data.path={folder}")
    assert "(repeated tool; 2 in all)" in errors
    assert "'q9' names no tool (query without gold; 1 in all)" in errors


def test_zero_width_and_right_to_left_text_is_data_as_any_other(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "data", [*TOOLS, {"id": "\u0639", "title": EVERYDAY}], [])
    (folder / "queries.jsonl").write_text(json.dumps({**QUERIES[0], "text": EVERYDAY}), encoding="utf-8")
    read, findings = read_dataset(folder)
    assert (read.train[0].text, read.tools[3].title, findings.counts) == (EVERYDAY, EVERYDAY, {})
    write_dataset(tmp_path / "copy", read, {})
    assert replace(read_dataset(tmp_path / "copy")[0], name=read.name) == read


# ------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dpo.bta=0.2"], ["command line: unknown key dpo.bta; did you mean dpo.beta?", "keys here are: beta, "]),
        (["rounds=many"], ["command line: rounds has to be a whole number, got 'many'"]),
        (["--rounds", "-1"], ["command line: rounds has to be at least 0, got -1"]),
        (["encoder.train.lr=fast"], ["encoder.train.lr has to be a number, got 'fast'"]),
        (["beta"], ["'beta' is not an override", "write key=value, for example encoder.train.lr=1e-5"]),
        (["search.mode=magic"], ["search.mode is 'magic', which does not exist", "choose one of: description, "]),
        (["rewriter.prompt=hydra"], ["there is no prompt 'hydra'", "prompts are: "]),
        (["candidates.n=1"], ["candidates.n is 1: a pair needs two candidates", "2 or more"]),
        (["--config", "tinny"], ["no preset is called 'tinny'; did you mean tiny?", "presets are: demo, "]),
        (["--config", "gone.yaml"], ["gone.yaml: no such configuration file"]),
        (["--name", "../up"], ["'../up' cannot be a run's name"]),
        (["--until", "S9"], ["no stage is called 'S9'", "stages are: data, E.untrained, S1a, "]),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_settings_that_are_wrong_are_told(
    cohyde: Call, tmp_path: Path, command: str, arguments: list[str], expected: list[str]
) -> None:
    preset = [] if "--config" in arguments else ["--config", "tiny"]
    check_refused(cohyde(command, *preset, *arguments), *expected)
    assert not (tmp_path / "store").exists()


def test_a_misspelt_key_in_a_file_names_the_file(cohyde: Call, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: tiny\ndpo:\n  bta: 0.2\n")
    check_refused(cohyde("run", "-c", str(file)), f"{file}: unknown key dpo.bta; did you mean dpo.beta?")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["run", "--frob"], "No such option: --frob"),
        (["rerun", "demo"], "Missing argument 'ID'"),
        (["search", "demo", "rain", "-k", "0"], "greater than or equal to 1"),
    ],
)
def test_what_the_command_line_does_not_know_is_told(cohyde: Call, arguments: list[str], expected: str) -> None:
    code, output, errors = cohyde(*arguments)
    assert (code, output) == (2, "")
    assert expected in errors
    assert "--help' for help" in errors


# ------------------------------------------------------------------------------------------ models and machines


@pytest.mark.parametrize("role", ["encoder", "rewriter"])
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("package:no_such_package/model", ["the Python package 'no_such_package' is not installed", "pip install"]),
        ("/no/such/folder", ["'/no/such/folder': there is no such file or folder", "a model is a local folder"]),
        ("tiny:llama", ["llama", "bert"]),
    ],
)
def test_a_missing_model_is_told(cohyde: Call, tmp_path: Path, role: str, model: str, expected: list[str]) -> None:
    check_refused(cohyde("run", "-c", "tiny", f"{role}.model={model}"), *expected)
    assert not (tmp_path / "store").exists()


def test_a_folder_without_weights_is_told(cohyde: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    check_refused(
        cohyde("run", "-c", "tiny", f"encoder.model={tmp_path}"), "has no .safetensors weights", "save the model"
    )


def test_a_hub_model_that_cannot_be_had_is_told(cohyde: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    answer = cohyde("run", "-c", "tiny", "rewriter.model=no-org/no-model")
    check_refused(answer, "'no-org/no-model': not in the local cache and not to be had from the hub", "hf download")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("setting", "asks"),
    [("training.gpus=64", "stages S1b, S4.1 ask for 1 CPU, 64 GPUs"), ("light.cpus=999", "ask for 999 CPUs, 0 GPUs")],
)
def test_more_than_this_machine_has_is_told_before_ray_is_started(
    cohyde: Call, tmp_path: Path, setting: str, asks: str
) -> None:
    store = tmp_path / "store"
    code, out, err = cohyde("run", "-c", "tiny", "--rounds", "1", "--store", str(store), f"resources.{setting}")
    check_refused((code, out, err), asks, "there is: ", f"lower resources.{setting.split('=')[0]}")
    assert "starting Ray" not in err and list((store / "logs").iterdir()) == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", ["nobody answers at 127.0.0.1:1", "or leave --address out"]),
        ("nonsense", ["'nonsense' is not the address of a Ray cluster", "give HOST:PORT"]),
    ],
)
def test_an_address_that_nobody_answers_is_told(cohyde: Call, address: str, expected: list[str]) -> None:
    check_refused(cohyde("run", "-c", "tiny", "--address", address), *expected)


# -------------------------------------------------------------------------------------------------------- store


def test_a_store_below_a_file_is_told(cohyde: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    store = str(tmp_path / "file" / "store")
    check_refused(
        cohyde("run", "-c", "tiny", "--store", store), f"{tmp_path}/file", "give a --store DIR that can be written"
    )
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_cannot_be_written_is_told(cohyde: Call) -> None:
    check_refused(cohyde("run", "-c", "tiny", "--store", "/proc/store"), "/proc/store", "give a --store DIR")


@pytest.mark.parametrize("command", [["status"], ["report"], ["search", "demo", "rain"], ["rerun", "demo", "S1a"]])
def test_a_run_that_does_not_exist_is_told(cohyde: Call, tmp_path: Path, command: list[str]) -> None:
    check_refused(cohyde(*command), str(tmp_path / "store"), "start with `cohyde run`")


@dataclass(frozen=True)
class Finished:
    """A store in which the first two stages of the tiny preset are done."""

    store: Store
    data: Path
    untrained: Path


def finish(store: Store, spec: StageSpec, specs: Sequence[StageSpec]) -> Path:
    plan = make_plan(specs)
    node = plan.nodes[plan.named(spec.id)[0]]
    scratch = store.scratch(node.id, node.fingerprint)
    (scratch / "catalog.jsonl").write_text("12345")
    store.commit(scratch, manifest(id=node.id, fingerprint=node.fingerprint, identity=plan.identities[node.name]))
    return store.artifact_path(node.id, node.fingerprint)


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    specs = pipeline(load_config("tiny"))
    store = Store(tmp_path / "store")
    store.prepare()
    return Finished(store, finish(store, specs[0], specs), finish(store, specs[1], specs))


def test_a_truncated_artifact_is_told_and_the_others_stay(cohyde: Call, finished: Finished) -> None:
    (finished.data / "catalog.jsonl").write_text("123")
    answer = cohyde("run", "-c", "tiny")
    check_refused(answer, f"{finished.data}/catalog.jsonl: has 3 bytes, but 5 were written", "`cohyde rerun tiny data`")
    assert (finished.data / "catalog.jsonl").read_text() == "123"
    assert (finished.untrained / "catalog.jsonl").read_text() == "12345"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('"seconds": 1.0', '"seconds": 2.0', "changed after it was written (its checksum does not match)"),
        ('"checksum"', '"checksum', "not JSON (line "),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_manifest_that_was_edited_is_told(
    cohyde: Call, finished: Finished, command: str, before: str, after: str, expected: str
) -> None:
    path = finished.data / "manifest.json"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    check_refused(cohyde(command, "-c", "tiny"), f"{path}: {expected}", "`cohyde rerun tiny data`", str(finished.data))
    assert (finished.untrained / "catalog.jsonl").read_text() == "12345"


def test_a_damaged_record_of_a_run_is_written_anew(cohyde: Call, finished: Finished) -> None:
    record = finished.store.runs / "tiny" / "run.yaml"
    record.parent.mkdir()
    record.write_text("name: [")
    check_refused(cohyde("status"), f"{record}: damaged", "write it anew with `cohyde run --name tiny")
    code, _, errors = cohyde("plan", "-c", "tiny")
    assert code == 0
    assert f"warning: {record}: damaged" in errors


def test_nothing_is_discarded_for_a_rerun_that_cannot_start(cohyde: Call, finished: Finished) -> None:
    check_refused(cohyde("run", "-c", "tiny", "--address", "127.0.0.1:1"), "nobody answers")  # leaves the run's record
    check_refused(cohyde("rerun", "tiny", "E.untrained", "--address", "127.0.0.1:1"), "nobody answers at 127.0.0.1:1")
    check_refused(cohyde("rerun", "tiny", "S9"), "no stage is called 'S9'")
    (finished.data / "catalog.jsonl").write_text("123")
    check_refused(cohyde("rerun", "tiny", "E.untrained"), "catalog.jsonl: has 3 bytes", "`cohyde rerun tiny data`")
    assert (finished.untrained / "catalog.jsonl").read_text() == "12345"


# ------------------------------------------------------------------------------------------------------- models


def test_a_query_of_100_000_characters_is_cut_for_the_rewriter(tiny_rewriter_path: Path) -> None:
    from cohyde.rewriter.load import load_tokenizer
    from cohyde.rewriter.prompts import encode_prompt, fit_prompt, load_prompt

    tokenizer = load_tokenizer(tiny_rewriter_path)
    query = "find me a flight " * 5883
    assert len(query) >= 100_000
    prompt = load_prompt("hyde")
    whole, was_cut = fit_prompt(tokenizer, prompt, {"query": "find me a flight"}, [], 1024)
    assert not was_cut
    text, was_cut = fit_prompt(tokenizer, prompt, {"query": query}, [], 1024)
    assert was_cut
    assert len(encode_prompt(tokenizer, text)) <= 1024
    assert "find me a flight find me a flight" in text
    assert text[-40:] == whole[-40:]  # the instruction's end is never cut


def test_the_encoder_reads_long_and_strange_texts(tiny_encoder_path: Path) -> None:
    from cohyde.encoder.model import embed, load_encoder

    model = load_encoder(tiny_encoder_path, EncoderConfig(max_length=64, train=EncoderTrainConfig()))
    texts = ["x" * 100_000, "find me a flight " * 5883, EVERYDAY, "\u200b\u200b", "\u202e", "\U0001f327\ufe0f" * 50]
    vectors = embed(model, texts, batch_size=4)
    assert vectors.shape[0] == len(texts)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


@dataclass
class Mute:
    """A rewriter that answers, but says nothing."""

    tokenizer: Any
    said: str = "<think>\nhm"

    def generate(self, requests: Sequence[Request], sampling: Any, progress: Any) -> list[Completion]:
        n = sampling.n
        return [
            Completion(id=request.id, texts=(self.said,) * n, tokens=(3,) * n, finished=(False,) * n)
            for request in requests
        ]

    def close(self) -> None:
        """Nothing is held."""


class Listener(Silent):
    """A progress that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def small() -> Dataset:
    return Dataset(
        name="small",
        tools=tuple(Tool(**row) for row in TOOLS),
        train=tuple(Query(**{**row, "tools": tuple(row["tools"])}) for row in QUERIES[:3]),
        dev=(),
        eval=(),
        vague=(),
    )


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_rewriter_path: Path) -> Iterator[dict[str, Path]]:
    """Artifacts of a round whose rewriter is mute: folders by the name of the input."""
    from cohyde.rewriter.load import load_tokenizer

    @contextmanager
    def opened(path: Path, config: Any) -> Iterator[Mute]:
        yield Mute(load_tokenizer(tiny_rewriter_path))

    monkeypatch.setattr("cohyde.rewriter.describe.open_generator", opened)
    write_dataset(tmp_path / "data", small(), {})
    shutil.copytree(tiny_rewriter_path, tmp_path / "S1b" / "rewriter")
    yield {"data": tmp_path / "data", "rewriter": tmp_path / "S1b"}


def run_stage(id_: str, inputs: Mapping[str, Path], out: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the stage function of the tiny preset's pipeline; returns its metrics and warnings."""
    from cohyde.dag.worker import load_entry

    spec = next(spec for spec in pipeline(load_config("tiny", ["rewriter.few_shot=0"])) if spec.id == id_)
    out.mkdir()
    listener = Listener()
    return dict(load_entry(spec)(inputs, spec.config, out, listener)), listener.warnings


def test_where_a_rewriter_returns_nothing_the_query_stands_in(mute: dict[str, Path], tmp_path: Path) -> None:
    metrics, warnings = run_stage("S2.1", mute, tmp_path / "S2.1")
    assert metrics["empty_after_clean"] == 3
    assert warnings == ["3 descriptions were empty after cleaning; the query stands in"]
    rows = read_rows(tmp_path / "S2.1" / "descriptions.jsonl")
    assert sorted((row["id"], row["text"], row["fallback"]) for row in rows) == [
        (row["id"], row["text"], True) for row in QUERIES[:3]
    ]


def test_a_round_in_which_all_candidates_tie_passes_the_rewriter_on(
    mute: dict[str, Path], tmp_path: Path, tiny_encoder_path: Path
) -> None:
    run_stage("S4s.1", mute, tmp_path / "S4s.1")
    (tmp_path / "S3.1").mkdir()
    os.symlink(tiny_encoder_path, tmp_path / "S3.1" / "encoder")
    inputs = {"data": mute["data"], "candidates": tmp_path / "S4s.1", "encoder": tmp_path / "S3.1"}
    metrics, warnings = run_stage("S4p.1", inputs, tmp_path / "S4p.1")
    assert (metrics["pairs_kept"], metrics["tie_rate"]) == (0, 1)
    assert any("candidates tie" in line and "stays as it is" in line for line in warnings)

    inputs = {"pairs": tmp_path / "S4p.1", "rewriter": mute["rewriter"]}
    metrics, warnings = run_stage("S4.1", inputs, tmp_path / "S4.1")
    assert metrics == {"unchanged": 1}
    assert warnings == ["every candidate tied in this round: the rewriter stays as it is"]
    before = mute["rewriter"] / "rewriter" / "model.safetensors"
    assert (tmp_path / "S4.1" / "rewriter" / "model.safetensors").read_bytes() == before.read_bytes()


def test_a_loss_that_is_no_number_names_the_step(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from cohyde.dag.worker import load_entry

    overrides = ["sft.lr=1e30", "sft.eval_queries=0", "sft.max_steps=4", "sft.warmup_ratio=0.5"]
    config = load_config("tiny", overrides)  # the first step's learning rate is 0, so its adapter is good
    spec = next(spec for spec in pipeline(config) if spec.id == "S1b")
    write_dataset(tmp_path / "data", small(), {})
    (tmp_path / "out").mkdir()
    with pytest.raises(RuntimeError, match=r"(loss|grad_norm) is (nan|inf) at step [234] of 4"):
        load_entry(spec)({"data": tmp_path / "data"}, spec.config, tmp_path / "out", Listener())
    kept = load_file(tmp_path / "out" / "last-good-adapter" / "adapter_model.safetensors")
    assert kept and all(weight.isfinite().all() for weight in kept.values())
