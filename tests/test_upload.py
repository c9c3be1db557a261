"""What of a folder goes to a cluster, and what never does."""

import subprocess
from pathlib import Path

import pytest

from cohyde.dag.store import Store
from cohyde.dag.upload import MEGABYTE, collect, pack
from cohyde.errors import UserError


def write(folder: Path, path: str, size: int = 1) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(b"x" * size)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments], check=True)


def project(folder: Path) -> Path:
    """Two files that are sources, and one of each kind that is none."""
    for path in ("stages/data.py", "configs/mine.yaml"):
        write(folder, path)
    for path in (".venv/lib/torch.so", "env/pyvenv.cfg", "env/lib/torch.so", "stages/__pycache__/data.pyc"):
        write(folder, path)
    for path in ("runs/checkpoints/step-8/model.safetensors", "cohyde.egg-info/PKG-INFO", ".git/objects/00/pack"):
        write(folder, path)
    Store(folder / "mystore").prepare()
    write(folder, "mystore/S1a-0123456789abcdef/encoder/model.safetensors")
    return folder


SOURCES = ["configs/mine.yaml", "stages/data.py"]


def test_without_git_sources_go_and_stores_checkpoints_environments_and_caches_stay(tmp_path: Path) -> None:
    assert list(collect(project(tmp_path), MEGABYTE).files) == SOURCES


def test_with_git_what_it_ignores_stays_as_well(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "notes/private.txt")
    write(tmp_path, "deleted.py")
    (tmp_path / ".gitignore").write_text("notes/\n*.log\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "deleted.py").unlink()
    project(tmp_path)
    write(tmp_path, "run.log")
    write(tmp_path, "new and untracked.py", 3)
    upload = collect(tmp_path, MEGABYTE)
    assert list(upload.files) == [".gitignore", *SOURCES[:1], "new and untracked.py", *SOURCES[1:]]
    assert upload.size == len("notes/\n*.log\n") + 1 + 3 + 1


def test_a_folder_within_a_repository_is_uploaded_alone(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "above.py")
    write(tmp_path, "below/one.py")
    assert list(collect(tmp_path / "below", MEGABYTE).files) == ["one.py"]


def test_too_much_is_refused_by_the_largest_files(tmp_path: Path) -> None:
    for number in range(1, 8):
        write(tmp_path, f"part-{number}.bin", number * MEGABYTE)
    with pytest.raises(UserError) as refused:
        collect(tmp_path, 5 * MEGABYTE)
    lines = str(refused.value).splitlines()
    # 1 + 2 + … + 7 = 28
    assert lines[0] == (f"{tmp_path}: 7 files, 28.0 MB, are more than the 5.0 MB that may be uploaded; the largest are")
    assert [line.strip() for line in lines[1:6]] == [f"{n}.0 MB  part-{n}.bin" for n in (7, 6, 5, 4, 3)]
    assert ".gitignore" in lines[6] and "--max-mb" in lines[6]
    assert collect(tmp_path, 28 * MEGABYTE).size == 28 * MEGABYTE


def test_a_folder_that_is_not_there_or_empty_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such folder"):
        collect(tmp_path / "nowhere", MEGABYTE)
    with pytest.raises(UserError, match="nothing to upload"):
        collect(tmp_path, MEGABYTE)


def test_links_that_lead_nowhere_and_pipes_stay(tmp_path: Path) -> None:
    import os

    write(tmp_path, "one.py")
    (tmp_path / "lost").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert list(collect(tmp_path, MEGABYTE).files) == ["one.py"]


def test_equal_files_make_equal_archives(tmp_path: Path) -> None:
    import os
    import zipfile

    archives = []
    for name in ("a", "b"):
        folder = tmp_path / name
        write(folder, "stages/data.py", 5)
        write(folder, "jobs/demo.sh", 7)
        (folder / "jobs/demo.sh").chmod(0o755)
        os.utime(folder / "stages/data.py", (1, 1) if name == "a" else (2_000_000_000, 2_000_000_000))
        target = tmp_path / f"{name}.zip"
        pack(collect(folder, MEGABYTE), target)
        archives.append(target.read_bytes())
    assert archives[0] == archives[1]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["jobs/demo.sh", "stages/data.py"]
        assert archive.getinfo("jobs/demo.sh").external_attr >> 16 == 0o755
        assert archive.read("stages/data.py") == b"xxxxx"
