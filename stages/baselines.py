"""What CoHyDE is compared with, as a pipeline: its own stages, and beside them those of every baseline.

A baseline is made of the stages that CoHyDE is made of, fed otherwise; what two of them have in common is one stage.
"""

from dataclasses import dataclass, replace

from cohyde.config import Config, RewriterConfig, SftConfig
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError
from cohyde.evaluation.fusion import FUSIONS
from cohyde.evaluation.report import RAW_QUERY
from cohyde.rewriter.refine import STEPS
from stages.bm25 import STAGE as BM25
from stages.bm25 import Bm25StageConfig
from stages.describe_evaluation import STAGE as TEXTS
from stages.describe_evaluation import DescribeEvaluationConfig
from stages.embedding_endpoint import STAGE as ENDPOINT
from stages.embedding_endpoint import EndpointStageConfig
from stages.fuse import STAGE as FUSE
from stages.fuse import FuseConfig
from stages.pipeline import Graph, Surroundings, pipeline
from stages.refine import STAGE as REFINE
from stages.refine import RefineStageConfig
from stages.search_texts import STAGE as SEARCH
from stages.search_texts import SearchTextsConfig
from stages.train_rewriter import SFT, SftStageConfig

REWRITER = "B.rewriter"
"""The stage that holds ψ0."""
EXPAND = "expand"
"""The prompt by which a rewriter restates the request, and knows nothing of the catalogue."""


def baselines(config: Config, found: Surroundings | None = None) -> list[StageSpec]:
    """CoHyDE and all that it is compared with.

    Raises:
        UserError: as :func:`stages.pipeline.pipeline`, a fusion does not exist, or an endpoint lacks its model.
    """
    found = found or Surroundings()
    if config.baselines.fusion not in FUSIONS:
        raise UserError(
            f"baselines.fusion is {config.baselines.fusion!r}, which does not exist",
            f"choose one of: {', '.join(FUSIONS)}",
        )
    if config.baselines.endpoint.url and not config.baselines.endpoint.model:
        raise UserError(
            "baselines.endpoint.url is given, but not what is to be asked there", "set baselines.endpoint.model"
        )
    graph = Baselines(config, found)
    return [
        *pipeline(config, found),
        graph.bm25(),
        *([graph.endpoint()] if config.baselines.endpoint.url else []),
        graph.untrained_rewriter(),
        graph.expanded(),
        graph.search("B.expand", "B.expand.texts"),
        graph.described(),
        graph.search("B.hyde", "B.hyde.texts"),
        graph.search("B.hyde-warm-up", "B.hyde.texts", encoder="S1a"),
        graph.refined(),
        *graph.aligned(),
        graph.fused_texts(),
        graph.fused_bm25(),
    ]


@dataclass(frozen=True)
class Baselines(Graph):
    """One method a stage, as in :class:`stages.pipeline.Graph`."""

    def bm25(self) -> StageSpec:
        """B.bm25: raw queries, by the words that they share with tools."""
        config = Bm25StageConfig(
            bm25=self.config.baselines.bm25, index_form=self.config.encoder.index_form, **self._scored
        )
        return BM25.spec("B.bm25", config, {"data": "data"}, self.config.resources)

    def endpoint(self) -> StageSpec:
        """B.endpoint: raw queries and tools, embedded by a server."""
        config = EndpointStageConfig(
            endpoint=self.config.baselines.endpoint, index_form=self.config.encoder.index_form, **self._scored
        )
        return ENDPOINT.spec("B.endpoint", config, {"data": "data"}, self.config.resources)

    # -------------------------------------------------------------------------------------- an untrained rewriter

    def untrained_rewriter(self) -> StageSpec:
        """ψ0 as an artifact, so that stages which take a rewriter can be given it."""
        config = SftStageConfig(
            model=self.config.rewriter.model,
            precision=self.config.rewriter.precision,
            sft=SftConfig(enabled=False),
            selection=None,
            seed=0,
        )
        return SFT.spec(REWRITER, config, {"data": "data"}, self.config.resources, external=self._psi_0)

    def described(self) -> StageSpec:
        """ψ0 describes, asked as CoHyDE's rewriter is: one generation for whichever encoders search with it."""
        return self._texts("B.hyde.texts", self.config.rewriter)

    def expanded(self) -> StageSpec:
        """ψ0 restates the request."""
        return self._texts("B.expand.texts", self._restating)

    def search(self, stage_id: str, texts: str, encoder: str | None = None) -> StageSpec:
        """Search with what a stage wrote, with a stage's encoder or with θ0."""
        config = SearchTextsConfig(
            encoder=self.config.encoder.embedding(), query_weight=self.config.search.query_weight, **self._scored
        )
        inputs = {"data": "data", "descriptions": texts} | ({"encoder": encoder} if encoder else {})
        external = {} if encoder else self._theta_0
        return SEARCH.spec(stage_id, config, inputs, self.config.resources, external=external)

    # --------------------------------------------------------------------------------------------- prior methods

    def refined(self) -> StageSpec:
        """B.refine: ψ0 refines the request by what θ1 finds (iterative feedback; paper, appendix M)."""
        config = RefineStageConfig(
            encoder=self.config.encoder.embedding(),
            rewriter=replace(self.config.rewriter, prompt=STEPS[0], few_shot=0),
            refine=self.config.baselines.refine,
            seed=self._seed_if("B.refine", self.config.baselines.refine.sampling.temperature),
            **self._scored,
        )
        inputs = {"data": "data", "encoder": "S1a", "rewriter": REWRITER}
        return REFINE.spec("B.refine", config, inputs, self.config.resources, prompts=self._hash_of(*STEPS))

    def aligned(self) -> list[StageSpec]:
        """B.aligned: ψ0 restates the request and is aligned with what θ1 ranks well, as RaFe does (Mao et al. 2024).

        S4s, S4p and S4 as in a round, but for the prompt, which stays on the query's side, and the encoder, which
        stays as the warm-up left it.
        """
        specs, rewriter = [], REWRITER
        for number in range(1, self.config.baselines.aligned_rounds + 1):
            samples, pairs, tuned = (f"B.aligned.{stage}.{number}" for stage in ("S4s", "S4p", "S4"))
            specs += [
                self._samples(samples, rewriter, self._restating),
                self._pairs(pairs, samples, "S1a"),
                self._alignment(tuned, pairs, rewriter),
            ]
            rewriter = tuned
        return [*specs, self._evaluation("B.aligned", "S1a", rewriter, self._restating, self._full_at_end)]

    # ------------------------------------------------------------------------------------------- fused rankings

    def fused_texts(self) -> StageSpec:
        """The last round's rankings for raw request and description."""
        return self._fused("B.fused-texts", RAW_QUERY, self._last_round, "description")

    def fused_bm25(self) -> StageSpec:
        """The last round's ranking, as the run searches, and BM25's."""
        return self._fused("B.fused-bm25", self.config.search.mode, "B.bm25", RAW_QUERY)

    # ----------------------------------------------------------------------------------------------- in common

    def _texts(self, stage_id: str, rewriter: RewriterConfig) -> StageSpec:
        config = DescribeEvaluationConfig(
            rewriter=rewriter,
            sampling=self.config.describe,
            evaluation=self.config.evaluation,
            full=self._full_at_end,
            example_seed=self._example_seed,
            seed=self._seed_if(stage_id, self.config.describe.temperature),
        )
        inputs = {"data": "data", "rewriter": REWRITER}
        return TEXTS.spec(stage_id, config, inputs, self.config.resources, prompts=self._hash_of(rewriter.prompt))

    def _fused(self, stage_id: str, first: str, second_stage: str, second: str) -> StageSpec:
        config = FuseConfig(
            strategy=self.config.baselines.fusion,
            constant=self.config.baselines.fusion_constant,
            first=first,
            second=second,
            **self._scored,
        )
        inputs = {"data": "data", "first": self._last_round, "second": second_stage}
        return FUSE.spec(stage_id, config, inputs, self.config.resources)

    @property
    def _restating(self) -> RewriterConfig:
        """The examples of the preset show catalogue lines, which is what a restated request is not."""
        return replace(self.config.rewriter, prompt=EXPAND, few_shot=0)

    @property
    def last_encoder(self) -> str:
        """The stage that holds the last round's encoder."""
        return self._encoder(self.config.rounds + 1)

    @property
    def _last_round(self) -> str:
        return f"E.{self.config.rounds}"
