"""Whole runs in this process, without Ray: each stage by the very function that a worker calls."""

from collections.abc import Sequence
from pathlib import Path

from cohyde.config import load_config, plain
from cohyde.dag.attempts import new_attempt
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.remote import open_store
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.store import Store
from cohyde.dag.worker import Task, execute
from stages.pipeline import pipeline

SMALLEST = (
    "rounds=0",
    "data.tools=80",
    "data.train_queries=80",
    "data.eval_queries=8",
    "data.dev_fraction=0.3",
    "encoder.train.epochs=1",
    "sft.enabled=false",
    "describe.max_new_tokens=6",
)
"""A run that takes seconds: the warm-up and its evaluation."""
FINISHED = (*SMALLEST, "search.mode=concatenated", "describe.repetition_penalty=1.3")
"""The run in the ``finished_store`` of all tests."""


def record(location: str | Path, name: str, overrides: Sequence[str] = SMALLEST) -> tuple[Store, Plan]:
    """A run of the tiny preset of which nothing is done yet."""
    store, config = open_store(location), load_config("tiny", overrides)
    store.prepare()
    plan = make_plan(pipeline(config))
    run = RunRecord(name=name, config=plain(config), preset="tiny", overrides=tuple(overrides), plan=plan)
    save_run(store, run)
    return store, plan


def finish(location: str | Path, name: str, overrides: Sequence[str] = SMALLEST, until: str | None = None) -> Store:
    """A run of the tiny preset with all its stages done, or a stage and what that needs."""
    store, plan = record(location, name, overrides)
    tracking = load_config("tiny", overrides).tracking
    for node in (plan.until(until) if until else plan).nodes.values():
        sources = {key: plan.nodes[source] for key, source in node.inputs.items()}
        task = Task(
            spec=plan.specs[node.name],
            node=node,
            identity=plan.identities[node.name],
            inputs={key: (source.id, source.fingerprint) for key, source in sources.items()},
            store=store.location,
            attempt=str(new_attempt(store, node.name).at),
            run=name,
            git=None,
            tracking=tracking,
        )
        outcome = execute(task)
        assert outcome.failure is None, outcome.failure
    return store
