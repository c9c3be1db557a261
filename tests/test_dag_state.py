"""States are read from the store alone."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from test_dag_store import manifest

from cohyde.dag.attempts import Attempt, Failure, Owner, latest_attempt, new_attempt
from cohyde.dag.plan import Plan, make_plan, merge
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states
from cohyde.dag.store import Store

ENTRY = "trivial_stages.basic:number"


@dataclass(frozen=True, kw_only=True)
class Seeded:
    seed: int = 0


def chain(seed: int = 0) -> Plan:
    """A → b → c, and d beside them."""
    links = {"a": {}, "b": {"x": "a"}, "c": {"x": "b"}, "d": {}}
    config = Seeded(seed=seed)
    return make_plan(
        [StageSpec(id=id_, entry=ENTRY, version="1", config=config, inputs=inputs) for id_, inputs in links.items()]
    )


def finish(store: Store, plan: Plan, stage_id: str) -> None:
    node = plan.nodes[plan.named(stage_id)[0]]
    identity = plan.identities[node.name]
    done = manifest(id=node.id, fingerprint=node.fingerprint, identity=identity, metrics={"m": 1}, seconds=2.5)
    store.commit(store.scratch(node.id, node.fingerprint), done)


def begin(store: Store, plan: Plan, stage_id: str) -> Attempt:
    return new_attempt(store, plan.named(stage_id)[0])


def failure(plan: Plan, stage_id: str) -> Failure:
    return Failure(id=stage_id, name=plan.named(stage_id)[0], attempt=1, error="broken", log="log.txt")


def by_id(plan: Plan, store: Store, *failures: str) -> dict[str, str]:
    return {stage.id: stage.state for stage in states(plan, store, failures)}


def test_an_empty_store_has_ready_and_waiting_stages(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert by_id(chain(), store) == {"a": "ready", "b": "waiting", "c": "waiting", "d": "ready"}
    assert not (tmp_path / "none").exists()


def test_a_finished_stage_tells_its_record(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), chain()
    finish(store, plan, "a")
    first, second, *_ = states(plan, store)
    assert (first.state, first.seconds, first.metrics) == ("done", 2.5, {"m": 1})
    assert first.path == str(store.root / plan.named("a")[0])
    assert (second.state, second.path, second.seconds, second.metrics) == ("ready", None, None, {})
    assert second.inputs == {"x": "a"}
    assert set(first.to_json()) == {"id", "state", "fingerprint", "inputs", "path", "seconds", "metrics"}


def test_a_failure_blocks_what_is_below(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), chain()
    begin(store, plan, "a").end(failure(plan, "a"))
    assert by_id(plan, store) == {"a": "failed", "b": "blocked", "c": "blocked", "d": "ready"}
    assert latest_attempt(store, plan.named("a")[0]).failure() == failure(plan, "a")  # type: ignore[union-attr]


def test_a_failure_that_only_the_runner_knows_counts(tmp_path: Path) -> None:
    plan = chain()
    assert by_id(plan, Store(tmp_path), plan.named("b")[0])["c"] == "blocked"


def test_the_latest_attempt_counts_and_an_artifact_counts_more(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), chain()
    begin(store, plan, "a").end(failure(plan, "a"))
    again = begin(store, plan, "a")
    assert again.number == 2
    assert os.readlink(again.folder.parent / "latest") == "attempt-2"
    assert by_id(plan, store)["a"] == "ready"
    again.end(failure(plan, "a"))
    finish(store, plan, "a")
    assert by_id(plan, store)["a"] == "done"


def test_a_live_attempt_is_running_until_it_ends(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), chain()
    attempt = begin(store, plan, "a")
    assert by_id(plan, store)["a"] == "ready"
    attempt.start(Owner.this_process("r"))
    assert by_id(plan, store)["a"] == "running"
    attempt.end()
    assert by_id(plan, store)["a"] == "ready"


def test_an_attempt_of_a_dead_process_is_not_running(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), chain()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    begin(store, plan, "a").start(replace(Owner.this_process("r"), pid=child.pid))
    begin(store, plan, "d").start(replace(Owner.this_process("r"), birth="1"))  # the number was given out again
    assert (by_id(plan, store)["a"], by_id(plan, store)["d"]) == ("ready", "ready")


def test_an_attempt_elsewhere_is_running_while_it_gives_signs_of_life(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), chain()
    attempt = begin(store, plan, "a")
    attempt.start(replace(Owner.this_process("r"), host="another-host"))
    assert by_id(plan, store)["a"] == "running"
    ago = time.time() - 91
    os.utime(attempt.folder / "owner.json", (ago, ago))
    assert by_id(plan, store)["a"] == "ready"
    attempt.beat()
    assert by_id(plan, store)["a"] == "running"


@pytest.mark.parametrize("count", [1500])
def test_a_sweep_of_many_seeds_is_planned_and_looked_at(tmp_path: Path, count: int) -> None:
    plan = merge(chain(seed) for seed in range(count))
    assert len(states(plan, Store(tmp_path))) == 4 * count


def test_planning_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys, cohyde.dag.runner, cohyde.dag.runs, cohyde.dag.state\n"
        "print({'ray', 'torch', 'numpy', 'yaml', 'omegaconf'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
