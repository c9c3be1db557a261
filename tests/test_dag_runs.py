"""A run's record is read back as it was written, or the damage is told."""

from pathlib import Path

import pytest

from cohyde.dag.plan import make_plan
from cohyde.dag.runs import RunRecord, check_name, load_run, load_runs, run_names, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states
from cohyde.dag.store import Store
from cohyde.errors import UserError

ENTRY = "trivial_stages.basic:number"
PLAN = make_plan(
    [
        StageSpec(id="a", entry=ENTRY, version="1"),
        StageSpec(id="b", entry=ENTRY, version="1", inputs={"x": "a"}),
    ]
)


def record(name: str = "my-run") -> RunRecord:
    config = {"encoder": {"train": {"lr": 1e-5, "batch": 3}}, "text": "1e-5", "none": None, "forms": [1, 2]}
    return RunRecord(name=name, config=config, preset="tiny", overrides=("encoder.train.lr=1e-5",), plan=PLAN)


def test_a_record_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert save_run(store, record()) == tmp_path / "runs" / "my-run" / "run.yaml"
    found = load_run(store, "my-run")
    assert found.config == record().config
    assert type(found.config["encoder"]["train"]["lr"]) is float
    assert (found.preset, found.overrides) == ("tiny", ("encoder.train.lr=1e-5",))
    assert found.plan.nodes == PLAN.nodes
    assert [stage.state for stage in states(found.plan, store)] == ["ready", "waiting"]


def test_an_unknown_run_lists_the_known(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(UserError, match="no runs there yet"):
        load_run(store, "x")
    for name in ("second", "first"):
        save_run(store, record(name))
    assert run_names(store) == ["first", "second"]
    with pytest.raises(UserError, match=r"no run is called 'x'.*\n.*first, second"):
        load_run(store, "x")


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "x" * 101, "ümlaut", "a\n"])
def test_names_that_are_no_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be a run's name"):
        save_run(Store(tmp_path), record(name))
    with pytest.raises(UserError, match="cannot be a run's name"):
        check_name(name)


@pytest.mark.parametrize("text", ["", "a: [", "[]", "format: 1", "format: 0", "format: 1\nconfig: 3", "a: !!python/x"])
def test_a_damaged_record_is_told(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    save_run(store, record()).write_text(text)
    with pytest.raises(UserError, match=r"run\.yaml: damaged"):
        load_run(store, "my-run")


def test_a_record_of_a_later_version_is_not_called_damaged(tmp_path: Path) -> None:
    save_run(Store(tmp_path), record()).write_text("format: 9")
    with pytest.raises(UserError, match=r"run\.yaml: format 9; this version of cohyde reads format 1\n.*update cohyde"):
        load_run(Store(tmp_path), "my-run")


def test_all_records_are_read_and_those_that_cannot_be_are_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("one", "two", "broken"):
        save_run(store, record(name))
    (store.runs / "broken" / "run.yaml").write_text("a: [")
    records, faults = load_runs(store)
    assert list(records) == ["one", "two"]
    assert ["run.yaml: damaged" in fault.message for fault in faults] == [True]
