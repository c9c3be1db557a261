"""Where step metrics go beside the store, while a stage trains: TensorBoard or MLflow, through their own libraries.

It never matters to a result. Rows are handed over to a thread; whatever goes wrong there, a server that is down or a
disk that is full, ends the tracking with one warning, and the stage goes on.
"""

import fcntl
import importlib.util
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cohyde.config import TrackingConfig
from cohyde.errors import UserError

Row = Mapping[str, float]
"""As in ``steps.jsonl``."""
GRACE_SECONDS = 60.0
"""How long the end of a stage waits for rows that are still on their way: a dead server is found out before that."""
STOP_SECONDS = 5.0
"""The same for a stage that was stopped or has failed: somebody waits for it to go."""
MOST_ROWS = 100
"""Rows handed over at once at most: MLflow takes 1,000 numbers a request."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Whose steps they are."""

    run: str
    stage: str
    artifact: str
    """Stage id and fingerprint: another attempt at the same artifact goes on where the last one ended."""
    store: Path
    """The store's folder on this machine."""


class Tracker(Protocol):
    """One place that takes rows. It may raise whatever it likes."""

    def write(self, rows: Sequence[Row]) -> None:
        """Take the next rows, in the order of their steps."""

    def close(self, done: bool) -> None:
        """No more will come; ``done`` says whether the stage came to its end."""


class TensorBoard:
    """Event files in a folder for each artifact, below the run's folder unless another is set."""

    def __init__(self, config: TrackingConfig, origin: Origin) -> None:
        parent = Path(config.folder).expanduser() if config.folder else origin.store / "runs" / origin.run
        self.folder = parent / "tensorboard" / origin.artifact
        self.writer: Any = None

    def write(self, rows: Sequence[Row]) -> None:
        """Add scalars. What an attempt before had written from the first of these steps on counts no more."""
        from torch.utils.tensorboard import SummaryWriter

        if self.writer is None:
            self.writer = SummaryWriter(str(self.folder), purge_step=int(rows[0]["step"]), flush_secs=5)
        for row in rows:
            for name, value in _measurements(row):
                self.writer.add_scalar(name, value, int(row["step"]))

    def close(self, done: bool) -> None:
        """Flush what there is."""
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """One MLflow run for each artifact, gone on with by later attempts until the stage is done."""

    def __init__(self, config: TrackingConfig, origin: Origin) -> None:
        # A server that does not answer shall not be asked for minutes, and nobody is told that we are here.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{origin.store / 'mlflow.db'}"
        with _alone(origin.store / ".mlflow.lock"):  # two stages that both made the tables would disturb each other
            self.client = MlflowClient(uri)
            found = self.client.get_experiment_by_name(config.experiment)
            experiment = found.experiment_id if found else self.client.create_experiment(config.experiment)
        self.run, self.last = self._unfinished(experiment, origin)

    def _unfinished(self, experiment: str, origin: Origin) -> tuple[str, int]:
        """The run that an attempt before has left, with its last step, or a new one."""
        tags = {"cohyde.run": origin.run, "cohyde.stage": origin.stage, "cohyde.artifact": origin.artifact}
        asked = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        found = self.client.search_runs([experiment], f"{asked} and attributes.status != 'FINISHED'", max_results=1)
        if not found:
            made = self.client.create_run(experiment, tags=tags, run_name=f"{origin.run} {origin.stage}")
            return made.info.run_id, -1
        run = found[0]
        self.client.update_run(run.info.run_id, status="RUNNING")
        histories = [self.client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
        return run.info.run_id, max((point.step for history in histories for point in history), default=-1)

    def write(self, rows: Sequence[Row]) -> None:
        """Log what was not logged before: steps that are trained again after a kill give the same numbers."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(re.sub(r"[^\w./ :-]", "_at_" if "@" in name else "_", name), value, now, int(row["step"]))
            for row in rows
            if row["step"] > self.last
            for name, value in _measurements(row)
        ]
        if metrics:
            self.client.log_batch(self.run, metrics=metrics)

    def close(self, done: bool) -> None:
        """Say how the stage ended."""
        self.client.set_terminated(self.run, "FINISHED" if done else "KILLED")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A tracker, and what it needs installed."""

    open: Callable[[TrackingConfig, Origin], Tracker]
    modules: tuple[str, ...]
    extra: str
    """The optional dependencies of ours that bring them."""


TRACKERS: Mapping[str, Strategy | None] = {
    "none": None,
    "tensorboard": Strategy(open=TensorBoard, modules=("tensorboard",), extra="tensorboard"),
    "mlflow": Strategy(open=MLflow, modules=("mlflow", "sqlalchemy", "alembic"), extra="mlflow"),
}
"""By the name that ``tracking.to`` chooses."""


def check_tracking(config: TrackingConfig) -> None:
    """Find out before a run starts whether the tracker is there.

    Raises:
        UserError: there is no such tracker, or its library is not installed.
    """
    if config.to not in TRACKERS:
        raise UserError(f"tracking.to is {config.to!r}, which does not exist", f"choose one of: {', '.join(TRACKERS)}")
    strategy = TRACKERS[config.to]
    missing = [name for name in strategy.modules if importlib.util.find_spec(name) is None] if strategy else []
    if strategy and missing:
        raise UserError(
            f"tracking={config.to}: not installed: {', '.join(missing)}", f'pip install "cohyde[{strategy.extra}]"'
        )


class Tracking:
    """The rows of one attempt at a stage on their way to a tracker. All calls are cheap, and none fails."""

    def __init__(self, config: TrackingConfig, origin: Origin, warn: Callable[[str], None]) -> None:
        """Nothing is opened before the first row: most stages have none."""
        self._config, self._origin, self._warn = config, origin, warn
        self._rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._done = self._told = False
        self._thread: threading.Thread | None = None

    def track(self, row: Row) -> None:
        """Hand over one row."""
        if TRACKERS.get(self._config.to) is None or self._told:
            return
        self._rows.put(dict(row))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="cohyde-tracking", daemon=True)
            self._thread.start()

    def close(self, done: bool) -> None:
        """Wait a while for what is on its way. Does nothing the second time."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._done = done
        self._rows.put(None)
        seconds = GRACE_SECONDS if done else STOP_SECONDS
        thread.join(seconds)
        if thread.is_alive():
            self._tell(f"no answer for {seconds:.0f} s")

    def _work(self) -> None:
        try:
            strategy = TRACKERS[self._config.to]
            assert strategy is not None
            tracker = strategy.open(self._config, self._origin)
            over = False
            while not over:
                rows, over = self._next()
                if rows:
                    tracker.write(rows)
            tracker.close(self._done)
        except Exception as error:  # of any kind: tracking is a convenience
            self._tell(" ".join(str(error).split()) or type(error).__name__)

    def _next(self) -> tuple[list[Row], bool]:
        """All rows that are there, at least one unless it was the last; and whether the end has come."""
        rows: list[Row] = []
        row = self._rows.get()
        while row is not None:
            rows.append(row)
            if len(rows) == MOST_ROWS or self._rows.empty():
                return rows, False
            row = self._rows.get()
        return rows, True

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            why = re.sub(r"//[^/@\s]*@", "//", why)  # credentials in an address
            self._warn(f"tracking with {self._config.to} has ended: {why[:300]}; steps.jsonl has every step still")


def _measurements(row: Row) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in row.items() if name != "step")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process after the other, of those that share a file system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
