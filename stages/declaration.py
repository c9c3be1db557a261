"""What every stage module declares beside its function."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cohyde.config import AllResourcesConfig
from cohyde.dag.spec import StageSpec


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The declaration of a stage: what it is called, which code runs it, and what it needs.

    ``version`` is raised by hand whenever the code changes what the stage writes.
    """

    kind: str
    entry: str
    version: str
    needs: tuple[str, ...]
    reserves: str
    """The section of ``resources`` that says what is reserved for it."""
    optional: tuple[str, ...] = field(default=())
    spreads: bool = False
    """Whether it does work by ``progress.executor``, so that several workers are of use."""

    def spec(
        self,
        stage_id: str,
        config: Any,
        inputs: Mapping[str, str],
        resources: AllResourcesConfig,
        *,
        prompts: Mapping[str, str] | None = None,
        external: Mapping[str, str] | None = None,
    ) -> StageSpec:
        """One node of a pipeline: this stage with a configuration slice and the stages that feed it.

        Raises:
            ValueError: an input that the stage needs is missing, or one is given that it does not know.
        """
        missing = set(self.needs) - set(inputs)
        unknown = set(inputs) - set(self.needs) - set(self.optional)
        if missing or unknown:
            raise ValueError(f"{stage_id}: missing inputs {sorted(missing)}, unknown inputs {sorted(unknown)}")
        reserved = getattr(resources, self.reserves)
        return StageSpec(
            id=stage_id,
            entry=self.entry,
            version=self.version,
            inputs=dict(inputs),
            config=config,
            prompts=dict(prompts or {}),
            external=dict(external or {}),
            resources=reserved if self.spreads else replace(reserved, workers=1),
            resources_key=f"resources.{self.reserves}",
            kind=self.kind,
        )
