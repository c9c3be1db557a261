"""The artifact store: a folder per finished stage, there if and only if its manifest is.

::

    <root>/<stage id>-<fingerprint>/   finished: the stage's files and manifest.json
    <root>/.scratch/…                  being written, one folder an attempt, and checkpoints, which outlive attempts
    <root>/.trash/…                    being removed
    <root>/logs/<stage id>-<fingerprint>/attempt-<n>/
    <root>/leases/<stage id>-<fingerprint>/<n>.json
    <root>/runs/<name>/run.yaml
"""

import dataclasses
import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cohyde.dag import manifest as manifests
from cohyde.dag.manifest import FileRecord, Manifest
from cohyde.dag.plan import artifact_name
from cohyde.dag.processes import is_alive
from cohyde.errors import UserError
from cohyde.filesystem import flush, flush_tree, try_to_write, writing_to
from cohyde.io import sha256_file

OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
CHECKPOINTS = "checkpoints"
SERVICE_FOLDERS = ("logs", "leases", "runs")


class Store:
    """Artifacts below one folder. Holds no state of its own: any number of processes may work on one root."""

    def __init__(self, root: Path | str) -> None:
        """Name the store; nothing is created."""
        self.root = Path(root).absolute()
        self.scratch_root = self.root / ".scratch"
        self.trash = self.root / ".trash"
        self.logs = self.root / "logs"
        self.leases = self.root / "leases"
        self.runs = self.root / "runs"

    def prepare(self) -> None:
        """Make the store's folders and try to write.

        Raises:
            UserError: the place cannot be written to; names the path.
        """
        for folder in (self.root, self.scratch_root, self.trash, self.logs, self.leases, self.runs):
            try_to_write(folder)

    # ------------------------------------------------------------------------------------------- finished artifacts

    def artifact_path(self, stage_id: str, fingerprint: str) -> Path:
        """Where the artifact is or will be."""
        return self.root / artifact_name(stage_id, fingerprint)

    def exists(self, stage_id: str, fingerprint: str) -> bool:
        """Whether the stage is finished."""
        return (self.artifact_path(stage_id, fingerprint) / manifests.FILE_NAME).is_file()

    def manifest(self, stage_id: str, fingerprint: str, run: str = "RUN") -> Manifest:
        """The artifact's record.

        Raises:
            UserError: it is missing, cut off or was changed by hand; says how to make it anew.
        """
        path = self.artifact_path(stage_id, fingerprint) / manifests.FILE_NAME
        try:
            found = manifests.parse(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: {(error.strerror or str(error)).lower()}", _remedy(stage_id, run, path)) from None
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: {error}", _remedy(stage_id, run, path)) from None
        if (found.id, found.fingerprint) != (stage_id, fingerprint):
            whose = artifact_name(found.id, found.fingerprint)
            raise UserError(f"{path}: this is the manifest of {whose}", _remedy(stage_id, run, path))
        return found

    def usable(self, stage_id: str, fingerprint: str, run: str = "RUN") -> Path:
        """The artifact's folder, for reading, after a cheap check that its files are there in full size.

        Raises:
            UserError: a file is missing or cut off; names the file and the command that makes it anew.
        """
        folder = self.artifact_path(stage_id, fingerprint)
        for record in self.manifest(stage_id, fingerprint, run).files:
            fault = _size_fault(folder, record)
            if fault:
                raise UserError(
                    f"{folder / record.path}: {fault} (stage {stage_id}, run {run})",
                    _remedy(stage_id, run, folder / manifests.FILE_NAME),
                )
        return folder

    def verify(self, stage_id: str, fingerprint: str) -> list[str]:
        """Every fault of an artifact, files read and checksums compared; empty if it is as it was written."""
        folder = self.artifact_path(stage_id, fingerprint)
        try:
            records = self.manifest(stage_id, fingerprint).files
        except UserError as error:
            return [error.message]
        faults = []
        for record in records:
            fault = _size_fault(folder, record)
            if not fault and sha256_file(folder / record.path) != record.sha256:
                fault = "its content is not what was written (SHA-256 differs)"
            if fault:
                faults.append(f"{folder / record.path}: {fault}")
        known = {record.path for record in records}
        faults += [f"{folder / path}: not in the manifest" for path in _files(folder) if path not in known]
        return faults

    def artifacts(self) -> Iterator[Path]:
        """Folders of all finished artifacts, by name."""
        if self.root.is_dir():
            for entry in sorted(os.scandir(self.root), key=lambda item: item.name):
                if entry.name not in SERVICE_FOLDERS and (Path(entry) / manifests.FILE_NAME).is_file():
                    yield Path(entry)

    # ---------------------------------------------------------------------------------------------------- writing

    def scratch(self, stage_id: str, fingerprint: str) -> Path:
        """A fresh folder for one attempt, on the file system of the artifact it may become.

        What attempts that died on this host have left beside it is removed.
        """
        parent = self.scratch_root / artifact_name(stage_id, fingerprint)
        folder = parent / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        with writing_to(folder):
            folder.mkdir(parents=True)
        for other in parent.iterdir():
            host, _, rest = other.name.rpartition("-")[0].rpartition("-")
            if other != folder and host == socket.gethostname() and rest.isdigit() and not is_alive(int(rest)):
                shutil.rmtree(other, ignore_errors=True)
        return folder

    def lease(self, stage_id: str, fingerprint: str) -> Path:
        """The folder of the stage's leases (see :mod:`cohyde.dag.leases`)."""
        return self.leases / artifact_name(stage_id, fingerprint)

    def checkpoints(self, stage_id: str, fingerprint: str) -> Path:
        """Where a stage keeps what a later attempt goes on from. It is the stage's to make; a commit removes it."""
        return self.scratch_root / artifact_name(stage_id, fingerprint) / CHECKPOINTS

    def commit(self, scratch: Path, manifest: Manifest) -> Manifest:
        """Make a scratch folder the artifact: list its files, write the manifest last, rename once.

        Where a finished artifact is there already, that one is kept, and its manifest is what is returned.

        Raises:
            UserError: the disk is full or cannot be written to. Nothing that is half written counts as an artifact.
        """
        with writing_to(scratch):
            whole = dataclasses.replace(manifest, files=tuple(_record(scratch, path) for path in _files(scratch)))
            flush_tree(scratch)
            (scratch / manifests.FILE_NAME).write_text(whole.to_text(), encoding="utf-8")
            flush(scratch / manifests.FILE_NAME)
            flush(scratch)
            return self._put_in_place(scratch, whole)

    def _put_in_place(self, scratch: Path, manifest: Manifest) -> Manifest:
        target = self.artifact_path(manifest.id, manifest.fingerprint)
        while True:
            try:
                os.rename(scratch, target)
            except OSError as error:
                if error.errno not in OCCUPIED:
                    raise
                if self.exists(manifest.id, manifest.fingerprint):
                    self.drop(scratch)
                    return self.manifest(manifest.id, manifest.fingerprint)
                self._remove(target)  # a folder without a manifest is no artifact
            else:
                flush(self.root)
                shutil.rmtree(scratch.parent / CHECKPOINTS, ignore_errors=True)
                self.drop(scratch)
                return manifest

    def drop(self, scratch: Path) -> None:
        """Remove what is left of an attempt's scratch folder."""
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # others may be at work beside it
            scratch.parent.rmdir()

    def discard(self, stage_id: str, fingerprint: str) -> bool:
        """Remove an artifact, at one stroke for whoever looks; says whether there was one."""
        return self._remove(self.artifact_path(stage_id, fingerprint))

    def _remove(self, path: Path) -> bool:
        grave = self.trash / f"{path.name}-{secrets.token_hex(4)}"
        with writing_to(path):
            self.trash.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(path, grave)
            except FileNotFoundError:
                return False
        if grave.is_dir():
            shutil.rmtree(grave, ignore_errors=True)
        else:
            grave.unlink(missing_ok=True)
        return True


def _remedy(stage_id: str, run: str, manifest_path: Path) -> str:
    return f"make it anew with `cohyde rerun {run} {stage_id}`, or delete the folder {manifest_path.parent}"


def _size_fault(folder: Path, record: FileRecord) -> str:
    try:
        size = (folder / record.path).stat().st_size
    except OSError:
        return "missing"
    return "" if size == record.size else f"has {size} bytes, but {record.size} were written"


def _files(folder: Path) -> list[str]:
    """Relative paths of all files but the manifest, sorted."""
    found = []
    for here, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        found += [Path(here, name) for name in names + links]
    relative = sorted(path.relative_to(folder).as_posix() for path in found)
    return [path for path in relative if path != manifests.FILE_NAME]


def _record(folder: Path, relative: str) -> FileRecord:
    path = folder / relative
    if path.is_symlink():
        raise ValueError(f"{relative} is a link; an artifact holds its files itself")
    return FileRecord(path=relative, size=path.stat().st_size, sha256=sha256_file(path))
