"""A store that looks as if runs had been made: every stage an artifact with its record, rankings drawn at random."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from test_dag_store import manifest

from cohyde.catalog import Dataset, Query, Tool
from cohyde.cli_jobs import make_job, record
from cohyde.cli_sweep import planned
from cohyde.dag.attempts import Failure, Owner, new_attempt
from cohyde.dag.plan import Node, Plan, merge
from cohyde.dag.store import Store
from cohyde.dag.sweep import save_sweep
from cohyde.encoder.search import SEARCH_MODES
from cohyde.io import write_jsonl
from stages.folders import DESCRIPTIONS, STEPS
from stages.scoring import Split, by_split, write_results

START = datetime.fromisoformat("2026-03-01T09:00:00+00:00")
TIERS = {"G1": 6, "G2": 5, "G3": 4}
WARNING = "no checkpoint was better on dev than the start, which is kept"


@dataclass(kw_only=True, eq=False)
class ReportStore:
    """What is made, and how much of it."""

    root: Path
    tiers: Mapping[str, int] = field(default_factory=lambda: TIERS)
    tools: int = 30
    depth: int = 10
    vague: bool = True
    sampled: bool = True
    """Only half of each split is in the sample that rounds share; the last round scores all."""
    query: str = "What will the weather be like?"
    title: str = "SkyLantern"
    steps: int = 20

    def __post_init__(self) -> None:
        self.store = Store(self.root)
        self.store.prepare()

    @property
    def dataset(self) -> Dataset:
        tools = tuple(Tool(id=f"t{n}", title=f"{self.title} {n}", api_name="call") for n in range(self.tools))
        queries = [
            Query(id=f"{tier}-{n}", text=f"{self.query} {tier} {n}", tools=(f"t{n % self.tools}", "t1"), tier=tier)
            for tier, count in self.tiers.items()
            for n in range(count)
        ]
        asked = tuple(queries)
        dev = tuple(replace(query, id=f"dev-{query.id}") for query in queries[::2])
        return Dataset(name="made", tools=tools, eval=asked, vague=asked if self.vague else (), dev=dev)

    def run(self, name: str, *overrides: str, rounds: int = 1, leave: Collection[str] = (), fail: str = "") -> Plan:
        """One run of the tiny preset, without the stages that are left and the one that fails."""
        job = make_job("tiny", rounds, None, list(overrides), name, self.root)
        record(job)
        self._fill(job.plan, leave, fail, name)
        return job.plan

    def sweep(self, name: str, seeds: Sequence[int], *overrides: str, rounds: int = 1) -> None:
        """A sweep over seeds."""
        job = planned("tiny", ",".join(map(str, seeds)), rounds, list(overrides), name, self.root)
        for one in job.jobs.values():
            record(one)
        save_sweep(self.store, job.record)
        self._fill(merge(one.plan for one in job.jobs.values()), (), "", name)

    def _fill(self, plan: Plan, leave: Collection[str], fail: str, run: str) -> None:
        moment = START
        for node in plan.nodes.values():
            if node.id == fail:
                self._fail(node, run)
            elif node.id not in leave and not self.store.exists(node.id, node.fingerprint):
                self._finish(plan, node, moment, run)
            moment += timedelta(seconds=60)

    def _fail(self, node: Node, run: str) -> None:
        attempt = new_attempt(self.store, node.name)
        attempt.start(Owner.this_process(run))
        error = "RuntimeError: out of memory in /home/somebody/secret/model.bin"
        attempt.end(Failure(id=node.id, name=node.name, attempt=1, error=error, remedy="a smaller batch", log="log"))

    def _finish(self, plan: Plan, node: Node, moment: datetime, run: str) -> None:
        scratch = self.store.scratch(node.id, node.fingerprint)
        kind, _, number = node.id.partition(".")
        draw = random.Random(node.name)
        metrics: dict[str, Any] = {}
        if node.id == "data":
            write_jsonl(scratch / "catalog.jsonl", ({"id": t.id, "title": t.title, "api_name": t.api_name}
                                                    for t in self.dataset.tools))  # fmt: skip
        elif node.id == "E.untrained" or (kind == "B" and node.id.count(".") == 1 and node.id != "B.rewriter"):
            self._evaluate(scratch, draw, 0.3, ["fused rankings"] if "fused" in number else ["query", "description"])
        elif kind == "E":
            self._evaluate(scratch, draw, 0.4 + 0.1 * int(number), SEARCH_MODES, last=plan, number=int(number))
            metrics = {"descriptions": 30, "mean_tokens": 40.0 + int(number), "most_common_share": 0.1}
        elif kind == "S4p":
            metrics = {"queries": 20, "tie_rate": 0.5, "pairs_kept": 10, "mean_reward": 0.2, "best_of_n_reward": 0.4}
        elif kind in ("S2", "S4s"):
            metrics = {"descriptions": 20, "mean_tokens": 41.5, "finished_share": 0.75, "repetitive_share": 0.0}
        elif kind in ("S1a", "S1b", "S3", "S4"):
            write_jsonl(scratch / STEPS, ({"step": n, "loss": 1 / (n + 1)} for n in range(self.steps)))
            metrics = {"last_reward_margin": 0.1} if kind == "S4" else {}
        done = manifest(
            id=node.id,
            fingerprint=node.fingerprint,
            identity=plan.identities[node.name],
            kind=plan.specs[node.name].kind,
            metrics=metrics,
            warnings=(WARNING,) if kind == "S3" else (),
            run=run,
            started=moment.isoformat(),
            ended=(moment + timedelta(seconds=45)).isoformat(),
            seconds=45.0,
            host="secret-host",
            versions={"python": "3.11.7", "torch": "2.13.0+cpu"},
            git="84aab6339d48670dba3afa0e55457d7caf09d3ab-dirty",
        )
        self.store.commit(scratch, done)

    def _evaluate(
        self, folder: Path, draw: random.Random, skill: float, modes: Collection[str], last: Plan | None = None,
        number: int = 0,
    ) -> None:  # fmt: skip
        """Rankings in which the right tools stand first with some probability."""
        dataset = self.dataset
        rounds = [int(node.id.partition(".")[2]) for node in last.nodes.values() if node.id[:2] == "E." and
                  node.id[2:].isdigit()] if last else [0]  # fmt: skip
        whole = not self.sampled or number == max(rounds)
        splits = []
        for name, queries in (("standard", dataset.eval), ("vague", dataset.vague), ("dev", dataset.dev)):
            kept = queries[:: 2 if self.sampled and name != "dev" else 1]
            if queries:
                sample = frozenset(query.id for query in kept)
                splits.append(Split(name=name, queries=queries if whole else kept, sample=sample))
        names = [tool.id for tool in dataset.tools]
        rankings = {mode: [self._ranked(draw, skill, names, query, split.name) for split, query in by_split(splits)]
                    for mode in modes}  # fmt: skip
        write_results(folder, dataset, splits, rankings)
        told = ({"id": query.id, "split": split.name, "text": f"describes {query.id} {draw.random():.2f}"}
                for split, query in by_split(splits))  # fmt: skip
        write_jsonl(folder / DESCRIPTIONS, told)

    def _ranked(
        self, draw: random.Random, skill: float, names: Sequence[str], query: Query, split: str
    ) -> list[tuple[str, float]]:
        order = draw.sample(names, min(self.depth, len(names)))
        for tool in query.tools:
            if draw.random() < skill * (0.5 if split == "vague" else 1.0):
                order = [tool, *(other for other in order if other != tool)]
        return [(tool, 1.0 / (rank + 1)) for rank, tool in enumerate(order[: self.depth])]
