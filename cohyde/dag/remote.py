"""A store in an object store, with a folder of this machine in between.

Nothing can be renamed there, so an artifact's files are written one by one, and its manifest last: it is there if and
only if its manifest is, as on a disk. Leases, records and what attempts tell of themselves are objects of their own.
Artifacts that are read are fetched into the folder, the mirror, once; checkpoints and what is being written stay in it.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from cohyde.dag.bucket import SCHEME, Bucket, BucketFolder, side_by_side
from cohyde.dag.manifest import FILE_NAME, FileRecord, Manifest
from cohyde.dag.places import Place
from cohyde.dag.plan import Node, artifact_name
from cohyde.dag.store import CHANGED, MISSING, NAME, Store, parsed, size_fault
from cohyde.errors import UserError
from cohyde.filesystem import cache_root, writing_to

PATIENCE_SECONDS = 60.0
"""For how long a service that has answered once may be away: a stage that has run for hours shall not fail over it."""
FEW = 4
"""Up to so many questions are cheaper than a list of all objects."""


def open_store(location: str | Path) -> Store:
    """The store of a folder, or of a URL as ``s3://bucket/prefix``.

    Raises:
        UserError: it was written by a later version of cohyde, or an object store does not answer as it should.
    """
    if isinstance(location, str) and "://" in location:
        return RemoteStore(location)
    return Store(location)


def mirror_of(url: str) -> Path:
    """Where artifacts of a remote store lie on this machine: below ``$COHYDE_MIRROR``, else in the cache folder."""
    own = os.environ.get("COHYDE_MIRROR")
    parent = Path(own).expanduser() if own else cache_root() / "mirrors"
    speaking = re.sub(r"[^A-Za-z0-9]+", "-", url.removeprefix(SCHEME)).strip("-")[:60]
    return parent / f"{speaking}-{sha256(url.encode('utf-8')).hexdigest()[:12]}"


class RemoteStore(Store):
    """A store below a prefix of a bucket. ``root`` is the mirror: of this machine, and never the truth."""

    poll_seconds = 2.0
    """A look is a request, or a few."""

    def __init__(self, url: str) -> None:
        """Look whether the bucket is there; nothing is written.

        Raises:
            UserError: it is not, or does not let us in, or was written to by a later version of cohyde.
        """
        self.bucket = Bucket(url)
        super().__init__(mirror_of(self.bucket.url))
        self.bucket.patience = PATIENCE_SECONDS

    @property
    def location(self) -> str:
        """What ``--store`` has to be given for this store."""
        return self.bucket.url

    def shown(self, *parts: str) -> str:
        """What messages call a file or folder of the store."""
        return "/".join([self.bucket.url, *parts])

    def place(self, *parts: str) -> Place:
        """Where the small files of a folder of the store are."""
        return BucketFolder(self.bucket, "/".join(parts))

    def is_there(self) -> bool:
        """Whether anything has been stored here."""
        return bool(self.bucket.names())

    def prepare(self) -> None:
        """Make the mirror's folders, and try to write there and here.

        Raises:
            UserError: one cannot be written to; says what to set.
        """
        try_it = f".write-test-{os.urandom(4).hex()}"
        self.bucket.write(try_it, b"written")
        self.bucket.remove([try_it])
        super().prepare()

    def lease(self, stage_id: str, fingerprint: str) -> Place:
        """The place of the stage's leases: the bucket, since all machines have to see them."""
        return self.place("leases", artifact_name(stage_id, fingerprint))

    # ------------------------------------------------------------------------------------------- finished artifacts

    def has_manifest(self, name: str) -> bool:
        """Whether the artifact of this name is finished."""
        return self.bucket.look(_manifest_key(name)) is not None

    def finished(self, nodes: Iterable[Node]) -> set[str]:
        """Names of those of these stages that are finished."""
        names = {node.name for node in nodes}
        if len(names) <= FEW:
            return {name for name in names if self.has_manifest(name)}
        return names & {item.key.removesuffix(f"/{FILE_NAME}") for item in self.bucket.items()}

    def manifest_of(self, name: str) -> Manifest:
        """The record of the artifact of this name, as it is in the bucket."""
        return parsed(self._manifest_text(name), name)

    def manifests(self, nodes: Iterable[tuple[Node, str]]) -> dict[str, Manifest]:
        """The records of finished stages by node name."""
        asked = list(nodes)
        found = side_by_side(lambda item: self.manifest(item[0].id, item[0].fingerprint, item[1]), asked)
        return {node.name: manifest for (node, _), manifest in zip(asked, found, strict=True)}

    def _manifest_text(self, name: str) -> str:
        try:
            return self.bucket.read(_manifest_key(name)).decode("utf-8")
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "no such object", self.shown(_manifest_key(name))) from error

    def folders(self) -> Iterator[Path]:
        """Where the mirror has or would have them, whether they are finished or not."""
        return (self.root / name for name in self.bucket.names() if NAME.fullmatch(name))

    def _files(self, name: str) -> list[str]:
        keys = [item.key.removeprefix(f"{name}/") for item in self.bucket.items(f"{name}/")]
        return [key for key in keys if key != FILE_NAME]

    def file_fault(self, name: str, record: FileRecord, read: Callable[[int], None] = lambda count: None) -> str:
        """What is wrong with a file of an artifact in the bucket, its content read and compared."""
        try:
            found = self.bucket.look(f"{name}/{record.path}")
            if found is None:
                return MISSING
            return size_fault(found.size, record) or self._content_fault(name, record, read)
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"

    def _content_fault(
        self, name: str, record: FileRecord, read: Callable[[int], None], copy: Path | None = None
    ) -> str:
        """Read it, and keep what was read in a file if one is named."""
        digest = sha256()
        with open(copy or os.devnull, "wb") as handle:
            for piece in self.bucket.pieces(f"{name}/{record.path}", record.size):
                digest.update(piece)
                handle.write(piece)
                read(len(piece))
        return "" if digest.hexdigest() == record.sha256 else CHANGED

    def usable(self, stage_id: str, fingerprint: str, run: str = "RUN") -> Path:
        """The artifact's folder in the mirror, for reading; what is missing there is fetched, and compared.

        Raises:
            UserError: an object is missing or damaged; names it and the command that makes it anew.
        """
        manifest, name = self.manifest(stage_id, fingerprint, run), artifact_name(stage_id, fingerprint)
        if not self._is_mirrored(name, manifest):
            self._fetch(name, manifest, run)
        return self.root / name

    def check(self, stage_id: str, fingerprint: str, run: str = "RUN") -> None:
        """That its objects are there in full size; nothing is fetched: another machine may be the one to read them.

        Raises:
            UserError: one is missing or cut off; names it and the command that makes it anew.
        """
        manifest, name = self.manifest(stage_id, fingerprint, run), artifact_name(stage_id, fingerprint)
        sizes = {item.key.removeprefix(f"{name}/"): item.size for item in self.bucket.items(f"{name}/")}
        for record in manifest.files:
            size = sizes.get(record.path)
            self._refuse(MISSING if size is None else size_fault(size, record), manifest, record, run)

    def _refuse(self, fault: str, manifest: Manifest, record: FileRecord, run: str) -> None:
        """Raise, where there is a fault."""
        if fault:
            name = artifact_name(manifest.id, manifest.fingerprint)
            raise UserError(
                f"{self.shown(name, record.path)}: {fault} (stage {manifest.id}, run {run})",
                self._remedy(manifest.id, run, name),
            )

    def _is_mirrored(self, name: str, manifest: Manifest) -> bool:
        """Whether the mirror has just this artifact, and not one that was discarded and made anew since."""
        folder = self.root / name
        try:
            same = (folder / FILE_NAME).read_text(encoding="utf-8") == manifest.to_text()
            return same and all((folder / one.path).stat().st_size == one.size for one in manifest.files)
        except OSError:
            return False

    def _fetch(self, name: str, manifest: Manifest, run: str) -> None:
        scratch = self.scratch(manifest.id, manifest.fingerprint)

        def fetch(record: FileRecord) -> str:
            copy = scratch / record.path
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._content_fault(name, record, lambda count: None, copy)
            except FileNotFoundError:
                return MISSING

        try:
            with writing_to(scratch, "COHYDE_MIRROR=DIR"):
                for record, fault in zip(manifest.files, side_by_side(fetch, manifest.files), strict=True):
                    self._refuse(fault, manifest, record, run)
                (scratch / FILE_NAME).write_text(manifest.to_text(), encoding="utf-8")
                self._mirror(scratch, name)
        finally:
            self.drop(scratch)

    def _mirror(self, scratch: Path, name: str) -> None:
        """Put a whole artifact in the mirror. Of several processes that do at once, one wins, and all are content."""
        self.remove(self.root / name)
        with suppress(FileExistsError):
            try:
                os.rename(scratch, self.root / name)
            except OSError as error:
                if not (self.root / name / FILE_NAME).is_file():
                    raise
                raise FileExistsError from error

    # ---------------------------------------------------------------------------------------------------- writing

    def _publish(self, scratch: Path, manifest: Manifest, check: Callable[[], None]) -> Manifest:
        name = artifact_name(manifest.id, manifest.fingerprint)
        if self.has_manifest(name) or not self._upload(scratch, name, manifest, check):
            kept = self.manifest(manifest.id, manifest.fingerprint)
        else:
            kept = manifest
            self._mirror(scratch, name)
            shutil.rmtree(self.checkpoints(manifest.id, manifest.fingerprint), ignore_errors=True)
        self.drop(scratch)
        return kept

    def _upload(self, scratch: Path, name: str, manifest: Manifest, check: Callable[[], None]) -> bool:
        """Upload the files, and the manifest last: the artifact is there from then on. Whether it is ours."""

        def upload(record: FileRecord) -> None:
            check()
            self.bucket.upload(scratch / record.path, f"{name}/{record.path}")

        known = {record.path for record in manifest.files}
        self.bucket.remove([f"{name}/{path}" for path in self._files(name) if path not in known])
        side_by_side(upload, manifest.files)
        check()
        return self.bucket.create(_manifest_key(name), manifest.to_text().encode("utf-8"))

    def discard(self, stage_id: str, fingerprint: str) -> bool:
        """Remove an artifact, its manifest first; says whether there was one."""
        return self.clear(artifact_name(stage_id, fingerprint))

    def size_of(self, *parts: str) -> int:
        """Bytes of the objects below."""
        return sum(item.size for item in self.bucket.items(f"{'/'.join(parts)}/"))

    def clear(self, *parts: str) -> bool:
        """Remove the objects below, a manifest first, and what the mirror has of them."""
        keys = [item.key for item in self.bucket.items(f"{'/'.join(parts)}/")]
        manifest = _manifest_key("/".join(parts))
        self.bucket.remove([key for key in keys if key == manifest])
        self.bucket.remove([key for key in keys if key != manifest])
        super().clear(*parts)
        return bool(keys)


def _manifest_key(name: str) -> str:
    return f"{name}/{FILE_NAME}"
