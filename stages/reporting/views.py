"""Runs as a page reads them: records and small files only, each looked at once."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cohyde.config import Config
from cohyde.dag.attempts import Failure, latest_attempt
from cohyde.dag.manifest import Manifest
from cohyde.dag.places import read_if_there
from cohyde.dag.plan import Plan, artifact_name
from cohyde.dag.state import StageState, states
from cohyde.dag.store import Store
from cohyde.errors import UserError
from cohyde.evaluation.results import SAMPLE
from stages.folders import DESCRIPTIONS, METRICS, QUERIES
from stages.systems import System, systems_of

if TYPE_CHECKING:
    from cohyde.evaluation.per_query import PerQuery

ROUND = re.compile(r"(?P<kind>.+)\.(?P<round>\d+)")
PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}/?|\b[A-Za-z]:\\[^\s'\"]+")


def shareable(text: str) -> str:
    """Without the folders of the machine it comes from: of an absolute path its last part is left."""
    return PATH.sub(lambda found: f"…/{PurePosixPath(found[0].replace(chr(92), '/')).name}", text)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Values of some queries, in the order of the dataset."""

    ids: tuple[str, ...]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What one stage found for every query, grouped once."""

    rows: "PerQuery"

    @cached_property
    def groups(self) -> Mapping[tuple[str, str, str], npt.NDArray[np.int64]]:
        """Rows by split, tier and search mode, in the order of the file: that of the dataset."""
        found: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for at, key in enumerate(zip(self.rows.split, self.rows.tier, self.rows.search, strict=True)):
            found[key].append(at)
        return {key: np.array(rows) for key, rows in found.items()}

    def scored(self, split: str, tier: str, search: str, metric: str, scope: str) -> Scored | None:
        """The values under these labels; None where nothing was measured."""
        at = self.groups.get((split, tier, search))
        if at is None or metric not in self.rows.values:
            return None
        if scope == SAMPLE:
            at = at[self.rows.in_sample[at]]
        if not len(at):
            return None
        return Scored(ids=tuple(self.rows.id[at]), values=self.rows.values[metric][at])

    def is_wider_than_sample(self, split: str) -> bool:
        """Whether more than the sample of a split was scored."""
        return bool((~self.rows.in_sample[self.rows.split == split]).any())


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run."""

    name: str
    settings: Config
    store: Store
    plan: Plan
    preset: str
    overrides: tuple[str, ...]
    seed: int
    faults: list[UserError] = field(default_factory=list)
    """What could not be read; the page shows the rest."""

    @cached_property
    def states(self) -> dict[str, StageState]:
        """By stage id."""
        return {state.id: state for state in states(self.plan, self.store, run=self.name)}

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """Of the stages that are done, by stage id."""
        done = [(node, self.name) for node in self.plan.nodes.values() if self.states[node.id].state == "done"]
        return {found.id: found for found in self.store.manifests(done).values()}

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        """Of the stages that are done and scored queries, by stage id, in order."""
        found = {stage: self._evaluation(stage) for stage, record in self.manifests.items() if _scores(record)}
        return {stage: evaluation for stage, evaluation in found.items() if evaluation is not None}

    def _evaluation(self, stage: str) -> Evaluation | None:
        from cohyde.evaluation.per_query import read_per_query

        try:
            path = self.store.usable(stage, self.manifests[stage].fingerprint, self.name)
            return Evaluation(rows=read_per_query(path / QUERIES, rankings=False))
        except UserError as error:
            self.faults.append(error)
            return None

    def rankings(self, stage: str) -> "PerQuery":
        """All that an evaluation found for every query, its rankings too.

        Raises:
            UserError: it is missing or damaged.
        """
        from cohyde.evaluation.per_query import read_per_query

        return read_per_query(self.store.usable(stage, self.manifests[stage].fingerprint, self.name) / QUERIES)

    def descriptions(self, stage: str) -> dict[tuple[str, str], str]:
        """What was searched with in place of each query, by split and query id; empty where nothing was written."""
        return {(row["split"], row["id"]): str(row["text"]) for row in self.rows_of(stage, DESCRIPTIONS)}

    def rows_of(self, stage: str, file: str) -> list[dict[str, Any]]:
        """The rows of a small file of an artifact; none where it has no such file."""
        if stage not in self.manifests or not any(one.path == file for one in self.manifests[stage].files):
            return []
        text = read_if_there(self.store.place(artifact_name(stage, self.manifests[stage].fingerprint)), file) or ""
        lines = ",".join(filter(str.strip, text.splitlines()))
        rows: list[dict[str, Any]] = json.loads(f"[{lines}]")  # in one call: a line each takes four times as long
        return rows

    @cached_property
    def systems(self) -> list[System]:
        """The rows of the main table that are measured, in order."""
        return systems_of(self.evaluations, self.settings.search.mode)

    @cached_property
    def failures(self) -> list[Failure]:
        """Of the stages whose last attempt failed."""
        names = [node.name for node in self.plan.nodes.values() if self.states[node.id].state == "failed"]
        attempts = [latest_attempt(self.store, name) for name in names]
        return [failure for attempt in attempts if attempt and (failure := attempt.failure())]

    def by_round(self, kind: str) -> Iterator[tuple[int, Manifest]]:
        """The stages of a kind, such as ``S4p``, that are done, with their rounds, ascending."""
        for number in range(self.settings.rounds + 1):
            if f"{kind}.{number}" in self.manifests:
                yield number, self.manifests[f"{kind}.{number}"]


def _scores(record: Manifest) -> bool:
    return {METRICS, QUERIES} <= {file.path for file in record.files}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs that differ in their seeds alone: what one line of a table is about. Often it is one run."""

    title: str
    runs: tuple[RunView, ...]

    @property
    def first(self) -> RunView:
        """The run whose configuration stands for all."""
        return self.runs[0]

    @property
    def search(self) -> str:
        """The configured search mode."""
        return self.first.settings.search.mode

    @cached_property
    def systems(self) -> list[System]:
        """Measured in every run."""
        return [system for system in self.first.systems if all(system.stage in run.evaluations for run in self.runs)]

    @cached_property
    def rounds(self) -> list[str]:
        """The evaluations of the trained pair that every run has, in order."""
        shared = set.intersection(*(set(run.evaluations) for run in self.runs))
        rounds = [found for stage in shared if (found := ROUND.fullmatch(stage)) and found["kind"] == "E"]
        return [found[0] for found in sorted(rounds, key=lambda found: int(found["round"]))]

    def tiers(self) -> list[str]:
        """Of the evaluated queries, sorted."""
        return sorted({tier for run in self.runs for found in run.evaluations.values() for _, tier, _ in found.groups})

    def splits(self) -> list[str]:
        """Of standard and vague, what was scored."""
        found = {split for run in self.runs for one in run.evaluations.values() for split, _, _ in one.groups}
        return [split for split in ("standard", "vague") if split in found]

    def scores_all(self) -> bool:
        """Whether some evaluation scored more than the samples."""
        return any(
            one.is_wider_than_sample(split)
            for run in self.runs
            for one in run.evaluations.values()
            for split in self.splits()
        )
