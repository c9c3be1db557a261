"""Verify: what is damaged is told by file, with the runs and stages that it touches and how to make it anew."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Call, caller
from test_dag_store import manifest

from cohyde.dag.plan import make_plan
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store
from cohyde.dag.verify import discard_damaged, verify
from cohyde.progress import Silent


def stage(id_: str, version: str = "1", **inputs: str) -> StageSpec:
    return StageSpec(id=id_, entry="trivial_stages.basic:number", version=version, inputs=inputs)


ONE = make_plan([stage("a"), stage("b", x="a"), stage("c", x="b"), stage("d")])
TWO = make_plan([stage("a"), stage("b", x="a"), stage("d", version="2")])


class Finished:
    """A store with two runs, which share ``a`` and ``b``; every stage is done but ``c``."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.store.prepare()
        for name, plan in (("one", ONE), ("two", TWO)):
            record = RunRecord(name=name, config={}, preset="tiny", overrides=("rounds=1",), plan=plan)
            save_run(self.store, record)
            for node in plan.nodes.values():
                if node.id != "c" and not self.store.exists(node.id, node.fingerprint):
                    scratch = self.store.scratch(node.id, node.fingerprint)
                    (scratch / "model").mkdir()
                    (scratch / "model" / "weights.bin").write_bytes(b"0123456789")
                    (scratch / "note.txt").write_text(node.id)
                    identity = plan.identities[node.name]
                    self.store.commit(
                        scratch, manifest(id=node.id, fingerprint=node.fingerprint, identity=identity, run=name)
                    )

    def folder(self, id_: str) -> Path:
        return self.store.root / ONE.named(id_)[0]


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    return Finished(tmp_path / "store")


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    monkeypatch.setenv("COHYDE_STORE", str(tmp_path / "store"))
    return caller(capfd, monkeypatch)


def test_a_whole_store_is_counted(finished: Finished) -> None:
    found = verify(finished.store)
    # a, b and d of run one, d of run two; two files of 10 bytes and 1 byte each
    assert (found.ok, found.artifacts, found.files, found.bytes) == (True, 4, 4 * 2, 4 * 11)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "cut off": (lambda folder: (folder / "note.txt").write_text(""), "note.txt", "has 0 bytes, but 1 were written"),
    "another content": (
        lambda folder: (folder / "model" / "weights.bin").write_bytes(b"0123456780"),
        "model/weights.bin",
        "its content is not what was written (SHA-256 differs)",
    ),
    "missing": (lambda folder: (folder / "note.txt").unlink(), "note.txt", "missing"),
    "a folder instead": (
        lambda folder: ((folder / "note.txt").unlink(), (folder / "note.txt").mkdir()),
        "note.txt",
        "bytes, but 1 were written",
    ),
    "one too many": (lambda folder: (folder / "model" / "more").touch(), "model/more", "not in the manifest"),
    "no JSON": (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json", "not JSON (line 1"),
    "no text": (lambda folder: (folder / "manifest.json").write_bytes(b"\xff"), "manifest.json", "can't decode"),
    "edited": (
        lambda folder: (folder / "manifest.json").write_text(
            (folder / "manifest.json").read_text().replace("0.25", "0.99")
        ),
        "manifest.json",
        "changed after it was written",
    ),
    "another's": (
        lambda folder: (folder / "manifest.json").write_text(
            (folder.parent / ONE.named("d")[0] / "manifest.json").read_text()
        ),
        "manifest.json",
        "this is the manifest of d-",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_by_file(finished: Finished, damage: str) -> None:
    inflict, file, what = DAMAGES[damage]
    inflict(finished.folder("b"))
    found = verify(finished.store)
    [damaged] = found.damaged
    [fault] = damaged.faults
    assert (damaged.path, damaged.id, fault.file) == (finished.folder("b"), "b", file)
    assert what in fault.what


def test_the_runs_and_stages_that_damage_touches_are_named(finished: Finished) -> None:
    (finished.folder("a") / "note.txt").unlink()
    (finished.folder("d") / "note.txt").unlink()
    touched = {damage.id: (damage.runs, damage.below) for damage in verify(finished.store).damaged}
    assert touched == {"a": (("one", "two"), ("b", "c")), "d": (("one",), ())}


def test_what_is_damaged_is_discarded_alone(finished: Finished) -> None:
    (finished.folder("b") / "manifest.json").write_text("{")
    others = [finished.folder("a"), finished.folder("d")]
    assert discard_damaged(finished.store, verify(finished.store)) == [finished.folder("b").name]
    assert not finished.folder("b").exists() and all(folder.exists() for folder in others)
    assert verify(finished.store).ok


def test_what_a_later_version_wrote_is_neither_judged_nor_discarded(finished: Finished) -> None:
    path = finished.folder("d") / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    found = verify(finished.store)
    assert (found.ok, found.newer, found.artifacts) == (True, (finished.folder("d"),), 3)
    assert discard_damaged(finished.store, found) == []


def test_what_is_discarded_meanwhile_is_no_damage(finished: Finished) -> None:
    class Discarding(Silent):
        def update(self, done: float, total: float, what: str = "") -> None:
            for damaged in ("a", "b"):
                finished.store.remove(finished.folder(damaged))

    assert verify(finished.store, Discarding()).ok


def test_an_interrupted_verification_ends_at_once(finished: Finished) -> None:
    (finished.folder("a") / "large").write_bytes(b"")

    class Interrupting(Silent):
        def update(self, done: float, total: float, what: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(finished.store, Interrupting())


# ---------------------------------------------------------------------------------------------- the command line


def test_a_whole_store_is_said_to_be_whole(cohyde: Call, finished: Finished) -> None:
    code, output, errors = cohyde("verify")
    assert (code, errors) == (0, "")
    assert output.startswith("4 artifacts, 8 files, 44 bytes in ")
    assert output.endswith(": all as they were written\n")


def test_damage_is_shown_with_what_makes_it_anew(cohyde: Call, finished: Finished) -> None:
    (finished.folder("a") / "note.txt").unlink()
    code, output, _ = cohyde("verify")
    assert code == 1
    assert output.splitlines()[:5] == [
        f"✗ {finished.folder('a').name}",
        "    note.txt: missing",
        "    in runs one, two",
        "    made from it: b, c",
        f"    make it and those anew: cohyde rerun one a --store {finished.store.root}",
    ]
    assert output.endswith(": 1 damaged\n")


def test_discarding_says_what_makes_it_anew(cohyde: Call, finished: Finished) -> None:
    (finished.folder("a") / "note.txt").unlink()
    code, _, errors = cohyde("verify", "--discard")
    assert code == 1
    root = finished.store.root
    assert errors.splitlines() == [
        f"discarded {finished.folder('a').name}",
        f"  make it anew: cohyde run --config tiny --name one --store {root} rounds=1",
        f"  make it anew: cohyde run --config tiny --name two --store {root} rounds=1",
    ]
    assert cohyde("verify")[0] == 0


def test_verify_prints_one_object(cohyde: Call, finished: Finished) -> None:
    (finished.folder("b") / "note.txt").unlink()
    code, output, _ = cohyde("verify", "--json")
    found = json.loads(output)
    assert code == 1
    assert found["damaged"] == [
        {
            "artifact": finished.folder("b").name,
            "id": "b",
            "path": str(finished.folder("b")),
            "faults": [{"file": "note.txt", "what": "missing"}],
            "runs": ["one", "two"],
            "below": ["c"],
        }
    ]
    assert (found["store"], found["artifacts"], found["files"]) == (str(finished.store.root), 4, 8)
    assert (found["records"], found["newer"], found["discarded"]) == ([], [], [])


def test_a_damaged_record_of_a_run_is_told(cohyde: Call, finished: Finished) -> None:
    (finished.store.runs / "two" / "run.yaml").write_text("a: [")
    code, output, _ = cohyde("verify")
    assert code == 1
    assert "run.yaml: damaged: " in output


@pytest.mark.parametrize("command", ["verify", "gc"])
def test_a_store_that_is_not_there_is_told(cohyde: Call, tmp_path: Path, command: str) -> None:
    code, output, errors = cohyde(command, "--store", str(tmp_path / "stroe"))
    assert (code, output) == (2, "")
    assert errors == f"error: {tmp_path}/stroe: there is no store here\n  name it with --store DIR\n"


@pytest.mark.parametrize("command", [["verify"], ["gc"], ["status"], ["plan", "-c", "tiny"], ["run", "-c", "tiny"]])
def test_a_store_of_a_later_version_is_left_alone(cohyde: Call, finished: Finished, command: list[str]) -> None:
    card = finished.store.root / "store.json"
    assert json.loads(card.read_text()) == {"format": 1}
    card.write_text('{"format": 2}')
    code, output, errors = cohyde(*command)
    assert (code, output) == (2, "")
    assert errors.startswith(f"error: {card}: format 2; this version of cohyde reads format 1\n  update cohyde")


def test_a_store_without_a_card_is_of_the_first_format(cohyde: Call, finished: Finished) -> None:
    (finished.store.root / "store.json").unlink()
    assert cohyde("verify")[0] == 0
