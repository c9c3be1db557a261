"""Every pipeline by its name: CoHyDE, that with all it is compared with, and those of ablations."""

from collections.abc import Callable, Mapping

from cohyde.config import Config
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError
from stages.ablations import query_rewrite, untrained_encoder, untrained_rewriter
from stages.baselines import baselines
from stages.pipeline import Surroundings, pipeline

PIPELINES: Mapping[str, Callable[[Config, Surroundings], list[StageSpec]]] = {
    "cohyde": pipeline,
    "baselines": baselines,
    "query-rewrite": query_rewrite,
    "untrained-encoder": untrained_encoder,
    "untrained-rewriter": untrained_rewriter,
}
"""Strategies of ``pipeline``."""


def specs_of(config: Config, found: Surroundings | None = None) -> list[StageSpec]:
    """The stages of a run, in an order in which they may be executed.

    Raises:
        UserError: there is no such pipeline, or as the pipeline itself.
    """
    if config.pipeline not in PIPELINES:
        raise UserError(
            f"pipeline is {config.pipeline!r}, which does not exist", f"choose one of: {', '.join(PIPELINES)}"
        )
    return PIPELINES[config.pipeline](config, found or Surroundings())
