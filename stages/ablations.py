"""Ablations: the files in ``configs/ablations``, and the pipelines of those that score other pairs of models.

An ablation is a run of its own that departs from the main run in what its file says; what it leaves as it is has the
main run's fingerprints, and is not computed again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from cohyde.config import Config, RewriterConfig
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError
from cohyde.resources import resource_folder
from stages.baselines import Baselines
from stages.pipeline import Graph, Surroundings, check_strategies, pipeline
from stages.relevant_tools import STAGE as RELEVANT_TOOLS
from stages.relevant_tools import RelevantToolsConfig

FOLDER = "ablations"
KEYS = {"title", "about", "settings", "presets", "titles"}
REWRITE = "rewrite"
"""The prompt by which a rewriter restates the request, given names of relevant tools."""
TOOLS = "tools"
"""The stage that finds those names."""
MEASURED = "A."
"""What the id of a stage begins with that an ablation is measured by, where that is not its last round."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One file: how a run departs from the main one."""

    key: str
    """By which commands name it: the file's name."""
    title: str
    """For people; at most 30 characters, so that a table fits 80 columns."""
    about: str
    """One line: what is taken away or replaced."""
    settings: Mapping[str, Any]
    """Nested sections, as in a preset."""
    presets: Mapping[str, Mapping[str, Any]]
    """The same by preset, for those that need other figures: steps scale with the size of models and data."""
    titles: Mapping[str, str]
    """The title by preset, where a preset's figures make it another."""

    def title_under(self, presets: Sequence[str]) -> str:
        """The title that goes with a preset's figures; arguments as of :meth:`overrides`."""
        return next((self.titles[name] for name in reversed(presets) if name in self.titles), self.title)

    def overrides(self, presets: Sequence[str]) -> list[str]:
        """``key=value`` for each setting that departs from the main run.

        Args:
            presets: the main run's preset, after those that it extends; the settings of later ones win.
        """
        found = dict(_leaves(self.settings))
        for name in presets:
            found |= dict(_leaves(self.presets.get(name, {})))
        return [f"{key}={json.dumps(value)}" for key, value in found.items()]


def ablations() -> list[Ablation]:
    """All that there are, by the names of their files.

    Raises:
        UserError: a file is none.
    """
    return [load_ablation(path.stem) for path in sorted((resource_folder("configs") / FOLDER).glob("*.yaml"))]


def load_ablation(key: str) -> Ablation:
    """Read ``configs/ablations/<key>.yaml``.

    Raises:
        UserError: there is no such file (lists those there are), or it is not what an ablation consists of.
    """
    folder = resource_folder("configs") / FOLDER
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if key not in known:
        raise UserError(f"no ablation is called {key!r}", f"ablations are: {', '.join(known)}")
    path = folder / f"{key}.yaml"
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or not {"title", "about", "settings"} <= set(data) <= KEYS:
        raise UserError(
            f"{path}: an ablation has title, about and settings, perhaps presets and titles, and nothing else"
        )
    return Ablation(
        key=key,
        title=str(data["title"]),
        about=str(data["about"]),
        settings=data["settings"],
        presets=data.get("presets") or {},
        titles=data.get("titles") or {},
    )


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def measured_by(config: Config, stages: Sequence[str]) -> str:
    """The stage that an ablation, or the main run, is measured by: its last round, or another pair of models.

    Args:
        config: the run's.
        stages: ids of its stages.
    """
    return next((stage for stage in stages if stage.startswith(MEASURED)), f"E.{config.rounds}")


def untrained_encoder(config: Config, found: Surroundings | None = None) -> list[StageSpec]:
    """The last round's rewriter with θ0: what it wrote is searched with again."""
    found = found or Surroundings()
    graph = Baselines(config, found)
    return [*pipeline(config, found), graph.search("A.untrained-encoder", f"E.{config.rounds}")]


def untrained_rewriter(config: Config, found: Surroundings | None = None) -> list[StageSpec]:
    """The last round's encoder with ψ0, whose descriptions are those of the HyDE baselines."""
    found = found or Surroundings()
    graph = Baselines(config, found)
    return [
        *pipeline(config, found),
        graph.untrained_rewriter(),
        graph.described(),
        graph.search("A.untrained-rewriter", "B.hyde.texts", encoder=graph.last_encoder),
    ]


def query_rewrite(config: Config, found: Surroundings | None = None) -> list[StageSpec]:
    """The rewriter restates the request, given names of tools, in place of describing what would fulfil it."""
    found = found or Surroundings()
    check_strategies(config, found)
    graph = QueryRewrite(config, found)
    return [*graph.stages(), graph.relevant_tools()]


@dataclass(frozen=True)
class QueryRewrite(Graph):
    """As :class:`stages.pipeline.Graph`; the warm-ups are the main run's."""

    def relevant_tools(self) -> StageSpec:
        """What θ1 finds for each request, by name."""
        settings = RelevantToolsConfig(
            encoder=self.config.encoder.embedding(), tools=self.config.baselines.rewrite_tools
        )
        return RELEVANT_TOOLS.spec(TOOLS, settings, {"data": "data", "encoder": "S1a"}, self.config.resources)

    def describe(self, number: int) -> StageSpec:
        """S2.r, told the names."""
        return _told(super().describe(number))

    def candidates(self, number: int) -> StageSpec:
        """S4s.r, told the names."""
        return _told(super().candidates(number))

    def evaluate(self, number: int) -> StageSpec:
        """E.r, told the names."""
        return _told(super().evaluate(number))

    @property
    def _asked(self) -> RewriterConfig:
        """The preset's examples show catalogue lines, which is what a restated request is not."""
        return replace(self.config.rewriter, prompt=REWRITE, few_shot=0)


def _told(spec: StageSpec) -> StageSpec:
    return replace(spec, inputs={**spec.inputs, "tools": TOOLS})
