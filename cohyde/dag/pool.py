"""A stage's own process and helpers beside it, on any machines of the cluster, that do its shards between them.

The stage works itself, so it never waits for helpers that find no room, and two stages with helpers cannot block each
other. Each helper is placed for itself, without a placement group, which would wait until all have room at once.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cohyde.dag.attempts import Attempt
from cohyde.dag.environment import ray_options
from cohyde.dag.remote import open_store
from cohyde.dag.worker import PROGRESS_SECONDS, Reporter, Task, attempt_of, captured, check_gpu, limit_threads
from cohyde.errors import Interrupted
from cohyde.executor import HERE, Do, Executor, Item, Keep, Row, Work
from cohyde.progress import Progress

POLL_SECONDS = 0.25
CLOSE_SECONDS = 5.0
"""What helpers have to free what they hold before they are killed."""


class Pool:
    """The executor of a stage for which there is room for more than one worker."""

    def __init__(self, task: Task, attempt: Attempt, reporter: Reporter) -> None:
        """Nothing is started before there is work."""
        self._task, self._attempt, self._reporter = task, attempt, reporter

    def run(
        self,
        work: Work[Item],
        parts: Mapping[int, Sequence[Item]],
        keep: Keep,
        progress_of: Callable[[int], Progress],
    ) -> None:
        """See :meth:`cohyde.executor.Executor.run`.

        A helper that dies is not replaced; the part that it was at is done by the others, and at last by this process.

        Raises:
            Interrupted: the stage was asked to stop; what helpers were at is given up.
        """
        count = min(self._task.workers, len(parts)) - 1
        if count < 1:
            HERE.run(work, parts, keep, progress_of)
            return
        board = _Board(parts)
        helpers = _Helpers(self._task, self._attempt, self._reporter, board, work, parts, keep)
        with helpers.called(count), work.open() as do:
            while (number := board.wait_for_part(lambda: self._reporter.stopping)) is not None:
                keep(number, do(parts[number], progress_of(number)))
                board.done(number)


class _Board:
    """Which parts wait and which are under way: for the stage's thread, and the one that speaks with the helpers."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._waiting = deque(sorted(numbers))
        self._under_way: set[int] = set()
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def take(self) -> int | None:
        """The next part that waits; None where none does, or the work has failed."""
        with self._changed:
            if not self._waiting or self._error:
                return None
            number = self._waiting.popleft()
            self._under_way.add(number)
            return number

    def wait_for_part(self, stopping: Callable[[], bool]) -> int | None:
        """The next part, once there is one: what others are at may come back. None when all are done.

        Raises:
            Interrupted: ``stopping`` says so while others work.
            Exception: what :meth:`fail` was told.
        """
        while True:
            if (number := self.take()) is not None:
                return number
            with self._changed:
                if self._error is not None:
                    raise self._error
                if not self._waiting and not self._under_way:
                    return None
                if stopping():
                    raise Interrupted(f"asked to stop while others were at {len(self._under_way)} shards")
                self._changed.wait(POLL_SECONDS)

    def done(self, number: int) -> None:
        """A part is kept."""
        with self._changed:
            self._under_way.discard(number)
            self._changed.notify_all()

    def give_back(self, number: int) -> None:
        """Whoever was at a part is dead; it is the next to be done."""
        with self._changed:
            self._under_way.discard(number)
            self._waiting.appendleft(number)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The work has come to an end; the first error counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


# ------------------------------------------------------------------------------------------ in the stage's process


@dataclass(kw_only=True)
class _Helper:
    """What the stage knows of one helper."""

    number: int
    actor: Any
    process: str = ""
    """Host and process; empty until it runs."""
    part: int | None = None
    """What it is at."""

    def __str__(self) -> str:
        return f"worker {self.number}" + (f" ({self.process})" if self.process else "")


class _Helpers:
    """All helpers of one stage, and a thread of their own that hands them parts and keeps what they give back."""

    def __init__(
        self,
        task: Task,
        attempt: Attempt,
        reporter: Reporter,
        board: _Board,
        work: Work[Any],
        parts: Mapping[int, Sequence[Any]],
        keep: Keep,
    ) -> None:
        import ray

        self._ray: Any = ray
        self._task, self._attempt, self._reporter = task, attempt, reporter
        self._board, self._work, self._parts, self._keep = board, work, parts, keep
        self._all: list[_Helper] = []
        self._idle: list[_Helper] = []
        self._calls: dict[Any, tuple[_Helper, Callable[[_Helper, Any], None]]] = {}
        """What helpers were asked, and what is done with the answer."""
        self._over = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._tend, name="cohyde-helpers", daemon=True)

    def called(self, count: int) -> "_Helpers":
        """Ask Ray for so many; each begins when there is room for it.

        The task owns them: where its process dies, Ray ends them. What they return is a shard's texts (TRAPS 6).
        """
        # Never detached, never begun again behind our back (TRAPS 2, 7).
        remote = self._ray.remote(max_restarts=0, max_task_retries=0, **ray_options(self._task.spec))(Helper)
        for number in range(2, count + 2):
            helper = _Helper(number=number, actor=remote.remote(self._task, number))
            self._all.append(helper)
            self._calls[helper.actor.hello.remote()] = (helper, self._began)
        self._reporter.log(f"asked for {count} more workers")
        return self

    def __enter__(self) -> "_Helpers":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._failed = kind is not None
        self._over.set()
        self._thread.join()

    def _tend(self) -> None:
        try:
            while not self._over.is_set() and (self._calls or self._idle):
                self._hand_out()
                self._listen()
        except BaseException as error:
            self._board.fail(error)
        finally:
            self._end()

    def _hand_out(self) -> None:
        while self._idle and not self._reporter.stopping and (number := self._board.take()) is not None:
            helper = self._idle.pop(0)
            helper.part = number
            self._calls[helper.actor.do.remote(self._parts[number])] = (helper, self._did)

    def _listen(self) -> None:
        if not self._calls:
            self._over.wait(POLL_SECONDS)
            return
        answered, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=POLL_SECONDS)
        for call in answered:
            helper, then = self._calls.pop(call)
            try:
                answer = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                self._went_wrong(helper, error.cause)
            except self._ray.exceptions.RayError as error:
                self._died(helper, error)
            else:
                then(helper, answer)

    def _began(self, helper: _Helper, process: str) -> None:
        helper.process = process
        self._reporter.log(f"{helper} begins; its log is {self._attempt.log_of(helper.number).name} beside this one")
        self._calls[helper.actor.open.remote(self._work)] = (helper, lambda helper, answer: self._idle.append(helper))

    def _did(self, helper: _Helper, answer: tuple[Sequence[Row], Sequence[str]]) -> None:
        number, helper.part = helper.part, None
        assert number is not None
        rows, warnings = answer
        for message in warnings:
            self._reporter.warn(message)
        self._keep(number, rows)
        self._board.done(number)
        self._idle.append(helper)

    def _went_wrong(self, helper: _Helper, error: BaseException) -> None:
        """It lives, and has raised: in the work on a part, which is the work's end, or when it got ready."""
        if helper.part is None:
            self._reporter.warn(f"{helper} is left out, it did not get ready: {error}")
        elif isinstance(error, Interrupted):  # its machine is being shut down
            self._give_back(helper)
        else:
            self._reporter.log(f"{helper} at shard {helper.part}: {type(error).__name__}")
            raise error

    def _died(self, helper: _Helper, error: BaseException) -> None:
        if not self._reporter.stopping:
            self._reporter.log(str(error))
            self._reporter.warn(f"{helper} died ({type(error).__name__}); the others do what it was at")
        self._give_back(helper)
        helper.process = ""

    def _give_back(self, helper: _Helper) -> None:
        if helper.part is not None:
            self._board.give_back(helper.part)
            helper.part = None

    def _end(self) -> None:
        """Let helpers free what they hold, then end them; also those that never began. Ray may be gone already."""
        if self._failed:
            self._attempt.ask_to_stop()  # helpers look there, on whatever machine
        with suppress(Exception):
            closing = [helper.actor.close.remote() for helper in self._all if helper.process]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for helper in self._all:
            with suppress(Exception):
                self._ray.kill(helper.actor)


# ---------------------------------------------------------------------------------------------- in its own process


class Helper:
    """An actor: does shards of the work of one attempt at a stage. All that it prints goes to a log of its own."""

    def __init__(self, task: Task, number: int) -> None:
        """Of the attempt that ``task`` is, the worker of this number."""
        self._task, self._store = task, open_store(task.store)
        attempt = attempt_of(task, self._store)
        self._progress = _Listening(attempt, max(PROGRESS_SECONDS, self._store.poll_seconds))
        self._held = ExitStack()
        self._held.enter_context(captured(attempt.log_of(number)))
        self._do: Do[Any] | None = None

    def hello(self) -> str:
        """That it runs, and where."""
        return f"{socket.gethostname()}, process {os.getpid()}"

    def open(self, work: Work[Any]) -> None:
        """Load what the work needs; its inputs are fetched where this machine has them not yet."""
        spec = self._task.spec
        for id_, fingerprint in self._task.inputs.values():
            self._store.usable(id_, fingerprint, self._task.run)
        if spec.resources.gpus > 0:
            check_gpu(spec.id)
        limit_threads(spec.resources.cpus)
        self._do = self._held.enter_context(work.open())

    def do(self, part: Sequence[Any]) -> tuple[Sequence[Row], Sequence[str]]:
        """A part's rows, and the warnings that there were."""
        assert self._do is not None
        rows = self._do(part, self._progress)
        return list(rows), self._progress.take_warnings()

    def close(self) -> None:
        """Free what it holds."""
        self._held.close()


class _Listening:
    """The progress of a helper's work: sees that the stage stops by the mark that the attempt's folder has then."""

    checkpoints: Path | None = None
    checkpoint_seconds: float = 0.0
    executor: Executor = HERE

    def __init__(self, attempt: Attempt, every: float) -> None:
        self._attempt, self._every = attempt, every
        self._looked, self._stop = 0.0, False
        self._warnings: list[str] = []

    @property
    def stopping(self) -> bool:
        if not self._stop and time.monotonic() - self._looked >= self._every:
            self._looked = time.monotonic()
            self._stop = self._attempt.is_asked_to_stop()
        return self._stop

    def update(self, done: float, total: float, what: str = "") -> None:
        """Only whole shards are counted."""

    def track(self, row: Mapping[str, float]) -> None:
        """Shards train nothing."""

    def log(self, message: str) -> None:
        with suppress(OSError):
            print(message, flush=True)

    def warn(self, message: str) -> None:
        self.log(f"warning: {message}")
        self._warnings.append(message)

    def take_warnings(self) -> list[str]:
        """Those that were not taken yet."""
        taken, self._warnings = self._warnings, []
        return taken
