"""How a stage tells what it is doing, without knowing who listens."""

from typing import Protocol


class Progress(Protocol):
    """What the runner hands to a stage. All calls are cheap; a stage may call them as often as it likes."""

    def update(self, done: float, total: float, what: str = "") -> None:
        """``done`` of ``total`` units of ``what`` (for example ``"steps"``) are finished."""

    def log(self, message: str) -> None:
        """One line for the stage's log."""

    def warn(self, message: str) -> None:
        """One line that the person should see: in the log, on the terminal and in the manifest."""


class Silent:
    """A progress that nobody listens to."""

    def update(self, done: float, total: float, what: str = "") -> None:
        """Ignore it."""

    def log(self, message: str) -> None:
        """Ignore it."""

    def warn(self, message: str) -> None:
        """Ignore it."""
