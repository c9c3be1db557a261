"""Long work on many items, in shards of a fixed size with a file each: a kill costs the shards that were in work."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohyde.errors import Interrupted
from cohyde.executor import HERE, Executor, Item, Row, Work
from cohyde.filesystem import as_user_error
from cohyde.io import canonical_json, sha256_text, write_text
from cohyde.progress import Progress


def in_shards(
    items: Sequence[Item],
    size: int,
    work: Work[Item],
    key: Any,
    progress: Progress,
    what: str,
    executor: Executor = HERE,
) -> list[Row]:
    """The rows of all items, those of finished shards from ``progress.checkpoints`` and the others by ``work``.

    When and by whom a shard was done cannot be told from the rows: what ``work`` gives hangs on the shard alone, it
    goes through JSON both ways, and the rows are in the order of the items. This process alone writes the files.

    Args:
        items: in an order that is the same another time.
        size: items a shard.
        work: opened for missing shards alone, and for one whose file is damaged, with a warning.
        key: JSON data: all that can change a row. Shards of another key, size or number of items are left alone.
        progress: told of items, asked after each shard whether to stop.
        what: the unit of progress, such as ``prompts``.
        executor: does the missing shards.

    Raises:
        Interrupted: ``progress`` asked to stop; every finished shard is on disk.
    """
    identity = {"key": key, "size": size, "items": len(items)}
    name = f"shards-{sha256_text(canonical_json(identity))[:12]}"
    shards = _Shards(progress.checkpoints and progress.checkpoints / name, progress)
    parts = {number: items[start : start + size] for number, start in enumerate(range(0, len(items), size))}
    tally = _Tally(progress, len(items), what)
    for number, part in parts.items():
        done = shards.read(number, len(part))
        if done is not None:
            tally.add(number, done)

    def keep(number: int, rows: Sequence[Row]) -> None:
        if len(rows) != len(parts[number]):
            raise ValueError(f"shard {number}: {len(rows)} rows for {len(parts[number])} {what}")
        tally.add(number, shards.write(number, rows))

    missing = {number: part for number, part in parts.items() if number not in tally.rows}
    executor.run(work, missing, keep, tally.part)
    return [row for number in parts for row in tally.rows[number]]


class _Tally:
    """The rows of the shards that are done, and how far the whole is. Shards may come to their end in any thread."""

    def __init__(self, progress: Progress, total: int, what: str) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.progress, self._total, self._what = progress, total, what
        self._under_way: dict[int, float] = {}
        self._lock = threading.Lock()

    def add(self, number: int, rows: list[Row]) -> None:
        """A shard is done."""
        with self._lock:
            self.rows[number] = rows
            self._under_way.pop(number, None)
            done = sum(map(len, self.rows.values()))
            self._tell()
        if self.progress.stopping:
            raise Interrupted(f"asked to stop after {done} of {self._total} {self._what}")

    def part(self, number: int) -> "_Part":
        """The progress of one shard's work."""
        return _Part(self, number)

    def update(self, number: int, done: float) -> None:
        """Items of a shard that is not done yet."""
        with self._lock:
            self._under_way[number] = done
            self._tell()

    def _tell(self) -> None:
        done = sum(map(len, self.rows.values())) + sum(self._under_way.values())
        self.progress.update(done, self._total, self._what)


class _Shards:
    """The files of one piece of work: a first line with number and checksum of the rows below it."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self._folder, self._progress, self._failed = folder, progress, False

    def read(self, number: int, count: int) -> list[Row] | None:
        """The rows of a finished shard; None where it is missing or damaged."""
        if self._folder is None or not (path := self._path(number)).exists():
            return None
        try:
            head, _, body = path.read_bytes().decode("utf-8").partition("\n")
            if json.loads(head) == _head(count, body):
                return [json.loads(line) for line in body.splitlines()]
        except (OSError, ValueError):
            pass
        self._progress.warn(f"{path.name} of the work done so far is damaged; that part is done again")
        return None

    def write(self, number: int, rows: Sequence[Row]) -> list[Row]:
        """Keep a shard, and give its rows as :meth:`read` will; where it cannot be kept, the work goes on."""
        lines = [json.dumps(row) for row in rows]  # in ASCII, which has no line ends but the one
        body = "".join(f"{line}\n" for line in lines)
        if self._folder is not None:
            try:
                write_text(self._path(number), json.dumps(_head(len(rows), body)) + "\n" + body)
            except OSError as error:
                self._tell_failure(error, self._folder)
        return [json.loads(line) for line in lines]

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number:06d}.jsonl"

    def _tell_failure(self, error: OSError, folder: Path) -> None:
        known = as_user_error(error, folder)
        tell = self._progress.log if self._failed else self._progress.warn
        tell(f"finished work was not saved: {known.message if known else error}; a kill would cost it")
        self._failed = True


def _head(count: int, body: str) -> Row:
    return {"rows": count, "sha256": sha256_text(body)}


class _Part:
    """The progress of a shard's work, as a part of the whole's."""

    checkpoints: Path | None = None
    """The shard is the least that is kept."""
    executor: Executor = HERE

    def __init__(self, tally: _Tally, number: int) -> None:
        self._tally, self._number, self._whole = tally, number, tally.progress

    @property
    def checkpoint_seconds(self) -> float:
        return self._whole.checkpoint_seconds

    @property
    def stopping(self) -> bool:
        return self._whole.stopping

    def update(self, done: float, total: float, what: str = "") -> None:
        self._tally.update(self._number, done)

    def track(self, row: Mapping[str, float]) -> None:
        self._whole.track(row)

    def log(self, message: str) -> None:
        self._whole.log(message)

    def warn(self, message: str) -> None:
        self._whole.warn(message)
