"""Long work on many items, in shards of a fixed size with a file each: a kill costs the shard that was in work."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cohyde.errors import Interrupted
from cohyde.filesystem import as_user_error
from cohyde.io import canonical_json, sha256_text, write_text
from cohyde.progress import Progress

Item = TypeVar("Item")
Row = dict[str, Any]
Work = Callable[[Sequence[Item], Progress], Sequence[Row]]
"""Does some items' work; one row of JSON data for each, in their order, whatever other items there are."""


def in_shards(items: Sequence[Item], size: int, work: Work[Item], key: Any, progress: Progress, what: str) -> list[Row]:
    """The rows of all items, those of finished shards from ``progress.checkpoints`` and the others by ``work``.

    Whether a shard was done now or by an earlier attempt cannot be told from the rows: what ``work`` gives hangs on the
    shard alone, and it goes through JSON both ways.

    Args:
        items: in an order that is the same another time.
        size: items a shard.
        work: see :data:`Work`; called for missing shards alone, and for one whose file is damaged, with a warning.
        key: JSON data: all that can change a row. Shards of another key, size or number of items are left alone.
        progress: told of items, asked after each shard whether to stop.
        what: the unit of progress, such as ``prompts``.

    Raises:
        Interrupted: ``progress`` asked to stop; every finished shard is on disk.
    """
    identity = {"key": key, "size": size, "items": len(items)}
    name = f"shards-{sha256_text(canonical_json(identity))[:12]}"
    shards = _Shards(progress.checkpoints and progress.checkpoints / name, progress)
    rows: list[Row] = []
    for number, start in enumerate(range(0, len(items), size)):
        part = items[start : start + size]
        done = shards.read(number, len(part))
        if done is None:
            done = shards.write(number, work(part, _Part(progress, start, len(items))))
            if len(done) != len(part):
                raise ValueError(f"shard {number}: {len(done)} rows for {len(part)} {what}")
        rows += done
        progress.update(len(rows), len(items), what)
        if progress.stopping:
            raise Interrupted(f"asked to stop after {len(rows)} of {len(items)} {what}")
    return rows


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

    def __init__(self, whole: Progress, before: int, total: int) -> None:
        self._whole, self._before, self._total = whole, before, total

    @property
    def checkpoint_seconds(self) -> float:
        return self._whole.checkpoint_seconds

    @property
    def stopping(self) -> bool:
        return self._whole.stopping

    def update(self, done: float, total: float, what: str = "") -> None:
        self._whole.update(self._before + done, self._total, what)

    def log(self, message: str) -> None:
        self._whole.log(message)

    def warn(self, message: str) -> None:
        self._whole.warn(message)
