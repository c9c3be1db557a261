"""What the runner tells while it runs. It prints nothing itself: rendering is somebody else's."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cohyde.dag.attempts import Failure
from cohyde.dag.spec import Metrics


@dataclass(frozen=True, kw_only=True)
class RayStarting:
    """There is something to run; Ray is started or connected to next, which takes some seconds."""

    address: str | None
    done: int
    """Stages that are finished already."""
    todo: int
    """Stages to run."""


@dataclass(frozen=True, kw_only=True)
class StageEvent:
    """Something about one stage."""

    id: str
    name: str
    """Stage id and fingerprint: tells apart stages of a sweep that have the same id."""


@dataclass(frozen=True, kw_only=True)
class Waiting(StageEvent):
    """Another run is at it; its artifact is waited for, and the work taken over should that run die."""

    holder: str
    """Run, host and process, for people."""


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """The run was told to stop; stages that keep checkpoints write one first."""

    ids: tuple[str, ...]
    seconds: float
    """How long they have."""


@dataclass(frozen=True, kw_only=True)
class Submitted(StageEvent):
    """Handed to Ray; starts as soon as a worker is up."""

    attempt: int
    log: Path


@dataclass(frozen=True, kw_only=True)
class Started(StageEvent):
    """A worker has begun with it."""

    attempt: int
    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Progressed(StageEvent):
    """It is further than before."""

    done: float
    total: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Warned(StageEvent):
    """A person should see this."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Finished(StageEvent):
    """Its artifact is in the store."""

    seconds: float
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class Failed(StageEvent):
    """An attempt failed."""

    failure: Failure
    retrying: bool
    """Whether another attempt follows."""


@dataclass(frozen=True, kw_only=True)
class Blocked(StageEvent):
    """It will not run, because a stage above it failed."""

    by: str
    """Id of the stage that failed."""


Event = RayStarting | Waiting | Stopping | Submitted | Started | Progressed | Warned | Finished | Failed | Blocked
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
