"""Attempts: the folder of each try at a stage, with its log, its progress, its sign of life and its failure."""

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cohyde.dag.processes import birth_of, is_alive
from cohyde.dag.store import Store
from cohyde.filesystem import replace_text, writing_to

STALE_SECONDS = 90.0
"""An attempt on another host that gave no sign of life for so long is shown as dead; its clock may be a minute off."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an attempt failed."""

    id: str
    """Of the stage."""
    name: str
    """Of the node: stage id and fingerprint."""
    attempt: int
    error: str
    """What happened, in a line or a few."""
    remedy: str = ""
    """What a person can do about it, where that is known."""
    final: bool = False
    """It would fail alike another time, so it is not tried again."""
    traceback: tuple[str, ...] = ()
    """The last lines."""
    log: str
    """Path of the attempt's log file."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that works on an attempt."""

    run: str
    host: str
    pid: int
    birth: str | None
    started: str
    machine: str = ""
    """Ray's id of the machine."""

    @classmethod
    def this_process(cls, run: str, machine: str = "") -> "Owner":
        """The caller."""
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        pid = os.getpid()
        host, birth = socket.gethostname(), birth_of(pid)
        return cls(run=run, host=host, pid=pid, birth=birth, started=started, machine=machine)


@dataclass(frozen=True)
class Attempt:
    """One folder ``logs/<node>/attempt-<n>``."""

    folder: Path

    @property
    def number(self) -> int:
        """Counted from 1."""
        return int(self.folder.name.rpartition("-")[2])

    @property
    def log(self) -> Path:
        """What the stage printed and logged."""
        return self.folder / "log.txt"

    def start(self, owner: Owner) -> None:
        """Note who works on it. The file's age is the sign of life."""
        replace_text(self.folder / "owner.json", json.dumps(asdict(owner)))

    def beat(self) -> None:
        """Give a sign of life."""
        with suppress(OSError):
            os.utime(self.folder / "owner.json")

    def owner(self) -> Owner | None:
        """Who works or worked on it; None before it has started."""
        data = _read(self.folder / "owner.json")
        return Owner(**data) if data else None

    def is_running(self) -> bool:
        """Whether its owner lives and it has not ended.

        On this host the process table knows. Elsewhere the age of the last sign of life has to do.
        """
        owner = self.owner()
        if owner is None or (self.folder / "ended").exists():
            return False
        if owner.host == socket.gethostname():
            return is_alive(owner.pid, owner.birth)
        with suppress(OSError):
            return time.time() - (self.folder / "owner.json").stat().st_mtime < STALE_SECONDS
        return False

    def ask_to_stop(self) -> None:
        """Let its worker know that it shall write a checkpoint and stop."""
        with suppress(OSError):
            (self.folder / "stop").touch()

    def is_asked_to_stop(self) -> bool:
        """Whether somebody did."""
        return (self.folder / "stop").exists()

    def heeds(self) -> None:
        """Note that the stage looks whether it shall stop."""
        with suppress(OSError):
            (self.folder / "heeds").touch()

    def heeds_stop(self) -> bool:
        """Whether asking it to stop is of use."""
        return (self.folder / "heeds").exists()

    def end(self, failure: Failure | None = None) -> None:
        """Note that it is over. A full disk must not hide the failure that it caused, so errors are let go."""
        with suppress(OSError):
            if failure is not None:
                replace_text(self.folder / "failure.json", json.dumps(asdict(failure), ensure_ascii=False))
            (self.folder / "ended").touch()

    def failure(self) -> Failure | None:
        """Why it failed, if it did."""
        data = _read(self.folder / "failure.json")
        return Failure(**{**data, "traceback": tuple(data["traceback"])}) if data else None

    def write_progress(self, state: dict[str, Any]) -> None:
        """Say how far it is."""
        with suppress(OSError):
            replace_text(self.folder / "progress.json", json.dumps(state, ensure_ascii=False))

    def progress(self) -> dict[str, Any]:
        """How far it is: ``done``, ``total``, ``what``, ``warnings``; empty before it has said anything.

        ``done`` was ``first`` when counting began, ``seconds`` ago by the worker's own clock.
        """
        return _read(self.folder / "progress.json") or {}


def new_attempt(store: Store, name: str) -> Attempt:
    """The next attempt's folder for a node, and ``latest`` pointing at it."""
    parent = store.logs / name
    with writing_to(parent):
        parent.mkdir(parents=True, exist_ok=True)
        number = max(_numbers(parent), default=0) + 1
        while True:
            folder = parent / f"attempt-{number}"
            try:
                folder.mkdir()
            except FileExistsError:  # another runner was faster
                number += 1
                continue
            _point(parent / "latest", folder.name)
            return Attempt(folder)


def latest_attempt(store: Store, name: str) -> Attempt | None:
    """The attempt with the highest number."""
    number = max(_numbers(store.logs / name), default=0)
    return Attempt(store.logs / name / f"attempt-{number}") if number else None


def _numbers(parent: Path) -> list[int]:
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return []
    parts = [name.partition("attempt-") for name in names]
    return [int(number) for before, dash, number in parts if dash and not before and number.isdigit()]


def _point(link: Path, target: str) -> None:
    """Convenience for people; a file system without links does without."""
    temporary = link.with_name(f".latest.{os.getpid()}")
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, link)


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object that we wrote; None where there is none, or none yet."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
