"""The cache folder: built model folders and content hashes of files."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cohyde.filesystem import cache_root
from cohyde.io import sha256_file, write_json

ABANDONED_SECONDS = 24 * 3600
"""A scratch folder older than this is what a killed process left behind."""


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the folder ``target``, which ``build(folder)`` fills if it is not there yet.

    The folder is filled beside its place and put there by one rename: if it exists, it is whole. Of several processes
    that build at once the first wins, and the others throw theirs away.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        build(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _sweep(target: Path) -> None:
    for left in target.parent.glob(f".{target.name}.*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, remembered by path, size and time of change, so that the second call costs nothing."""
    return file_hashes([path])[path]


def file_hashes(paths: list[Path]) -> dict[Path, str]:
    """As :func:`file_sha256`, for several files."""
    memory = cache_root() / "hashes.json"
    known = _read_memory(memory)
    hashes, fresh = {}, {}
    for path in paths:
        place = path.resolve()
        stat = place.stat()
        entry = known.get(str(place))
        as_it_was = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if not isinstance(entry, dict) or not entry.get("sha256") or entry != entry | as_it_was:
            entry = fresh[str(place)] = as_it_was | {"sha256": sha256_file(place)}
        hashes[path] = str(entry["sha256"])
    if fresh:
        _remember(memory, fresh)
    return hashes


def _read_memory(memory: Path) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):  # not there yet or damaged: it is a memory, the files are the truth
        return {}
    return known if isinstance(known, dict) else {}


def _remember(memory: Path, fresh: dict[str, Any]) -> None:
    # Another process may write between the reading and the writing here: its entry is then hashed again, no more.
    kept = {place: entry for place, entry in _read_memory(memory).items() if Path(place).exists()}
    try:
        write_json(memory, kept | fresh)
    except OSError:  # a cache that cannot be written (read-only home) costs time, not correctness
        return
