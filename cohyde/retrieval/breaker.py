"""A circuit breaker: what has failed several times in a row is left alone for a while, and nobody waits for it."""

import threading
import time
from collections.abc import Callable


class Breaker:
    """Counts failures in a row, and says whether it is worth a try (Nygard, *Release It!*, ch. 5).

    After ``failures`` of them nothing is tried for ``pause_seconds``; then one try is let through at a time, a pause
    apart, until one succeeds.
    """

    def __init__(self, *, failures: int, pause_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._pause = pause_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._next_try = 0.0
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether it is being left alone."""
        return self._in_a_row >= self._limit

    @property
    def reason(self) -> str:
        """Why the last try failed."""
        return self._reason

    def allows(self) -> bool:
        """Whether to try now. Whoever is told yes while it is open is the one that tries."""
        with self._lock:
            if not self.is_open:
                return True
            if self._clock() < self._next_try:
                return False
            self._next_try = self._clock() + self._pause
            return True

    def succeeded(self) -> None:
        """It works: count from nought."""
        with self._lock:
            self._in_a_row, self._reason = 0, ""

    def failed(self, reason: str) -> None:
        """It did not work."""
        with self._lock:
            self._in_a_row += 1
            self._reason = reason
            if self._in_a_row == self._limit:
                self._next_try = self._clock() + self._pause
