"""Sweeps: many runs as one plan, in which what they share is done once, and the record that keeps them together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from cohyde.dag.manifest import NewerFormatError, check_format
from cohyde.dag.plan import Plan, merge
from cohyde.dag.runs import RunRecord, check_name, load_run, run_names, run_time, yaml_body, yaml_text
from cohyde.dag.state import StageState
from cohyde.dag.store import UPDATE, Store
from cohyde.errors import UserError
from cohyde.filesystem import writing_to

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Union:
    """The plans of several runs as one plan."""

    name: str
    """Of the sweep."""
    plans: Mapping[str, Plan]
    """By run name."""

    @cached_property
    def plan(self) -> Plan:
        """Every node once. A shared one is said to be of the first run that has it."""
        return replace(merge(self.plans.values()), runs={name: runs[0] for name, runs in self.runs_of.items()})

    @cached_property
    def runs_of(self) -> dict[str, list[str]]:
        """Node name → names of the runs that it is a stage of."""
        found: dict[str, list[str]] = {}
        for run, plan in self.plans.items():
            for name in plan.nodes:
                found.setdefault(name, []).append(run)
        return found

    @cached_property
    def labels(self) -> dict[str, str]:
        """What people read, by node name: ``S1a`` where all runs share it, else ``s0/S3.1``, without the sweep's name.

        A stage of some runs is called by the first: ``lr1e-05-s0/S1a +1``.
        """
        return {name: self._label(name, runs) for name, runs in self.runs_of.items()}

    def _label(self, name: str, runs: Sequence[str]) -> str:
        stage_id = self.plan.nodes[name].id
        more = f" +{len(runs) - 1}" if len(runs) > 1 else ""
        return stage_id if self.is_common(name) else f"{self.short(runs[0])}/{stage_id}{more}"

    def is_common(self, name: str) -> bool:
        """Whether the node is one of all runs, of which there are several."""
        return len(self.runs_of[name]) == len(self.plans) > 1

    def short(self, run: str) -> str:
        """A run's name without the sweep's."""
        return run.removeprefix(f"{self.name}-")

    def rows(self, states: Sequence[StageState]) -> list[StageState]:
        """One row a run and stage, with ids ``RUN/STAGE``. What runs share has a row in each, with the same path.

        Args:
            states: of :attr:`plan`, in its order.
        """
        by_name = dict(zip(self.plan.nodes, states, strict=True))
        return [
            replace(
                by_name[name],
                id=f"{run}/{by_name[name].id}",
                inputs={key: f"{run}/{source}" for key, source in by_name[name].inputs.items()},
            )
            for run, plan in self.plans.items()
            for name in plan.nodes
        ]


# -------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, kw_only=True)
class Member:
    """One run of a sweep: what of it differs from the others."""

    name: str
    seed: int
    settings: Mapping[str, str]
    """Setting → value, as it was written."""


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """The content of ``sweeps/<name>.yaml``."""

    name: str
    config: Mapping[str, Any]
    """The resolved configuration of the first run, as plain data; the others differ in what is swept over."""
    preset: str = ""
    """Name or file that the configuration was loaded from."""
    overrides: tuple[str, ...] = ()
    """``key=value`` and ``key=v1,v2`` of the command line."""
    started: str = ""
    """ISO 8601; set when it is saved."""
    members: tuple[Member, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Every seed once."""
        return tuple(dict.fromkeys(member.seed for member in self.members))

    @property
    def swept(self) -> tuple[str, ...]:
        """The settings that have several values."""
        return tuple(dict.fromkeys(key for member in self.members for key in member.settings))

    def arms(self) -> list[tuple[Mapping[str, str], list[Member]]]:
        """The runs of each combination of settings, which differ in their seeds alone."""
        found: dict[tuple[tuple[str, str], ...], list[Member]] = {}
        for member in self.members:
            found.setdefault(tuple(member.settings.items()), []).append(member)
        return [(dict(settings), members) for settings, members in found.items()]


def sweep_names(store: Store) -> list[str]:
    """Names of all sweeps, sorted."""
    return sorted(_times(store))


def latest_sweep(store: Store) -> str | None:
    """Name of the sweep that was started last, unless a run was started since."""
    times = _times(store)
    last = max(times, key=lambda name: times[name], default=None)
    return last if last is not None and times[last] >= run_time(store) else None


def _times(store: Store) -> dict[str, float]:
    """When each sweep was last started, by name."""
    return {file.removesuffix(".yaml"): time for file, time in store.place("sweeps").times("*.yaml").items()}


def check_sweep_name(store: Store, name: str) -> None:
    """A name means a run or a sweep, not both: other commands are given nothing but the name.

    Raises:
        UserError: it is a run's, or cannot be a name.
    """
    if check_name(name) in run_names(store):
        raise UserError(f"{name!r} is the name of a run in {store.location}", "give the sweep another --name")


def check_run_name(store: Store, name: str) -> None:
    """The same the other way round.

    Raises:
        UserError: it is a sweep's, or cannot be a name.
    """
    if store.place("sweeps").exists(f"{check_name(name)}.yaml"):
        raise UserError(f"{name!r} is the name of a sweep in {store.location}", "give the run another --name")


def save_sweep(store: Store, record: SweepRecord) -> Path:
    """Write the record, whole or not at all, over an older one of the same name; returns its path."""
    path = store.root / "sweeps" / f"{check_name(record.name)}.yaml"
    body = {
        "format": FORMAT,
        "name": record.name,
        "started": record.started or datetime.now().astimezone().isoformat(timespec="seconds"),
        "preset": record.preset,
        "overrides": list(record.overrides),
        "runs": [{**asdict(member), "settings": dict(member.settings)} for member in record.members],
        "config": dict(record.config),
    }
    with writing_to(path):
        store.place("sweeps").write(path.name, yaml_text(body))
    return path


def load_sweep(store: Store, name: str) -> SweepRecord:
    """Read a sweep's record.

    Raises:
        UserError: there is no such sweep (lists those there are), its file was damaged, or a later version wrote it.
    """
    import yaml

    path = store.shown("sweeps", f"{check_name(name)}.yaml")
    try:
        text = store.place("sweeps").read(f"{name}.yaml")
    except (FileNotFoundError, NotADirectoryError):
        known = ", ".join(sweep_names(store)) or "none yet"
        raise UserError(f"no sweep is called {name!r} in {store.location}", f"sweeps there: {known}") from None
    try:
        return _parsed(yaml_body(text))
    except NewerFormatError as error:
        raise UserError(f"{path}: {error}", UPDATE) from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: damaged: {reason}", f"write it anew with `cohyde sweep --name {name} …`") from None


def load_single_run(store: Store, name: str) -> RunRecord:
    """Read a run's record, and say so where the name is a sweep's.

    Raises:
        UserError: as :func:`cohyde.dag.runs.load_run`, or it is a sweep (lists its runs).
    """
    if name in sweep_names(store) and name not in run_names(store):
        members = [member.name for member in load_sweep(store, name).members]
        raise UserError(f"{name} is a sweep, and this is about one run", f"its runs are: {', '.join(members)}")
    return load_run(store, name)


def _parsed(body: Any) -> SweepRecord:
    if not isinstance(body, dict):
        raise ValueError("not a sweep's record")
    check_format(body["format"], FORMAT)
    if not isinstance(body["config"], dict):
        raise ValueError("config has to be a section with keys")
    members = [
        Member(
            name=str(run["name"]), seed=int(run["seed"]), settings={str(k): str(v) for k, v in run["settings"].items()}
        )
        for run in body["runs"]
    ]
    return SweepRecord(
        name=str(body["name"]),
        config=body["config"],
        preset=str(body["preset"]),
        overrides=tuple(map(str, body["overrides"])),
        started=str(body["started"]),
        members=tuple(members),
    )
