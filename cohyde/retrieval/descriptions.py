"""Descriptions for requests, from a cache or from the rewriter, in time or not at all."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from cohyde.errors import UserError
from cohyde.retrieval.batching import Batcher
from cohyde.retrieval.breaker import Breaker

log = logging.getLogger(__name__)


class Rewriter(Protocol):
    """What describes requests: a model in this process, an engine, a server."""

    @property
    def batches_at_once(self) -> int:
        """Calls of :meth:`describe` that may be under way at the same time."""

    def describe(self, texts: Sequence[str]) -> list[str]:
        """A cleaned description of each request, in order; empty where nothing was left after cleaning.

        Raises:
            UserError: no description could be had, and why.
        """

    def close(self) -> None:
        """Free what it holds."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """One request's description, or why there is none."""

    text: str = ""
    reason: str | None = None
    cached: bool = False
    """Whether it was known already."""


@dataclass
class _Wanted:
    """A request on its way to the rewriter, and until when (monotonic seconds) anybody waits for it."""

    text: str
    until: float


Outcome = str | Exception | None
"""What became of one request: its description, what went wrong, or None where nobody waited for it any more."""
NOTHING_LEFT = "nothing was left of what the rewriter wrote"


class Cache:
    """The descriptions of the requests that were asked last; safe for threads."""

    def __init__(self, most: int) -> None:
        """Keep so many; 0 keeps none."""
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[str, str] = OrderedDict()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        """Descriptions held."""
        return len(self._held)

    def get(self, key: str) -> str | None:
        """The description, which is then the one used last."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                self.misses += 1
                return None
            self._held.move_to_end(key)
            self.hits += 1
            return found

    def put(self, key: str, text: str) -> None:
        """Hold a description; the one that was not used for longest gives way."""
        with self._lock:
            self._held[key] = text
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)


class Descriptions:
    """The rewriter behind a cache, a queue, a deadline and a circuit breaker.

    Requests that wait at the same time are described in one call, and the same request only once. A description that
    comes too late for who asked is still cached.
    """

    def __init__(
        self, rewriter: Rewriter, *, cache: Cache, breaker: Breaker, most: int, window: float, deadline: float | None
    ) -> None:
        """Start to take requests.

        Args:
            rewriter: closed with this.
            cache: of descriptions by normalised request.
            breaker: what the rewriter's failures are counted with.
            most: requests in one call of the rewriter.
            window: seconds that a request waits for others.
            deadline: seconds that whoever asks waits for a description; None: as long as it takes.
        """
        self.cache = cache
        self.breaker = breaker
        self._rewriter = rewriter
        self._deadline = deadline
        self._under_way: dict[str, tuple[_Wanted, Future[Outcome]]] = {}
        self._lock = threading.Lock()
        self.batcher: Batcher[_Wanted, Outcome] = Batcher(
            self._work, most=most, window=window, threads=rewriter.batches_at_once, name="rewriter"
        )

    def describe(self, texts: Sequence[str]) -> list[Described]:
        """A description of each request, as :func:`cohyde.retrieval.requests.check_query` gives it, in order."""
        end = float("inf") if self._deadline is None else time.monotonic() + self._deadline
        known = [self.cache.get(text) for text in texts]
        if None in known and not self.breaker.allows():
            why = f"the rewriter is left alone for a while: {self.breaker.reason}"
            return [Described(reason=why) if found is None else Described(text=found, cached=True) for found in known]
        asked = [self._asked(text, end) if found is None else None for text, found in zip(texts, known, strict=True)]
        return [
            Described(text=found or "", cached=True) if future is None else self._awaited(future, end)
            for found, future in zip(known, asked, strict=True)
        ]

    def close(self, timeout: float | None = None) -> None:
        """Finish what is in work, in so many seconds, and free the rewriter."""
        self.batcher.close(timeout)
        self._rewriter.close()

    def _asked(self, text: str, until: float) -> "Future[Outcome]":
        """The future of a description that is under way, or is from now on."""
        with self._lock:
            if text in self._under_way:
                wanted, future = self._under_way[text]
                wanted.until = max(wanted.until, until)
                return future
            wanted = _Wanted(text, until)
            future = self.batcher.submit(wanted)
            self._under_way[text] = (wanted, future)
        future.add_done_callback(lambda done: self._finished(text, done))
        return future

    def _finished(self, text: str, done: "Future[Outcome]") -> None:
        outcome = None if done.exception() else done.result()
        if isinstance(outcome, str) and outcome:
            self.cache.put(text, outcome)
        with self._lock:
            self._under_way.pop(text, None)

    def _awaited(self, future: "Future[Outcome]", end: float) -> Described:
        try:
            outcome = future.result(None if end == float("inf") else max(0.0, end - time.monotonic()))
        except TimeoutError:
            outcome = TimeoutError()
        if isinstance(outcome, str):
            self.breaker.succeeded()
            return Described(text=outcome, reason=None if outcome else NOTHING_LEFT)
        reason = self._reason(outcome)
        self.breaker.failed(reason)
        return Described(reason=reason)

    def _reason(self, failure: Exception | None) -> str:
        """What whoever asked may know: nothing of what is inside but for errors that were written to be read."""
        if failure is None or isinstance(failure, TimeoutError):
            return f"the rewriter did not answer in {self._deadline or 0:g} s"
        if isinstance(failure, UserError):
            return f"the rewriter failed: {failure.message}"
        return f"the rewriter failed ({type(failure).__name__})"

    # ------------------------------------------------------------------------------------- in the batcher's threads

    def _work(self, batch: Sequence[_Wanted]) -> list[Outcome]:
        """Describe what is still wanted. Where a call fails, each request is tried alone: one may be at fault."""
        wanted = [item for item in batch if item.until > time.monotonic()]
        outcomes = self._described(wanted)
        if len(wanted) > 1 and any(isinstance(outcome, UserError) for outcome in outcomes):
            outcomes = [outcome for item in wanted for outcome in self._work([item])]
        by_text = {item.text: outcome for item, outcome in zip(wanted, outcomes, strict=True)}
        return [by_text.get(item.text) for item in batch]

    def _described(self, wanted: Sequence[_Wanted]) -> list[Outcome]:
        if not wanted:
            return []
        try:
            return list(self._rewriter.describe([item.text for item in wanted]))
        except UserError as error:
            return [error] * len(wanted)
        except Exception as error:
            log.warning("the rewriter failed", exc_info=error)
            return [error] * len(wanted)
