"""An artifact is there whole or not at all, and damage is told by file and remedy."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from cohyde.dag import store as store_module
from cohyde.dag.manifest import Manifest
from cohyde.dag.plan import make_plan
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store
from cohyde.errors import UserError

SPEC = StageSpec(id="S3.1", entry="trivial_stages.basic:number", version="1")
PLAN = make_plan([SPEC])
[NODE] = PLAN.nodes.values()
KEY = (NODE.id, NODE.fingerprint)


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "id": NODE.id,
        "fingerprint": NODE.fingerprint,
        "kind": "",
        "identity": PLAN.identities[NODE.name],
        "inputs": {},
        "config": None,
        "metrics": {"loss": 0.25},
        "run": "test",
        "attempt": 1,
        "host": "here",
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:00:01+00:00",
        "seconds": 1.0,
        "versions": {},
        "git": None,
    }
    return Manifest(**{**fields, **changes})


def committed(store: Store, text: str = "12345", **changes: Any) -> Path:
    scratch = store.scratch(*KEY)
    (scratch / "folder").mkdir()
    (scratch / "folder" / "number.txt").write_text(text)
    store.commit(scratch, manifest(**changes))
    return store.artifact_path(*KEY)


def test_a_committed_artifact_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert not store.exists(*KEY)
    folder = committed(store)
    assert folder == tmp_path / "store" / f"S3.1-{NODE.fingerprint[:16]}"
    assert store.exists(*KEY)
    assert [(record.path, record.size) for record in store.manifest(*KEY).files] == [("folder/number.txt", 5)]
    assert store.manifest(*KEY).metrics == {"loss": 0.25}
    assert store.usable(*KEY) == folder
    assert store.verify(*KEY) == []
    assert list(store.artifacts()) == [folder]
    assert list(store.scratch_root.iterdir()) == []


def test_scratch_is_no_artifact_and_fresh_for_every_attempt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.scratch(*KEY)
    (first / "half").touch()
    second = store.scratch(*KEY)
    assert first != second
    assert list(second.iterdir()) == []
    assert (first / "half").exists()  # its process, this one, is alive
    assert not store.exists(*KEY)
    assert list(store.artifacts()) == []


def test_scratch_of_dead_processes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    dead = store.scratch(*KEY)
    monkeypatch.setattr(store_module, "is_alive", lambda pid: False)
    fresh = store.scratch(*KEY)
    assert not dead.exists()
    assert fresh.is_dir()


def test_the_first_of_two_commits_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = committed(store, "first", metrics={"loss": 1})
    second = store.scratch(*KEY)
    (second / "number.txt").write_text("second")
    assert store.commit(second, manifest(metrics={"loss": 2})).metrics == {"loss": 1}
    assert (folder / "folder" / "number.txt").read_text() == "first"
    assert not second.exists()


def test_racing_commits_leave_one_whole_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    scratches = [store.scratch(*KEY) for _ in range(8)]
    for number, scratch in enumerate(scratches):
        (scratch / "number.txt").write_text(str(number))
    start = threading.Barrier(len(scratches))
    kept: list[Any] = []

    def commit(number: int) -> None:
        start.wait()
        kept.append(store.commit(scratches[number], manifest(metrics={"number": number})).metrics["number"])

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(len(scratches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 8
    assert len(set(kept)) == 1
    assert (store.artifact_path(*KEY) / "number.txt").read_text() == str(kept[0])
    assert store.verify(*KEY) == []
    assert not any(store.scratch_root.glob("*/*"))


def test_a_folder_without_manifest_gives_way(tmp_path: Path) -> None:
    store = Store(tmp_path)
    left = store.artifact_path(*KEY)
    left.mkdir(parents=True)
    (left / "number.txt").write_text("old")
    assert not store.exists(*KEY)
    committed(store)
    assert store.verify(*KEY) == []


def test_a_truncated_manifest_is_told_with_path_and_remedy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = committed(store) / "manifest.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match=r"manifest\.json: not JSON.*\n.*cohyde rerun my-run S3\.1.*delete the folder"):
        store.manifest(*KEY, "my-run")


def test_an_edited_manifest_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = committed(store) / "manifest.json"
    path.write_text(path.read_text().replace("0.25", "0.99"))
    with pytest.raises(UserError, match="changed after it was written"):
        store.manifest(*KEY)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "checksum": "x"}', "\x00"])
def test_no_content_of_a_manifest_gives_another_error(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    (committed(store) / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json: "):
        store.manifest(*KEY)


def test_a_manifest_of_another_artifact_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = committed(store)
    path.rename(store.artifact_path("S3.2", NODE.fingerprint))
    with pytest.raises(UserError, match=r"this is the manifest of S3\.1-"):
        store.manifest("S3.2", NODE.fingerprint)


def test_a_truncated_file_is_told_before_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file = committed(store) / "folder" / "number.txt"
    file.write_text("12")
    with pytest.raises(UserError, match=r"number\.txt: has 2 bytes, but 5 were written.*\n.*cohyde rerun my-run S3\.1"):
        store.usable(*KEY, "my-run")
    file.unlink()
    with pytest.raises(UserError, match=r"number\.txt: missing"):
        store.usable(*KEY, "my-run")


def test_verify_reads_the_files(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = committed(store)
    (folder / "folder" / "number.txt").write_text("54321")  # the size is the same
    (folder / "stray").touch()
    assert store.usable(*KEY) == folder
    faults = store.verify(*KEY)
    assert len(faults) == 2
    assert "SHA-256 differs" in faults[0]
    assert "stray: not in the manifest" in faults[1]


def test_a_link_is_no_content(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "elsewhere").mkdir()
    scratch = store.scratch(*KEY)
    (scratch / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="link is a link"):
        store.commit(scratch, manifest())


def test_discard_removes_a_damaged_artifact_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (committed(store) / "manifest.json").write_text("{")
    assert store.discard(*KEY)
    assert not store.discard(*KEY)
    assert not store.exists(*KEY)
    assert list(store.trash.iterdir()) == []


@pytest.mark.parametrize("place", ["file/store", "/proc/store", "/sys/store"])
def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"store: .*\n.*--store DIR"):
        Store(tmp_path / place).prepare()


def test_a_full_disk_is_told_and_leaves_no_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    scratch = store.scratch(*KEY)
    (scratch / "number.txt").write_text("1")

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "flush_tree", full)
    with pytest.raises(UserError, match="no space left on the device"):
        store.commit(scratch, manifest())
    assert not store.exists(*KEY)
    assert list(store.artifacts()) == []


def test_files_of_two_commits_are_byte_identical(tmp_path: Path) -> None:
    folders = [committed(Store(tmp_path / name), run=name) for name in ("one", "two")]
    files = [(folder / "folder" / "number.txt").read_bytes() for folder in folders]
    assert files[0] == files[1]
    one, two = (json.loads((folder / "manifest.json").read_text()) for folder in folders)
    assert {key for key in one if one[key] != two[key]} == {"run", "checksum"}
