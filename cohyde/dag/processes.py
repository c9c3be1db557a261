"""Whether a process on this host is still the one that was noted down."""

import os
from pathlib import Path


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
