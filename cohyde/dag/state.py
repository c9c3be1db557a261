"""The state of every stage, read from the store alone: no Ray, no torch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cohyde.dag.attempts import latest_attempt
from cohyde.dag.manifest import Manifest
from cohyde.dag.plan import Node, Plan, as_plan
from cohyde.dag.spec import Metrics, StageSpec
from cohyde.dag.store import Store

State = Literal["done", "running", "ready", "waiting", "failed", "blocked"]


@dataclass(frozen=True, kw_only=True)
class StageState:
    """One stage as ``plan`` and ``status`` show it."""

    id: str
    state: State
    fingerprint: str
    inputs: dict[str, str]
    """Name of the input → stage id."""
    path: str | None
    """The artifact's folder, or its URL; None until it exists."""
    seconds: float | None
    metrics: Metrics

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``."""
        return {
            "id": self.id,
            "state": self.state,
            "fingerprint": self.fingerprint,
            "inputs": self.inputs,
            "path": self.path,
            "seconds": self.seconds,
            "metrics": self.metrics,
        }


def states(
    specs: Plan | Sequence[StageSpec], store: Store, failures: Collection[str] = (), run: str = "RUN"
) -> list[StageState]:
    """States of all stages, in topological order.

    Args:
        specs: a pipeline, or a plan (also one read from a run's record).
        store: where the artifacts are.
        failures: names of nodes that are known to have failed, beside those whose last attempt says so.
        run: the run's name, for the advice in error messages, where the plan names no other.

    Raises:
        UserError: a manifest was damaged.
    """
    plan = as_plan(specs)
    found = states_by_name(plan, store, failures)
    done = [(node, plan.runs.get(name, run)) for name, node in plan.nodes.items() if found[name] == "done"]
    manifests = store.manifests(done)
    return [_stage_state(node, found[name], plan, store, manifests.get(name)) for name, node in plan.nodes.items()]


def states_by_name(plan: Plan, store: Store, failures: Collection[str] = ()) -> dict[str, State]:
    """The bare states by node name: no manifest is read, so it costs little where thousands are done."""
    finished, attempted = store.finished(plan.nodes.values()), set(store.place("logs").names())
    found: dict[str, State] = {}
    for name, node in plan.nodes.items():
        done = name in finished
        found[name] = "done" if done else _state(node, store, found, name in failures, name in attempted)
    return found


def _state(node: Node, store: Store, above: dict[str, State], known_failure: bool, attempted: bool) -> State:
    attempt = latest_attempt(store, node.name) if attempted else None
    if attempt and attempt.is_running():
        return "running"
    if known_failure or (attempt and attempt.failure()):
        return "failed"
    inputs = {above[source] for source in node.inputs.values()}
    if inputs & {"failed", "blocked"}:
        return "blocked"
    return "ready" if inputs <= {"done"} else "waiting"


def _stage_state(node: Node, state: State, plan: Plan, store: Store, manifest: Manifest | None) -> StageState:
    return StageState(
        id=node.id,
        state=state,
        fingerprint=node.fingerprint,
        inputs={key: plan.nodes[source].id for key, source in node.inputs.items()},
        path=store.shown(node.name) if manifest else None,
        seconds=manifest.seconds if manifest else None,
        metrics=dict(manifest.metrics) if manifest else {},
    )
