"""Tidying a store: what no run names and nobody works on.

A stage's leftovers are removed while its lease is held, so that nobody begins to work on them meanwhile, and by a
rename into the trash first, so that nobody sees half of them.
"""

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.dag.leases import DEAD_SECONDS, Holder, Watch, forget, take
from cohyde.dag.runs import load_runs
from cohyde.dag.store import CHECKPOINTS, Store, size_of
from cohyde.errors import UserError
from cohyde.progress import Progress, Silent

KINDS = {
    "artifact": "artifacts that no run names",
    "partial": "folders without a manifest",
    "attempt": "what attempts left that have ended",
    "checkpoints": "checkpoints that nobody will go on from",
    "logs": "logs of artifacts that are gone",
    "leases": "leases that nobody holds",
    "trash": "what is removed already, but for its files",
}
"""What is tidied away, in the order in which it is shown."""
SHARED = ("artifact", "partial", "logs", "leases")
"""Kinds that all machines see; the others are on this machine's disk, also where the store is in a bucket."""
POLL_SECONDS = 1.0
TIDYING = "gc"
"""What a lease says that is held to remove something."""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """One file or folder that nobody needs."""

    kind: str
    """A key of :data:`KINDS`."""
    path: Path
    """In the store's folder; of a store in a bucket, where its mirror has it or would have it."""
    shown: str
    """What people and programs are told: the path, or the URL."""
    node: str
    """Name of the artifact that it belongs to; empty for trash."""
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``."""
        return {"kind": self.kind, "path": self.shown, "bytes": self.bytes}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What can be removed, and what was left out."""

    garbage: tuple[Garbage, ...]
    free: Mapping[str, int]
    """Artifact name → the number of its lease that was found free."""
    busy: Mapping[str, Holder]
    """Artifact name → who works on it."""
    strangers: bool
    """Somebody works on a stage that no run names. What else he needs is not known, so all unnamed things are kept."""

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return sum(item.bytes for item in self.garbage)


def find(store: Store, progress: Progress | None = None) -> Finding:
    """Look for what nobody needs; remove nothing.

    Leases that are held on other machines are watched, for half a minute at most, until they are known to be alive.

    Raises:
        UserError: a run's record cannot be read, so that what it names is not known.
    """
    named, there = Named(store).now(), list(_leftovers(store))
    free, busy = _judge(store, {node for _, _, node in there if node}, progress or Silent())
    strangers = not named >= set(busy)
    garbage = [
        _garbage(store, kind, path, node)
        for kind, path, node in there
        if node not in busy and not _is_needed(kind, path, strangers or node in named, store)
    ]
    return Finding(garbage=tuple(garbage), free=free, busy=busy, strangers=strangers)


def _garbage(store: Store, kind: str, path: Path, node: str) -> Garbage:
    shared = kind in SHARED
    parts = path.relative_to(store.root).parts
    shown, size = (store.shown(*parts), store.size_of(*parts)) if shared else (str(path), size_of(path))
    return Garbage(kind=kind, path=path, shown=shown, node=node, bytes=size)


def remove(store: Store, finding: Finding, progress: Progress | None = None) -> list[Garbage]:
    """Remove what was found, but for what somebody has begun to work on since; returns what was removed.

    Raises:
        UserError: the store cannot be written to.
    """
    progress, named = progress or Silent(), Named(store)
    gone: list[Garbage] = []
    by_node: dict[str, list[Garbage]] = {}
    for item in finding.garbage:
        by_node.setdefault(item.node, []).append(item)
    for done, (node, items) in enumerate(by_node.items()):
        progress.update(done, len(by_node), "stages")
        gone += _remove_of(store, node, items, finding, named) if node else _remove_trash(items)
    return gone


class Named:
    """Names of all artifacts that runs name, read again when a run's record was written or removed."""

    def __init__(self, store: Store) -> None:
        """Nothing is read yet."""
        self._store = store
        self._seen: object = None
        self._names: set[str] = set()

    def now(self) -> set[str]:
        """The names.

        Raises:
            UserError: a run's record cannot be read, so that what it names is not known.
        """
        seen = self._store.place("runs").times("*/run.yaml")
        if seen != self._seen:
            records, faults = load_runs(self._store)
            if faults:
                what = f"{faults[0].message}\n  what this run needs is not known, so nothing is removed"
                raise UserError(what, faults[0].remedy)
            self._seen, self._names = seen, {name for record in records.values() for name in record.plan.nodes}
        return self._names


def _leftovers(store: Store) -> Iterator[tuple[str, Path, str]]:
    """All that may be garbage, as ``(kind, path, artifact name)``."""
    for folder in store.folders():
        yield "artifact" if store.has_manifest(folder.name) else "partial", folder, folder.name
    for node in _listed(store.scratch_root):
        for name in _listed(store.scratch_root / node):
            kind = "checkpoints" if name == CHECKPOINTS else "attempt"
            yield kind, store.scratch_root / node / name, node
    for kind, folder in (("logs", store.logs), ("leases", store.leases)):
        for node in sorted(store.place(kind).names()):
            if not node.startswith("."):
                yield kind, folder / node, node
    for name in _listed(store.trash):
        yield "trash", store.trash / name, ""


def _listed(folder: Path) -> list[str]:
    """Names in a folder, sorted; none where there is none. Files of a moment begin with a dot."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_needed(kind: str, path: Path, wanted: bool, store: Store) -> bool:
    """Whether to keep it, if nobody works on its stage. ``wanted``: a run names it, or may."""
    if kind == "checkpoints":
        return wanted and not store.has_manifest(path.parent.name)
    return wanted and kind in ("artifact", "logs")


def _judge(store: Store, nodes: Collection[str], progress: Progress) -> tuple[dict[str, int], dict[str, Holder]]:
    """Which stages somebody works on. A lease on this machine is judged at once; others, once their heartbeat moves."""
    watches = {node: Watch(store.place("leases", node)) for node in sorted(nodes)}
    first = {node: holder for node, watch in watches.items() if (holder := watch.holder())}
    busy = {node: holder for node, holder in first.items() if holder.host == socket.gethostname()}
    unsure, start = set(first) - set(busy), time.monotonic()
    while unsure:
        waited = min(time.monotonic() - start, DEAD_SECONDS)
        progress.update(waited, DEAD_SECONDS, f"seconds: watching {len(unsure)} leases of other machines")
        time.sleep(POLL_SECONDS)
        for node in sorted(unsure):
            holder = watches[node].holder()
            if holder is None or holder.beat != first[node].beat:
                unsure.discard(node)
                busy.update({node: holder} if holder else {})
    return {node: watch.number for node, watch in watches.items() if node not in busy}, busy


def _remove_of(store: Store, node: str, items: list[Garbage], finding: Finding, named: Named) -> list[Garbage]:
    """Remove what is left of one stage, while its lease is ours."""
    if take(store.place("leases", node), finding.free[node], TIDYING, "") is None:
        return []
    try:
        wanted = finding.strangers or node in named.now()
        return [item for item in items if not _is_needed(item.kind, item.path, wanted, store) and _bury(store, item)]
    finally:
        forget(store.place("leases", node))
        with suppress(OSError):
            (store.scratch_root / node).rmdir()


def _bury(store: Store, item: Garbage) -> bool:
    if item.kind == "leases":
        return True
    if item.kind in SHARED:
        return store.clear(*item.path.relative_to(store.root).parts)
    return store.remove(item.path)


def _remove_trash(items: list[Garbage]) -> list[Garbage]:
    for item in items:
        if item.path.is_dir() and not item.path.is_symlink():
            shutil.rmtree(item.path, ignore_errors=True)
        else:
            item.path.unlink(missing_ok=True)
    return [item for item in items if not os.path.lexists(item.path)]
