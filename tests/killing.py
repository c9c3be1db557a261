"""Work in processes of its own, which are killed at a step or a moment, and what it leaves."""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.errors import Interrupted
from cohyde.io import sha256_file
from cohyde.progress import Progress, Silent

STOPPED = 75
"""Exit status of work that was asked to stop."""
Job = Callable[[Path, Progress], Any]
"""Writes into a folder and returns JSON data; a function at the top of a module, since it travels by name."""

# Forked from a process that has imported what takes long and done nothing else: new processes within milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["cohyde.encoder.train", "cohyde.rewriter.sft", "cohyde.rewriter.dpo"])


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What happens to an attempt at some work, and when: at the n-th call of ``update``, or after so many seconds."""

    killed_at: int = 0
    killed_after: float = 0.0
    stopped_at: int = 0


TO_THE_END = Fate()


class Fateful(Silent):
    """A progress with checkpoints after every step, whose process meets its fate."""

    def __init__(self, checkpoints: Path, fate: Fate, log: Path) -> None:
        self.checkpoints, self.checkpoint_seconds = checkpoints, 0.0
        self.fate, self.updates, self.path = fate, 0, log
        if fate.killed_after:
            threading.Timer(fate.killed_after, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def update(self, done: float, total: float, what: str = "") -> None:
        self.updates += 1
        if self.updates == self.fate.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.stopping = self.updates == self.fate.stopped_at

    def log(self, message: str) -> None:
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(f"{message}\n")

    def warn(self, message: str) -> None:
        self.log(f"warning: {message}")


def _attempt(job: Job, folder: Path, checkpoints: Path, fate: Fate) -> None:
    import torch

    torch.set_num_threads(1)
    (folder / "out").mkdir(parents=True)
    try:
        result = job(folder / "out", Fateful(checkpoints, fate, folder / "log.txt"))
    except Interrupted:
        os._exit(STOPPED)
    (folder / "result.json").write_text(json.dumps(result, sort_keys=True), encoding="utf-8")


@dataclass(frozen=True)
class Work:
    """Attempts at one job, each in a folder and a process of its own, with a common folder of checkpoints."""

    job: Job
    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def attempt(self, fate: Fate = TO_THE_END) -> int:
        """Exit status of one more attempt."""
        number = len(list(self.folder.glob("attempt-*"))) + 1
        process = PROCESSES.Process(
            target=_attempt, args=(self.job, self.folder / f"attempt-{number}", self.checkpoints, fate)
        )
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    def live_through(self, fates: Sequence[Fate]) -> "Work":
        """Attempts that meet their fates, if they don't come to their end before, and one that does."""
        for fate in fates:
            if (status := self.attempt(fate)) == 0:
                return self
            assert status == (STOPPED if fate.stopped_at else -signal.SIGKILL)
        assert self.attempt() == 0
        return self

    @property
    def last(self) -> Path:
        return self.folder / f"attempt-{len(list(self.folder.glob('attempt-*')))}"

    def log(self) -> str:
        """What the last attempt said."""
        return (self.last / "log.txt").read_text(encoding="utf-8")

    def left(self) -> dict[str, str]:
        """Checksums of every file of the last attempt, and the result that it returned."""
        out = self.last / "out"
        files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
        result = (self.last / "result.json").read_text(encoding="utf-8")
        return {name: sha256_file(path) for name, path in files.items()} | {"": result}
