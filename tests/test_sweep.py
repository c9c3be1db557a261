"""Many runs as one plan, and the records of sweeps. One test runs trivial stages on a real Ray."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trivial_stages.basic import Numbers

from cohyde.config import RunnerConfig
from cohyde.dag import events, worker
from cohyde.dag.attempts import latest_attempt, new_attempt
from cohyde.dag.leases import take
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.runner import run
from cohyde.dag.runs import RunRecord, load_run, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states, states_by_name
from cohyde.dag.store import Store
from cohyde.dag.sweep import (
    Member,
    SweepRecord,
    Union,
    check_run_name,
    check_sweep_name,
    latest_sweep,
    load_sweep,
    save_sweep,
    sweep_names,
)
from cohyde.errors import UserError


def chain(seed: int, lr: int = 1, broken: str = "") -> Plan:
    """``warm`` knows no seed and no lr, ``tuned`` the lr alone, and ``b`` and ``c`` below it both."""
    links = {"warm": [], "tuned": ["warm"], "b": ["warm", "tuned"], "c": ["b"]}
    values = {"warm": 1, "tuned": 10 * lr, "b": 100 * lr + seed, "c": 0}
    return make_plan(
        [
            StageSpec(
                id=id_,
                entry=f"trivial_stages.basic:{'fail' if id_ == broken else 'number'}",
                version="1",
                inputs={f"in{position}": source for position, source in enumerate(inputs)},
                config=Numbers(value=values[id_]),
            )
            for id_, inputs in links.items()
        ]
    )


def seeds_of_two_rates() -> Union:
    plans = {f"x-lr{lr}-s{seed}": chain(seed, lr) for lr in (1, 2) for seed in (0, 7)}
    return Union(name="x", plans=plans)


# -------------------------------------------------------------------------------------------------------- the union


def test_what_runs_share_is_one_node() -> None:
    union = seeds_of_two_rates()
    count = {id_: len(union.plan.named(id_)) for id_ in ("warm", "tuned", "b", "c")}
    assert count == {"warm": 1, "tuned": 2, "b": 4, "c": 4}
    assert union.runs_of[union.plan.named("warm")[0]] == list(union.plans)
    positions = {name: position for position, name in enumerate(union.plan.nodes)}
    for name, node in union.plan.nodes.items():
        assert all(positions[source] < positions[name] for source in node.inputs.values())


def test_stages_are_called_by_run_unless_all_share_them() -> None:
    assert sorted(seeds_of_two_rates().labels.values()) == [
        "lr1-s0/b", "lr1-s0/c", "lr1-s0/tuned +1", "lr1-s7/b", "lr1-s7/c",
        "lr2-s0/b", "lr2-s0/c", "lr2-s0/tuned +1", "lr2-s7/b", "lr2-s7/c", "warm",
    ]  # fmt: skip
    assert sorted(Union(name="x", plans={"x-s0": chain(0)}).labels.values()) == ["s0/b", "s0/c", "s0/tuned", "s0/warm"]


def test_a_shared_node_is_of_the_first_run_that_has_it() -> None:
    plan = seeds_of_two_rates().plan
    assert [plan.runs[name] for name in plan.named("tuned")] == ["x-lr1-s0", "x-lr2-s0"]
    assert plan.until("tuned").runs == plan.runs


def test_rows_are_of_every_run_and_stage(tmp_path: Path) -> None:
    union = seeds_of_two_rates()
    rows = union.rows(states(union.plan, Store(tmp_path)))
    assert [row.id for row in rows] == [f"{run}/{id_}" for run in union.plans for id_ in ("warm", "tuned", "b", "c")]
    by_id = {row.id: row for row in rows}
    assert len({by_id[f"{run}/warm"].fingerprint for run in union.plans}) == 1
    assert len({by_id[f"{run}/b"].fingerprint for run in union.plans}) == 4
    assert by_id["x-lr2-s7/c"].inputs == {"in0": "x-lr2-s7/b"}
    assert (by_id["x-lr2-s7/warm"].state, by_id["x-lr2-s7/c"].state) == ("ready", "waiting")


# ------------------------------------------------------------------------------------------------------ on a Ray


class Heard:
    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    def names(self, kind: type[Any]) -> list[str]:
        return [event.name for event in self.events if isinstance(event, kind)]


def test_shared_stages_run_once_and_one_that_fails_holds_up_its_own_run_alone(tmp_path: Path) -> None:
    store, heard = Store(tmp_path), Heard()
    plans = {"x-s0": chain(0), "x-s1": chain(1, broken="b"), "x-s2": chain(2)}
    union = Union(name="x", plans=plans)
    result = run(union.plan, store, run_name="x", how=RunnerConfig(retries=0), on_event=heard)
    found = dict(zip(union.plan.nodes, result.states, strict=True))
    by_run = {name: [found[node].state for node in plan.nodes] for name, plan in plans.items()}
    assert by_run == {
        "x-s0": ["done"] * 4,
        "x-s1": ["done", "done", "failed", "blocked"],
        "x-s2": ["done"] * 4,
    }
    assert not result.ok
    [failure] = result.failures
    assert union.labels[failure.name] == "s1/b"
    assert [union.labels[name] for name in heard.names(events.Blocked)] == ["s1/c"]
    started = heard.names(events.Started)
    assert len(started) == len(set(started)) == 1 + 1 + 3 + 2
    totals = {name: found[plan.named("c")[0]].metrics.get("total") for name, plan in plans.items()}
    assert totals == {"x-s0": 100 + 1 + 11, "x-s1": None, "x-s2": 102 + 1 + 11}

    assert states_by_name(union.plan, store) == {name: state.state for name, state in found.items()}
    made_by = {union.labels[name]: store.manifest(node.id, node.fingerprint).run
               for name, node in union.plan.nodes.items() if found[name].state == "done"}  # fmt: skip
    assert (made_by["warm"], made_by["s2/c"]) == ("x-s0", "x-s2")
    attempt = latest_attempt(store, failure.name)
    owner = attempt.owner() if attempt else None
    assert owner is not None and owner.run == "x-s1"


def test_a_damaged_input_is_told_with_the_run_to_mend_it_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    union = Union(name="x", plans={"x-s0": chain(0), "x-s1": chain(1)})
    [tuned] = union.plan.named("tuned")
    run(union.plan, store, run_name="x", until="tuned")
    (tmp_path / tuned / "number.txt").write_text("123456")
    with pytest.raises(UserError, match=r"number\.txt: has 6 bytes") as refused:
        run(union.plan, store, run_name="x")
    assert "cohyde rerun x-s0 tuned" in refused.value.remedy


def test_the_rate_is_counted_by_the_workers_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = Store(tmp_path), [100.0]
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    attempt, lease = new_attempt(store, "a-0"), take(store.lease("a", "0"), 0, "x-s0", "here")
    assert lease is not None
    reporter = worker.Reporter(attempt, lease, tmp_path, 300)

    def after(at: float, done: float, total: float, what: str) -> tuple[float, float]:
        clock[0] = at
        reporter.update(done, total, what)
        reporter._write()
        told = attempt.progress()
        return told["done"] - told["first"], told["seconds"]

    assert after(100, 40, 120, "steps") == (0, 0)  # goes on from a checkpoint
    assert after(108, 60, 120, "steps") == (20, 8)
    assert after(110, 5, 30, "texts") == (0, 0)  # something else is counted
    assert after(112, 9, 30, "texts") == (4, 2)
    assert after(113, 0, 30, "texts") == (0, 0)  # the same from the beginning


# -------------------------------------------------------------------------------------------------------- records


def record(name: str = "x", *members: Member) -> SweepRecord:
    return SweepRecord(name=name, config={"rounds": 3}, preset="demo", overrides=("a=1,2",), members=members)


MEMBERS = tuple(
    Member(name=f"x-lr{lr}-s{seed}", seed=seed, settings={"encoder.train.lr": lr})
    for lr in ("1e-5", "2e-5")
    for seed in (0, 123)
)


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = save_sweep(store, record("x", *MEMBERS))
    found = load_sweep(store, "x")
    assert found.started
    assert found == SweepRecord(**{**record("x", *MEMBERS).__dict__, "started": found.started})
    assert path == tmp_path / "sweeps" / "x.yaml"
    assert sweep_names(store) == ["x"]


def test_a_record_knows_its_seeds_and_its_combinations() -> None:
    found = record("x", *MEMBERS)
    assert (found.seeds, found.swept) == ((0, 123), ("encoder.train.lr",))
    assert found.arms() == [
        ({"encoder.train.lr": "1e-5"}, list(MEMBERS[:2])),
        ({"encoder.train.lr": "2e-5"}, list(MEMBERS[2:])),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "damaged: while parsing"),
        ("[]", "damaged: not a sweep's record"),
        ("format: 99", "format 99; this version of cohyde reads format 1"),
        ("format: 1\nname: x", "damaged: 'config'"),
        ("format: 1\nname: x\nconfig: {}\nruns: [{name: x-s0, seed: many, settings: {}}]", "damaged: invalid literal"),
    ],
)
def test_a_damaged_record_is_told(tmp_path: Path, text: str, reason: str) -> None:
    store = Store(tmp_path)
    save_sweep(store, record()).write_text(text)
    with pytest.raises(UserError) as refused:
        load_sweep(store, "x")
    assert reason in refused.value.message


def test_a_record_of_a_later_version_is_told_as_a_run_s_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save_sweep(store, record()).write_text("format: 9")
    with pytest.raises(UserError, match=r"x\.yaml: format 9; this version of cohyde reads format 1\n.*update cohyde"):
        load_sweep(store, "x")


def test_a_sweep_that_is_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(UserError, match="no sweep is called 'y'") as refused:
        load_sweep(store, "y")
    assert refused.value.remedy == "sweeps there: none yet"
    save_sweep(store, record())
    with pytest.raises(UserError) as refused:
        load_sweep(store, "y")
    assert refused.value.remedy == "sweeps there: x"


@pytest.mark.parametrize("name", ["../x", "a b", "", ".x", "x" * 300, "a/b"])
def test_a_name_that_cannot_be_a_files_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be a run's name"):
        save_sweep(Store(tmp_path), record(name))
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_a_runs_or_a_sweeps(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save_run(store, RunRecord(name="one", config={}, plan=chain(0)))
    save_sweep(store, record("many"))
    check_run_name(store, "one")
    check_sweep_name(store, "many")
    with pytest.raises(UserError, match="'one' is the name of a run"):
        check_sweep_name(store, "one")
    with pytest.raises(UserError, match="'many' is the name of a sweep"):
        check_run_name(store, "many")


def test_the_latest_is_the_sweep_until_a_run_is_started_after_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert latest_sweep(store) is None
    first, second = save_sweep(store, record("a")), save_sweep(store, record("b"))
    own = save_run(store, RunRecord(name="b-s0", config={}, plan=chain(0)))
    for path, at in ((first, 10), (own, 20), (second, 20)):
        os.utime(path, (at, at))
    assert latest_sweep(store) == "b"
    os.utime(own, (21, 21))
    assert latest_sweep(store) is None
    assert load_run(store, "b-s0").name == "b-s0"
