"""Run what is missing of a plan: every stage as a Ray task, as soon as its inputs are in the store."""

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cohyde
from cohyde.config import RunnerConfig, TrackingConfig
from cohyde.dag import events
from cohyde.dag.attempts import Attempt, Failure, new_attempt
from cohyde.dag.capacity import (
    check_resources,
    demand,
    demands,
    describe,
    fits,
    how_many,
    is_ray_here,
    local_machine,
)
from cohyde.dag.environment import ray_options
from cohyde.dag.leases import Watch, revoke
from cohyde.dag.manifest import git_revision
from cohyde.dag.plan import Node, Plan, as_plan
from cohyde.dag.pulse import Pulse
from cohyde.dag.session import session, set_environment, undisturbed
from cohyde.dag.spec import Metrics, StageSpec
from cohyde.dag.state import StageState, states
from cohyde.dag.store import Store
from cohyde.dag.worker import UNTRACKED, Outcome, Task, execute
from cohyde.errors import ClusterLostError

POLL_SECONDS = 0.25
MACHINES_SECONDS = 5.0
LOSSES = 5
"""Machines that may be lost under a stage without a part in its retries."""
USUAL = RunnerConfig()


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    states: tuple[StageState, ...]
    failures: tuple[Failure, ...]
    """One for each stage that failed for good."""

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for is done."""
        return all(stage.state == "done" for stage in self.states)


def run(
    specs: Plan | Sequence[StageSpec],
    store: Store,
    *,
    run_name: str,
    address: str | None = None,
    how: RunnerConfig = USUAL,
    tracking: TrackingConfig = UNTRACKED,
    until: str | None = None,
    on_event: events.OnEvent = events.ignore,
) -> RunResult:
    """Run all stages that are not finished. If there are none, return at once, without Ray.

    Args:
        specs: a pipeline or a plan.
        store: where artifacts are looked for and put.
        run_name: noted in the manifests, and named in advice, where the plan names no other run.
        address: of a Ray cluster whose machines all reach the store. None starts Ray on this machine.
        how: retries, checkpoints, and how long stages are waited for when the run is told to stop. A failure that only
            a person can mend is not tried again.
        tracking: where step metrics go beside the store.
        until: run this stage and what it needs, no more.
        on_event: told everything that happens, in this thread.

    Raises:
        UserError: the pipeline, the store, the inputs or the cluster are not fit to start with.
        ClusterLostError: Ray has ended under it.
        KeyboardInterrupt: Ctrl-C or SIGTERM. Everything that was started is ended; what is finished stays.
    """
    plan = as_plan(specs)
    if until is not None:
        plan = plan.until(until)
    finished = store.finished(plan.nodes.values())
    todo = [node for name, node in plan.nodes.items() if name not in finished]
    failures: dict[str, Failure] = {}
    if todo:
        store.prepare()
        check_inputs(plan, todo, store, run_name)
        set_environment(address)
        if address is None and not is_ray_here():
            check_resources(plan, todo, [local_machine(demands(plan, todo))])
        on_event(events.RayStarting(address=address, done=len(plan.nodes) - len(todo), todo=len(todo)))
        with session(address) as ray:
            check_resources(plan, todo, machines(ray))
            failures = Execution(ray, Pulse(ray, address), plan, todo, store, run_name, how, on_event, tracking).run()
    final = states(plan, store, failures, run_name)
    return RunResult(states=tuple(final), failures=tuple(failures.values()))


def machines(ray: Any) -> list[Mapping[str, float]]:
    """What each machine of the cluster has, busy or not."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def check_inputs(plan: Plan, todo: Sequence[Node], store: Store, run_name: str) -> None:
    """Look at the finished artifacts that are about to be read, and not made anew themselves.

    Raises:
        UserError: one is damaged; names the file and the command that makes it anew.
    """
    anew = {node.name for node in todo}
    sources = [plan.nodes[name] for node in todo for name in node.inputs.values() if name not in anew]
    finished = store.finished(sources)
    for name, node in {node.name: node for node in sources if node.name in finished}.items():
        store.check(node.id, node.fingerprint, plan.runs.get(name, run_name))


@dataclass(kw_only=True)
class Flight:
    """A stage that Ray has."""

    node: Node
    attempt: Attempt
    asked: dict[str, float]
    """By all of its workers."""
    started: bool = False
    machine: str = ""
    """Ray's id of it, once a worker has begun."""
    progress: tuple[float, float, str] | None = None
    warnings: int = 0


class Execution:
    """The loop of one run. Knows what waits for what; the store knows what is done."""

    def __init__(
        self,
        ray: Any,
        pulse: Pulse,
        plan: Plan,
        todo: Sequence[Node],
        store: Store,
        run_name: str,
        how: RunnerConfig,
        on_event: events.OnEvent,
        tracking: TrackingConfig,
    ) -> None:
        """Nothing is submitted yet."""
        self.ray, self.pulse, self.plan, self.store = ray, pulse, plan, store
        self.run_name, self.how, self.tell, self.tracking = run_name, how, on_event, tracking
        self.missing = {node.name: set(node.inputs.values()) for node in todo}
        for waits in self.missing.values():
            waits.intersection_update(self.missing)
        self.depth = _depths(plan, self.missing)
        self._looked = self._polled = self._counted = 0.0
        self.order = {name: position for position, name in enumerate(plan.nodes)}
        self.ready: list[tuple[int, int, str]] = []
        self.flights: dict[Any, Flight] = {}
        self.watches: dict[str, Watch] = {}
        self.free: dict[str, float] = {}
        """When nodes that wait for resources were last found to be nobody's."""
        self.elsewhere: set[str] = set()
        """Nodes that another run is at."""
        self.tries: dict[str, int] = {}
        self.losses: dict[str, int] = {}
        """Machines that were lost under a stage."""
        self.told_to_wait: set[str] = set()
        self.failures: dict[str, Failure] = {}
        self.blocked: set[str] = set()
        self.git = git_revision(Path(cohyde.__file__).parent)
        # A GPU's memory is free only when its process has ended; CPU stages keep their worker and its imports.
        self.remote = {
            fresh: ray.remote(max_calls=1 if fresh else 0, max_retries=0)(execute) for fresh in (True, False)
        }

    def run(self) -> dict[str, Failure]:
        """Until nothing is left that can run; returns final failures by node name."""
        for name, waits in self.missing.items():
            if not waits:
                self._enqueue(name)
        try:
            while self.ready or self.flights or self.elsewhere:
                if not self.pulse.check():
                    time.sleep(POLL_SECONDS)
                    continue
                self._look_elsewhere()
                self._submit()
                self._look_at_machines()
                if not self.flights:  # all is elsewhere, or the cluster has lost a machine, which may come back
                    time.sleep(POLL_SECONDS)
                    continue
                landed, _ = self.ray.wait(list(self.flights), num_returns=1, timeout=POLL_SECONDS)
                for reference in landed:
                    self._land(reference)
                self._poll()
        except ClusterLostError:  # its workers may live on for a while: they read this in the store
            for flight in self.flights.values():
                flight.attempt.ask_to_stop()
            raise
        except BaseException as error:
            try:
                if isinstance(error, KeyboardInterrupt):
                    self._let_stop()
            finally:  # also where a second Ctrl-C does not want to wait
                with undisturbed():
                    self._cancel()
            raise
        return self.failures

    # ------------------------------------------------------------------------------------------------ submitting

    def _enqueue(self, name: str) -> None:
        heapq.heappush(self.ready, (-self.depth[name], self.order[name], name))

    def _submit(self) -> None:
        """Hand over what fits, the head of the longest chain first.

        What does not fit keeps its share reserved, so that a large stage is not overtaken for ever by small ones. A
        stage for several workers takes as many as there is room for now, and keeps them to its end.
        """
        if not self.ready or not self.pulse.check(now=True):  # a question to a head that is gone blocks for a minute
            return
        free = dict(self.ray.cluster_resources())
        for flight in self.flights.values():
            _subtract(free, flight.asked)
        waiting = []
        while self.ready and free.get("CPU", 0.0) > 0:
            entry = heapq.heappop(self.ready)
            if not self._has_just_waited(entry[2]) and self._is_elsewhere(entry[2]):
                continue
            resources = self.plan.specs[entry[2]].resources
            asked = demand(resources)
            # Alone it fits on some machine, so with nothing in flight it is handed over whatever else is said.
            if fits(asked, free) or not self.flights:
                self.free.pop(entry[2], None)
                workers = int(max(1, min(resources.workers, how_many(asked, free))))
                asked = {name: workers * amount for name, amount in asked.items()}
                self._hand_over(self.plan.nodes[entry[2]], asked, workers)
            else:
                waiting.append(entry)
            _subtract(free, asked)
        for entry in waiting:
            heapq.heappush(self.ready, entry)

    def _has_just_waited(self, name: str) -> bool:
        """Whether it was nobody's a moment ago, and did not fit: to look costs requests, and its worker looks again."""
        now = time.monotonic()
        if now - self.free.get(name, -math.inf) < self.store.poll_seconds:
            return True
        self.free[name] = now
        return False

    def _is_elsewhere(self, name: str) -> bool:
        """Whether another run is at this node, or has just finished it; then it is looked after there."""
        node = self.plan.nodes[name]
        watch = self.watches.setdefault(name, Watch(self.store.lease(node.id, node.fingerprint)))
        holder = watch.holder()
        if holder is None and not self.store.exists(node.id, node.fingerprint):
            return False
        if holder is not None and name not in self.elsewhere:
            self.tell(events.Waiting(id=node.id, name=name, holder=str(holder)))
        self.free.pop(name, None)
        self.elsewhere.add(name)
        return True

    def _look_elsewhere(self) -> None:
        """What another run has finished is finished; what it has let go of, or died over, is ours to do."""
        now = time.monotonic()
        if now - self._looked < self.store.poll_seconds:
            return
        self._looked = now
        for name in sorted(self.elsewhere):
            node = self.plan.nodes[name]
            if self.store.exists(node.id, node.fingerprint):
                self.elsewhere.discard(name)
                self._is_there(node)
            elif self.watches[name].holder() is None:
                self.elsewhere.discard(name)
                self._enqueue(name)

    def _hand_over(self, node: Node, asked: dict[str, float], workers: int) -> None:
        spec = self.plan.specs[node.name]
        attempt = new_attempt(self.store, node.name)
        sources = {name: self.plan.nodes[source] for name, source in node.inputs.items()}
        task = Task(
            spec=spec,
            node=node,
            identity=self.plan.identities[node.name],
            inputs={name: (source.id, source.fingerprint) for name, source in sources.items()},
            store=self.store.location,
            attempt=str(attempt.at),
            run=self._run_of(node.name),
            git=self.git,
            over=self.watches[node.name].number,
            checkpoint_seconds=60 * self.how.checkpoint_minutes,
            tracking=self.tracking,
            workers=workers,
        )
        remote = self.remote["GPU" in asked].options(name=node.name, **ray_options(spec))
        self.tries[node.name] = self.tries.get(node.name, 0) + 1
        self.flights[remote.remote(task)] = Flight(node=node, attempt=attempt, asked=asked)
        self.tell(events.Submitted(id=node.id, name=node.name, attempt=attempt.number, log=attempt.log))

    def _run_of(self, name: str) -> str:
        return self.plan.runs.get(name, self.run_name)

    # --------------------------------------------------------------------------------------------------- landing

    def _land(self, reference: Any) -> None:
        flight = self.flights.pop(reference)
        try:
            outcome: Outcome = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self.pulse.check(now=True)
            self._died(flight, error)
            return
        self._look_at(flight)
        if outcome.failure is not None:
            self._failed(flight.node, outcome.failure)
        elif outcome.metrics is not None:
            self._finished(flight.node, outcome.seconds, outcome.metrics)
        else:  # another run was faster, or has taken it over
            self.tries[flight.node.name] -= 1
            self._enqueue(flight.node.name)

    def _died(self, flight: Flight, error: Exception) -> None:
        """The worker's process has died, or the whole machine. The latter is no fault of the stage, for some times."""
        node = flight.node
        self._look_at(flight)
        revoke(self.store.lease(node.id, node.fingerprint), str(flight.attempt.at))
        if self.store.exists(node.id, node.fingerprint):  # death came between the artifact's commit and the answer
            self._is_there(node)
            return
        failure = _crash(flight, error)
        if isinstance(error, self.ray.exceptions.NodeDiedError):
            self.losses[node.name] = self.losses.get(node.name, 0) + 1
            if self.losses[node.name] <= LOSSES:
                self.tries[node.name] -= 1
        self._failed(node, failure)

    def _is_there(self, node: Node) -> None:
        """What stands in the store is finished, whoever made it."""
        manifest = self.store.manifest(node.id, node.fingerprint, self._run_of(node.name))
        self._finished(node, manifest.seconds, dict(manifest.metrics))

    def _finished(self, node: Node, seconds: float, metrics: Metrics) -> None:
        self.tell(events.Finished(id=node.id, name=node.name, seconds=seconds, metrics=metrics))
        for child in self.plan.children[node.name]:
            if child in self.missing and node.name in self.missing[child]:
                self.missing[child].discard(node.name)
                if not self.missing[child]:
                    self._enqueue(child)

    def _failed(self, node: Node, failure: Failure) -> None:
        retrying = not failure.final and self.tries[node.name] <= self.how.retries
        self.tell(events.Failed(id=node.id, name=node.name, failure=failure, retrying=retrying))
        if retrying:
            self._enqueue(node.name)
            return
        self.failures[node.name] = failure
        for name in self.plan.below_names(node.name):
            if name in self.missing and name != node.name and name not in self.blocked:
                self.blocked.add(name)
                self.tell(events.Blocked(id=self.plan.nodes[name].id, name=name, by=node.id))

    # --------------------------------------------------------------------------------------------------- watching

    def _poll(self) -> None:
        now = time.monotonic()
        if now - self._polled >= self.store.poll_seconds:
            self._polled = now
            for flight in self.flights.values():
                self._look_at(flight)

    def _look_at_machines(self) -> None:
        """Find out which machines are gone: Ray fails a task soon only where its machine's connections are closed."""
        now = time.monotonic()
        if now - self._counted < MACHINES_SECONDS or not self.pulse.check(now=True):
            return
        self._counted = now
        gone = {node["NodeID"] for node in self.ray.nodes() if not node["Alive"]}
        for reference, flight in list(self.flights.items()):
            if flight.machine in gone:
                del self.flights[reference]
                self.ray.cancel(reference, force=True)
                self._died(flight, self.ray.exceptions.NodeDiedError("Ray has taken its machine off the cluster"))
        self._tell_who_waits()

    def _tell_who_waits(self) -> None:
        """Say, once, which stages wait for a machine that the cluster has no more."""
        pending = [name for _, _, name in self.ready]
        pending += [flight.node.name for flight in self.flights.values() if not flight.started]
        there = machines(self.ray) if pending else []
        for name in pending:
            asked = demand(self.plan.specs[name].resources)
            if name not in self.told_to_wait and not any(fits(asked, machine) for machine in there):
                self.told_to_wait.add(name)
                message = f"waits for a machine with {describe(asked)}: the cluster has lost those that it had"
                self.tell(events.Warned(id=self.plan.nodes[name].id, name=name, message=message))

    def _look_at(self, flight: Flight) -> None:
        """Tell what the attempt's folder says that was not told before."""
        node, attempt = flight.node, flight.attempt
        if not flight.started and (owner := attempt.owner()):
            flight.started, flight.machine = True, owner.machine
            number = attempt.number
            self.tell(events.Started(id=node.id, name=node.name, attempt=number, host=owner.host, pid=owner.pid))
        state = attempt.progress()
        if not state:
            return
        for message in state["warnings"][flight.warnings :]:
            self.tell(events.Warned(id=node.id, name=node.name, message=message))
        flight.warnings = len(state["warnings"])
        progress = (state["done"], state["total"], state["what"])
        if state["total"] and progress != flight.progress:
            flight.progress = progress
            done, total, what = progress
            self.tell(events.Progressed(id=node.id, name=node.name, done=done, total=total, what=what))

    def _let_stop(self) -> None:
        """Ask the stages that keep checkpoints to write one, and give them the time to do it."""
        asked = {reference: flight for reference, flight in self.flights.items() if flight.attempt.heeds_stop()}
        for flight in asked.values():
            flight.attempt.ask_to_stop()
        if asked:
            ids = tuple(flight.node.id for flight in asked.values())
            self.tell(events.Stopping(ids=ids, seconds=self.how.grace_seconds))
            landed, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=self.how.grace_seconds)
            for reference in landed:
                del self.flights[reference]

    def _cancel(self) -> None:
        for reference, flight in self.flights.items():
            flight.attempt.end()
            try:
                self.ray.cancel(reference, force=True, recursive=True)
            except Exception:  # Ray may be gone already; then so are its tasks
                return


def _crash(flight: Flight, error: Exception) -> Failure:
    """The worker process itself died: its failure is for us to record."""
    kind = type(error).__name__
    memory = kind == "OutOfMemoryError"
    inner = getattr(error, "cause", None)  # what was raised before the attempt could begin
    cause = f"its worker process {'ran out of memory' if memory else f'was killed or crashed ({kind})'}"
    if kind == "NodeDiedError":
        owner = flight.attempt.owner()
        cause = f"the machine it ran on ({owner.host if owner else 'not begun yet'}) was lost"
    failure = Failure(
        id=flight.node.id,
        name=flight.node.name,
        attempt=flight.attempt.number,
        error=f"{type(inner).__name__}: {inner}" if inner else cause,
        remedy="give it more with the stage's resources.memory_gib, or lower its batch size" if memory else "",
        traceback=tuple(str(error).splitlines()[-8:]),
        log=flight.attempt.shown_log,
    )
    flight.attempt.end(failure)
    return failure


def _subtract(free: dict[str, float], asked: Mapping[str, float]) -> None:
    for name, amount in asked.items():
        free[name] = free.get(name, 0.0) - amount


def _depths(plan: Plan, todo: Mapping[str, Any]) -> dict[str, int]:
    """Length of the longest chain of unfinished stages from each one down."""
    depths: dict[str, int] = {}
    for name in reversed(list(plan.nodes)):
        if name in todo:
            depths[name] = 1 + max((depths.get(child, 0) for child in plan.children[name]), default=0)
    return depths
