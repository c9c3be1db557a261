"""What befalls a store: a full disk, one that can only be read, kills, clocks that jump, a tidier beside a run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_dag_store import KEY, manifest

from cohyde import filesystem
from cohyde.dag import store as store_module
from cohyde.dag.gc import find, remove
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store
from cohyde.dag.verify import verify

ROOT = Path(__file__).resolve().parent.parent
TESTS = Path(__file__).parent


def cohyde(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; ``path`` is put in front of where Python looks for modules."""
    environment = {**os.environ, "COLUMNS": "80"}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "cohyde", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240, check=False)


def mounted(*arguments: str) -> bool:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)):
        pytest.skip("mounting a small disk takes root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def filled(disk: Path, leaving: int) -> Iterator[None]:
    """Somebody else's file takes all of a disk but for ``leaving`` bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "others").write_bytes(b"0" * (free - leaving))
    yield
    (disk / "others").unlink()


def check_told(done: subprocess.CompletedProcess[str], status: int) -> None:
    assert done.returncode == status, done.stderr
    assert "no space left on the device" in done.stderr
    assert "free some space, or give another --store DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_on_a_full_disk_nothing_is_begun(disk: Path) -> None:
    with filled(disk, 0):
        check_told(cohyde("run", "-c", "tiny", "--store", str(disk / "store")), 2)
    assert not any(path.is_file() for path in disk.rglob("*"))


@pytest.mark.slow
def test_a_disk_that_fills_up_fails_the_stage_and_the_run_goes_on_once_there_is_room(disk: Path) -> None:
    store = Store(disk / "store")
    command = ["run", "-c", "tiny", "--until", "data", "--store", str(store.root)]
    with filled(disk, 64 * 1024):  # enough for the run's record, too little for the data
        check_told(cohyde(*command), 1)
        assert list(store.artifacts()) == [] and not any(store.scratch_root.glob("*/*"))
    assert cohyde(*command).returncode == 0
    assert verify(store).ok and verify(store).artifacts == 1
    assert {one.kind for one in find(store).garbage} <= {"leases"}


def test_a_store_that_can_only_be_read_is_looked_at_and_not_written_to(disk: Path) -> None:
    where = ["--store", str(disk / "store")]
    plan = make_plan([StageSpec(id="a", entry="trivial_stages.basic:number", version="1")])
    store = finished(disk / "store", plan)  # of no run: there is something to remove
    assert mounted("-o", "remount,ro", str(disk))
    for command in (["verify"], ["gc"], ["plan", "-c", "tiny"]):
        done = cohyde(*command, *where)
        assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
    for command in (["run", "-c", "tiny"], ["gc", "--yes"]):
        done = cohyde(*command, *where)
        assert (done.returncode, done.stdout) == (2, "")
        assert "read-only file system" in done.stderr and "give a --store DIR that can be written to" in done.stderr
        assert "Traceback" not in done.stderr
    assert verify(store).ok


def finished(root: Path, plan: Plan) -> Store:
    """A store in which all stages are done."""
    store = Store(root)
    store.prepare()
    for node in plan.nodes.values():
        scratch = store.scratch(node.id, node.fingerprint)
        (scratch / "number.txt").write_text("1")
        identity = plan.identities[node.name]
        store.commit(scratch, manifest(id=node.id, fingerprint=node.fingerprint, identity=identity))
    return store


# --------------------------------------------------------------------------------------------------------- kills


def killed_at(step: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Commit in a child that is killed at its n-th call to the disk; whether it was."""
    child = os.fork()
    if child == 0:
        calls = 0

        def counting(work: object) -> object:
            def call(*arguments: object) -> object:
                nonlocal calls
                calls += 1
                if calls == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return work(*arguments)  # type: ignore[operator]

            return call

        monkeypatch.setattr(filesystem, "flush", counting(filesystem.flush))  # in flush_tree
        for name in ("flush", "flush_tree", "_record"):
            monkeypatch.setattr(store_module, name, counting(getattr(store_module, name)))
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, counting(getattr(os, name)))
        scratch = store.scratch(*KEY)
        (scratch / "number.txt").write_text("1")
        store.commit(scratch, manifest())
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_commit_that_is_killed_anywhere_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for step in range(1, 100):
        store = Store(tmp_path / str(step))
        store.prepare()
        killed = killed_at(step, store, monkeypatch)
        assert store.exists(*KEY) == bool(list(store.artifacts()))
        assert not store.exists(*KEY) or store.verify(*KEY) == []
        assert not killed_at(0, store, monkeypatch)  # another attempt makes it, or finds it made
        assert store.verify(*KEY) == []
        seen.append((killed, store.exists(*KEY)))
        if not killed:
            break
    assert len(seen) > 5 and not seen[-1][0]


# -------------------------------------------------------------------------------------------------------- clocks

JUMPING = """
import datetime, os, time
start, true, real = time.monotonic(), time.time, datetime.datetime
step = 7200 if os.getpid() % 2 else -7200

def shift():
    return step if time.monotonic() - start > 2 else 0

class Jumping(real):
    @classmethod
    def now(cls, tz=None):
        return real.fromtimestamp(true() + shift(), tz)

time.time = lambda: true() + shift()
datetime.datetime = Jumping
"""


def test_clocks_that_jump_change_nothing(tmp_path: Path) -> None:
    """Two seconds after its start, every process finds itself two hours earlier or later."""
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    done = cohyde("run", "-c", "tiny", "--until", "data", "--store", str(tmp_path / "store"), path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    store = Store(tmp_path / "store")
    assert verify(store).ok
    [folder] = store.artifacts()
    assert 0 <= json.loads((folder / "manifest.json").read_text())["seconds"] < 60


def test_the_ages_of_files_change_nothing(tmp_path: Path) -> None:
    plan = make_plan([StageSpec(id="a", entry="trivial_stages.basic:number", version="1")])
    store = finished(tmp_path, plan)
    save_run(store, RunRecord(name="r", config={}, plan=plan))
    for seconds in (0, 4e9):
        for path in store.root.rglob("*"):
            os.utime(path, (seconds, seconds))
        assert verify(store).ok
        assert find(store).garbage == ()


# ------------------------------------------------------------------------------------------------- beside a run

RUN = """
import sys
from pathlib import Path
from trivial_stages.basic import Numbers
from cohyde.dag.plan import make_plan
from cohyde.dag.runner import run
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store

entry = "trivial_stages.basic:"
specs = [
    StageSpec(id=f"s{n}", entry=entry + "slow", version="1", config=Numbers(value=n, seconds=0.4),
              inputs={"x": f"s{n - 1}"} if n else {})
    for n in range(5)
]
store = Store(sys.argv[1])
store.prepare()
save_run(store, RunRecord(name="r", config={}, plan=make_plan(specs)))
sys.exit(not run(specs, store, run_name="r").ok)
"""


@pytest.mark.slow
def test_tidying_beside_a_run_takes_nothing_that_it_needs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = os.pathsep.join(filter(None, [str(TESTS), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", RUN, str(store.root)], env=environment, cwd=ROOT) as running:
        while running.poll() is None:
            remove(store, find(store))
            time.sleep(0.02)
    assert running.returncode == 0
    assert verify(store).ok and verify(store).artifacts == 5
