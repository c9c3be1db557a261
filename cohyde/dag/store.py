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
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from cohyde.dag import manifest as manifests
from cohyde.dag.manifest import FileRecord, Manifest, NewerFormatError, check_format
from cohyde.dag.places import Folder, Place
from cohyde.dag.plan import SHORT, Node, artifact_name
from cohyde.dag.processes import is_alive
from cohyde.errors import UserError
from cohyde.filesystem import flush, flush_tree, try_to_write, writing_to
from cohyde.io import sha256_file

OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
CHECKPOINTS = "checkpoints"
FORMAT = 1
"""Of the layout above. A change that an older version would misread, or tidy away, raises it."""
CARD = "store.json"
MISSING = "missing"
CHANGED = "its content is not what was written (SHA-256 differs)"
UPDATE = "update cohyde to the version that wrote it: pip install --upgrade cohyde"
NAME = re.compile(rf"(?P<id>.+)-(?P<short>[0-9a-f]{{{SHORT}}})")


class Store:
    """Artifacts below one folder. Holds no state of its own: any number of processes may work on one root."""

    poll_seconds = 0.25
    """How often to look what has become of something, and to say how far it is: a look costs next to nothing here."""

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

    @property
    def location(self) -> str:
        """What ``--store`` has to be given for this store."""
        return str(self.root)

    def shown(self, *parts: str) -> str:
        """What messages call a file or folder of the store."""
        return str(self.root.joinpath(*parts))

    def place(self, *parts: str) -> Place:
        """Where the small files of a folder of the store are."""
        return Folder(self.root.joinpath(*parts))

    def is_there(self) -> bool:
        """Whether anything has been stored here."""
        return self.root.is_dir()

    def _check_format(self) -> None:
        card = self.shown(CARD)
        try:
            check_format(json.loads(self.place().read(CARD))["format"], FORMAT)
        except UserError:
            raise
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
        if not self.place().exists(CARD):
            with writing_to(self.root):
                self.place().write(CARD, json.dumps({"format": FORMAT}) + "\n")

    # ------------------------------------------------------------------------------------------- finished artifacts

    def artifact_path(self, stage_id: str, fingerprint: str) -> Path:
        """Where the artifact is or will be."""
        return self.root / artifact_name(stage_id, fingerprint)

    def exists(self, stage_id: str, fingerprint: str) -> bool:
        """Whether the stage is finished."""
        return self.has_manifest(artifact_name(stage_id, fingerprint))

    def finished(self, nodes: Iterable[Node]) -> set[str]:
        """Names of those of these stages that are finished: one question where a question to each would take long."""
        return {node.name for node in nodes if self.exists(node.id, node.fingerprint)}

    def manifest(self, stage_id: str, fingerprint: str, run: str = "RUN") -> Manifest:
        """The artifact's record.

        Raises:
            UserError: it is missing, cut off or was changed by hand; says how to make it anew.
        """
        name = artifact_name(stage_id, fingerprint)
        path = self.shown(name, manifests.FILE_NAME)
        try:
            found = self.manifest_of(name)
        except UserError:
            raise
        except OSError as error:
            raise UserError(
                f"{path}: {(error.strerror or str(error)).lower()}", self._remedy(stage_id, run, name)
            ) from None
        except NewerFormatError as error:
            raise UserError(f"{path}: {error}", UPDATE) from None
        except ValueError as error:
            raise UserError(f"{path}: {error}", self._remedy(stage_id, run, name)) from None
        if found.fingerprint != fingerprint:
            raise UserError(f"{path}: its fingerprint is {found.fingerprint}", self._remedy(stage_id, run, name))
        return found

    def manifests(self, nodes: Iterable[tuple[Node, str]]) -> dict[str, Manifest]:
        """The records of finished stages, each with the run that advice is to name, by node name.

        Raises:
            UserError: as :meth:`manifest`.
        """
        return {node.name: self.manifest(node.id, node.fingerprint, run) for node, run in nodes}

    def _remedy(self, stage_id: str, run: str, name: str) -> str:
        return f"make it anew with `cohyde rerun {run} {stage_id}`, or delete the folder {self.shown(name)}"

    def manifest_of(self, name: str) -> Manifest:
        """The record of the artifact of this name.

        Raises:
            OSError: there is none, or it cannot be read.
            ValueError: it was damaged, or is that of another artifact; says which.
            NewerFormatError: it was written by a later version of cohyde.
        """
        return parsed((self.root / name / manifests.FILE_NAME).read_text(encoding="utf-8"), name)

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
                    self._remedy(stage_id, run, folder.name),
                )
        return folder

    def check(self, stage_id: str, fingerprint: str, run: str = "RUN") -> None:
        """The cheap check alone.

        Raises:
            UserError: as :meth:`usable`.
        """
        self.usable(stage_id, fingerprint, run)

    def verify(self, stage_id: str, fingerprint: str) -> list[str]:
        """Every fault of an artifact, files read and checksums compared; empty if it is as it was written."""
        name = artifact_name(stage_id, fingerprint)
        try:
            records = self.manifest(stage_id, fingerprint).files
        except UserError as error:
            return [error.message]
        found = [(record.path, self.file_fault(name, record)) for record in records]
        found += [(path, "not in the manifest") for path in self.strays(name, records)]
        return [f"{self.shown(name, path)}: {fault}" for path, fault in found if fault]

    def file_fault(self, name: str, record: FileRecord, read: Callable[[int], None] = lambda count: None) -> str:
        """What is wrong with a file of an artifact, its content compared; ``read`` is told the bytes of each piece."""
        folder = self.root / name
        fault = _size_fault(folder, record)
        if fault:
            return fault
        try:
            same = sha256_file(folder / record.path, read) == record.sha256
        except OSError as error:
            return f"cannot be read: {(error.strerror or str(error)).lower()}"
        return "" if same else CHANGED

    def strays(self, name: str, records: Collection[FileRecord]) -> list[str]:
        """Relative paths of files in an artifact's folder that its manifest does not know."""
        known = {record.path for record in records}
        return [path for path in self._files(name) if path not in known]

    def _files(self, name: str) -> list[str]:
        return files_below(self.root / name)

    def artifacts(self) -> Iterator[Path]:
        """Folders of all finished artifacts, by name."""
        return (folder for folder in self.folders() if self.has_manifest(folder.name))

    def has_manifest(self, name: str) -> bool:
        """Whether the artifact of this name is finished."""
        return (self.root / name / manifests.FILE_NAME).is_file()

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

    def lease(self, stage_id: str, fingerprint: str) -> Path | Place:
        """The place of the stage's leases (see :mod:`cohyde.dag.leases`)."""
        return self.leases / artifact_name(stage_id, fingerprint)

    def checkpoints(self, stage_id: str, fingerprint: str) -> Path:
        """Where a stage keeps what a later attempt goes on from. It is the stage's to make; a commit removes it."""
        return self.scratch_root / artifact_name(stage_id, fingerprint) / CHECKPOINTS

    def commit(self, scratch: Path, manifest: Manifest, check: Callable[[], None] = lambda: None) -> Manifest:
        """Make a scratch folder the artifact: list its files, write the manifest last, rename once.

        Where a finished artifact is there already, that one is kept, and its manifest is what is returned.

        Args:
            scratch: as :meth:`scratch` made it; it is gone afterwards.
            manifest: all but the list of files.
            check: is called right before anything is written that counts; what it raises keeps that from being written.

        Raises:
            UserError: the disk is full or cannot be written to. Nothing that is half written counts as an artifact.
        """
        with writing_to(scratch):
            whole = dataclasses.replace(manifest, files=tuple(_record(scratch, path) for path in files_below(scratch)))
            (scratch / manifests.FILE_NAME).write_text(whole.to_text(), encoding="utf-8")
            flush_tree(scratch)
            check()
            return self._publish(scratch, whole, check)

    def _publish(self, scratch: Path, manifest: Manifest, check: Callable[[], None]) -> Manifest:
        return self._put_in_place(scratch, manifest)

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

    def size_of(self, *parts: str) -> int:
        """Bytes of a file or folder that all machines see."""
        return size_of(self.root.joinpath(*parts))

    def clear(self, *parts: str) -> bool:
        """Remove a file or folder that all machines see; says whether there was one.

        Raises:
            UserError: the store cannot be written to.
        """
        return self.remove(self.root.joinpath(*parts))

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


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what disappears meanwhile counts nothing."""
    if not path.is_dir() or path.is_symlink():
        with suppress(OSError):
            return path.lstat().st_size
        return 0
    return sum(size_of(Path(here, name)) for here, _, names in os.walk(path) for name in names)


def parsed(text: str, name: str) -> Manifest:
    """The record of the artifact of this name, of its manifest's text.

    Raises:
        ValueError: it was damaged, or is that of another artifact; says which.
        NewerFormatError: it was written by a later version of cohyde.
    """
    try:
        found = manifests.parse(text)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a manifest ({error})") from None
    whose = artifact_name(found.id, found.fingerprint)
    if whose != name:
        raise ValueError(f"this is the manifest of {whose}")
    return found


def _size_fault(folder: Path, record: FileRecord) -> str:
    try:
        size = (folder / record.path).stat().st_size
    except OSError:
        return MISSING
    return size_fault(size, record)


def size_fault(size: int, record: FileRecord) -> str:
    """What is wrong with a file of this many bytes; empty if nothing is."""
    return "" if size == record.size else f"has {size} bytes, but {record.size} were written"


def files_below(folder: Path) -> list[str]:
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
