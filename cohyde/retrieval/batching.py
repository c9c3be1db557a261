"""Work that is cheaper together: what several threads ask for at the same time is done in one call."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Done = TypeVar("Done")


class Batcher(Generic[Asked, Done]):
    """A queue before a function that takes many items at once.

    While a batch is in work, what comes in waits, and is the next batch: so batches grow with the load, and a lone item
    waits for nobody but for the window.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Asked]], Sequence[Done]],
        *,
        most: int,
        window: float = 0.0,
        threads: int = 1,
        name: str = "batcher",
    ) -> None:
        """Start the threads.

        Args:
            work: from items to results in the same order. What it raises, all items of the batch get.
            most: items a batch at most.
            window: seconds that the first item of a batch waits for others.
            threads: batches in work at once.
            name: of the threads.
        """
        self._work = work
        self._most = most
        self._window = window
        self._waiting: deque[tuple[float, Asked, Future[Done]]] = deque()
        self._arrival = threading.Condition()
        self._closed = False
        self.sizes: dict[int, int] = {}
        """How many batches of each size were done so far."""
        # Daemons: a call that hangs, such as one to a server that does, keeps no process from ending.
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, item: Asked) -> "Future[Done]":
        """Put an item into the queue.

        Raises:
            RuntimeError: it is closed.
        """
        future: Future[Done] = Future()
        with self._arrival:
            if self._closed:
                raise RuntimeError("closed: nothing is taken any more")
            self._waiting.append((time.monotonic(), item, future))
            self._arrival.notify()
        return future

    def submit_all(self, items: Sequence[Asked]) -> "list[Future[Done]]":
        """Put several items into the queue, side by side."""
        with self._arrival:
            return [self.submit(item) for item in items]

    def close(self, timeout: float | None = None) -> None:
        """Take nothing any more, finish what waits, and wait so many seconds at most for that."""
        with self._arrival:
            self._closed = True
            self._arrival.notify_all()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while batch := self._next():
            running = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
            if not running:
                continue
            try:
                results = self._work([item for item, _ in running])
                pairs = list(zip(running, results, strict=True))
            except Exception as error:
                for _, future in running:
                    future.set_exception(error)
            else:
                for (_, future), result in pairs:
                    future.set_result(result)
            # Nothing of a batch is held while the next is waited for.
            del batch, running

    def _next(self) -> "list[tuple[Asked, Future[Done]]]":
        """The next batch; empty when it is closed and nothing waits."""
        with self._arrival:
            while not self._waiting and not self._closed:
                self._arrival.wait()
            self._gather()
            batch = [self._waiting.popleft()[1:] for _ in range(min(self._most, len(self._waiting)))]
            if batch:
                self.sizes[len(batch)] = self.sizes.get(len(batch), 0) + 1
            if self._waiting:
                self._arrival.notify()
            return batch

    def _gather(self) -> None:
        """Wait for others to join the first, as long as the window says."""
        while self._waiting and len(self._waiting) < self._most and not self._closed:
            left = self._waiting[0][0] + self._window - time.monotonic()
            if left <= 0:
                return
            self._arrival.wait(left)
