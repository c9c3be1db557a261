"""What long work goes on from after a kill: its last good states, each whole or absent, and checked when it is read."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cohyde.errors import Interrupted
from cohyde.filesystem import as_user_error, flush, flush_tree
from cohyde.io import sha256_file, write_json
from cohyde.progress import Progress

FORMAT = 1
"""Raised when what a checkpoint holds is read in another way; one of another format is not gone on from."""
RECORD = "checkpoint.json"
"""Written last: every other file with its size and SHA-256."""
WRAPPED = "(os error "
"""What safetensors says in an error of its own about one of the disk's, whether full, over quota or broken."""
MOST_SHARE = 0.03
"""Of the time that may go into saving: where a state takes long to write, checkpoints come less often than is set."""


class Checkpoints:
    """The last good states of one piece of work in a folder of its own; the newest two are kept.

    A state is written into a scratch folder, with the checksums of its files, flushed to the disk and renamed: a kill
    leaves it whole or not at all. Where one cannot be written (a full disk), a warning says so and the work goes on.
    """

    def __init__(self, folder: Path | None, progress: Progress, keep: int = 2) -> None:
        """The states in ``folder``, which is made when need be; None keeps nothing."""
        self._folder, self._progress, self._keep = folder, progress, keep
        self._last, self._seconds = time.monotonic(), 0.0
        self._failed = False

    @classmethod
    def of_training(cls, progress: Progress) -> "Checkpoints":
        """Those of a stage's training, of which no stage has two."""
        return cls(progress.checkpoints and progress.checkpoints / "training", progress)

    def after(self, step: int, write: Callable[[Path], None]) -> None:
        """Call after every step: saves a checkpoint where it is time for one, or where the work is asked to stop.

        Args:
            step: units of work that are finished.
            write: writes their state into a folder that exists and is empty.

        Raises:
            Interrupted: the work was asked to stop; its state is saved.
        """
        if self._progress.stopping:
            self.save(step, write)
            raise Interrupted(f"asked to stop after step {step}")
        wait = max(self._progress.checkpoint_seconds, self._seconds / MOST_SHARE)
        if self._progress.checkpoint_seconds == 0 or time.monotonic() - self._last >= wait:
            self.save(step, write)

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Save a checkpoint now, and drop what is older than the newest two."""
        if self._folder is None:
            return
        started = time.monotonic()
        try:
            self._put(self._folder, step, write)
        except Exception as error:
            if not isinstance(error, OSError) and WRAPPED not in str(error):
                raise
            known = as_user_error(error, self._folder)
            self._tell_failure(f"the state after step {step} was not saved: {known.message if known else error}")
        self._last = time.monotonic()
        self._seconds = self._last - started

    def newest(self) -> tuple[int, Path] | None:
        """The step and folder of the newest whole checkpoint; a damaged one is warned of and removed."""
        if self._folder is None or not self._folder.is_dir():
            return None
        for scratch in self._folder.glob(".step-*"):  # of a save that a kill ended
            shutil.rmtree(scratch, ignore_errors=True)
        for step, path in _numbered(self._folder):
            fault = _fault(path, step)
            if fault is None:
                self._progress.log(f"going on from the checkpoint of step {step}")
                return step, path
            self._progress.warn(f"the checkpoint of step {step} is not used ({fault}); the one before it is, if any")
            shutil.rmtree(path, ignore_errors=True)
        return None

    def _put(self, folder: Path, step: int, write: Callable[[Path], None]) -> None:
        target = folder / f"step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".step-"))
        try:
            write(scratch)
            write_json(scratch / RECORD, {"format": FORMAT, "step": step, "files": _files(scratch)})
            scratch.chmod(0o755)
            flush_tree(scratch)
            if not target.exists():
                os.rename(scratch, target)
                flush(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        for _, old in _numbered(folder)[self._keep :]:
            shutil.rmtree(old, ignore_errors=True)

    def _tell_failure(self, message: str) -> None:
        tell = self._progress.log if self._failed else self._progress.warn
        tell(f"{message}; the work goes on, but a kill would cost more of it")
        self._failed = True


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder by their steps, the newest first."""
    found = [(path.name.removeprefix("step-"), path) for path in folder.glob("step-*")]
    return sorted(((int(step), path) for step, path in found if step.isdecimal()), reverse=True)


def _files(folder: Path) -> dict[str, Any]:
    """Every file below a folder but the record: its path there, its size in bytes and its SHA-256."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / RECORD
    }


def _fault(path: Path, step: int) -> str | None:
    """What is wrong with a checkpoint; None where nothing is."""
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        if record["step"] != step or record["format"] != FORMAT:
            return f"it is of step {record['step']}, format {record['format']}; expected format {FORMAT}"
        found, expected = _files(path), dict(record["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read: {' '.join(str(error).split())}"
    wrong = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    return f"{wrong[0]} is not as it was written" if wrong else None
