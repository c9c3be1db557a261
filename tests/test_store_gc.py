"""Tidying up: what no run names goes, what somebody works on or will go on from stays."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from command_line import Call, caller
from test_dag_store import manifest

from cohyde.dag import gc
from cohyde.dag.attempts import new_attempt
from cohyde.dag.gc import find, remove
from cohyde.dag.leases import Holder, newest, take
from cohyde.dag.plan import Node, Plan, make_plan
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store
from cohyde.errors import UserError


def plan(version: str) -> Plan:
    common = {"entry": "trivial_stages.basic:number", "version": version}
    return make_plan([StageSpec(id="a", **common), StageSpec(id="b", inputs={"x": "a"}, **common)])


NAMED, UNNAMED = plan("1"), plan("2")


def node(of: Plan, id_: str) -> Node:
    return of.nodes[of.named(id_)[0]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a run that names two stages."""
    at = Store(tmp_path / "store")
    at.prepare()
    save_run(at, RunRecord(name="r", config={}, plan=NAMED))
    return at


def finish(store: Store, of: Plan, id_: str, content: str = "12345") -> Path:
    this = node(of, id_)
    scratch = store.scratch(this.id, this.fingerprint)
    (scratch / "number.txt").write_text(content)
    store.commit(scratch, manifest(id=this.id, fingerprint=this.fingerprint, identity=of.identities[this.name]))
    return store.artifact_path(this.id, this.fingerprint)


def write(path: Path, text: str = "12345") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kinds(found: gc.Finding) -> dict[str, list[str]]:
    """Kind → names of the artifacts that it is of."""
    return {kind: names for kind in gc.KINDS if (names := [one.node for one in found.garbage if one.kind == kind])}


@contextmanager
def at_work(store: Store, of: Plan, id_: str) -> Iterator[Path]:
    """This process works on a stage: its lease is held, and its scratch folder is written to."""
    this = node(of, id_)
    lease = take(store.lease(this.id, this.fingerprint), 0, "r", "attempt")
    assert lease is not None
    yield store.scratch(this.id, this.fingerprint)
    lease.release()


def elsewhere(store: Store, name: str, beat: int = 0) -> None:
    """A lease of a process on another machine."""
    holder = Holder(token="t", run="r", attempt="x", host="far-away", pid=7, birth=None, beat=beat)
    write(store.leases / name / "1.json", json.dumps(asdict(holder)))


def test_a_tidy_store_has_nothing_to_remove(store: Store) -> None:
    finish(store, NAMED, "a")
    assert find(store).garbage == ()


def test_each_kind_of_garbage_is_found_and_removed(store: Store) -> None:
    kept = finish(store, NAMED, "a")
    gone = finish(store, UNNAMED, "a")
    partial = write(store.root / node(UNNAMED, "b").name / "half").parent
    b = node(NAMED, "b")
    left = store.scratch(b.id, b.fingerprint)
    of_named = write(store.checkpoints(b.id, b.fingerprint) / "step-1" / "state.json")
    old = node(UNNAMED, "b")
    of_unnamed = write(store.checkpoints(old.id, old.fingerprint) / "step-1" / "state.json")
    logs = [write(new_attempt(store, name).log) for name in (b.name, old.name)]
    trash = write(store.trash / "S9-grave" / "weights")
    mine = write(store.root / "notes.txt")
    found = find(store)
    assert kinds(found) == {
        "artifact": [gone.name],
        "partial": [partial.name],
        "attempt": [b.name],
        "checkpoints": [old.name],
        "logs": [old.name],
        "trash": [""],
    }
    assert found.bytes == sum(one.bytes for one in found.garbage) > 3 * 5
    assert set(remove(store, found)) == set(found.garbage)
    assert not any(path.exists() for path in (gone, partial, left, of_unnamed, logs[1], trash))
    assert all(path.exists() for path in (kept, of_named, logs[0], mine))
    assert find(store).garbage == ()
    assert not any(store.leases.iterdir())


def test_checkpoints_of_a_finished_stage_are_garbage(store: Store) -> None:
    finish(store, NAMED, "a")
    a = node(NAMED, "a")
    write(store.checkpoints(a.id, a.fingerprint) / "step-1" / "state.json")
    assert kinds(find(store)) == {"checkpoints": [a.name]}


def test_released_leases_and_those_of_dead_processes_are_garbage(store: Store) -> None:
    with at_work(store, NAMED, "a"):
        pass
    b = node(NAMED, "b")
    code = (
        "import sys; from pathlib import Path; from cohyde.dag.leases import take; take(Path(sys.argv[1]), 0, '', '')"
    )
    subprocess.run([sys.executable, "-c", code, str(store.lease(b.id, b.fingerprint))], check=True)
    found = find(store)
    assert kinds(found)["leases"] == [node(NAMED, "a").name, b.name]
    remove(store, found)
    assert not any(store.leases.iterdir())


def test_nothing_of_a_stage_that_somebody_works_on_is_touched(store: Store) -> None:
    with at_work(store, NAMED, "a") as scratch:
        write(scratch / "half")
        found = find(store)
        assert found.garbage == () and list(found.busy) == [node(NAMED, "a").name]
        assert not found.strangers


def test_while_somebody_works_on_an_unnamed_stage_unnamed_things_stay(store: Store) -> None:
    finish(store, UNNAMED, "a")
    b = node(NAMED, "b")
    store.scratch(b.id, b.fingerprint)
    with at_work(store, UNNAMED, "b"):
        found = find(store)
        assert found.strangers and kinds(found) == {"attempt": [b.name]}
    assert kinds(find(store))["artifact"] == [node(UNNAMED, "a").name]


def test_a_lease_of_another_machine_is_alive_while_its_heartbeat_moves(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "POLL_SECONDS", 0.05)
    a = node(NAMED, "a")
    write(store.scratch(a.id, a.fingerprint) / "half")
    elsewhere(store, a.name)
    beats = threading.Timer(0.3, elsewhere, (store, a.name, 1))
    beats.start()
    found = find(store)
    beats.join()
    assert found.garbage == () and found.busy[a.name].host == "far-away"


def test_a_lease_of_another_machine_whose_heartbeat_stands_still_is_dead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "POLL_SECONDS", 0.05)
    monkeypatch.setattr("cohyde.dag.leases.DEAD_SECONDS", 0.3)
    a = node(NAMED, "a")
    write(store.scratch(a.id, a.fingerprint) / "half")
    elsewhere(store, a.name)
    assert kinds(find(store)) == {"attempt": [a.name], "leases": [a.name]}


def test_what_somebody_has_begun_to_work_on_since_is_left(store: Store) -> None:
    a = node(NAMED, "a")
    write(store.scratch(a.id, a.fingerprint) / "half")
    found = find(store)
    with at_work(store, NAMED, "a") as scratch:
        assert remove(store, found) == []
        assert scratch.exists()
        assert newest(store.lease(a.id, a.fingerprint))[0] == 1


def test_what_a_new_run_has_come_to_need_since_is_left(store: Store) -> None:
    folder = finish(store, UNNAMED, "a")
    found = find(store)
    save_run(store, RunRecord(name="new", config={}, plan=UNNAMED))
    assert remove(store, found) == []
    assert folder.exists()


def test_what_a_run_needs_has_to_be_known(store: Store) -> None:
    folder = finish(store, UNNAMED, "a")
    write(store.runs / "broken" / "run.yaml", "a: [")
    with pytest.raises(UserError, match=r"run\.yaml: damaged.*\n.*nothing is removed"):
        find(store)
    assert folder.exists()


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "folder" / "one", "123")
    write(tmp_path / "folder" / "deeper" / "two", "45")
    os.symlink("/usr", tmp_path / "folder" / "link")  # to a folder: what lies there is not ours
    assert gc.size_of(tmp_path / "folder") == 3 + 2
    assert gc.size_of(tmp_path / "gone") == 0


# ---------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Store) -> Call:
    monkeypatch.setenv("COHYDE_STORE", str(store.root))
    return caller(capfd, monkeypatch)


def test_nothing_is_removed_without_yes(cohyde: Call, store: Store) -> None:
    folder = finish(store, UNNAMED, "a", "1" * 40_000_000)
    write(store.trash / "S9-grave", "1" * 1_500)
    code, output, errors = cohyde("gc")
    assert code == 0
    rows = [line.split("  ") for line in output.splitlines()]
    shown = [tuple(cell.strip() for cell in row if cell.strip()) for row in rows]
    assert shown == [
        ("count", "size"),
        ("artifacts that no run names", "1", "40.0 MB"),
        (folder.name, "40.0 MB"),
        ("what is removed already, but for its files", "1", "1.5 kB"),
        ("in all", "2", "40.0 MB"),
    ]
    assert f"nothing was removed; to remove it: cohyde gc --yes --store {store.root}" in errors
    assert folder.exists()
    assert max(map(len, output.splitlines())) <= 80


def test_yes_removes(cohyde: Call, store: Store) -> None:
    folder = finish(store, UNNAMED, "a")
    code, _, errors = cohyde("gc", "--yes")
    assert code == 0 and "removed " in errors
    assert not folder.exists()
    assert "there is nothing to remove" in cohyde("gc")[2]


def test_gc_prints_one_object(cohyde: Call, store: Store) -> None:
    folder = finish(store, UNNAMED, "a")
    size = sum(path.stat().st_size for path in folder.iterdir())
    garbage = [{"kind": "artifact", "path": str(folder), "bytes": size}]
    expected = {"store": str(store.root), "bytes": size, "garbage": garbage, "busy": {}, "removed": []}
    assert json.loads(cohyde("gc", "--json")[1]) == expected
    assert json.loads(cohyde("gc", "--json", "--yes")[1]) == {**expected, "removed": [str(folder)]}


def test_who_is_at_work_is_told(cohyde: Call, store: Store) -> None:
    with at_work(store, UNNAMED, "a"):
        _, _, errors = cohyde("gc")
    assert f"{node(UNNAMED, 'a').name}: run r, " in errors
    assert "what no run names stays as well" in errors
