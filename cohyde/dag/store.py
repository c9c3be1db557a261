"""The artifact store: a folder per finished stage, there if and only if its manifest is.

::

    <root>/<stage id>-<fingerprint>/   finished: the stage's files and manifest.json
    <root>/.scratch/…                  being written, one folder an attempt, and checkpoints, which outlive attempts
    <root>/.trash/…                    being removed
    <root>/logs/<stage id>-<fingerprint>/attempt-<n>/
    <root>/leases/<stage id>-<fingerprint>/<n>.json
    <root>/runs/<name>/run.yaml
    <root>/store.json                  the format of all this; a store without it is of format 1
"""

import dataclasses
import errno
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from cohyde.dag import manifest as manifests
from cohyde.dag.manifest import FileRecord, Manifest, NewerFormatError, check_format
from cohyde.dag.plan import SHORT, artifact_name
from cohyde.dag.processes import is_alive
from cohyde.errors import UserError
from cohyde.filesystem import flush, flush_tree, try_to_write, writing_to
from cohyde.io import sha256_file, write_text

OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
CHECKPOINTS = "checkpoints"
FORMAT = 1
"""Of the layout above. A change that an older version would misread, or tidy away, raises it."""
CARD = "store.json"
UPDATE = "update cohyde to the version that wrote it: pip install --upgrade cohyde"
NAME = re.compile(rf"(?P<id>.+)-(?P<short>[0-9a-f]{{{SHORT}}})")


class Store:
    """Artifacts below one folder. Holds no state of its own: any number of processes may work on one root."""

    def __init__(self, root: Path | str) -> None:
        """Name the store; nothing is created.

        Raises:
            UserError: what is there was written by a later version of cohyde.
        """
        self.root = Path(root).absolute()
        self.scratch_root = self.root / ".scratch"
        self.trash = self.root / ".trash"
        self.logs = self.root / "logs"
        self.leases = self.root / "leases"
        self.runs = self.root / "runs"
        self._check_format()

    def _check_format(self) -> None:
        card = self.root / CARD
        try:
            check_format(json.loads(card.read_text(encoding="utf-8"))["format"], FORMAT)
        except OSError:  # none yet, or one that cannot be read at all, which is told when something is read
            return
        except NewerFormatError as error:
            raise UserError(f"{card}: {error}", UPDATE) from None
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{card}: damaged", f'it has to be {{"format": {FORMAT}}}') from None

    def prepare(self) -> None:
        """Make the store's folders and try to write.

        Raises:
            UserError: the place cannot be written to; names the path.
        """
        for folder in (self.root, self.scratch_root, self.trash, self.logs, self.leases, self.runs):
            try_to_write(folder)
        if not (self.root / CARD).exists():
            with writing_to(self.root):
                write_text(self.root / CARD, json.dumps({"format": FORMAT}) + "\n")

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
        folder = self.artifact_path(stage_id, fingerprint)
        path = folder / manifests.FILE_NAME
        try:
            found = manifest_in(folder)
        except OSError as error:
            raise UserError(f"{path}: {(error.strerror or str(error)).lower()}", _remedy(stage_id, run, path)) from None
        except NewerFormatError as error:
            raise UserError(f"{path}: {error}", UPDATE) from None
        except ValueError as error:
            raise UserError(f"{path}: {error}", _remedy(stage_id, run, path)) from None
        if found.fingerprint != fingerprint:
            raise UserError(f"{path}: its fingerprint is {found.fingerprint}", _remedy(stage_id, run, path))
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
        found = [(record.path, file_fault(folder, record)) for record in records]
        found += [(path, "not in the manifest") for path in strays(folder, records)]
        return [f"{folder / path}: {fault}" for path, fault in found if fault]

    def artifacts(self) -> Iterator[Path]:
        """Folders of all finished artifacts, by name."""
        return (folder for folder in self.folders() if (folder / manifests.FILE_NAME).is_file())

    def folders(self) -> Iterator[Path]:
        """Folders that an artifact's name gives away, finished or not; whatever else lies here is not ours."""
        if self.root.is_dir():
            for name in sorted(os.listdir(self.root)):
                if NAME.fullmatch(name):
                    yield self.root / name

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
                self.remove(target)  # a folder without a manifest is no artifact
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
        return self.remove(self.artifact_path(stage_id, fingerprint))

    def remove(self, path: Path) -> bool:
        """Remove a file or folder of the store, at one stroke for whoever looks; says whether there was one.

        Raises:
            UserError: the store cannot be written to.
        """
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


def manifest_in(folder: Path) -> Manifest:
    """The record of the artifact in a folder.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it was damaged, or is that of another artifact; says which.
        NewerFormatError: it was written by a later version of cohyde.
    """
    try:
        found = manifests.parse((folder / manifests.FILE_NAME).read_text(encoding="utf-8"))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a manifest ({error})") from None
    whose = artifact_name(found.id, found.fingerprint)
    if whose != folder.name:
        raise ValueError(f"this is the manifest of {whose}")
    return found


def _remedy(stage_id: str, run: str, manifest_path: Path) -> str:
    return f"make it anew with `cohyde rerun {run} {stage_id}`, or delete the folder {manifest_path.parent}"


def _size_fault(folder: Path, record: FileRecord) -> str:
    try:
        size = (folder / record.path).stat().st_size
    except OSError:
        return "missing"
    return "" if size == record.size else f"has {size} bytes, but {record.size} were written"


def file_fault(folder: Path, record: FileRecord, read: Callable[[int], None] = lambda count: None) -> str:
    """What is wrong with one file of an artifact, its content compared; ``read`` is told the bytes as they are read."""
    fault = _size_fault(folder, record)
    if fault:
        return fault
    try:
        same = sha256_file(folder / record.path, read) == record.sha256
    except OSError as error:
        return f"cannot be read: {(error.strerror or str(error)).lower()}"
    return "" if same else "its content is not what was written (SHA-256 differs)"


def strays(folder: Path, records: Collection[FileRecord]) -> list[str]:
    """Relative paths of files in an artifact's folder that its manifest does not know."""
    known = {record.path for record in records}
    return [path for path in _files(folder) if path not in known]


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
