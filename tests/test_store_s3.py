"""A store in a bucket, on a real S3 server: what is finished is whole, and machines that share it do nothing twice."""

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Call, caller
from finished_runs import SMALLEST
from finished_runs import finish as finish_run
from object_store import MISSING, SECRET, Server, free_port, serving
from trivial_stages.basic import Numbers

from cohyde import Retriever
from cohyde.dag import bucket as buckets
from cohyde.dag.attempts import latest_attempt, new_attempt
from cohyde.dag.fingerprint import fingerprint_of
from cohyde.dag.leases import LeaseLostError, Watch, newest, revoke, take
from cohyde.dag.manifest import FILE_NAME, Manifest
from cohyde.dag.places import Place
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.remote import RemoteStore, open_store
from cohyde.dag.runs import RunRecord, latest_run, load_run, run_names, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states
from cohyde.dag.store import Store
from cohyde.dag.sweep import Member, SweepRecord, latest_sweep, load_sweep, save_sweep, sweep_names
from cohyde.dag.verify import verify
from cohyde.errors import UserError
from cohyde.filesystem import writing_to

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

TESTS = Path(__file__).parent
IDENTITY: dict[str, Any] = {"id": "a", "prompts": {}}
KEY = ("a", fingerprint_of(IDENTITY))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def url(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of this test's own, and the environment to reach it."""
    import s3fs

    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COHYDE_MIRROR", str(tmp_path / "here"))
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{os.urandom(4).hex()}"
    s3fs.S3FileSystem().call_s3("create_bucket", Bucket=name)
    yield f"s3://{name}/some/prefix"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def machine(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RemoteStore]:
    """The store as another machine sees it: with a mirror of its own."""

    def look(name: str) -> RemoteStore:
        monkeypatch.setenv("COHYDE_MIRROR", str(tmp_path / name))
        store = open_store(url)
        assert isinstance(store, RemoteStore)
        return store

    return look


def finish(store: Store, files: dict[str, str], check: Callable[[], None] = lambda: None, **changes: Any) -> Manifest:
    store.prepare()
    scratch = store.scratch(*KEY)
    for name, text in files.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_text(text)
    given: dict[str, Any] = {
        "id": KEY[0], "fingerprint": KEY[1], "kind": "", "identity": IDENTITY, "inputs": {}, "config": {},
        "metrics": {}, "run": "r", "attempt": 1, "host": "h", "started": "", "ended": "", "seconds": 1.0,
        "versions": {}, "git": None,
    }  # fmt: skip
    return store.commit(scratch, Manifest(**{**given, **changes}), check)


def objects(store: RemoteStore) -> list[str]:
    return sorted(item.key for item in store.bucket.items())


def name_of(store: Store) -> str:
    return store.artifact_path(*KEY).name


# ---------------------------------------------------------------------------------------------------- artifacts

FILES = {"model/weights": "0123456789" * 10, "empty": "", "übrig": "ein Wort"}


def test_an_artifact_is_read_on_another_machine_as_it_was_written(
    machine: Callable[[str], RemoteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "PIECE_BYTES", 7)  # fetched in many pieces
    monkeypatch.setattr(buckets, "PAGE", 2)  # and listed on many pages
    one = machine("one")
    assert not one.exists(*KEY) and not one.is_there()
    finish(one, FILES)
    assert not any(one.scratch_root.glob("*"))
    other = machine("other")
    assert other.exists(*KEY) and [folder.name for folder in other.artifacts()] == [name_of(one)]
    assert objects(other) == sorted([*(f"{name_of(one)}/{file}" for file in (*FILES, FILE_NAME)), "store.json"])
    folder = other.usable(*KEY)
    assert folder.is_relative_to(other.root) and {name: (folder / name).read_text() for name in FILES} == FILES
    assert other.verify(*KEY) == [] and other.manifest(*KEY) == one.manifest(*KEY)
    (folder / "empty").unlink()  # what the mirror lacks is fetched again
    assert (other.usable(*KEY) / "empty").is_file()


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
def test_a_commit_that_is_interrupted_leaves_no_artifact_and_may_be_made_again(
    machine: Callable[[str], RemoteStore], calls: int
) -> None:
    """One look before all, one before each of three files, and one before the manifest."""
    store, left = machine("one"), [calls]

    def lost() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise LeaseLostError("taken over")

    with pytest.raises(LeaseLostError):
        finish(store, FILES, lost)
    assert not store.exists(*KEY) and f"{name_of(store)}/{FILE_NAME}" not in objects(store)
    assert list(store.artifacts()) == []
    finish(store, {"other": "file"})
    assert store.verify(*KEY) == []  # nothing of the first attempt is left
    assert (machine("other").usable(*KEY) / "other").read_text() == "file"


def test_of_two_that_finish_the_same_stage_the_first_is_kept(machine: Callable[[str], RemoteStore]) -> None:
    one, other = machine("one"), machine("other")
    first = finish(one, {"number": "1"})
    assert finish(other, {"number": "2"}) == first
    assert (other.usable(*KEY) / "number").read_text() == "1"
    assert not any(other.scratch_root.glob("*"))


def test_the_manifest_of_one_that_was_faster_meanwhile_is_kept(machine: Callable[[str], RemoteStore]) -> None:
    one, other = machine("one"), machine("other")
    made: list[Manifest] = []

    def be_overtaken() -> None:
        if not made:
            made.append(finish(other, {"number": "2"}, host="other"))

    assert finish(one, {"number": "2"}, be_overtaken).host == "other"


def test_what_was_made_anew_elsewhere_is_fetched_anew(machine: Callable[[str], RemoteStore]) -> None:
    one, other = machine("one"), machine("other")
    finish(one, {"number": "1"})
    assert other.discard(*KEY) and not other.discard(*KEY)
    assert not one.exists(*KEY) and objects(one) == ["store.json"]
    with pytest.raises(UserError, match="no such object"):
        one.usable(*KEY)
    finish(other, {"number": "2"})
    assert (one.usable(*KEY) / "number").read_text() == "2"


def test_damage_is_found_and_never_read(machine: Callable[[str], RemoteStore]) -> None:
    one = machine("one")
    finish(one, {"good": "good", "bad": "four", "gone": "x", "cut": "12345"})
    name = name_of(one)
    one.bucket.write(f"{name}/bad", b"FOUR")
    one.bucket.write(f"{name}/cut", b"123")
    one.bucket.write(f"{name}/stray", b"")
    one.bucket.remove([f"{name}/gone"])
    expected = {
        "bad": "its content is not what was written (SHA-256 differs)",
        "cut": "has 3 bytes, but 5 were written",
        "gone": "missing",
        "stray": "not in the manifest",
    }
    assert sorted(one.verify(*KEY)) == [f"{one.location}/{name}/{file}: {what}" for file, what in expected.items()]
    found = verify(one)
    assert (found.artifacts, found.files, found.bytes) == (1, 4, 4 + 4 + 1 + 5)
    assert {fault.file: fault.what for fault in found.damaged[0].faults} == expected
    other = machine("other")
    with pytest.raises(UserError, match=rf"{name}/(bad|cut|gone): .*stage a, run r1.*\n.*cohyde rerun r1 a"):
        other.usable(*KEY, run="r1")
    with pytest.raises(UserError, match=rf"{name}/(cut|gone): "):
        other.check(*KEY)
    assert not (other.root / name).exists() and not any(other.scratch_root.glob("*"))


def test_a_manifest_that_was_changed_by_hand_is_refused(machine: Callable[[str], RemoteStore]) -> None:
    store = machine("one")
    finish(store, {"number": "1"})
    key = f"{name_of(store)}/{FILE_NAME}"
    store.bucket.write(key, store.bucket.read(key).replace(b'"host": "h"', b'"host": "x"'))
    with pytest.raises(UserError, match=rf"{store.location}/{key}: changed after it was written"):
        store.usable(*KEY)


# --------------------------------------------------------------------------------- leases, attempts and records


def test_of_many_takers_on_many_machines_one_wins(machine: Callable[[str], RemoteStore]) -> None:
    stores = [machine(f"m{number}") for number in range(8)]
    barrier, won = threading.Barrier(8), []

    def taker(store: RemoteStore) -> None:
        barrier.wait()
        won.append(take(store.lease(*KEY), 0, "r", "a"))

    threads = [threading.Thread(target=taker, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lease is not None for lease in won) == 1
    assert newest(stores[0].lease(*KEY))[0] == 1


def test_who_lost_its_lease_finds_out(machine: Callable[[str], RemoteStore]) -> None:
    place = machine("one").lease(*KEY)
    lost = take(place, 0, "mine", "attempt-1")
    assert lost is not None and lost.beat() and lost.beat()
    watch = Watch(place)
    holder = watch.holder()
    assert holder is not None and (holder.run, holder.beat, watch.number) == ("mine", 2, 1)
    revoke(place, "attempt-1")
    assert not lost.beat() and not lost.is_held()
    assert (watch.holder(), watch.number) == (None, 2)
    new = take(place, 2, "other", "attempt-1")
    assert new is not None and place.names() == ["3.json"]
    with pytest.raises(LeaseLostError, match="taken over by run other"):
        lost.check()
    new.check()
    new.release()
    assert watch.holder() is None


def test_an_answer_that_was_lost_does_not_lose_what_was_created(machine: Callable[[str], RemoteStore]) -> None:
    place: Place = machine("one").place("leases", "x")
    assert place.create("1.json", "ours", "") and place.create("1.json", "ours", "")  # the request, sent again
    assert not place.create("1.json", "theirs", "")
    assert place.read("1.json") == "ours"


def test_machines_do_not_mix_up_their_attempts_and_see_each_others(machine: Callable[[str], RemoteStore]) -> None:
    one, other = machine("one"), machine("other")
    first, second = new_attempt(one, "a-0"), new_attempt(other, "a-0")
    assert (first.number, second.number) == (1, 2)
    seen = latest_attempt(one, "a-0")
    assert seen is not None and seen.number == 2 and not seen.heeds_stop() and not seen.is_asked_to_stop()
    second.heeds()
    seen.ask_to_stop()
    assert seen.heeds_stop() and second.is_asked_to_stop()
    second.write_progress({"done": 1, "total": 2, "what": "steps"})
    assert seen.progress() == {"done": 1, "total": 2, "what": "steps"}
    second.log.write_text("a line\n")
    second.end()
    assert seen.at.read("log.txt") == "a line\n"
    assert seen.shown_log == f"{one.location}/logs/a-0/attempt-2/log.txt"


def chain() -> Plan:
    entry = "trivial_stages.basic:number"
    return make_plan([StageSpec(id="a", entry=entry, version="1")])


def test_records_are_found_on_another_machine(machine: Callable[[str], RemoteStore]) -> None:
    one, other = machine("one"), machine("other")
    with pytest.raises(UserError, match=f"there is no run in {one.location} yet"):
        latest_run(other)
    save_run(one, RunRecord(name="my-run", config={"x": 1}, plan=chain()))
    assert run_names(other) == ["my-run"] and latest_run(other) == "my-run"
    assert load_run(other, "my-run").plan.nodes == chain().nodes
    with pytest.raises(UserError, match=f"no run is called 'x' in {one.location}"):
        load_run(other, "x")
    save_sweep(one, SweepRecord(name="many", config={}, members=(Member(name="many-s1", seed=1, settings={}),)))
    assert sweep_names(other) == ["many"] and latest_sweep(other) == "many"
    assert load_sweep(other, "many").seeds == (1,)


# ------------------------------------------------------------------------------------------------- running


DRIVER = """
import json, os, sys
sys.path[:0] = [{tests!r}]
import test_store_s3 as here
from cohyde.dag.remote import open_store
from cohyde.dag.runner import run

result = run(here.{stages}, open_store({url!r}), run_name="r", on_event=lambda event: print(event, flush=True))
print(json.dumps({{"ok": result.ok, "ray": "ray" in sys.modules, "torch": "torch" in sys.modules}}))
"""


def stages(seconds: float = 0.0) -> list[StageSpec]:
    entry, config = "trivial_stages.basic:", Numbers(value=10, seconds=seconds)
    return [
        StageSpec(id="fast", entry=entry + "number", version="1", config=Numbers(value=1)),
        StageSpec(id="slow", entry=entry + "slow", version="1", config=config, inputs={"x": "fast"}),
    ]


def failing() -> list[StageSpec]:
    return [StageSpec(id="broken", entry="trivial_stages.basic:fail", version="1", config=Numbers())]


class Driver:
    """A process that runs stages, with a mirror of its own."""

    def __init__(self, url: str, mirror: Path, stages: str = "stages()") -> None:
        code = DRIVER.format(tests=str(TESTS), url=url, stages=stages)
        environment = {**os.environ, "COHYDE_MIRROR": str(mirror)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, cwd=TESTS.parent, env=environment
        )

    def wait_for(self, event: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(event):
                return
        raise AssertionError(f"no {event}: {self.process.stderr.read() if self.process.stderr else ''}")

    def end(self) -> tuple[list[str], dict[str, bool]]:
        """What it told, and how it ended."""
        output, errors = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, errors
        *told, last = output.splitlines()
        return told, json.loads(last)


def started(store: RemoteStore, id_: str) -> int:
    """How many attempts at a stage have begun to work."""
    return sum(key.startswith(f"logs/{id_}-") and key.endswith("/owner.json") for key in objects(store))


@pytest.mark.slow
def test_a_killed_run_is_gone_on_with_on_another_machine(
    url: str, machine: Callable[[str], RemoteStore], tmp_path: Path
) -> None:
    killed = Driver(url, tmp_path / "one", "stages(seconds=120)")
    killed.wait_for("Progressed(id='slow'")
    killed.process.kill()
    killed.process.communicate()
    other = machine("other")
    told, ended = Driver(url, tmp_path / "other").end()
    assert ended["ok"] and [line for line in told if line.startswith("Finished(id=")] == [
        line for line in told if line.startswith("Finished(id='slow'")
    ]
    assert [(stage.state, stage.metrics["total"]) for stage in states(stages(), other)] == [("done", 1), ("done", 11)]
    assert (started(other, "fast"), started(other, "slow")) == (1, 2)
    assert verify(other).ok
    # Again, with nothing to do, on a third machine: no Ray, no torch, and nothing is fetched.
    told, ended = Driver(url, tmp_path / "third").end()
    assert told == [] and ended == {"ok": True, "ray": False, "torch": False}
    assert not any((tmp_path / "third").rglob(FILE_NAME))


@pytest.mark.slow
def test_runs_on_two_machines_at_once_do_each_stage_once(
    url: str, machine: Callable[[str], RemoteStore], tmp_path: Path
) -> None:
    drivers = [Driver(url, tmp_path / name, "stages(seconds=3)") for name in ("one", "other")]
    assert [driver.end()[1]["ok"] for driver in drivers] == [True, True]
    store = machine("third")
    assert (started(store, "fast"), started(store, "slow")) == (1, 1)
    assert [stage.metrics["total"] for stage in states(stages(), store)] == [1, 11]


def test_why_a_stage_failed_is_seen_on_another_machine(
    url: str, machine: Callable[[str], RemoteStore], tmp_path: Path
) -> None:
    assert not Driver(url, tmp_path / "one", "failing()").end()[1]["ok"]
    other = machine("other")
    [state] = states(failing(), other)
    attempt = latest_attempt(other, make_plan(failing()).named("broken")[0])
    assert state.state == "failed" and attempt is not None
    failure = attempt.failure()
    assert failure is not None and failure.error == "ValueError: loss is NaN at step 7"
    assert failure.log == attempt.shown_log and "loss is NaN at step 7" in attempt.at.read("log.txt")


# ----------------------------------------------------------------------------------------------- command line


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capfd, monkeypatch)


def refused(answer: tuple[int, str, str]) -> str:
    code, output, errors = answer
    assert (code, output) == (2, "") and "Traceback" not in errors and SECRET not in errors
    return " ".join(errors.split())


@pytest.mark.parametrize(
    "command",
    [["run", "-c", "tiny"], ["plan", "-c", "tiny"], ["status"], ["verify"], ["gc"], ["sweep", "-c", "tiny"]],
    ids=lambda command: command[0],
)
def test_a_bucket_that_is_not_there_is_named(url: str, cohyde: Call, command: list[str]) -> None:
    told = refused(cohyde(*command, "--store", "s3://nowhere-at-all/x"))
    assert "there is no bucket 'nowhere-at-all'" in told and "s3://BUCKET/PREFIX" in told


def test_without_keys_it_says_which_to_set(url: str, cohyde: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refused(cohyde("status", "--store", url))


def test_where_nobody_answers_it_says_so(url: str, cohyde: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    told = refused(cohyde("status", "--store", url))
    assert "EndpointConnectionError" in told and "set AWS_ENDPOINT_URL" in told


def test_a_service_that_has_answered_once_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port, came = free_port(), threading.Event()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    bucket = buckets.Bucket("s3://anything/new")

    def come_back() -> None:
        with serving(port):
            came.wait(60)

    with pytest.raises(buckets.AwayError, match="EndpointConnectionError"):
        bucket.look("x")
    bucket.patience = 60
    service = threading.Thread(target=come_back)
    service.start()
    try:
        assert bucket.look("x") is None  # an answer
    finally:
        came.set()
        service.join()


@pytest.mark.parametrize("wrong", ["s3://", "s3:///x", "gs://bucket/x", "http://bucket/x"])
def test_what_is_no_place_in_an_object_store_is_refused(url: str, cohyde: Call, wrong: str) -> None:
    assert "give --store s3://BUCKET/PREFIX" in refused(cohyde("status", "--store", wrong))


def test_keys_in_a_url_are_refused_and_not_repeated(url: str, cohyde: Call) -> None:
    assert "set AWS_ACCESS_KEY_ID" in refused(cohyde("status", "--store", f"s3://me:{SECRET}@bucket/x"))


def test_an_outage_is_no_failure_for_good(url: str, tmp_path: Path) -> None:
    """It is told as what a person can mend, and survives the way back from a worker."""
    error = pickle.loads(pickle.dumps(buckets.AwayError("s3://b/x: no answer", "set AWS_ENDPOINT_URL")))
    assert isinstance(error, UserError) and isinstance(error, OSError)
    assert "no answer" in error.message and "AWS_ENDPOINT_URL" in str(error)
    with pytest.raises(buckets.AwayError, match="no answer"), writing_to(tmp_path):
        raise error


def test_what_is_not_installed_is_named(url: str, cohyde: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert "pip install 'cohyde[s3]'" in refused(cohyde("status", "--store", url))


def test_a_store_of_a_later_version_is_refused(machine: Callable[[str], RemoteStore], cohyde: Call) -> None:
    store = machine("one")
    store.place().write("store.json", '{"format": 9}')
    assert "update cohyde" in refused(cohyde("status", "--store", store.location))


def test_an_empty_store_is_none(machine: Callable[[str], RemoteStore], cohyde: Call) -> None:
    store = machine("one")
    for command in ("verify", "gc"):
        assert "there is no store here" in refused(cohyde(command, "--store", store.location))


def test_gc_removes_what_no_run_names_and_uploads_that_were_never_finished(
    machine: Callable[[str], RemoteStore], cohyde: Call
) -> None:
    store, common = machine("one"), {"entry": "trivial_stages.basic:number", "version": "1"}
    plan = make_plan([StageSpec(id=id_, **common) for id_ in "bcd"])
    nodes = {node.id: node for node in plan.nodes.values()}
    finish(store, {"number": "12345"})  # of a stage that no run names
    save_run(store, RunRecord(name="r", config={}, plan=plan))
    for node in nodes.values():
        store.bucket.write(f"{node.name}/number", b"123")  # an upload that has not come to its manifest
    leases = {id_: store.lease(nodes[id_].id, nodes[id_].fingerprint) for id_ in "cd"}
    held = take(leases["c"], 0, "r", "attempt")  # its process is this one
    released = take(leases["d"], 0, "r", "attempt")
    assert held is not None and released is not None
    released.release()
    before = objects(store)

    code, output, _ = cohyde("gc", "--store", store.location, "--json")
    found = json.loads(output)
    assert code == 0 and objects(store) == before and found["removed"] == []
    sizes = {(one["kind"], one["path"].removeprefix(f"{store.location}/")): one["bytes"] for one in found["garbage"]}
    manifest = len(store.bucket.read(f"{name_of(store)}/{FILE_NAME}"))
    lease = f"leases/{nodes['d'].name}"
    assert sizes == {
        ("artifact", name_of(store)): 5 + manifest,
        ("partial", nodes["b"].name): 3,
        ("partial", nodes["d"].name): 3,
        ("leases", lease): len(store.bucket.read(f"{lease}/1.json")),
    }
    assert list(found["busy"]) == [nodes["c"].name]

    assert cohyde("gc", "--store", store.location, "--yes")[0] == 0
    left = [key for key in before if key.startswith((f"{nodes['c'].name}/", f"leases/{nodes['c'].name}/", "runs/"))]
    assert objects(store) == sorted([*left, "store.json"]) and held.is_held()
    assert not store.exists(*KEY) and not (store.root / name_of(store)).exists()


def test_the_command_line_plans_and_verifies_there(machine: Callable[[str], RemoteStore], cohyde: Call) -> None:
    store = machine("one")
    code, output, _ = cohyde("plan", "-c", "tiny", "--rounds", "1", "--store", store.location, "--json")
    plan = json.loads(output)
    assert code == 0 and plan["store"] == store.location
    finish(store, {"number": "1"})
    assert cohyde("verify", "--store", store.location)[0] == 0
    store.bucket.write(f"{name_of(store)}/number", b"2")
    code, output, _ = cohyde("verify", "--store", store.location, "--discard", "--json")
    found = json.loads(output)
    assert (code, found["store"], found["discarded"]) == (1, store.location, [name_of(store)])
    assert not store.exists(*KEY)
    code, output, _ = cohyde("doctor", "-c", "tiny", "--store", store.location, "--json")
    assert {"name": "store", "state": "ok"}.items() <= next(
        check for check in json.loads(output)["checks"] if check["name"] == "store"
    ).items()


@pytest.mark.slow
def test_a_finished_run_is_searched_and_exported_on_another_machine(
    url: str, machine: Callable[[str], RemoteStore], cohyde: Call, tmp_path: Path
) -> None:
    finish_run(machine("one").location, "far", SMALLEST)
    machine("other")
    code, output, errors = cohyde("search", "far", "will it rain tonight", "-k", "2", "--store", url, "--json")
    assert code == 0, errors
    searched = json.loads(output)
    code, _, errors = cohyde("export", "far", "--to", str(tmp_path / "out"), "--store", url)
    assert code == 0, errors
    with Retriever.from_export(tmp_path / "out") as retriever:
        [answer] = retriever.search(["will it rain tonight"], k=2)
    assert [tool.id for tool, _ in answer.tools] == [found["id"] for found in searched["tools"]]
    # The address of a bucket is no business of those whom the folder is passed on to.
    told = "".join(path.read_text("utf-8") for path in (tmp_path / "out").rglob("*.md"))
    assert url not in told and str(tmp_path) not in told
