"""Runs: a name for a resolved configuration and the stages that it comes to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cohyde.dag.manifest import NewerFormatError, check_format
from cohyde.dag.plan import Node, Plan
from cohyde.dag.store import UPDATE, Store
from cohyde.errors import UserError
from cohyde.filesystem import writing_to

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
FILE = "run.yaml"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of ``runs/<name>/run.yaml``."""

    name: str
    config: Mapping[str, Any]
    """The resolved configuration, as plain data."""
    preset: str = ""
    """Name or file that the configuration was loaded from."""
    overrides: tuple[str, ...] = ()
    """``key=value`` of the command line."""
    started: str = ""
    """ISO 8601; set when it is saved."""
    plan: Plan
    """Its stages: ids, fingerprints and inputs. Read back from the file it has no specs: it can't be run as it is."""


def check_name(name: str) -> str:
    """The name, if it can be a folder's.

    Raises:
        UserError: it cannot.
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a run's name",
            "use 1 to 100 letters, digits, '.', '_' or '-', not starting with '.'",
        )
    return name


def save_run(store: Store, record: RunRecord) -> Path:
    """Write the record, whole or not at all, over an older one of the same name; returns its path."""
    path = store.runs / check_name(record.name) / FILE
    names = {name: node.id for name, node in record.plan.nodes.items()}
    body = {
        "format": FORMAT,
        "name": record.name,
        "started": record.started or datetime.now().astimezone().isoformat(timespec="seconds"),
        "preset": record.preset,
        "overrides": list(record.overrides),
        "stages": [
            {
                "id": node.id,
                "fingerprint": node.fingerprint,
                "inputs": {key: names[source] for key, source in node.inputs.items()},
            }
            for node in record.plan.nodes.values()
        ],
        "config": dict(record.config),
    }
    with writing_to(path):
        store.place("runs").write(f"{record.name}/{FILE}", yaml_text(body))
    return path


def yaml_text(body: Any) -> str:
    """A record as YAML, by the C emitter where it was built: it is ten times as fast."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(body, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def yaml_body(text: str) -> Any:
    """What a record's YAML says. As ``yaml.safe_load``, by the C parser where it was built: records can be long."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def load_run(store: Store, name: str) -> RunRecord:
    """Read a run's record.

    Raises:
        UserError: there is no such run (lists those there are), or its file was damaged.
    """
    import yaml

    path = store.shown("runs", check_name(name), FILE)
    try:
        text = store.place("runs").read(f"{name}/{FILE}")
    except (FileNotFoundError, NotADirectoryError):
        known = run_names(store)
        there = f"runs there: {', '.join(known)}" if known else "there are no runs there yet: start with `cohyde run`"
        raise UserError(f"no run is called {name!r} in {store.location}", there) from None
    try:
        return _parsed(yaml_body(text))
    except NewerFormatError as error:
        raise UserError(f"{path}: {error}", UPDATE) from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: damaged: {reason}", f"write it anew with `cohyde run --name {name} …`") from None


def load_runs(store: Store) -> tuple[dict[str, RunRecord], list[UserError]]:
    """The records of all runs by name, and what is wrong with those that cannot be read."""
    records, faults = {}, []
    for name in run_names(store):
        try:
            records[name] = load_run(store, name)
        except UserError as error:
            faults.append(error)
    return records, faults


def run_names(store: Store) -> list[str]:
    """Names of all runs, sorted."""
    return sorted(_times(store))


def latest_run(store: Store) -> str:
    """Name of the run that was started last.

    Raises:
        UserError: there is none.
    """
    times = _times(store)
    if not times:
        raise UserError(f"there is no run in {store.location} yet", "start with `cohyde run`")
    return max(times, key=lambda name: times[name])


def run_time(store: Store) -> float:
    """When a run was last started; 0 where none was."""
    return max(_times(store).values(), default=0.0)


def _times(store: Store) -> dict[str, float]:
    """When each run was last started, by name."""
    return {file.removesuffix(f"/{FILE}"): time for file, time in store.place("runs").times(f"*/{FILE}").items()}


def _parsed(body: Any) -> RunRecord:
    if not isinstance(body, dict):
        raise ValueError("not a run's record")
    check_format(body["format"], FORMAT)
    if not isinstance(body["config"], dict):
        raise ValueError("config has to be a section with keys")
    return RunRecord(
        name=str(body["name"]),
        config=body["config"],
        preset=str(body["preset"]),
        overrides=tuple(map(str, body["overrides"])),
        started=str(body["started"]),
        plan=_plan(body["stages"]),
    )


def _plan(stages: Sequence[Mapping[str, Any]]) -> Plan:
    nodes: dict[str, Node] = {}
    names: dict[str, str] = {}
    for stage in stages:
        inputs = {key: names[source] for key, source in stage["inputs"].items()}
        node = Node(id=stage["id"], fingerprint=stage["fingerprint"], inputs=inputs)
        names[node.id] = node.name
        nodes[node.name] = node
    return Plan(nodes=nodes)
