"""Workers on several machines: the loss of one, and what is left of them when the run is ended."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import Cluster, Driver, cluster

from cohyde.dag.processes import birth_of, is_alive

PATIENCE = 120
SQUARES = "".join(f'{{"item": {item}, "square": {item * item}}}\n' for item in range(6))
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two machines of one CPU each beside the head."""
    with cluster("red", "green") as started:
        yield started


class Spreading:
    """A run of one stage with two workers, in a process of its own."""

    def __init__(self, on: Cluster, folder: Path) -> None:
        self.on, self.folder = on, folder
        stage: dict[str, Any] = {"id": "s", "module": "spread", "function": "run", "resources": {"workers": 2}}
        self.driver = Driver(on, folder / "store", {**stage, "config": {"folder": str(folder)}})

    def both(self, after: int = 0) -> tuple[int, int]:
        """The stage's own process and its helper, once both have begun with items from this one on."""
        if not self.driver.of("Started"):
            self.driver.until("Started")
        until(lambda: len(self.pids(after)) == 2)
        own = int(self.driver.of("Started")[-1]["pid"])
        [helper] = self.pids(after) - {own}
        return own, helper

    def pids(self, after: int = 0) -> set[int]:
        begun = [path.name.split(".") for path in (self.folder / "begun").glob("*")]
        return {int(pid) for item, pid in begun if int(item) >= after}

    def allow(self, items: int) -> None:
        (self.folder / "new").write_text(str(items))
        os.replace(self.folder / "new", self.folder / "allowed")

    def squares(self) -> str:
        return next(self.folder.glob("store/s-*/squares.jsonl")).read_text()

    def shards(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("store/.scratch/s-*/checkpoints/shards-*/*"))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_run_that_is_ended_leaves_no_worker_on_any_machine_and_the_next_one_does_what_is_missing(
    two: Cluster, tmp_path: Path, name: str
) -> None:
    ended = Spreading(two, tmp_path)
    ended.both()
    ended.allow(2)
    at_work = [(pid, birth_of(pid)) for pid in ended.both(after=2)]
    assert two.of(at_work[0][0]) is not two.of(at_work[1][0])
    until(lambda: ended.shards() == ["000000.jsonl", "000001.jsonl"])
    ended.driver.process.send_signal(signal.Signals[name])
    assert ended.driver.end() != 0
    until(lambda: not any(is_alive(*one) for one in at_work))
    assert ended.shards() == ["000000.jsonl", "000001.jsonl"]

    before = {path.name for path in (tmp_path / "begun").glob("[01].*")}
    ended.allow(6)
    again = Spreading(two, tmp_path)
    assert again.driver.end() == 0, again.driver.errors
    assert again.squares() == SQUARES
    assert {path.name for path in (tmp_path / "begun").glob("[01].*")} == before


def test_the_loss_of_a_machine_costs_its_worker_what_it_was_at(two: Cluster, tmp_path: Path) -> None:
    """The last of this module: there is one machine less afterwards."""
    spreading = Spreading(two, tmp_path)
    _, helper = spreading.both()
    two.of(helper).kill()
    spreading.allow(6)
    assert spreading.driver.end() == 0, spreading.driver.errors
    assert spreading.squares() == SQUARES
    assert not spreading.driver.of("Failed")
    [warned] = spreading.driver.of("Warned")
    assert warned["message"].startswith("worker 2 (") and "the others do what it was at" in warned["message"]
