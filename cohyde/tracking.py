"""Step metrics: what a training tells of itself step by step, as one file of the stage's artifact.

``steps.jsonl`` has one row a step, in ascending order: ``step`` (optimiser steps that are finished; 0 is the start),
``epoch`` (passes over the data, a fraction), and whatever was measured there under its own name, such as ``loss`` or
``lr``. What was not measured at a step is not in its row. No row holds a time: equal trainings give equal bytes.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cohyde.io import read_rows, write_jsonl

AXES = ("step", "epoch")
"""Where a row was measured; all else in it is a measurement."""


def write_steps(path: Path, history: Iterable[Mapping[str, float]]) -> None:
    """Write a training's history; rows of the same step become one, and what is not a finite number is left out."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in history:
        by_step.setdefault(int(row["step"]), {}).update(row)
    write_jsonl(path, (_ordered(by_step[step]) for step in sorted(by_step)))


def _ordered(row: Mapping[str, float]) -> dict[str, float]:
    names = [*(name for name in AXES if name in row), *sorted(set(row) - set(AXES))]
    return {name: row[name] for name in names if math.isfinite(row[name])}


def read_steps(path: Path) -> list[dict[str, float]]:
    """The rows of a ``steps.jsonl``.

    Raises:
        UserError: the file is missing or damaged.
    """
    return read_rows(path)


def curves(rows: Iterable[Mapping[str, float]]) -> dict[str, list[tuple[int, float]]]:
    """The measurements by name, each as its points ``(step, value)`` in the order of the rows."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in AXES:
                found.setdefault(name, []).append((int(row["step"]), value))
    return found
