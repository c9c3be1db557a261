"""What stages ask of machines, and what machines have: whoever asks for too much is told before anything starts."""

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cohyde.config import ResourcesConfig
from cohyde.dag.plan import Node, Plan
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError

Amounts = Mapping[str, float]
"""Resources by Ray's names: ``CPU``, ``GPU``, ``memory`` in bytes, and a cluster's own names."""
UNKNOWN = math.inf
OWN = ("CPU", "GPU", "memory", "object_store_memory")
NAMED = 5
"""Stages that a message names."""


def demand(resources: ResourcesConfig) -> dict[str, float]:
    """What a stage asks for, or one of its workers; what it does not ask for is left out."""
    asked = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory_gib * 1024**3, **resources.custom}
    return {name: amount for name, amount in asked.items() if amount > 0}


def demands(plan: Plan, todo: Iterable[Node]) -> set[str]:
    """Names of all resources that these stages ask for."""
    return {name for node in todo for name in demand(plan.specs[node.name].resources)}


def fits(asked: Amounts, there: Amounts) -> bool:
    """Whether ``there`` has all that is asked."""
    return not _lacking(asked, there)


def how_many(asked: Amounts, there: Amounts) -> float:
    """How many times ``there`` has what is asked; a whole number, or infinity."""
    times = min(there.get(name, 0.0) / amount for name, amount in asked.items())
    return times if times == UNKNOWN else max(0, math.floor(times + 1e-9))


def _lacking(asked: Amounts, there: Amounts) -> list[str]:
    return [name for name, amount in asked.items() if there.get(name, 0.0) + 1e-9 < amount]


def describe(resources: Amounts) -> str:
    """For people: ``2 CPUs, 1 GPU, 16.5 GiB of memory, 1 h200``."""
    words = []
    for name in ("CPU", "GPU"):
        amount = resources.get(name, 0.0)
        words.append(
            f"an unknown number of {name}s" if amount == UNKNOWN else f"{amount:g} {name}{'' if amount == 1 else 's'}"
        )
    memory = resources.get("memory", 0.0)
    if 0 < memory < UNKNOWN:
        words.append(f"{memory / 1024**3:.1f} GiB of memory")
    # Ray gives every machine a resource node:ADDRESS, and its own bookkeeping is nobody's to ask for.
    words += [f"{amount:g} {name}" for name, amount in resources.items() if name not in OWN and ":" not in name]
    return ", ".join(words)


def check_resources(plan: Plan, todo: Iterable[Node], machines: Sequence[Amounts]) -> None:
    """Every stage fits on some machine, and all of its workers on the machines together.

    Raises:
        UserError: one does not, so it would wait for ever; names what it asks for, what is there and which settings
            to lower.
    """
    too_large: dict[tuple[str, str], list[str]] = {}
    settings: dict[str, None] = {}
    for node in todo:
        spec = plan.specs[node.name]
        asked, workers = demand(spec.resources), spec.resources.workers
        if any(fits(asked, machine) for machine in machines) and _room_for(workers, asked, machines):
            continue
        words = describe(asked) if workers == 1 else f"{workers} workers with {describe(asked)} each"
        too_large.setdefault((words, spec.resources_key), []).append(node.id)
        settings.update(dict.fromkeys(_to_lower(spec, asked, machines)))
    if too_large:
        lines = [f"{_stages(ids)} for {asked} ({key})" for (asked, key), ids in too_large.items()]
        there = "; ".join(dict.fromkeys(map(describe, machines))) or "no machine at all"
        raise UserError("\n  ".join([*lines, f"there is: {there}"]), f"lower {', '.join(settings)}")


def _room_for(workers: int, asked: Amounts, machines: Sequence[Amounts]) -> bool:
    return sum(how_many(asked, machine) for machine in machines) >= workers


def _stages(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"stage {ids[0]} asks"
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"stages {', '.join(ids[:NAMED])}{more} ask"


def _to_lower(spec: StageSpec, asked: Amounts, machines: Sequence[Amounts]) -> list[str]:
    """The settings that no machine meets; where each is met by one, but no machine meets all, all of them.

    Where one worker fits, it is their number.
    """
    if any(fits(asked, machine) for machine in machines):
        return [f"{spec.resources_key}.workers"]
    most = {name: max((machine.get(name, 0.0) for machine in machines), default=0.0) for name in asked}
    words = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gib"}
    names = _lacking(asked, most) or list(asked)
    return [f"{spec.resources_key}.{words.get(name) or f'custom.{name}'}" for name in names]


# ------------------------------------------------------------------------------------------------- this machine


def local_cpus() -> int:
    """CPUs that this process may use: by its affinity, and by the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, math.ceil(int(quota) / int(period))))


def local_machine(asked: Iterable[str]) -> dict[str, float]:
    """What a Ray that is started here would have at most, as far as that is known without starting it.

    Args:
        asked: names of resources that stages ask for. Those of which nothing is known count as there.
    """
    if "RAY_OVERRIDE_RESOURCES" in os.environ:  # where Ray itself is told otherwise
        return dict.fromkeys(asked, UNKNOWN)
    known: dict[str, float] = {name: UNKNOWN if ":" in name else 0.0 for name in asked}
    return known | {"CPU": local_cpus(), "GPU": local_gpus(), "memory": UNKNOWN}


def local_gpus() -> float:
    """GPUs that a Ray of this machine would find: by Ray's own account, without torch."""
    try:
        from ray._private.accelerators import get_accelerator_manager_for_resource
    except ImportError:  # no public name; another version of Ray may have moved it
        return UNKNOWN
    manager = get_accelerator_manager_for_resource("GPU")
    if manager is None:
        return UNKNOWN
    count = manager.get_current_node_num_accelerators()
    visible = manager.get_current_process_visible_accelerator_ids()
    return count if visible is None else min(count, len(visible))


def is_ray_here() -> bool:
    """Whether this process is connected to a Ray already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
