"""What of a folder goes to a cluster: its sources; no stores, no environments, nothing that Git is told to ignore."""

import os
import stat
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohyde.errors import UserError

LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "venv",
        ".cache",
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".tox",
        ".nox",
        ".ipynb_checkpoints",
        "node_modules",
        "checkpoints",
    }
)
"""Names of folders that are left out wherever they are."""
OLDEST = (1980, 1, 1, 0, 0, 0)
"""The oldest moment that a zip file can name; the same for all files, so that equal files make equal archives."""
LARGEST = 5
"""Files that a refusal names."""
MEGABYTE = 10**6


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Files of a folder, by their path in it, sorted, with their sizes in bytes."""

    folder: Path
    files: dict[str, int]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    def largest(self) -> list[tuple[str, int]]:
        """The few that make the most of it."""
        return sorted(self.files.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]


def collect(folder: Path, limit: int) -> Upload:
    """Choose what is uploaded.

    Of a Git repository that is what Git tracks or would: all that its ignore files do not name. Elsewhere it is every
    file. In both, folders of :data:`LEFT_OUT`, Python environments and stores are left out.

    Args:
        folder: the project.
        limit: bytes that may be uploaded.

    Raises:
        UserError: there is no such folder, nothing in it, or too much; names the largest files.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", "name the folder of the project: --working-dir DIR")
    folder = folder.absolute()
    named = _named_by_git(folder)
    kept = {}
    skipped: dict[Path, bool] = {}
    for path in sorted(_walk(folder) if named is None else named):
        if any(_is_left_out(folder / parent, skipped) for parent in list(Path(path).parents)[:-1]):
            continue
        try:
            status = (folder / path).stat()
        except OSError:  # deleted, though Git still tracks it; or a link that leads nowhere
            continue
        if stat.S_ISREG(status.st_mode):
            kept[path] = status.st_size
    upload = Upload(folder=folder, files=kept)
    if not kept:
        raise UserError(f"{folder}: nothing to upload", "name the folder of the project: --working-dir DIR")
    if upload.size > limit:
        lines = [f"{megabytes(size)}  {path}" for path, size in upload.largest()]
        raise UserError(
            f"{folder}: {len(kept)} files, {megabytes(upload.size)}, are more than the {megabytes(limit)} that may be "
            "uploaded; the largest are\n    " + "\n    ".join(lines),
            "let .gitignore name what is no source, or put data on the cluster's shared file system; "
            "--max-mb raises the limit",
        )
    return upload


def _named_by_git(folder: Path) -> list[str] | None:
    """What Git tracks or would track; None where it knows nothing of the folder."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(command, capture_output=True, check=False)
    except OSError:  # no Git on this machine
        return None
    if answer.returncode != 0:
        return None
    return [os.fsdecode(path) for path in answer.stdout.split(b"\0") if path]


def _walk(folder: Path) -> Iterator[str]:
    seen: dict[Path, bool] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(Path(parent) / name, seen)]
        for name in files:
            yield str((Path(parent) / name).relative_to(folder))


def _is_left_out(folder: Path, seen: dict[Path, bool]) -> bool:
    if folder not in seen:
        seen[folder] = (
            folder.name in LEFT_OUT
            or folder.name.endswith(".egg-info")
            or (folder / "pyvenv.cfg").exists()  # a Python environment
            or (folder / "conda-meta").exists()
            or (folder / "store.json").exists()  # a store
            or (folder / ".scratch").exists()
        )
    return seen[folder]


def pack(upload: Upload, target: Path) -> None:
    """Write the files into a zip archive; the same files make the same bytes, which a cluster gets but once."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in upload.files:
            source = upload.folder / path
            entry = zipfile.ZipInfo(path, date_time=OLDEST)
            entry.external_attr = (0o755 if os.access(source, os.X_OK) else 0o644) << 16
            archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)


def megabytes(size: int) -> str:
    """Bytes for people: ``1.9 MB``."""
    return f"{size / MEGABYTE:,.1f} MB"


def listing(files: Sequence[tuple[str, int]]) -> str:
    """One line a file: its size in bytes and its path."""
    return "\n".join(f"{size:>12,}  {path}" for path, size in files)
