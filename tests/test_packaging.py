"""The wheel: everything is inside, and what is installed from it needs no checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cohyde

ROOT = Path(__file__).resolve().parent.parent


def python(*arguments: object, cwd: Path, **environment: str) -> str:
    """What a fresh interpreter prints; it sees the environment's packages and what is given."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built as `make wheel` does, but outside of the checkout."""
    out = tmp_path_factory.mktemp("wheel")
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--target")
    python("-m", "pip", "install", *options, target, wheel, cwd=target)
    return target


def run_installed(installed: Path, tmp_path: Path, code: str) -> str:
    return python("-c", code, cwd=tmp_path, PYTHONPATH=str(installed))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_version_is_the_one_of_the_package(wheel):
    assert wheel.name == f"cohyde-{cohyde.__version__}-py3-none-any.whl"


@pytest.mark.parametrize(
    ("folder", "inside", "pattern"),
    [
        ("cohyde", "cohyde", "**/*.py"),
        ("stages", "stages", "**/*.py"),
        ("cohyde/evaluation/page/templates", "cohyde/evaluation/page/templates", "*"),
        ("prompts", "cohyde/prompts", "*.yaml"),
        ("configs", "cohyde/configs", "**/*.yaml"),
        ("cohyde/data/sample", "cohyde/data/sample", "*"),
    ],
)
def test_the_wheel_holds_every_file_of(wheel, folder, inside, pattern):
    expected = {f"{inside}/{path.relative_to(ROOT / folder)}" for path in (ROOT / folder).glob(pattern)}
    expected = {name for name in expected if "__pycache__" not in name}
    assert expected and expected <= names_in(wheel)


def test_the_wheel_holds_nothing_else(wheel):
    tops = {name.partition("/")[0] for name in names_in(wheel)}
    assert tops == {"cohyde", "stages", f"cohyde-{cohyde.__version__}.dist-info"}
    assert not [name for name in names_in(wheel) if name.endswith((".pyc", ".safetensors", ".gguf"))]


def test_an_installed_package_reads_its_own_files(installed, tmp_path):
    code = """
import json, cohyde, stages
from cohyde.config import load_config, preset_names
from cohyde.data.dataset import dataset_folder, read_dataset
from cohyde.resources import resource_folder
from cohyde.rewriter.prompts import load_prompt

dataset, _ = read_dataset(dataset_folder("sample"))
print(json.dumps({
    "files": [cohyde.__file__, stages.__file__, *map(str, map(resource_folder, ("prompts", "configs")))]
    + [str(dataset_folder("sample"))],
    "presets": preset_names(),
    "rounds": load_config("demo").rounds,
    "prompt": load_prompt("hyde").user,
    "tools": len(dataset.tools),
}))
"""
    said = json.loads(run_installed(installed, tmp_path, code))
    assert all(Path(name).is_relative_to(installed) for name in said["files"]), said["files"]
    assert said["presets"] == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    assert said["rounds"] == 3 and "{query}" in said["prompt"]
    assert said["tools"] == len((ROOT / "cohyde/data/sample/catalog.jsonl").read_text(encoding="utf-8").splitlines())


def test_an_installed_package_lays_out_its_pipeline(installed, tmp_path):
    code = """
from cohyde.config import load_config
from stages.pipeline import pipeline
print(len(pipeline(load_config("tiny", ["rounds=1"]))))
"""
    assert int(run_installed(installed, tmp_path, code)) > 5


def test_an_installed_command_plans(installed, tmp_path):
    arguments = ("-m", "cohyde", "plan", "--config", "tiny", "--store", tmp_path / "store", "--json")
    plan = json.loads(python(*arguments, cwd=tmp_path, PYTHONPATH=str(installed)))
    assert plan["stages"][0]["id"] == "data"


def test_metadata_names_the_command_the_licence_and_the_readme(wheel):
    with zipfile.ZipFile(wheel) as archive:
        folder = f"cohyde-{cohyde.__version__}.dist-info"
        metadata = archive.read(f"{folder}/METADATA").decode("utf-8")
        commands = archive.read(f"{folder}/entry_points.txt").decode("utf-8")
    assert "cohyde = cohyde.cli:main" in commands
    assert "License-Expression: Apache-2.0" in metadata and "Requires-Python: <3.14,>=3.11" in metadata
    assert len(metadata.partition("\n\n")[2].strip()) > 10


def test_ray_workers_run_the_stages_of_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    command = ("-m", "cohyde", "run", "--config", "tiny", "--until", "data", "--store", tmp_path / "store")
    python(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    (manifest,) = (tmp_path / "store").glob("data-*/manifest.json")
    assert json.loads(manifest.read_text())["metrics"]["tools"] == 60
