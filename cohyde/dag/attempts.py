"""Attempts: the folder of each try at a stage, with its log, its progress, its sign of life and its failure."""

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cohyde.dag.places import Folder, Place, read_if_there
from cohyde.dag.processes import Process, birth_of, end, is_alive, started_by
from cohyde.dag.store import Store
from cohyde.filesystem import writing_to

LOG, OWNER, PROCESSES = "log.txt", "owner.json", "processes.json"
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
    """Where the attempt's log is: a path or a URL."""


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
    """On this machine: where the log is written."""
    place: Place | None = None
    """Where all see it, if that is not the same."""

    @property
    def at(self) -> Place:
        """Where owner, progress, failure and end are noted."""
        return self.place or Folder(self.folder)

    @property
    def number(self) -> int:
        """Counted from 1."""
        return int(self.folder.name.rpartition("-")[2])

    @property
    def log(self) -> Path:
        """What the stage printed and logged."""
        return self.folder / LOG

    def log_of(self, worker: int) -> Path:
        """What another of the stage's workers printed and logged, on its machine; the stage's own is the first."""
        return self.folder / f"log-{worker}.txt"

    @property
    def shown_log(self) -> str:
        """Where a person finds the log when the attempt is over."""
        return f"{self.at}/{LOG}"

    def start(self, owner: Owner) -> None:
        """Note who works on it. The file's age is the sign of life."""
        self.at.replace(OWNER, json.dumps(asdict(owner)))

    def beat(self) -> None:
        """Give a sign of life."""
        with suppress(OSError):
            self.at.refresh(OWNER)

    def owner(self) -> Owner | None:
        """Who works or worked on it; None before it has started."""
        data = self._read(OWNER)
        return Owner(**data) if data else None

    def is_running(self) -> bool:
        """Whether its owner lives and it has not ended.

        On this host the process table knows. Elsewhere the age of the last sign of life has to do.
        """
        owner = self.owner()
        if owner is None or self.at.exists("ended"):
            return False
        if owner.host == socket.gethostname():
            return is_alive(owner.pid, owner.birth)
        with suppress(OSError):
            return self.at.age(OWNER) < STALE_SECONDS
        return False

    def ask_to_stop(self) -> None:
        """Let its worker know that it shall write a checkpoint and stop."""
        with suppress(OSError):
            self.at.touch("stop")

    def is_asked_to_stop(self) -> bool:
        """Whether somebody did, as far as can be known."""
        with suppress(OSError):
            return self.at.exists("stop")
        return False

    def heeds(self) -> None:
        """Note that the stage looks whether it shall stop."""
        with suppress(OSError):
            self.at.touch("heeds")

    def heeds_stop(self) -> bool:
        """Whether asking it to stop is of use, as far as can be known."""
        with suppress(OSError):
            return self.at.exists("heeds")
        return False

    def end(self, failure: Failure | None = None) -> None:
        """Note that it is over. A full disk must not hide the failure that it caused, so errors are let go."""
        with suppress(OSError):
            if failure is not None:
                self.at.replace("failure.json", json.dumps(asdict(failure), ensure_ascii=False))
            if self.place is not None and self.log.exists():
                self.place.write(LOG, self.log.read_text(encoding="utf-8", errors="replace"))
            self.at.touch("ended")

    def failure(self) -> Failure | None:
        """Why it failed, if it did."""
        data = self._read("failure.json")
        return Failure(**{**data, "traceback": tuple(data["traceback"])}) if data else None

    def write_progress(self, state: dict[str, Any]) -> None:
        """Say how far it is."""
        with suppress(OSError):
            self.at.replace("progress.json", json.dumps(state, ensure_ascii=False))

    def note_processes(self, known: list[Process]) -> list[Process]:
        """Note down what this process has started, if that is not what was ``known``; returns what there is now."""
        now = started_by(os.getpid())
        if now != known:
            with suppress(OSError):
                self.at.replace(PROCESSES, json.dumps({"host": socket.gethostname(), "processes": now}))
        return now

    def left_processes(self) -> list[Process]:
        """What a worker that has died on this host had started, whether that lives or not."""
        noted, owner = self._read(PROCESSES) or {}, self.owner()
        if noted.get("host") != socket.gethostname() or owner is None or is_alive(owner.pid, owner.birth):
            return []
        return [(pid, birth) for pid, birth in noted["processes"]]

    def progress(self) -> dict[str, Any]:
        """How far it is: ``done``, ``total``, ``what``, ``warnings``; empty before it has said anything.

        ``done`` was ``first`` when counting began, ``seconds`` ago by the worker's own clock.
        """
        return self._read("progress.json") or {}

    def _read(self, name: str) -> dict[str, Any] | None:
        """A JSON object that we wrote; None where there is none, or none yet."""
        try:
            data = json.loads(read_if_there(self.at, name) or "")
        except ValueError:
            return None
        return data if isinstance(data, dict) else None


def new_attempt(store: Store, name: str) -> Attempt:
    """The next attempt's folder for a node, and ``latest`` pointing at it."""
    parent, place = store.logs / name, store.place("logs", name)
    with writing_to(parent):
        number = max(_numbers(place), default=0) + 1
        while not place.claim(f"attempt-{number}"):  # another runner was faster
            number += 1
        attempt = attempt_at(store, name, number)
        _point(parent / "latest", attempt.folder.name)
        return attempt


def attempt_at(store: Store, name: str, number: int) -> Attempt:
    """An attempt that was made, by this process or another; its folder on this machine is there then."""
    folder = store.logs / name / f"attempt-{number}"
    place = store.place("logs", name, folder.name)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return Attempt(folder, None if isinstance(place, Folder) else place)


def end_left_processes(store: Store, name: str, number: int) -> tuple[int, list[int]]:
    """End what earlier attempts at a node than this one have left running on this host, and nothing else.

    A child outlives a worker that was killed where it was stopped or hangs in a driver. It would hold the memory of a
    GPU that this attempt needs.

    Returns:
        How many there were, and the numbers of those that are there all the same.
    """
    left = [process for earlier in range(1, number) for process in attempt_at(store, name, earlier).left_processes()]
    count, living = end(left)
    return count, [pid for pid, _ in living]


def latest_attempt(store: Store, name: str) -> Attempt | None:
    """The attempt with the highest number."""
    place = store.place("logs", name)
    number = max(_numbers(place), default=0)
    if not number:
        return None
    folder = store.logs / name / f"attempt-{number}"
    return Attempt(folder, None if isinstance(place, Folder) else place.below(folder.name))


def _numbers(place: Place) -> list[int]:
    parts = [name.partition("attempt-") for name in place.names()]
    return [int(number) for before, dash, number in parts if dash and not before and number.isdigit()]


def _point(link: Path, target: str) -> None:
    """Convenience for people; a file system without links does without."""
    temporary = link.with_name(f".latest.{os.getpid()}")
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, link)
