import gc
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.config import setting
from cohyde.dag.spec import Metrics
from cohyde.errors import DivergedError, Interrupted, UserError
from cohyde.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Numbers:
    value: int = 1
    seconds: float = setting(0.0, identity=False)
    marker: str = setting("", identity=False)


def number(inputs: Mapping[str, Path], config: Numbers, out_dir: Path, progress: Progress) -> Metrics:
    """The value plus the sum of the inputs."""
    total = config.value + sum(int((path / "number.txt").read_text()) for path in inputs.values())
    (out_dir / "number.txt").write_text(str(total))
    return {"total": total, "pid": os.getpid()}


def slow(inputs: Mapping[str, Path], config: Numbers, out_dir: Path, progress: Progress) -> Metrics:
    (out_dir / "half").write_text("half a result")
    end = time.monotonic() + config.seconds
    while time.monotonic() < end:
        progress.update(config.seconds - (end - time.monotonic()), config.seconds, "seconds")
        time.sleep(0.05)
    return number(inputs, config, out_dir, progress)


def heeding(inputs: Mapping[str, Path], config: Numbers, out_dir: Path, progress: Progress) -> Metrics:
    """Counts to ``value`` in steps of 50 ms, and goes on from where an earlier attempt was asked to stop."""
    assert progress.checkpoints is not None
    kept = progress.checkpoints / "step"
    first = int(kept.read_text()) if kept.exists() else 0
    for step in range(first, config.value):
        progress.update(step, config.value, "steps")
        time.sleep(0.05)
        if progress.stopping:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(str(step + 1))
            raise Interrupted(f"stopped at step {step + 1}")
    (out_dir / "number.txt").write_text(str(config.value))
    return {"total": config.value, "first": first}


def fail(inputs: Mapping[str, Path], config: Any, out_dir: Path, progress: Progress) -> Metrics:
    (out_dir / "half").write_text("half a result")
    raise ValueError("loss is NaN at step 7")


def diverge(inputs: Mapping[str, Path], config: Any, out_dir: Path, progress: Progress) -> Metrics:
    (out_dir / "encoder").mkdir()
    (out_dir / "encoder" / "model.safetensors").write_text("the checkpoint of step 8")
    raise DivergedError("step 11 of 24: the loss is nan")


def refuse(inputs: Mapping[str, Path], config: Any, out_dir: Path, progress: Progress) -> Metrics:
    raise UserError("the catalogue is empty", "give one with tools in it")


def killed_once(inputs: Mapping[str, Path], config: Numbers, out_dir: Path, progress: Progress) -> Metrics:
    (out_dir / "half").write_text("half a result")
    if not Path(config.marker).exists():
        Path(config.marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number(inputs, config, out_dir, progress)


def killed_when_done(inputs: Mapping[str, Path], config: Numbers, out_dir: Path, progress: Progress) -> Metrics:
    """Dies after its artifact has been put in place, and before the driver is told: memory is tidied in between."""

    def die(phase: str, info: Mapping[str, int]) -> None:
        if not out_dir.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    gc.callbacks.append(die)
    return number(inputs, config, out_dir, progress)


def noisy(inputs: Mapping[str, Path], config: Any, out_dir: Path, progress: Progress) -> Metrics:
    print("from print")
    sys.stderr.write("from stderr\n")
    logging.getLogger("some.library").info("from logging")
    warnings.warn("from warnings", stacklevel=1)
    subprocess.run(["echo", "from a child process"], check=True)
    progress.log("from progress")
    progress.warn("mind the gap")
    progress.update(1, 2, "steps")
    return {"loss": float("nan"), "threads": os.environ["OMP_NUM_THREADS"], "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
