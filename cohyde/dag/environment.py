"""What a stage's worker process starts with: what is reserved for it, where it finds code, and its threads."""

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

from cohyde.dag.capacity import demand
from cohyde.dag.lint import package_of
from cohyde.dag.spec import StageSpec
from cohyde.dag.worker import threads
from cohyde.errors import UserError


def ray_options(spec: StageSpec) -> dict[str, Any]:
    """What Ray is told of a worker process. GPUs are named where there are none, too (TRAPS 3)."""
    asked = demand(spec.resources)
    return {
        "num_cpus": asked.get("CPU", 0),
        "num_gpus": asked.get("GPU", 0),
        "memory": int(asked.get("memory", 0)) or None,
        "resources": {name: amount for name, amount in asked.items() if name in spec.resources.custom},
        "runtime_env": {"env_vars": worker_environment(spec)},
    }


def worker_environment(spec: StageSpec) -> dict[str, str]:
    """Environment variables of the worker process. Workers are shared by stages for which they are the same."""
    count = str(threads(spec.resources.cpus))
    variables = {
        "PYTHONPATH": python_path(package_of(spec.entry)),
        "PYTHONHASHSEED": "0",  # the order of a set of texts must not differ between attempts
        "OMP_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait do not spin: stages run side by side
        "RAYON_NUM_THREADS": count,
    }
    if spec.resources.gpus == 0:
        variables["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides GPUs only from stages that were given some
    return variables


@functools.cache
def python_path(package: str) -> str:
    """Search path that finds this library and the stages' package as they are found here."""
    folders = [_home(package), _home("cohyde"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))


def _home(package: str) -> str:
    found = importlib.util.find_spec(package)
    if found is None:
        raise UserError(f"there is no package {package!r}")
    if found.submodule_search_locations:
        return str(Path(next(iter(found.submodule_search_locations))).absolute().parent)
    return str(Path(found.origin or ".").absolute().parent)
