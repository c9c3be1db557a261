"""What runs in the worker process: one attempt at one stage, from its inputs' paths to its artifact."""

import ctypes
import gc
import importlib
import importlib.util
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from cohyde.config import TrackingConfig, plain
from cohyde.dag.attempts import Attempt, Failure, Owner, attempt_at, end_left_processes
from cohyde.dag.bucket import AwayError
from cohyde.dag.leases import BEAT_SECONDS, Lease, LeaseLostError, take
from cohyde.dag.manifest import Manifest, library_versions
from cohyde.dag.plan import Node
from cohyde.dag.processes import Process
from cohyde.dag.remote import open_store
from cohyde.dag.spec import Metrics, StageFunction, StageSpec
from cohyde.dag.store import Store
from cohyde.errors import DivergedError, Interrupted, UserError
from cohyde.executor import HERE, Executor
from cohyde.filesystem import as_user_error
from cohyde.trackers import Origin, Tracking

PROGRESS_SECONDS = 0.5
UNTRACKED = TrackingConfig()
KEPT_WARNINGS = 100
KEPT_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that travels to a worker: what to do and where things are, never data."""

    spec: StageSpec
    node: Node
    identity: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, str]]
    """Name of the input → stage id and fingerprint."""
    store: str
    """Its location: a path or a URL."""
    attempt: str
    """The attempt's folder, where all see it."""
    run: str
    git: str | None
    over: int = 0
    """The number of the lease that was found free."""
    checkpoint_seconds: float = 300.0
    tracking: TrackingConfig = UNTRACKED
    workers: int = 1
    """Processes that there is room for: this one, and helpers beside it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What comes back: metrics, a failure, or neither where another run was faster or the stage was told to stop."""

    seconds: float = 0.0
    metrics: Metrics | None = None
    failure: Failure | None = None
    stopped: bool = False
    """It was told to stop, and has written a checkpoint."""


def execute(task: Task) -> Outcome:
    """Try the stage once. What goes wrong in it comes back as a failure, and is recorded in the attempt's folder."""
    store = open_store(task.store)
    attempt = attempt_of(task, store)
    lease = take(store.lease(task.node.id, task.node.fingerprint), task.over, task.run, task.attempt)
    if lease is None:
        attempt.end()
        return Outcome()
    attempt.start(Owner.this_process(task.run, machine_id()))
    keeps = store.checkpoints(task.node.id, task.node.fingerprint)
    every = max(PROGRESS_SECONDS, store.poll_seconds)
    reporter = Reporter(attempt, lease, keeps, task.checkpoint_seconds, every)
    origin = Origin(run=task.run, stage=task.node.id, artifact=task.node.name, store=store.root)
    reporter.tracking = Tracking(task.tracking, origin, reporter.warn)
    if task.workers > 1:
        from cohyde.dag.pool import Pool  # which knows this module

        reporter.executor = Pool(task, attempt, reporter)
    with captured(attempt.log), reporter, told_to_stop(reporter):
        try:
            return _attempt(task, store, attempt, reporter, lease)
        except (Interrupted, LeaseLostError) as stop:
            reporter.log(str(stop))
            attempt.end()
            return Outcome(stopped=True)
        except (Exception, SystemExit) as error:
            failure = _failure(task, attempt, error)
            attempt.end(failure)
            return Outcome(failure=failure)
        except BaseException:  # cancelled: over, but no failure
            attempt.end()
            raise
        finally:
            reporter.tracking.close(done=False)
            lease.release()
            give_back_memory()


def attempt_of(task: Task, store: Store) -> Attempt:
    """The attempt that the task is."""
    return attempt_at(store, task.node.name, int(task.attempt.rpartition("-")[2]))


def _attempt(task: Task, store: Store, attempt: Attempt, reporter: "Reporter", lease: Lease) -> Outcome:
    spec, node = task.spec, task.node
    if store.exists(node.id, node.fingerprint):  # another run was faster
        attempt.end()
        return _outcome(store.manifest(node.id, node.fingerprint, task.run))
    start, started = time.monotonic(), _now()
    inputs = {name: store.usable(id_, fingerprint, task.run) for name, (id_, fingerprint) in task.inputs.items()}
    ended, left = end_left_processes(store, node.name, attempt.number)
    if ended:
        reporter.log(f"an earlier attempt had left {ended} processes running: they are ended")
    for pid in left:
        reporter.warn(f"process {pid} of an earlier attempt cannot be ended")
    if spec.resources.gpus > 0:
        check_gpu(spec.id)
    function = load_entry(spec)
    limit_threads(spec.resources.cpus)
    scratch = store.scratch(node.id, node.fingerprint)
    try:
        metrics = checked_metrics(spec.id, function(inputs, spec.config, scratch, reporter), reporter)
        if reporter.tracking is not None:
            reporter.tracking.close(done=True)  # before its warnings are written down
        manifest = Manifest(
            id=node.id,
            fingerprint=node.fingerprint,
            kind=spec.kind,
            identity=task.identity,
            inputs={name: {"id": id_, "fingerprint": print_} for name, (id_, print_) in task.inputs.items()},
            config=plain(spec.config),
            metrics=metrics,
            warnings=tuple(reporter.warnings),
            run=task.run,
            attempt=attempt.number,
            host=os.uname().nodename,
            started=started,
            ended=_now(),
            seconds=round(time.monotonic() - start, 3),
            versions=library_versions(),
            git=task.git,
        )
        kept = store.commit(scratch, manifest, lease.check)
    except DivergedError as error:
        raise DivergedError(f"{error}\n  what it had written: {_keep(scratch, attempt)}") from error
    finally:
        store.drop(scratch)
    attempt.end()
    return _outcome(kept)


def _keep(scratch: Path, attempt: Attempt) -> Path:
    """Move what an attempt has written out of reach of the tidying, beside its log; one rename on one file system."""
    kept = attempt.folder / "left"
    os.replace(scratch, kept)
    return kept


def _outcome(manifest: Manifest) -> Outcome:
    return Outcome(seconds=manifest.seconds, metrics=dict(manifest.metrics))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _failure(task: Task, attempt: Attempt, error: BaseException) -> Failure:
    known = error if isinstance(error, UserError) else as_user_error(error, Path(task.store))
    lines = "".join(traceback.format_exception(type(error), error, _stage_frames(error))).rstrip().splitlines()
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)
    return Failure(
        id=task.node.id,
        name=task.node.name,
        attempt=attempt.number,
        error=known.message if known else "".join(traceback.format_exception_only(error)).strip(),
        remedy=known.remedy if known else "",
        final=isinstance(error, DivergedError) or (known is not None and not isinstance(error, AwayError)),
        traceback=tuple(lines[-KEPT_LINES:]),
        log=attempt.shown_log,
    )


def _stage_frames(error: BaseException) -> TracebackType | None:
    """The traceback from where the stage begins; all of it where the error is our own."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames or error.__traceback__


# ------------------------------------------------------------------------------------------ before the stage runs


def give_back_memory() -> None:
    """Hand freed memory back to the system: a warm worker may wait long, and glibc keeps it for a next time."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def machine_id() -> str:
    """Ray's name for this machine; none outside of Ray."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray and ray.is_initialized() else ""


def load_entry(spec: StageSpec) -> StageFunction:
    """Import a stage's function.

    Raises:
        UserError: the module has no such function.
    """
    module, _, name = spec.entry.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise UserError(f"stage {spec.id}: entry {spec.entry!r}: module {module} has no function {name!r}")
    return cast(StageFunction, function)


def check_gpu(stage_id: str) -> None:
    """A stage that was promised a GPU and sees none must not run for days on the CPU.

    Raises:
        UserError: none is visible, or torch cannot use it.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    remedy = "`cohyde doctor` shows what torch and Ray see; to run without a GPU set the stage's resources to gpus=0"
    if visible is not None and visible.strip() in ("", "-1"):
        raise UserError(f"stage {stage_id} was promised a GPU, but CUDA_VISIBLE_DEVICES is {visible!r}", remedy)
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"stage {stage_id} was promised a GPU, but torch {torch.__version__} sees none "
            f"(CUDA_VISIBLE_DEVICES is {visible!r})",
            remedy,
        )


def limit_threads(cpus: float) -> None:
    """Use as many threads as CPUs were reserved. What is imported later reads OMP_NUM_THREADS, set by the runner."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads(cpus))


def threads(cpus: float) -> int:
    """Threads for a number of CPUs that may be a fraction."""
    return max(1, int(cpus))


def checked_metrics(stage_id: str, metrics: Any, reporter: "Reporter") -> Metrics:
    """Metrics as JSON can hold them: numpy scalars become Python's, and what is not finite None, with a warning.

    Raises:
        TypeError: something else than a dict of numbers, texts and None.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"stage {stage_id} has to return a dict of metrics, got {type(metrics).__name__}")
    kept: Metrics = {}
    for name, value in metrics.items():
        item = value.item() if hasattr(value, "item") else value
        if not (item is None or isinstance(item, (bool, int, float, str))):
            raise TypeError(f"stage {stage_id}: metric {name!r} has to be a number, a text or None, got {item!r}")
        if isinstance(item, float) and not math.isfinite(item):
            reporter.warn(f"metric {name} is {item}")
            item = None
        kept[str(name)] = item
    return kept


# ---------------------------------------------------------------------------------------------- log and progress


@contextmanager
def captured(log: Path) -> Iterator[None]:
    """Send all output to the log, at the level of file descriptors: child processes and C libraries are caught too.

    The objects ``sys.stdout`` and ``sys.stderr`` stay the same: in a warm worker, log handlers of libraries that
    were made during one stage are used by the next.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    saved = {number: os.dup(number) for number in (1, 2)}
    root, level = logging.getLogger(), logging.getLogger().level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    try:
        _flush_streams()
        for number in saved:
            os.dup2(descriptor, number)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        logging.captureWarnings(True)
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(level)
        _flush_streams()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(descriptor)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


@contextmanager
def told_to_stop(reporter: "Reporter") -> Iterator[None]:
    """SIGTERM, as a cluster's scheduler sends it to every process, asks the stage to write a checkpoint and stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: reporter.ask_to_stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Reporter:
    """The stage's :class:`~cohyde.progress.Progress`, and the attempt's sign of life.

    ``update`` only remembers; a thread writes now and then, so that a stage may call it at every step. The
    same thread gives the lease's heartbeat, and sees when the stage shall stop.
    """

    def __init__(
        self,
        attempt: Attempt,
        lease: Lease,
        checkpoints: Path,
        checkpoint_seconds: float,
        every: float = PROGRESS_SECONDS,
    ) -> None:
        """For one attempt, which says how far it is every so many seconds."""
        self.warnings: list[str] = []
        self.checkpoints, self.checkpoint_seconds = checkpoints, checkpoint_seconds
        self.executor: Executor = HERE
        self.tracking: Tracking | None = None
        self._attempt, self._lease, self._every = attempt, lease, every
        self._stop = self._heeds = False
        self._state: tuple[float, float, str] | None = None
        self._first = self._since = self._seen = 0.0
        self._written: object = None
        self._processes: list[Process] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="cohyde-progress", daemon=True)

    def __enter__(self) -> "Reporter":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def update(self, done: float, total: float, what: str = "") -> None:
        """``done`` of ``total`` units are finished. The rate is counted anew where something else is counted."""
        self._seen = time.monotonic()
        if self._state is None or self._state[1:] != (total, what) or done < self._state[0]:
            self._first, self._since = done, self._seen
        self._state = (done, total, what)

    def track(self, row: Mapping[str, float]) -> None:
        """What was measured at a step, for a tracker."""
        if self.tracking is not None:
            self.tracking.track(row)

    def log(self, message: str) -> None:
        """One line for the log. A full disk is found out by what matters, not by this."""
        with suppress(OSError):
            print(f"{datetime.now():%H:%M:%S} {message}", flush=True)

    def warn(self, message: str) -> None:
        """One line for the log, the terminal and the manifest."""
        self.log(f"warning: {message}")
        if len(self.warnings) < KEPT_WARNINGS:
            self.warnings.append(message)

    @property
    def stopping(self) -> bool:
        """Whether the stage shall write a checkpoint and stop. That it looks is noted: it is worth waiting for."""
        if not self._heeds:
            self._heeds = True
            self._attempt.heeds()
        return self._stop

    def ask_to_stop(self) -> None:
        """From a signal, from the driver, or because the lease is lost."""
        self._stop = True

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(self._every):
            self._write()
            self._processes = self._attempt.note_processes(self._processes)
            self._stop = self._stop or self._attempt.is_asked_to_stop()
            if time.monotonic() - last >= BEAT_SECONDS:
                self._attempt.beat()
                self._stop = self._stop or not self._lease.beat()
                last = time.monotonic()

    def _write(self) -> None:
        current = (self._state, len(self.warnings))
        if current == self._written or current == (None, 0):
            return
        done, total, what = self._state or (0.0, 0.0, "")
        # numpy and torch scalars are numbers to a stage, not to JSON
        numbers = {"done": float(done), "total": float(total), "first": float(self._first)}
        numbers["seconds"] = round(self._seen - self._since, 3)
        self._attempt.write_progress({**numbers, "what": what, "warnings": list(self.warnings)})
        self._written = current
