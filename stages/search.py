"""What a run is searched with: the models that one of its evaluations scored, with their catalogue."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cohyde.config import Config, build
from cohyde.data.dataset import read_dataset
from cohyde.errors import UserError
from cohyde.evaluation.report import build_report
from cohyde.retrieval.trained import Trained
from cohyde.rewriter.examples import few_shot_examples
from cohyde.rewriter.prompts import load_prompt, prompt_hash
from stages.folders import ENCODER_FOLDER, INDEX_FOLDER, METRICS, REWRITER_FOLDER
from stages.report import read_metrics

if TYPE_CHECKING:
    from cohyde.dag.plan import Node, Plan
    from cohyde.dag.store import Store

NEEDED = {"data", "encoder", "rewriter"}
"""Inputs of an evaluation whose models can be searched with."""


def find_trained(store: "Store", run_name: str, state: str | None = None) -> Trained:
    """The models and the catalogue of a state of a run.

    Args:
        store: where the run's artifacts lie.
        run_name: its name.
        state: an evaluation, such as ``E.2``; None takes the one that the report selects on dev, else the last.

    Raises:
        UserError: there is no such run or state, it is not done yet, or its prompt has changed since.
    """
    from cohyde.dag.sweep import load_single_run

    known = load_single_run(store, run_name)
    config = build(Config, [(f"run {known.name}", known.config)])
    chosen = state or _selected(known.plan, store, known.name, config) or f"E.{config.rounds}"
    node = searchable(known.plan, chosen)
    if not store.exists(node.id, node.fingerprint):
        raise UserError(
            f"run {known.name}: {chosen} is not done yet: {_missing(known.plan, node, store)}",
            f"see how far it is: cohyde status {known.name}{_done_instead(known.plan, store)}",
        )
    _check_prompts(store.manifest(node.id, node.fingerprint, known.name).prompts, known.name)
    sources = {name: known.plan.nodes[source] for name, source in node.inputs.items()}
    inputs = {name: store.usable(at.id, at.fingerprint, known.name) for name, at in sources.items()}
    evaluation = store.usable(node.id, node.fingerprint, known.name)
    return trained(inputs, evaluation, config, run=known.name, state=node.id)


def trained(inputs: Mapping[str, Path], evaluation: Path, config: Config, *, run: str = "", state: str = "") -> Trained:
    """The models that an evaluation stage scored, and their catalogue.

    Args:
        inputs: artifact folders of that stage's inputs (data, encoder, rewriter).
        evaluation: its own artifact, which holds the index.
        config: the run's configuration.
        run: the run's name.
        state: the evaluation's id.
    """
    dataset, _ = read_dataset(inputs["data"])
    return Trained(
        name=run,
        state=state,
        encoder=inputs["encoder"] / ENCODER_FOLDER,
        rewriter=inputs["rewriter"] / REWRITER_FOLDER,
        index=evaluation / INDEX_FOLDER,
        tools=dataset.tools,
        embedding=config.encoder.embedding(),
        rewriting=config.rewriter,
        sampling=config.describe,
        prompt=load_prompt(config.rewriter.prompt),
        examples=tuple(few_shot_examples(dataset, config.rewriter.few_shot, config.data.split_seed)),
        search=config.search,
        serve=config.serve,
        indexing=config.index,
    )


def _selected(plan: "Plan", store: "Store", run_name: str, config: Config) -> str | None:
    """The state that dev selects among those that are done."""
    done = {
        node.id: read_metrics(store.usable(node.id, node.fingerprint, run_name))
        for node in _states(plan)
        if store.exists(node.id, node.fingerprint)
        and (store.usable(node.id, node.fingerprint, run_name) / METRICS).is_file()
    }
    return build_report(done, config.search.mode).selected if done else None


def _states(plan: "Plan") -> "list[Node]":
    """The evaluations whose models can be searched with."""
    return [node for node in plan.nodes.values() if node.id.startswith("E.") and set(node.inputs) >= NEEDED]


def searchable(plan: "Plan", state: str) -> "Node":
    """The evaluation of this name.

    Raises:
        UserError: it is none whose models can be asked, or they are asked more than a person does.
    """
    node = plan.nodes[plan.named(state)[0]]
    if node not in _states(plan):
        names = ", ".join(one.id for one in _states(plan))
        raise UserError(f"{state} is no state that can be searched with", f"states are: {names}")
    if told := sorted(set(node.inputs) - NEEDED):
        raise UserError(
            f"{state}: its rewriter is told more than the request ({', '.join(told)}), which is not there when "
            "somebody asks",
            "search a run whose rewriter is given the request alone",
        )
    return node


def _missing(plan: "Plan", node: "Node", store: "Store", most: int = 6) -> str:
    """The stages that it waits for, itself included."""
    needed = plan.until(node.id).nodes
    done = store.finished(needed.values())
    ids = [one.id for name, one in needed.items() if name not in done]
    return f"missing {', '.join(ids[:most])}" + (f" and {len(ids) - most} more" if len(ids) > most else "")


def _done_instead(plan: "Plan", store: "Store") -> str:
    """The states that could be searched with instead."""
    done = [node.id for node in _states(plan) if store.exists(node.id, node.fingerprint)]
    return f"; done are: {', '.join(done)} (--state {done[-1]})" if done else ""


def _check_prompts(prompts: Mapping[str, str], run_name: str) -> None:
    """The rewriter was trained and scored with a prompt's text; asked with another it would describe otherwise."""
    for name, sha256 in prompts.items():
        if prompt_hash(name) != sha256:
            raise UserError(
                f"prompts/{name}.yaml has changed since run {run_name} was trained with it",
                "put its text back, or train with the new one: cohyde run",
            )
