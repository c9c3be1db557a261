"""A stage whose work several processes do between them, and which shows who is at what."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cohyde.config import setting
from cohyde.dag.spec import Metrics
from cohyde.errors import Interrupted, UserError
from cohyde.executor import Do, Row
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from cohyde.shards import in_shards


@dataclass(frozen=True, kw_only=True)
class Spread:
    items: int = 6
    folder: str = setting("", identity=False)
    """Where ``begun/<item>.<pid>`` tells what is done by whom; an item waits until ``allowed`` has a higher number."""
    refuses: bool = False
    """Whether all but the stage's own process refuse to work."""


@dataclass(frozen=True)
class Squaring:
    config: Spread
    own: int

    @contextmanager
    def open(self) -> Iterator[Do[int]]:
        yield self.squares

    def squares(self, part: Sequence[int], progress: Progress) -> list[Row]:
        return [self._square(item, progress) for item in part]

    def _square(self, item: int, progress: Progress) -> Row:
        folder = Path(self.config.folder)
        print(f"at item {item}", flush=True)
        (folder / "begun").mkdir(exist_ok=True)
        (folder / "begun" / f"{item}.{os.getpid()}").touch()
        if self.config.refuses and os.getpid() != self.own:
            raise UserError(f"item {item} is refused", "leave it out")
        while not _allowed(folder, item):
            if progress.stopping:
                raise Interrupted(f"asked to stop at item {item}")
            time.sleep(0.02)
        return {"item": item, "square": item**2}


def _allowed(folder: Path, item: int) -> bool:
    file = folder / "allowed"
    return file.exists() and item < int(file.read_text())


def run(inputs: Mapping[str, Path], config: Spread, out_dir: Path, progress: Progress) -> Metrics:
    """Squares of the first numbers, one a shard."""
    work = Squaring(config, os.getpid())
    rows = in_shards(range(config.items), 1, work, "squares", progress, "items", progress.executor)
    write_jsonl(out_dir / "squares.jsonl", rows)
    return {"items": len(rows)}
