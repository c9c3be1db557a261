"""Shards that several processes do between them, on a real Ray: the same bytes, whoever dies at whatever moment."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trivial_stages.basic import Numbers
from trivial_stages.spread import Describing, Spread

from cohyde.config import ResourcesConfig, RunnerConfig
from cohyde.dag import events
from cohyde.dag.pool import _Board
from cohyde.dag.processes import birth_of, is_alive
from cohyde.dag.runner import RunResult, run
from cohyde.dag.session import set_environment
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store
from cohyde.errors import Interrupted, UserError

PATIENCE = 60
SQUARES = "".join(f'{{"item": {item}, "square": {item * item}}}\n' for item in range(6))


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """One Ray of two CPUs for all tests in this process."""
    set_environment(None)
    import ray

    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=128 * 1024**2,
    )  # fmt: skip
    yield
    ray.shutdown()


class Spreading:
    """A run of the stage, in a thread, on a store and in a folder of its own."""

    def __init__(self, folder: Path, workers: int = 2, retries: int = 0, id_: str = "s", **config: Any) -> None:
        self.folder, self.store, self.heard = folder, Store(folder / "store"), list[events.Event]()
        self.spec = StageSpec(
            id=id_, entry="trivial_stages.spread:run", version="1", config=Spread(folder=str(folder), **config),
            resources=ResourcesConfig(workers=workers), resources_key="resources.generation",
        )  # fmt: skip
        self.specs = [self.spec]
        self.how = RunnerConfig(retries=retries)
        self.results: list[RunResult] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        told = self.heard.append
        self.results.append(run(self.specs, self.store, run_name="r", how=self.how, on_event=told))

    def start(self) -> "Spreading":
        self.thread.start()
        return self

    def allow(self, items: int) -> None:
        """Let this many items be done."""
        (self.folder / "new").write_text(str(items))
        os.replace(self.folder / "new", self.folder / "allowed")

    def end(self) -> RunResult:
        self.allow(self.spec.config.items)
        self.thread.join(PATIENCE)
        [result] = self.results
        return result

    def begun(self) -> dict[int, list[int]]:
        """Processes by the item that they have begun with."""
        found: dict[int, list[int]] = {}
        for path in (self.folder / "begun").glob("*"):
            item, _, pid = path.name.partition(".")
            found.setdefault(int(item), []).append(int(pid))
        return found

    def both(self, after: int = 0) -> tuple[int, int]:
        """The stage's own process and its helper, once both have begun with items from this one on."""
        self.until(lambda: len(self.pids(after)) == 2 and self.started() is not None)
        own = self.started()
        [helper] = self.pids(after) - {own}
        assert own is not None
        return own, helper

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline and self.thread.is_alive(), f"{self.begun()} {self.heard}"
            time.sleep(0.02)

    def pids(self, after: int = 0) -> set[int]:
        return {pid for item, pids in self.begun().items() if item >= after for pid in pids}

    def started(self) -> int | None:
        return next((event.pid for event in self.heard if isinstance(event, events.Started)), None)

    def warned(self) -> list[str]:
        return [event.message for event in self.heard if isinstance(event, events.Warned)]

    def squares(self) -> str:
        return next(self.store.root.glob("s-*/squares.jsonl")).read_text()

    def log(self, name: str = "log.txt", id_: str = "s") -> str:
        return next(self.store.root.glob(f"logs/{id_}-*/attempt-1/{name}")).read_text()


def wait_until_gone(pid: int) -> None:
    birth, deadline = birth_of(pid), time.monotonic() + PATIENCE
    while is_alive(pid, birth):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.05)


def test_two_workers_write_what_one_writes_and_only_the_stages_own_stays(ray_here: None, tmp_path: Path) -> None:
    spreading = Spreading(tmp_path).start()
    own, helper = spreading.both()
    assert spreading.end().ok and spreading.squares() == SQUARES
    assert spreading.pids() == {own, helper} and all(len(pids) == 1 for pids in spreading.begun().values())
    assert f"worker 2 ({os.uname().nodename}, process {helper}) begins" in spreading.log()
    assert "at item" in spreading.log("log-2.txt") and not spreading.warned()
    wait_until_gone(helper)
    assert is_alive(own)


def test_a_helper_that_is_killed_costs_what_it_was_at(ray_here: None, tmp_path: Path) -> None:
    spreading = Spreading(tmp_path).start()
    own, helper = spreading.both()
    [lost] = [item for item, pids in spreading.begun().items() if helper in pids]
    os.kill(helper, signal.SIGKILL)
    assert spreading.end().ok and spreading.squares() == SQUARES
    begun = spreading.begun()
    assert set(begun.pop(lost)) == {own, helper} and set(map(tuple, begun.values())) == {(own,)}
    assert spreading.warned() == [
        f"worker 2 ({os.uname().nodename}, process {helper}) died (ActorDiedError); the others do what it was at"
    ]


def test_the_death_of_all_is_a_failure_and_the_next_attempt_does_what_is_missing(
    ray_here: None, tmp_path: Path
) -> None:
    spreading = Spreading(tmp_path, retries=1).start()
    spreading.both()
    spreading.allow(2)
    own, helper = spreading.both(after=2)
    before = spreading.begun()
    os.kill(own, signal.SIGKILL)  # its helpers do not live on without it
    wait_until_gone(helper)
    assert spreading.end().ok and spreading.squares() == SQUARES
    [failed] = [event for event in spreading.heard if isinstance(event, events.Failed)]
    assert failed.failure.error == "its worker process was killed or crashed (WorkerCrashedError)"
    after = spreading.begun()
    assert {item: after[item] for item in (0, 1)} == {item: before[item] for item in (0, 1)}
    assert all(len(after[item]) == 2 for item in (2, 3))


def test_an_error_in_a_helper_is_the_stages_own(ray_here: None, tmp_path: Path) -> None:
    spreading = Spreading(tmp_path, refuses=True, retries=5).start()
    _, helper = spreading.both()
    [failure] = spreading.end().failures
    assert failure.attempt == 1 and failure.error.endswith("is refused") and failure.remedy == "leave it out"
    wait_until_gone(helper)


@pytest.mark.slow
def test_a_rewriters_texts_are_the_same_bytes_from_one_process_and_from_two(
    ray_here: None, tmp_path: Path, tiny_rewriter_path: Path
) -> None:
    texts = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        (folder / "here").mkdir(parents=True)
        config = Describing(model=str(tiny_rewriter_path), workers=workers, folder=str(folder / "here"))
        spec = StageSpec(
            id="d", entry="trivial_stages.spread:describe", version="1", config=config,
            resources=ResourcesConfig(workers=workers),
        )  # fmt: skip
        assert run([spec], Store(folder / "store"), run_name="r").ok
        assert len(list((folder / "here").iterdir())) == workers
        texts.append(next((folder / "store").glob("d-*/texts.jsonl")).read_bytes())
    assert texts[0] == texts[1] and texts[0].count(b"\n") == 64


@pytest.mark.slow
def test_a_stage_takes_as_many_workers_as_other_stages_leave_room_for(ray_here: None, tmp_path: Path) -> None:
    """On two CPUs: beside a stage of one CPU there is room for one worker, which asks for no other."""
    spreading = Spreading(tmp_path)
    other = StageSpec(
        id="other", entry="trivial_stages.basic:slow", version="1", config=Numbers(seconds=3.0),
        resources=ResourcesConfig(),
    )  # fmt: skip
    spreading.specs.insert(0, other)
    assert spreading.start().end().ok and spreading.squares() == SQUARES
    assert len(spreading.pids()) == 1 and "asked for" not in spreading.log(id_="s")


@pytest.mark.slow
def test_two_runs_whose_helpers_find_no_room_do_all_by_themselves(ray_here: None, tmp_path: Path) -> None:
    runs = []
    for name in ("sa", "sb"):
        (tmp_path / name).mkdir()
        runs.append(Spreading(tmp_path / name, id_=name).start())
    for one in runs:
        one.until(lambda one=one: bool(one.begun()))
    assert [one.end().ok for one in runs] == [True, True]


# ------------------------------------------------------------------------------------------------ without a Ray


def test_parts_are_taken_in_order_and_what_comes_back_is_next() -> None:
    board = _Board([2, 0, 1])
    assert [board.take(), board.take()] == [0, 1]
    board.give_back(0)
    assert [board.take(), board.take(), board.take()] == [0, 2, None]


def test_the_end_is_when_no_part_is_under_way() -> None:
    board = _Board([0, 1])
    assert [board.wait_for_part(lambda: False), board.take()] == [0, 1]
    board.done(0)
    threading.Timer(0.05, board.give_back, [1]).start()
    assert board.wait_for_part(lambda: False) == 1
    threading.Timer(0.05, board.done, [1]).start()
    assert board.wait_for_part(lambda: False) is None


def test_whoever_waits_for_others_hears_that_they_failed_or_that_all_shall_stop() -> None:
    board = _Board([0])
    assert board.take() == 0
    with pytest.raises(Interrupted, match="others were at 1 shards"):
        board.wait_for_part(lambda: True)
    board.fail(UserError("no model", "get one"))
    board.fail(ValueError("later"))
    with pytest.raises(UserError, match="no model"):
        board.wait_for_part(lambda: False)
    board.give_back(0)
    assert board.take() is None
