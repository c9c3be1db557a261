"""A run that can be searched with, made in a second: the artifacts of E.0, but of tiny models that nobody trained."""

from pathlib import Path

from cohyde.config import Config, load_config, plain
from cohyde.dag.manifest import Manifest
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.store import Store
from cohyde.data.dataset import read_dataset
from cohyde.encoder.retriever import DenseRetriever
from cohyde.io import write_jsonl
from cohyde.models.reference import resolve
from cohyde.progress import Silent
from cohyde.rewriter.load import copy_model
from stages import data as data_stage
from stages.pipeline import pipeline

NAME = "tiny"


def make_run(root: Path, *overrides: str, done: bool = True) -> Store:
    """A store with the run ``tiny`` of no rounds; without ``done`` its evaluation is still to come."""
    config = load_config("tiny", ["rounds=0", "describe.max_new_tokens=6", *overrides])
    store, plan = Store(root), make_plan(pipeline(config))
    store.prepare()
    save_run(store, RunRecord(name=NAME, config=plain(config), preset="tiny", overrides=(), plan=plan))
    for stage in ("data", "S1a", "S1b", *(["E.0"] if done else [])):
        _finish(store, plan, config, stage)
    return store


def _finish(store: Store, plan: Plan, config: Config, stage: str) -> None:
    node = plan.nodes[plan.named(stage)[0]]
    folder = store.scratch(node.id, node.fingerprint)
    if stage == "data":
        data_stage.run({}, config.data, folder, Silent())
    elif stage == "S1a":
        copy_model(resolve(config.encoder.model), folder / "encoder")
    elif stage == "S1b":
        copy_model(resolve(config.rewriter.model), folder / "rewriter")
    else:
        data = plan.nodes[node.inputs["data"]]
        dataset, _ = read_dataset(store.usable(data.id, data.fingerprint, NAME))
        encoder = config.encoder.embedding()
        DenseRetriever.build(resolve(config.encoder.model), dataset.tools, encoder).save_index(folder / "index")
        write_jsonl(folder / "metrics.jsonl", [])
    stored = Manifest(
        id=node.id,
        fingerprint=node.fingerprint,
        kind="",
        identity=plan.identities[node.name],
        inputs={},
        config=None,
        metrics={},
        run=NAME,
        attempt=1,
        host="here",
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:00:01+00:00",
        seconds=1.0,
        versions={},
        git=None,
    )
    store.commit(folder, stored)
