"""Leases: which process works on a stage, so that two runs on one store never do the same work twice.

``leases/<artifact name>/<n>.json``; the holder is the highest n. Taking over creates n + 1 exclusively, so that of two
takers one wins, also on NFS, where locks are not to be trusted. A lease is alive while its heartbeat, a counter,
changes: whoever waits judges by changes that it sees over its own clock, and no two clocks are ever compared.
"""

import errno
import json
import os
import secrets
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohyde.dag.processes import birth_of, is_alive
from cohyde.filesystem import replace_text, writing_to

BEAT_SECONDS = 5.0
DEAD_SECONDS = 30.0
"""A heartbeat that does not change for so long is that of a dead process, or of a machine that is cut off."""
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}


class LeaseLostError(RuntimeError):
    """Another process has taken the lease over: whatever is being made here must not be written."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has a lease, as its file says."""

    token: str
    """Random; tells apart two leases of the same number."""
    run: str
    attempt: str
    """The attempt's folder."""
    host: str
    pid: int
    birth: str | None
    beat: int = 0
    released: bool = False

    @classmethod
    def this_process(cls, run: str, attempt: str) -> "Holder":
        """The caller."""
        token, pid = secrets.token_hex(8), os.getpid()
        return cls(token=token, run=run, attempt=attempt, host=socket.gethostname(), pid=pid, birth=birth_of(pid))

    def __str__(self) -> str:
        return f"run {self.run}, {self.host}, process {self.pid}"


class Lease:
    """A lease that this process holds."""

    def __init__(self, folder: Path, number: int, holder: Holder) -> None:
        """As :func:`take` makes it."""
        self.folder, self.number, self.holder = folder, number, holder

    def beat(self) -> bool:
        """Give a sign of life; whether the lease is still held. A file system that is full or away does not end it."""
        if not self.is_held():
            return False
        self.holder = replace(self.holder, beat=self.holder.beat + 1)
        with suppress(OSError):
            _write(self.folder, self.number, self.holder)
        return True

    def is_held(self) -> bool:
        """Whether nobody has taken it over."""
        try:
            number, holder = newest(self.folder)
        except OSError:  # the file system is away for a moment, and nobody can take over what nobody can reach
            return True
        return number == self.number and (holder is None or holder.token == self.holder.token)

    def check(self) -> None:
        """Make sure, right before something is written that counts.

        Raises:
            LeaseLostError: another process has it now.
        """
        if not self.is_held():
            raise LeaseLostError(f"the lease was taken over by {newest(self.folder)[1] or 'another process'}")

    def release(self) -> None:
        """Let others have it. The file stays, so that numbers go on rising."""
        if self.is_held():
            with suppress(OSError):
                _write(self.folder, self.number, replace(self.holder, released=True))


class Watch:
    """Whether somebody works on a stage, judged by what this process has seen of the heartbeat."""

    def __init__(self, folder: Path) -> None:
        """Nothing is seen yet."""
        self.folder = folder
        self.number = 0
        """The number that :meth:`holder` has judged last."""
        self._seen: tuple[int, Holder | None] = (0, None)
        self._since = time.monotonic()

    def holder(self) -> Holder | None:
        """Who has the lease; None where nobody has, or its holder is dead."""
        now = newest(self.folder)
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        self.number, holder = now
        if not self.number or (holder and holder.released):
            return None
        if holder and holder.host == socket.gethostname():
            return holder if is_alive(holder.pid, holder.birth) else None
        silent = time.monotonic() - self._since
        return None if silent >= DEAD_SECONDS else holder or UNKNOWN


UNKNOWN = Holder(token="", run="?", attempt="", host="?", pid=0, birth=None)
"""Of a lease whose file cannot be read yet."""


def take(folder: Path, over: int, run: str, attempt: str) -> Lease | None:
    """Take a lease over from number ``over``, which a :class:`Watch` found free; None where another was faster.

    Raises:
        UserError: the store cannot be written to.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        holder = Holder.this_process(run, attempt)
        if newest(folder)[0] != over or not _create(folder, over + 1, holder):
            return None
    for path, number in _numbers(folder):
        if number <= over:
            path.unlink(missing_ok=True)
    return Lease(folder, over + 1, holder)


def revoke(folder: Path, attempt: str) -> None:
    """Free a lease whose holder is known to be dead: that of this attempt, and no other."""
    number, holder = newest(folder)
    if holder and holder.attempt == attempt and not holder.released:
        with suppress(OSError):
            _create(folder, number + 1, replace(holder, token=secrets.token_hex(8), released=True))


def newest(folder: Path) -> tuple[int, Holder | None]:
    """The highest number and its holder; 0 where there is none, and no holder where the file cannot be read yet."""
    found = max(_numbers(folder), key=lambda item: item[1], default=None)
    if found is None:
        return 0, None
    path, number = found
    try:
        return number, Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return number, None


def forget(folder: Path) -> None:
    """Remove the record of leases of a stage that nobody holds."""
    shutil.rmtree(folder, ignore_errors=True)


def _numbers(folder: Path) -> list[tuple[Path, int]]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [(folder / name, int(name[:-5])) for name in names if name.endswith(".json") and name[:-5].isdigit()]


def _write(folder: Path, number: int, holder: Holder) -> None:
    replace_text(folder / f"{number}.json", _text(holder))


def _create(folder: Path, number: int, holder: Holder) -> bool:
    """Create a lease's file, whole, if there is none of this number; whether it was us."""
    target = folder / f"{number}.json"
    temporary = folder / f".{number}.{holder.token}"
    temporary.write_text(_text(holder), encoding="utf-8")
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _create_exclusively(target, _text(holder))
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _create_exclusively(target: Path, text: str) -> bool:
    """For file systems without hard links: a reader may see the file before its content, and waits then."""
    try:
        with target.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        return False
    return True


def _text(holder: Holder) -> str:
    content: dict[str, Any] = asdict(holder)
    return json.dumps(content)
