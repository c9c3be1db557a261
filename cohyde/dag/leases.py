"""Leases: which process works on a stage, so that two runs on one store never do the same work twice.

``leases/<artifact name>/<n>.json``; the holder is the highest n. Taking over creates n + 1 exclusively, so that of two
takers one wins, also on NFS, where locks are not to be trusted. A lease is alive while its heartbeat, a counter,
changes: whoever waits judges by changes that it sees over its own clock, and no two clocks are ever compared.
"""

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohyde.dag.places import Place, place_of
from cohyde.dag.processes import birth_of, is_alive
from cohyde.filesystem import writing_to

BEAT_SECONDS = 5.0
DEAD_SECONDS = 30.0
"""A heartbeat that does not change for so long is that of a dead process, or of a machine that is cut off."""


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

    def __init__(self, place: Place, number: int, holder: Holder) -> None:
        """As :func:`take` makes it."""
        self.place, self.number, self.holder = place, number, holder
        # The heart is a thread of its own: a beat that was under way would take a release back, and for ever, since a
        # process that has gone on to other work is alive.
        self._writing = threading.Lock()

    def beat(self) -> bool:
        """Give a sign of life; whether the lease is still held. A file system that is full or away does not end it."""
        with self._writing:
            if self.holder.released or not self.is_held():
                return False
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            with suppress(OSError):
                _write(self.place, self.number, self.holder)
            return True

    def is_held(self) -> bool:
        """Whether nobody has taken it over."""
        try:
            number, holder = newest(self.place)
        except OSError:  # the file system is away for a moment, and nobody can take over what nobody can reach
            return True
        return number == self.number and (holder is None or holder.token == self.holder.token)

    def check(self) -> None:
        """Make sure, right before something is written that counts.

        Raises:
            LeaseLostError: another process has it now.
        """
        if not self.is_held():
            raise LeaseLostError(f"the lease was taken over by {newest(self.place)[1] or 'another process'}")

    def release(self) -> None:
        """Let others have it. The file stays, so that numbers go on rising."""
        with self._writing:
            if self.is_held():
                self.holder = replace(self.holder, released=True)
                with suppress(OSError):
                    _write(self.place, self.number, self.holder)


class Watch:
    """Whether somebody works on a stage, judged by what this process has seen of the heartbeat."""

    def __init__(self, where: Path | Place) -> None:
        """Nothing is seen yet."""
        self.place = place_of(where)
        self.number = 0
        """The number that :meth:`holder` has judged last."""
        self._seen: tuple[int, Holder | None] = (0, None)
        self._since = time.monotonic()

    def holder(self) -> Holder | None:
        """Who has the lease; None where nobody has, or its holder is dead."""
        now = newest(self.place)
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


def take(where: Path | Place, over: int, run: str, attempt: str) -> Lease | None:
    """Take a lease over from number ``over``, which a :class:`Watch` found free; None where another was faster.

    Raises:
        UserError: the store cannot be written to.
    """
    place = place_of(where)
    with writing_to(Path(str(where))):
        holder = Holder.this_process(run, attempt)
        if newest(place)[0] != over or not _create(place, over + 1, holder):
            return None
    for name, number in _numbers(place):
        if number <= over:
            place.remove(name)
    return Lease(place, over + 1, holder)


def revoke(where: Path | Place, attempt: str) -> None:
    """Free a lease whose holder is known to be dead: that of this attempt, and no other."""
    place = place_of(where)
    number, holder = newest(place)
    if holder and holder.attempt == attempt and not holder.released:
        with suppress(OSError):
            _create(place, number + 1, replace(holder, token=secrets.token_hex(8), released=True))


def newest(where: Path | Place) -> tuple[int, Holder | None]:
    """The highest number and its holder; 0 where there is none, and no holder where the file cannot be read yet."""
    place = place_of(where)
    found = max(_numbers(place), key=lambda item: item[1], default=None)
    if found is None:
        return 0, None
    name, number = found
    try:
        return number, Holder(**json.loads(place.read(name)))
    except (OSError, ValueError, TypeError):
        return number, None


def forget(where: Path | Place) -> None:
    """Remove the record of leases of a stage that nobody holds."""
    place_of(where).clear()


def _numbers(place: Place) -> list[tuple[str, int]]:
    return [(name, int(name[:-5])) for name in place.names() if name.endswith(".json") and name[:-5].isdigit()]


def _write(place: Place, number: int, holder: Holder) -> None:
    place.replace(f"{number}.json", _text(holder))


def _create(place: Place, number: int, holder: Holder) -> bool:
    return place.create(f"{number}.json", _text(holder), holder.token)


def _text(holder: Holder) -> str:
    content: dict[str, Any] = asdict(holder)
    return json.dumps(content)
