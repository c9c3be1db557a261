"""Processes of this host: whether one is still the one that was noted down, what it has started, and ending that."""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

Process = tuple[int, str | None]
"""Number, and start time as :func:`birth_of` gives it."""


def is_alive(pid: int, birth: str | None = None) -> bool:
    """Whether a process with this number runs; with ``birth`` (see :func:`birth_of`), whether it is the same one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, but it is there
    now = birth_of(pid)
    return now != "Z" and (birth is None or now is None or now == birth)


def birth_of(pid: int) -> str | None:
    """The kernel's start time of a process: tells it from a later one with the same number.

    None where it cannot be known (no ``/proc``), ``Z`` for one that has ended but not been collected.
    """
    try:
        # The second field is the command in brackets and may hold blanks itself.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "Z" if fields[0] == "Z" else fields[19]


def started_by(pid: int) -> list[Process]:
    """What a process has started and what those have started, as far as it lives; empty where there is no ``/proc``."""
    found: list[Process] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
                    found += [(child, birth_of(child)), *started_by(child)]
    return sorted(found)


def end(processes: Iterable[Process], patience: float = 30.0, pause: float = 0.05) -> tuple[int, Sequence[Process]]:
    """Kill those of the processes that still are the same ones, and wait until they are gone.

    Returns:
        How many there were, and those that are there after ``patience`` seconds all the same.
    """
    living = [(pid, birth) for pid, birth in processes if birth is not None and is_alive(pid, birth)]
    count = len(living)
    for pid, _ in living:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + patience
    while (living := [each for each in living if is_alive(*each)]) and time.monotonic() < until:
        time.sleep(pause)
    return count, living
