"""Every manifest against its files, at the speed of the disk, and what hangs on whatever is damaged."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cohyde.dag.manifest import FILE_NAME, FileRecord, NewerFormatError
from cohyde.dag.plan import SHORT
from cohyde.dag.runs import RunRecord, load_runs
from cohyde.dag.store import NAME, Store
from cohyde.progress import Progress, Silent

TELL_SECONDS = 0.2
MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with one file."""

    file: str
    """Relative to the artifact."""
    what: str


@dataclass(frozen=True, kw_only=True)
class Damage:
    """An artifact that is not as it was written."""

    path: Path
    faults: tuple[Fault, ...]
    runs: tuple[str, ...]
    """Names of the runs that it is part of."""
    below: tuple[str, ...]
    """Ids of the stages, in those runs, whose artifacts were made from it."""

    @property
    def id(self) -> str:
        """Of the stage that made it."""
        found = NAME.fullmatch(self.path.name)
        return found["id"] if found else self.path.name

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``."""
        return {
            "artifact": self.path.name,
            "id": self.id,
            "path": str(self.path),
            "faults": [asdict(fault) for fault in self.faults],
            "runs": list(self.runs),
            "below": list(self.below),
        }


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was looked at, and what was found."""

    artifacts: int
    files: int
    bytes: int
    seconds: float
    damaged: tuple[Damage, ...]
    newer: tuple[Path, ...]
    """Artifacts of a later version of cohyde, which this one cannot judge."""
    records: tuple[str, ...]
    """What is wrong with records of runs."""

    @property
    def ok(self) -> bool:
        """Whether all is as it was written."""
        return not self.damaged and not self.records

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``."""
        return {
            "artifacts": self.artifacts,
            "files": self.files,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "damaged": [damage.to_json() for damage in self.damaged],
            "newer": [str(path) for path in self.newer],
            "records": list(self.records),
        }


def verify(store: Store, progress: Progress | None = None) -> Verification:
    """Read every file of every finished artifact, several at once, and compare it with its manifest."""
    start = time.monotonic()
    known: dict[Path, tuple[FileRecord, ...]] = {}
    faults: dict[Path, list[Fault]] = {}
    newer = []
    for folder in store.artifacts():
        try:
            known[folder] = store.manifest_of(folder.name).files
            faults[folder] = [
                Fault(file=path, what="not in the manifest") for path in store.strays(folder.name, known[folder])
            ]
        except NewerFormatError:
            newer.append(folder)
        except FileNotFoundError:  # removed since
            continue
        except (OSError, ValueError) as error:
            faults[folder] = [Fault(file=FILE_NAME, what=getattr(error, "strerror", None) or str(error))]
    files = [(folder, record) for folder, records in known.items() for record in records]
    for folder, fault in _read_all(store, files, progress or Silent()):
        faults[folder].append(fault)
    records, unreadable = load_runs(store)
    return Verification(
        artifacts=len(faults),
        files=len(files),
        bytes=sum(record.size for _, record in files),
        seconds=time.monotonic() - start,
        # What was discarded meanwhile is not damaged.
        damaged=tuple(
            Damage(path=folder, faults=tuple(found), **_touched(folder.name, records))
            for folder, found in faults.items()
            if found and store.has_manifest(folder.name)
        ),
        newer=tuple(newer),
        records=tuple(error.message for error in unreadable),
    )


class _Reading:
    """Counts what all threads read, says so now and then, and lets them stop early."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.bytes, self.total, self.over = 0, total, False
        self._progress, self._lock, self._said = progress, threading.Lock(), 0.0

    def __call__(self, count: int) -> None:
        with self._lock:
            if self.over:
                raise InterruptedError
            self.bytes += count
            if time.monotonic() - self._said >= TELL_SECONDS:
                self._said = time.monotonic()
                self._progress.update(self.bytes / MEGABYTE, self.total / MEGABYTE, "MB")


def _read_all(
    store: Store, files: Iterable[tuple[Path, FileRecord]], progress: Progress
) -> Iterator[tuple[Path, Fault]]:
    """The faults of all files. Reading and hashing let go of the interpreter, so threads do."""
    largest_first = sorted(files, key=lambda item: -item[1].size)
    reading = _Reading(sum(record.size for _, record in largest_first), progress)
    pool = ThreadPoolExecutor()
    try:
        found = pool.map(lambda item: store.file_fault(item[0].name, item[1], reading), largest_first)
        for (folder, record), fault in zip(largest_first, found, strict=True):
            if fault:
                yield folder, Fault(file=record.path, what=fault)
    finally:
        reading.over = True
        pool.shutdown(cancel_futures=True)


def _touched(name: str, records: Mapping[str, RunRecord]) -> dict[str, tuple[str, ...]]:
    """The runs that an artifact is part of, and the stages that were made from it."""
    plans = {run: record.plan for run, record in records.items() if name in record.plan.nodes}
    below = [plan.nodes[other].id for plan in plans.values() for other in plan.below_names(name) if other != name]
    return {"runs": tuple(plans), "below": tuple(dict.fromkeys(below))}


def discard_damaged(store: Store, found: Verification) -> list[str]:
    """Remove the damaged artifacts, so that running again makes them anew; returns the names of those removed.

    Raises:
        UserError: the store cannot be written to.
    """
    return [damage.path.name for damage in found.damaged if store.discard(damage.id, damage.path.name[-SHORT:])]
