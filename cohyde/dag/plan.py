"""A plan: the stages of one pipeline, or of many, by the name that the store knows them by.

Stage ids are unique in one pipeline only: the pipelines of a sweep all have an ``S3.1``. A node's name is its
id with its fingerprint, so plans can be merged, and what pipelines share is one node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cohyde.dag import lint
from cohyde.dag.fingerprint import identify
from cohyde.dag.graph import children_of, reachable, sort_names
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError

SHORT = 16
"""Hexadecimal digits of the fingerprint in folder names (64 bits)."""


def artifact_name(stage_id: str, fingerprint: str) -> str:
    """Name of a stage's artifact folder."""
    return f"{stage_id}-{fingerprint[:SHORT]}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One stage, fingerprinted: all that is needed to find what it made."""

    id: str
    fingerprint: str
    inputs: Mapping[str, str]
    """Name of the input → name of the node that it comes from."""

    @cached_property
    def name(self) -> str:
        """Unique in a plan, and the name of the artifact's folder."""
        return artifact_name(self.id, self.fingerprint)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Nodes by name, every one after its inputs."""

    nodes: Mapping[str, Node]
    specs: Mapping[str, StageSpec] = field(default_factory=dict)
    """By node name. Empty for a plan that was read from a run's record: it can be looked at, not run."""
    identities: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """By node name: what the fingerprint is a hash of."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """By node name: the run that manifests and advice name. Filled where a plan holds the stages of several."""

    @cached_property
    def parents(self) -> dict[str, list[str]]:
        """Node name → names of the nodes it needs."""
        return {name: list(node.inputs.values()) for name, node in self.nodes.items()}

    @cached_property
    def children(self) -> dict[str, list[str]]:
        """Node name → names of the nodes that need it."""
        return children_of(self.parents)

    def named(self, stage_id: str) -> list[str]:
        """Names of the nodes with this stage id: one in a pipeline, several in a sweep.

        Raises:
            UserError: there is none.
        """
        found = [name for name, node in self.nodes.items() if node.id == stage_id]
        if not found:
            ids = dict.fromkeys(node.id for node in self.nodes.values())
            raise UserError(f"no stage is called {stage_id!r}", f"stages are: {', '.join(ids)}")
        return found

    def until(self, *stage_ids: str) -> "Plan":
        """The stages and everything that they need."""
        return self._only(reachable([name for stage_id in stage_ids for name in self.named(stage_id)], self.parents))

    def below(self, stage_id: str) -> list[Node]:
        """The stage and everything that needs it, in order: what ``rerun`` throws away."""
        return [self.nodes[name] for name in self.below_names(*self.named(stage_id))]

    def below_names(self, *names: str) -> list[str]:
        """The nodes of these names and everything that needs them, in order."""
        kept = reachable(names, self.children)
        return [name for name in self.nodes if name in kept]

    def _only(self, kept: set[str]) -> "Plan":
        return replace(self, nodes={name: node for name, node in self.nodes.items() if name in kept})


def make_plan(specs: Sequence[StageSpec]) -> Plan:
    """Check a pipeline and fingerprint its stages.

    Raises:
        UserError: what is wrong with it, stage by stage.
    """
    lint.check(specs)
    nodes: dict[str, Node] = {}
    names: dict[str, str] = {}
    known = identify(specs)
    for one in known:
        inputs = {name: names[stage] for name, stage in one.spec.inputs.items()}
        node = Node(id=one.spec.id, fingerprint=one.fingerprint, inputs=inputs)
        names[node.id] = node.name
        nodes[node.name] = node
    return Plan(
        nodes=nodes,
        specs={names[one.spec.id]: one.spec for one in known},
        identities={names[one.spec.id]: one.identity for one in known},
    )


def merge(plans: Iterable[Plan]) -> Plan:
    """One plan of several, for a sweep: what they share occurs once."""
    nodes: dict[str, Node] = {}
    specs: dict[str, StageSpec] = {}
    known: dict[str, dict[str, Any]] = {}
    for plan in plans:
        nodes.update(plan.nodes)
        specs.update(plan.specs)
        known.update(plan.identities)
    order = sort_names({name: node.inputs.values() for name, node in nodes.items()})
    return Plan(nodes={name: nodes[name] for name in order}, specs=specs, identities=known)


def as_plan(specs: "Plan | Sequence[StageSpec]") -> Plan:
    """The plan itself, or the plan of a pipeline."""
    return specs if isinstance(specs, Plan) else make_plan(specs)
