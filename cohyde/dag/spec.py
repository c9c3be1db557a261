"""What a stage declares about itself: everything the graph, the store and the runner need, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cohyde.config import ResourcesConfig
from cohyde.progress import Progress

Metrics = dict[str, float | int | str | None]


class StageFunction(Protocol):
    """What an entry names. It reads its inputs, writes into ``out_dir`` and returns its metrics."""

    def __call__(self, inputs: Mapping[str, Path], config: Any, out_dir: Path, progress: Progress) -> Metrics:
        """Do the work. The files written must depend on the arguments alone: no times, no hosts, no absolute paths."""


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """One stage of a pipeline."""

    id: str
    """Unique in its pipeline and fit for a folder's name, for example ``S3.1``."""
    entry: str
    """``package.module:function``; imported in the worker only."""
    version: str
    """Bumped by hand whenever the stage's code changes its result."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name of the input → id of the stage whose artifact it is."""
    config: Any = None
    """A frozen dataclass (or None): the slice of the configuration that the stage function gets."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name of a prompt → SHA-256 of its text."""
    external: Mapping[str, str] = field(default_factory=dict)
    """What comes from outside the graph, by content: data checksums, identities of models."""
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    """What is reserved while the stage runs; no part of identity."""
    resources_key: str = "resources"
    """The section of the configuration that says so, for advice."""
    kind: str = ""
    """A short title for people, for example ``encoder retrain``; no part of identity."""

    def __post_init__(self) -> None:
        """Copy the mappings: a spec must not change after it was fingerprinted, and it travels to other processes."""
        for name in ("inputs", "prompts", "external"):
            object.__setattr__(self, name, dict(getattr(self, name)))
