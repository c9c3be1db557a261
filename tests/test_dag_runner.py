"""The runner on a real Ray: order, failures, retries, kills, and what is left afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from trivial_stages.basic import Numbers

from cohyde.config import ResourcesConfig, RunnerConfig
from cohyde.dag import events
from cohyde.dag.environment import worker_environment
from cohyde.dag.leases import newest, take
from cohyde.dag.plan import make_plan
from cohyde.dag.processes import birth_of, is_alive
from cohyde.dag.runner import RunResult, run
from cohyde.dag.session import ANSWER_SECONDS, JOIN_SECONDS, check_address, interruptible, set_environment
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states
from cohyde.dag.store import Store
from cohyde.errors import UserError

TESTS = Path(__file__).parent


def spec(id_: str, function: str = "number", *inputs: str, **settings: Any) -> StageSpec:
    named = {f"in{position}": stage for position, stage in enumerate(inputs)}
    defaults = {"id": id_, "entry": f"trivial_stages.basic:{function}", "version": "1", "inputs": named}
    return StageSpec(**{"config": Numbers(), **defaults, **settings})


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """One Ray for all tests in this process, with a GPU that is not there."""
    set_environment(None)  # before Ray is imported: it reads its token once, and later tests start a Ray as well
    import ray

    ray.init(
        address="local", num_cpus=2, num_gpus=1, resources={"rare": 1}, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=128 * 1024**2,
    )  # fmt: skip
    yield
    ray.shutdown()


class Listener:
    """Keeps what the runner tells."""

    def __init__(self) -> None:
        self.heard: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.heard.append(event)

    def of(self, kind: type[Any], id_: str | None = None) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind) and id_ in (None, getattr(event, "id", None))]


def by_id(result: RunResult) -> dict[str, str]:
    return {stage.id: stage.state for stage in result.states}


# ----------------------------------------------------------------------------------------------- in one session


def test_stages_run_in_order_and_a_failure_blocks_only_what_is_below(ray_here: None, tmp_path: Path) -> None:
    specs = [
        spec("a"),
        spec("b", "number", "a", config=Numbers(value=10)),
        spec("c", "number", "a", "b", config=Numbers(value=100)),
        spec("broken", "fail"),
        spec("below", "number", "broken", "a"),
        spec("deeper", "number", "below"),
    ]
    store, listener = Store(tmp_path), Listener()
    result = run(specs, store, run_name="r", how=RunnerConfig(retries=1), on_event=listener)
    assert by_id(result) == {
        "a": "done", "b": "done", "c": "done", "broken": "failed", "below": "blocked", "deeper": "blocked",
    }  # fmt: skip
    assert not result.ok
    totals = {stage.id: stage.metrics.get("total") for stage in result.states}
    assert (totals["a"], totals["b"], totals["c"]) == (1, 10 + 1, 100 + 1 + 11)

    [failure] = result.failures
    assert (failure.id, failure.attempt, failure.error) == ("broken", 2, "ValueError: loss is NaN at step 7")
    assert failure.traceback[-1] == "ValueError: loss is NaN at step 7"
    assert "trivial_stages/basic.py" in failure.traceback[1]
    assert "loss is NaN at step 7" in Path(failure.log).read_text()
    assert [event.retrying for event in listener.of(events.Failed)] == [True, False]
    assert [(event.id, event.by) for event in listener.of(events.Blocked)] == [
        ("below", "broken"),
        ("deeper", "broken"),
    ]
    assert not any(store.scratch_root.glob("*/*"))
    assert [stage.state for stage in states(specs, store)] == [stage.state for stage in result.states]


def test_output_goes_to_the_attempts_log_and_warnings_further(ray_here: None, tmp_path: Path) -> None:
    store, listener = Store(tmp_path), Listener()
    [stage] = run([spec("n", "noisy")], store, run_name="r", on_event=listener).states
    assert stage.metrics == {"loss": None, "threads": "1", "gpus": ""}
    log = next((tmp_path / "logs").glob("n-*")) / "latest" / "log.txt"
    for source in ("print", "stderr", "logging", "warnings", "a child process", "progress"):
        assert f"from {source}" in log.read_text()
    told = ["mind the gap", "metric loss is nan"]
    assert [event.message for event in listener.of(events.Warned)] == told
    assert list(store.manifest("n", stage.fingerprint).warnings) == told
    assert [(event.done, event.total, event.what) for event in listener.of(events.Progressed)] == [(1, 2, "steps")]


def test_warm_workers_are_used_again_and_logs_stay_apart(ray_here: None, tmp_path: Path) -> None:
    specs = [spec(f"n{position}", "noisy") for position in range(3)]
    specs += [spec(f"p{position}", config=Numbers(value=position)) for position in range(9)]
    result = run(specs, Store(tmp_path), run_name="r")
    assert result.ok
    assert len({stage.metrics["pid"] for stage in result.states if stage.id.startswith("p")}) <= 2
    for log in (tmp_path / "logs").glob("n*/attempt-1/log.txt"):
        assert log.read_text().count("from logging") == 1


def test_a_killed_worker_is_retried(ray_here: None, tmp_path: Path) -> None:
    config = Numbers(marker=str(tmp_path / "killed"))
    store, listener = Store(tmp_path / "store"), Listener()
    result = run([spec("k", "killed_once", config=config)], store, run_name="r", on_event=listener)
    assert result.ok
    [failed] = listener.of(events.Failed)
    assert failed.retrying
    assert "worker process was killed" in failed.failure.error
    assert not any(store.scratch_root.glob("*/*"))


def test_a_killed_worker_without_retries_is_a_failure(ray_here: None, tmp_path: Path) -> None:
    config = Numbers(marker=str(tmp_path / "killed"))
    store = Store(tmp_path / "store")
    result = run([spec("k", "killed_once", config=config)], store, run_name="r", how=RunnerConfig(retries=0))
    assert by_id(result) == {"k": "failed"}
    assert states([spec("k", "killed_once", config=config)], store)[0].state == "failed"


def test_a_worker_killed_between_its_artifacts_commit_and_its_answer_has_finished(
    ray_here: None, tmp_path: Path
) -> None:
    store, listener = Store(tmp_path / "store"), Listener()
    specs = [spec("k", "killed_when_done"), spec("below", inputs={"k": "k"})]
    result = run(specs, store, run_name="r", how=RunnerConfig(retries=0), on_event=listener)
    assert by_id(result) == {"k": "done", "below": "done"}
    assert result.ok
    assert not listener.of(events.Failed)


def test_what_only_a_person_can_mend_is_not_tried_again(ray_here: None, tmp_path: Path) -> None:
    listener = Listener()
    result = run([spec("r", "refuse")], Store(tmp_path), run_name="r", how=RunnerConfig(retries=5), on_event=listener)
    assert len(listener.of(events.Submitted)) == 1
    assert result.failures[0].error == "the catalogue is empty"
    assert result.failures[0].remedy == "give one with tools in it"


def test_a_training_that_diverged_is_not_tried_again_and_keeps_what_it_wrote(ray_here: None, tmp_path: Path) -> None:
    store = Store(tmp_path)
    result = run([spec("d", "diverge")], store, run_name="test", how=RunnerConfig(retries=3))
    [failure] = result.failures
    kept = Path(failure.log).parent / "left"
    assert failure.attempt == 1 and failure.error.endswith(f"what it had written: {kept}")
    assert (kept / "encoder" / "model.safetensors").read_text() == "the checkpoint of step 8"
    assert by_id(result) == {"d": "failed"} and not list(store.artifacts())


def test_a_stage_that_was_promised_a_gpu_and_sees_none_fails_at_once(ray_here: None, tmp_path: Path) -> None:
    listener = Listener()
    specs = [spec("g", resources=ResourcesConfig(gpus=1)), spec("c")]
    result = run(specs, Store(tmp_path), run_name="r", how=RunnerConfig(retries=3), on_event=listener)
    assert by_id(result) == {"g": "failed", "c": "done"}
    assert "was promised a GPU" in result.failures[0].error
    assert len(listener.of(events.Submitted, "g")) == 1
    # A GPU stage's process ends with it; a CPU stage's stays warm.
    wait_until_gone([(listener.of(events.Started, "g")[0].pid, None)], seconds=5)
    assert is_alive(listener.of(events.Started, "c")[0].pid)


def test_until_runs_no_more_than_it_needs(ray_here: None, tmp_path: Path) -> None:
    specs = [spec("a"), spec("b", "number", "a"), spec("c", "number", "b"), spec("d", config=Numbers(value=2))]
    store = Store(tmp_path)
    assert by_id(run(specs, store, run_name="r", until="b")) == {"a": "done", "b": "done"}
    assert [stage.state for stage in states(specs, store)] == ["done", "done", "ready", "ready"]


def test_a_truncated_input_stops_the_run_before_it_starts(ray_here: None, tmp_path: Path) -> None:
    specs, store = [spec("a"), spec("b", "number", "a")], Store(tmp_path)
    run(specs, store, run_name="r", until="a")
    next(tmp_path.glob("a-*/number.txt")).write_text("")
    listener = Listener()
    with pytest.raises(UserError, match=r"number\.txt: has 0 bytes, but 1 were written.*\n.*cohyde rerun my-run a"):
        run(specs, store, run_name="my-run", on_event=listener)
    assert listener.heard == []


def test_more_than_there_is_stops_the_run_before_it_starts(ray_here: None, tmp_path: Path) -> None:
    listener = Listener()
    specs = [spec("a"), spec("big", resources=ResourcesConfig(cpus=64, memory_gib=1.5))]
    with pytest.raises(
        UserError, match=r"big asks for 64 CPUs, 0 GPUs, 1.5 GiB of memory.*\n  there is: 2 CPUs, 1 GPU"
    ):
        run(specs, Store(tmp_path), run_name="r", on_event=listener)
    assert listener.of(events.Submitted) == []


def test_a_resource_of_the_clusters_own_is_reserved(ray_here: None, tmp_path: Path) -> None:
    """Two stages that want the one ``rare`` there is never run side by side, though both CPUs are free."""
    rare = ResourcesConfig(custom={"rare": 1})
    specs = [spec(f"r{n}", "slow", config=Numbers(value=n, seconds=0.5), resources=rare) for n in range(2)]
    listener = Listener()
    assert run(specs, Store(tmp_path), run_name="r", on_event=listener).ok
    order = [type(event).__name__ for event in listener.heard if isinstance(event, (events.Started, events.Finished))]
    assert order == ["Started", "Finished"] * 2


def executions(store: Store, id_: str) -> int:
    """How many attempts at a stage have begun with it: each writes a line to its log, or none."""
    return sum(1 for path in store.logs.glob(f"{id_}-*/attempt-*/owner.json") if path.is_file())


def test_of_several_runs_at_once_one_does_each_stage_and_the_others_say_that_they_wait(
    ray_here: None, tmp_path: Path
) -> None:
    specs = [spec("s", "slow", config=Numbers(seconds=3.0)), spec("t", "number", "s"), spec("u", "number", "t")]
    listeners, results = [Listener() for _ in range(4)], []

    def runner(position: int) -> None:
        listener = listeners[position]
        results.append(run(specs, Store(tmp_path), run_name=f"r{position}", on_event=listener))

    threads = [threading.Thread(target=runner, args=(position,)) for position in range(4)]
    store, node = Store(tmp_path), next(iter(make_plan(specs).nodes.values()))
    threads[0].start()
    while newest(store.lease(node.id, node.fingerprint))[0] == 0:
        time.sleep(0.02)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.ok for result in results] == [True] * 4
    assert all(store.verify(stage.id, stage.fingerprint) == [] for stage in results[0].states)
    assert [executions(store, id_) for id_ in "stu"] == [1, 1, 1]
    started = [listener for listener in listeners if listener.of(events.Started, "s")]
    waited = [listener.of(events.Waiting, "s") for listener in listeners if listener not in started]
    assert len(started) == 1 and [len(told) for told in waited] == [1, 1, 1]
    assert waited[0][0].holder.startswith("run r")
    assert all(len(listener.of(events.Finished)) == 3 for listener in listeners)


def test_what_another_run_died_over_is_taken_over(ray_here: None, tmp_path: Path) -> None:
    specs, store, listener = [spec("a")], Store(tmp_path), Listener()
    node = next(iter(make_plan(specs).nodes.values()))
    store.prepare()
    code = (
        "import sys; from pathlib import Path; from cohyde.dag.leases import take; take(Path(sys.argv[1]), 0, 'r', 'a')"
    )
    subprocess.run([sys.executable, "-c", code, str(store.lease(node.id, node.fingerprint))], check=True)
    assert run(specs, store, run_name="r", on_event=listener).ok
    assert not listener.of(events.Waiting)


def test_what_another_run_failed_at_is_tried_here(ray_here: None, tmp_path: Path) -> None:
    specs, store = [spec("a")], Store(tmp_path)
    node = next(iter(make_plan(specs).nodes.values()))
    store.prepare()
    lease = take(store.lease(node.id, node.fingerprint), 0, "other", "a")
    assert lease is not None
    threading.Timer(1.0, lease.release).start()
    listener = Listener()
    assert run(specs, store, run_name="r", on_event=listener).ok
    assert len(listener.of(events.Waiting, "a")) == len(listener.of(events.Started, "a")) == 1


def test_a_process_whose_lease_was_taken_writes_nothing(ray_here: None, tmp_path: Path) -> None:
    """The thief takes it in the middle of the stage, lets go of it, and the run does the stage itself once more."""
    specs, store, listener = [spec("s", "slow", config=Numbers(seconds=2.0))], Store(tmp_path), Listener()
    node = next(iter(make_plan(specs).nodes.values()))
    folder = store.lease(node.id, node.fingerprint)

    def steal() -> None:
        while newest(folder)[0] == 0:
            time.sleep(0.05)
        thief = take(folder, 1, "thief", "elsewhere")
        assert thief is not None
        time.sleep(4)
        assert not store.exists(node.id, node.fingerprint)
        thief.release()

    thread = threading.Thread(target=steal)
    thread.start()
    assert run(specs, store, run_name="r", how=RunnerConfig(retries=0), on_event=listener).ok
    thread.join()
    assert executions(store, "s") == 2 and not listener.of(events.Failed)
    assert [event.holder.partition(",")[0] for event in listener.of(events.Waiting)] == ["run thief"]


def test_large_stages_are_not_overtaken_and_long_chains_go_first(ray_here: None, tmp_path: Path) -> None:
    specs = [spec(f"small{position}", config=Numbers(value=position)) for position in range(4)]
    specs += [spec("wide", resources=ResourcesConfig(cpus=2)), spec("next", "number", "wide")]
    listener = Listener()
    assert run(specs, Store(tmp_path), run_name="r", on_event=listener).ok
    assert listener.of(events.Submitted)[0].id == "wide"


# ------------------------------------------------------------------------------------------------ without Ray


def test_environment_of_workers_depends_on_the_stage() -> None:
    cpu = worker_environment(spec("a", resources=ResourcesConfig(cpus=2.5)))
    assert (cpu["OMP_NUM_THREADS"], cpu["CUDA_VISIBLE_DEVICES"]) == ("2", "")
    assert str(TESTS) in cpu["PYTHONPATH"].split(os.pathsep)
    gpu = worker_environment(spec("a", resources=ResourcesConfig(cpus=0.5, gpus=1)))
    assert gpu["OMP_NUM_THREADS"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in gpu


@pytest.mark.parametrize("address", ["nonsense", "host:port", "http://127.0.0.1:8265", "127.0.0.1:70000"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(UserError, match="address"):
        check_address(address)


def test_an_address_that_nobody_answers_is_told_soon(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(UserError, match=f"nobody answers at {address}"):
        run([spec("a")], Store(tmp_path), run_name="r", address=address)
    assert time.monotonic() - start < 5


def test_an_address_where_something_else_listens_is_told_within_15_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ANSWER_SECONDS + JOIN_SECONDS < 15
    monkeypatch.setattr("cohyde.dag.session.JOIN_SECONDS", 2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(UserError, match=r"no Ray cluster answers\n.*RAY_AUTH_MODE=token"):
            check_address(f"127.0.0.1:{deaf.getsockname()[1]}")


def test_sigterm_is_as_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) == before


# --------------------------------------------------------------------------------------- drivers of their own

DRIVER = """
import json, sys
sys.path.insert(0, {tests!r})
from trivial_stages.basic import Numbers
from cohyde.dag.runner import run
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store

entry = "trivial_stages.basic:"
specs = [
    StageSpec(id="fast", entry=entry + "number", version="1", config=Numbers()),
    StageSpec(id="slow", entry=entry + "{function}", version="1", config=Numbers({settings}), inputs={{"x": "fast"}}),
]
print("starting", flush=True)
result = run(specs, Store({store!r}), run_name="r", on_event=lambda event: print(event, file=sys.stderr, flush=True))
print(json.dumps({{"ok": result.ok, "ray": "ray" in sys.modules, "torch": "torch" in sys.modules}}))
"""


class Driver:
    """A process that runs two stages in a store."""

    def __init__(self, store: Path, settings: str, function: str = "slow") -> None:
        self.store = store
        self.below: list[tuple[int, str | None]] = []
        code = DRIVER.format(tests=str(TESTS), store=str(store), settings=settings, function=function)
        command = [sys.executable, "-c", code]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=TESTS.parent)

    def wait_until_slow_runs(self) -> None:
        """Wait for the middle of the slow stage, and note all processes below."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("Progressed(id='slow'"):
                children = psutil.Process(self.process.pid).children(recursive=True)
                self.below = [(child.pid, birth_of(child.pid)) for child in children]
                return
        raise AssertionError("the slow stage never started")


def wait_until_gone(processes: list[tuple[int, str | None]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid, birth in processes if is_alive(pid, birth)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    """Three drivers with a Ray each, in the middle of their slow stage. Started together, as that takes a while."""
    started = {name: Driver(tmp_path_factory.mktemp(name), "seconds=120") for name in ("SIGKILL", "SIGINT", "SIGTERM")}
    for one in started.values():
        one.wait_until_slow_runs()
    yield started
    for one in started.values():
        one.process.kill()
        one.process.communicate()


def test_a_killed_driver_leaves_nothing_running_and_the_next_run_goes_on(
    ray_here: None, drivers: dict[str, Driver]
) -> None:
    killed = drivers["SIGKILL"]
    # Two helpers of Ray's that hold neither memory nor models ask their lost head for a minute before they go.
    below = [one for one in killed.below if "Agent" not in psutil.Process(one[0]).cmdline()[0]]
    assert any("slow" in psutil.Process(pid).cmdline()[0] for pid, _ in below)
    killed.process.kill()
    killed.process.communicate()
    wait_until_gone(below, seconds=10)

    specs = [spec("fast"), spec("slow", "slow", inputs={"x": "fast"}, config=Numbers(seconds=0))]
    store = Store(killed.store)
    assert [stage.state for stage in states(specs, store)] == ["done", "ready"]
    assert any(store.scratch_root.glob("slow-*/*"))  # what the kill has left
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.root.glob("fast-*/*")}
    assert run(specs, store, run_name="r").ok
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.root.glob("fast-*/*")}
    assert not any(store.scratch_root.glob("*/*"))
    assert all(store.verify(stage.id, stage.fingerprint) == [] for stage in states(specs, store))

    # Again, with nothing to do: no Ray, no torch.
    output, _ = Driver(killed.store, "seconds=120").process.communicate()
    assert json.loads(output.splitlines()[-1]) == {"ok": True, "ray": False, "torch": False}


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_driver_ends_everything_it_started(drivers: dict[str, Driver], name: str) -> None:
    interrupted = drivers[name]
    interrupted.process.send_signal(signal.Signals[name])
    output, errors = interrupted.process.communicate(timeout=20)
    assert interrupted.process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert output == "starting\n"  # nothing of Ray's on standard output
    wait_until_gone(interrupted.below, seconds=1)
    specs = [spec("fast"), spec("slow", "slow", inputs={"x": "fast"})]
    assert [stage.state for stage in states(specs, Store(interrupted.store))] == ["done", "ready"]


COUNTING = spec("slow", "heeding", inputs={"x": "fast"}, config=Numbers(value=60))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_driver_that_is_told_to_stop_waits_for_a_checkpoint_and_the_next_run_goes_on_from_it(
    ray_here: None, tmp_path: Path, name: str
) -> None:
    driver = Driver(tmp_path, "value=60", "heeding")
    driver.wait_until_slow_runs()
    driver.process.send_signal(signal.Signals[name])
    _, errors = driver.process.communicate(timeout=20)
    assert "Stopping(ids=('slow',)" in errors
    store = Store(tmp_path)
    assert [stage.state for stage in states([spec("fast"), COUNTING], store)] == ["done", "ready"]
    [kept] = store.scratch_root.glob("slow-*/checkpoints/step")
    step = int(kept.read_text())
    result = run([spec("fast"), COUNTING], store, run_name="r")
    assert 0 < step < 60 and result.states[1].metrics == {"total": 60, "first": step}
    assert not any(store.scratch_root.glob("*/*"))


def test_a_worker_that_is_told_to_stop_writes_a_checkpoint_and_its_stage_goes_on_from_it(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "value=60", "heeding")
    driver.wait_until_slow_runs()
    [owner] = tmp_path.glob("logs/slow-*/attempt-1/owner.json")
    os.kill(json.loads(owner.read_text())["pid"], signal.SIGTERM)
    output, errors = driver.process.communicate(timeout=30)
    assert json.loads(output.splitlines()[-1])["ok"], errors
    store = Store(tmp_path)
    metrics = states([spec("fast"), COUNTING], store)[1].metrics
    assert metrics["total"] == 60 and 0 < int(metrics["first"] or 0) < 60
