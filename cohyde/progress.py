"""How a stage tells what it is doing, without knowing who listens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cohyde.executor import HERE, Executor

TIMED_METRICS = frozenset({"tokens_per_second", "dev_time_share"})
"""Metrics of stages that say how fast the machine was; in all others equal stages are equal."""


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """What of a stage's metrics is the same whenever and wherever it runs."""
    return {name: value for name, value in metrics.items() if name not in TIMED_METRICS}


class Progress(Protocol):
    """What the runner hands to a stage. All calls are cheap; a stage may call them as often as it likes."""

    @property
    def checkpoints(self) -> Path | None:
        """A folder that outlives attempts of this very stage, for what a later attempt goes on from. None: nowhere."""

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds between checkpoints; 0 is after every step. The moment must not change the result."""

    @property
    def stopping(self) -> bool:
        """Whether somebody wants the stage to stop: write a checkpoint, raise :class:`~cohyde.errors.Interrupted`.

        A stage that keeps checkpoints looks at it after every step; one that never looks is not waited for.
        """

    @property
    def executor(self) -> Executor:
        """Who does work in shards that can be done by several processes side by side."""

    def update(self, done: float, total: float, what: str = "") -> None:
        """``done`` of ``total`` units of ``what`` (for example ``"steps"``) are finished."""

    def track(self, row: Mapping[str, float]) -> None:
        """What was measured at a step, as a row of ``steps.jsonl``, for whoever watches (:mod:`cohyde.trackers`)."""

    def log(self, message: str) -> None:
        """One line for the stage's log."""

    def warn(self, message: str) -> None:
        """One line that the person should see: in the log, on the terminal and in the manifest."""


class Silent:
    """A progress that nobody listens to, of work that begins anew when it is killed."""

    checkpoints: Path | None = None
    checkpoint_seconds: float = 300.0
    stopping: bool = False
    executor: Executor = HERE

    def update(self, done: float, total: float, what: str = "") -> None:
        """Ignore it."""

    def track(self, row: Mapping[str, float]) -> None:
        """Ignore it."""

    def log(self, message: str) -> None:
        """Ignore it."""

    def warn(self, message: str) -> None:
        """Ignore it."""
