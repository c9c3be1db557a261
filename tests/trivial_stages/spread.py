"""A stage whose work several processes do between them, and which shows who is at what."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cohyde.config import RewriterConfig, SamplingConfig, setting
from cohyde.dag.spec import Metrics
from cohyde.errors import Interrupted, UserError
from cohyde.executor import Do, Row, Work
from cohyde.io import write_jsonl
from cohyde.progress import Progress
from cohyde.rewriter.describe import Completing
from cohyde.rewriter.generate import Request
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


# ------------------------------------------------------------------------------------------- with a real rewriter


@dataclass(frozen=True, kw_only=True)
class Describing:
    model: str = ""
    workers: int = setting(1, identity=False)
    folder: str = setting("", identity=False)
    """Nobody goes on before ``workers`` processes have begun here, so that each does a part."""


@dataclass(frozen=True)
class Together:
    """A rewriter's work, which begins when all are there."""

    inner: Work[Request]
    config: Describing

    @contextmanager
    def open(self) -> Iterator[Do[Request]]:
        with self.inner.open() as do:
            yield lambda part, progress: do(part, self._when_all_are_there(progress))

    def _when_all_are_there(self, progress: Progress) -> Progress:
        folder = Path(self.config.folder)
        (folder / f"here.{os.getpid()}").touch()
        while len(list(folder.glob("here.*"))) < self.config.workers:
            time.sleep(0.05)
        return progress


def describe(inputs: Mapping[str, Path], config: Describing, out_dir: Path, progress: Progress) -> Metrics:
    """What a rewriter writes for 64 prompts, in 4 shards."""
    requests = [Request(id=f"q{n}", prompt=f"tell me {'more ' * (n % 7)}about {n}", seed=n) for n in range(64)]
    rewriter = RewriterConfig(precision="float32", batch_size=16)
    sampling = SamplingConfig(n=2, temperature=1.0, max_new_tokens=12)
    work = Together(Completing(model=Path(config.model), rewriter=rewriter, sampling=sampling), config)
    rows = in_shards(requests, 16, work, "texts", progress, "prompts", progress.executor)
    write_jsonl(out_dir / "texts.jsonl", rows)
    return {}
