"""SIGKILL in every stage: the run that follows finishes, and no finished artifact has changed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from test_end_to_end import ONE_WORKER, TINIER, Command, checksums

from cohyde.dag.store import Store

STAGES = ("S1b", "S1a", "S2.1", "S3.1", "S4s.1", "S4p.1", "S4.1", "E.1")
"""In the order in which one worker takes them: the longest chain of work first."""
WAIT_SECONDS = 240
pytestmark = pytest.mark.slow


def arguments(store: Path) -> list[str]:
    return ["run", "--config", "tiny", "--rounds", "1", "--store", str(store), *TINIER, *ONE_WORKER]


def worker_of(store: Path, stage: str) -> int:
    """Process id of the worker that has begun with a stage."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        for owner in store.glob(f"logs/{stage}-*/attempt-1/owner.json"):
            return int(json.loads(owner.read_text(encoding="utf-8"))["pid"])
        time.sleep(0.02)
    raise AssertionError(f"{stage} never started")


@pytest.fixture
def folder(tmp_path: Path, tiny_encoder_path: Path, tiny_rewriter_path: Path) -> Path:
    (tmp_path / "errors").mkdir()
    return tmp_path


def test_the_driver_may_be_killed_in_any_stage(folder: Path) -> None:
    store = folder / "store"
    for stage in STAGES:
        before = checksums(Store(store))
        command = Command(folder / "errors", *arguments(store))
        command.wait_for(rf"^· {stage}\s.* started")
        command.process.kill()
        command.process.wait()
        assert not list(store.glob(f"{stage}-*/manifest.json"))
        after = checksums(Store(store))
        assert {path: after[path] for path in before} == before
    before = checksums(Store(store))
    output, _ = Command(folder / "errors", *arguments(store)).end()
    after = checksums(Store(store))
    assert "E.1" in output and {path: after[path] for path in before} == before


def test_the_worker_may_be_killed_in_any_stage(folder: Path) -> None:
    store = folder / "store"
    command = Command(folder / "errors", *arguments(store))
    for stage in STAGES:
        os.kill(worker_of(store, stage), signal.SIGKILL)
    output, errors = command.end()
    assert "E.1" in output
    for stage in STAGES:
        assert len(list(store.glob(f"logs/{stage}-*/attempt-2"))) == 1, errors
        assert len(list(store.glob(f"{stage}-*/manifest.json"))) == 1
