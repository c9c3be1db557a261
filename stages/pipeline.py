"""The round-indexed DAG of CoHyDE, as data. Read it from top to bottom: it is the method."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from cohyde.config import Config, RewriterConfig
from cohyde.dag.spec import StageSpec
from cohyde.data.dataset import dataset_checksum
from cohyde.encoder.anchors import ANCHORS
from cohyde.encoder.embedder import EMBEDDERS
from cohyde.encoder.infonce import NEGATIVES
from cohyde.encoder.search import SEARCH_MODES
from cohyde.errors import UserError
from cohyde.models.reference import identity
from cohyde.rewriter.generate import BACKENDS, chosen
from cohyde.rewriter.preferences import PICKS, REWARDS
from cohyde.rewriter.prompts import load_prompt
from cohyde.trackers import TRACKERS
from stages.data import STAGE as DATA
from stages.describe import STAGE as DESCRIBE
from stages.describe import DescribeConfig, GenerationConfig
from stages.evaluate import EVALUATE, UNTRAINED, EvaluateConfig, UntrainedConfig
from stages.mine_negatives import STAGE as MINE
from stages.mine_negatives import MineConfig
from stages.preference_pairs import STAGE as PAIRS
from stages.preference_pairs import PairsConfig
from stages.report import STAGE as REPORT
from stages.report import ReportConfig
from stages.sample_candidates import STAGE as CANDIDATES
from stages.train_encoder import RETRAIN, WARM_UP, RetrainStageConfig, WarmupConfig
from stages.train_rewriter import (
    DPO,
    INSTRUCT,
    SFT,
    TARGETS,
    DpoStageConfig,
    InstructionStageConfig,
    SelectionConfig,
    SftStageConfig,
)

UNTRAINED_ID = "E.untrained"


class Surroundings:
    """What a pipeline finds outside the graph, by content: data, models, prompts.

    Each is looked at once. The pipelines of a sweep share one, so that they see the same, at the cost of one.
    """

    def __init__(self) -> None:
        """Nothing is looked at yet."""
        self.data_checksum = cache(dataset_checksum)
        self.model_identity = cache(identity)
        self.prompt = cache(load_prompt)


def pipeline(config: Config, found: Surroundings | None = None) -> list[StageSpec]:
    """All stages of a run with ``config.rounds`` rounds, in an order in which they may be executed.

    Args:
        config: the run's settings.
        found: shared by pipelines that are planned together.

    Raises:
        UserError: a strategy, prompt, model or dataset that the configuration names does not exist.
    """
    found = found or Surroundings()
    check_strategies(config, found)
    return Graph(config, found).stages()


def check_strategies(config: Config, found: Surroundings) -> None:
    """Every name that chooses a strategy has to stand in the table of the module that owns it.

    Raises:
        UserError: one does not, the prompt needs more than a query, or there would be nothing to make pairs of.
    """
    named: list[tuple[str, str, Mapping[str, object]]] = [
        ("retrain.anchor", config.retrain.anchor, ANCHORS),
        ("encoder.embedder", config.encoder.embedder, EMBEDDERS),
        ("encoder.train.negatives", config.encoder.train.negatives, NEGATIVES),
        ("search.mode", config.search.mode, SEARCH_MODES),
        ("tracking.to", config.tracking.to, TRACKERS),
        ("preferences.reward", config.preferences.reward, REWARDS),
        ("preferences.pick", config.preferences.pick, PICKS),
        ("instruction.targets", config.instruction.targets, TARGETS),
        ("rewriter.backend", backend_of(config).backend, BACKENDS),
    ]
    for key, name, table in named:
        if name not in table:
            raise UserError(f"{key} is {name!r}, which does not exist", f"choose one of: {', '.join(table)}")
    fields = found.prompt(config.rewriter.prompt).fields
    if fields != ("query",):
        raise UserError(
            f"rewriter.prompt is {config.rewriter.prompt!r}, whose fields are {', '.join(fields) or 'none'}",
            "the rewriter is given the query alone: choose a prompt with the one field {query}",
        )
    check_backend(config)
    endpoint = config.encoder.endpoint
    if config.encoder.embedder == "endpoint" and not (endpoint.url and endpoint.model):
        raise UserError(
            "encoder.embedder is 'endpoint', but it is not said who embeds",
            "set encoder.endpoint.url and encoder.endpoint.model",
        )
    if config.candidates.n < 2:
        raise UserError("candidates.n is 1: a pair needs two candidates", "set candidates.n to 2 or more (paper: 4)")


def backend_of(config: Config) -> RewriterConfig:
    """The rewriter's settings with its backend by name: ``auto`` is decided by what generation reserves."""
    return chosen(config.rewriter, config.resources.generation.gpus)


def check_backend(config: Config) -> None:
    """What the backend of generation cannot do.

    Raises:
        UserError: a server that shall answer for a rewriter in training, or an engine over more GPUs than are reserved.
    """
    rewriter = backend_of(config)
    if rewriter.backend == "openai":
        if config.rounds or config.sft.enabled or config.instruction.enabled:
            raise UserError(
                "rewriter.backend is 'openai', but this run trains the rewriter: a server's weights stay as they are",
                "set rewriter.backend=vllm; a server can answer for an untrained rewriter: rounds=0 sft.enabled=false",
            )
        if not rewriter.openai.url or not rewriter.openai.model:
            raise UserError(
                "rewriter.backend is 'openai', but it is not said who answers",
                "set rewriter.openai.url and rewriter.openai.model",
            )
    spread, reserved = rewriter.vllm.tensor_parallel_size, config.resources.generation.gpus
    if spread > 1 and reserved < spread:
        raise UserError(
            f"rewriter.vllm.tensor_parallel_size is {spread}, but generation reserves {reserved:g} GPUs",
            f"set resources.generation.gpus={spread}",
        )


def derived_seed(seed: int, stage_id: str) -> int:
    """A seed for one stage, independent of all others: 31 bits of a hash."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{stage_id}".encode()).digest()[:4]) >> 1


@dataclass(frozen=True)
class Graph:
    """One method a stage: what it is fed with, which slice of the configuration it sees, what else bears identity."""

    config: Config
    found: Surroundings

    def __post_init__(self) -> None:
        """Call the backend by its name, so that this is what every stage sees, and its fingerprint."""
        object.__setattr__(self, "config", replace(self.config, rewriter=backend_of(self.config)))

    def stages(self) -> list[StageSpec]:
        """All of them, in an order in which they may be executed."""
        specs = [self.data(), self.untrained(), self.encoder_warm_up(), self.rewriter_warm_up()]
        if self.config.instruction.enabled:
            specs.append(self.instruction())
        specs.append(self.evaluate(0))
        for number in range(1, self.config.rounds + 1):
            specs += [
                self.describe(number),
                *([self.hard_negatives(number)] if self.config.mining.enabled else []),
                self.encoder_retrain(number),
                self.candidates(number),
                self.pairs(number),
                self.alignment(number),
                self.evaluate(number),
            ]
        return [*specs, self.report()]

    # ---------------------------------------------------------------------------------------------- warm-up

    def data(self) -> StageSpec:
        """The dataset, validated, with its splits."""
        checksum = self.found.data_checksum(self.config.data.path)
        return DATA.spec("data", self.config.data, {}, self.config.resources, external={"data": checksum})

    def untrained(self) -> StageSpec:
        """θ0 on raw queries."""
        config = UntrainedConfig(
            encoder=self.config.encoder.embedding(),
            evaluation=self.config.evaluation,
            full=self._full_at_end,
            depth=self.config.search.depth,
            example_seed=self._example_seed,
        )
        return UNTRAINED.spec(UNTRAINED_ID, config, {"data": "data"}, self.config.resources, external=self._theta_0)

    def encoder_warm_up(self) -> StageSpec:
        """S1a: θ0 → θ1. Its positives are rendered as the index is; the mixture is S3's alone."""
        encoder = replace(self.config.encoder.in_training(), training_forms=(self.config.encoder.index_form,))
        config = WarmupConfig(encoder=encoder, seed=derived_seed(self.config.seeds.warmup, "S1a"))
        return WARM_UP.spec("S1a", config, {"data": "data"}, self.config.resources, external=self._theta_0)

    def rewriter_warm_up(self) -> StageSpec:
        """S1b: ψ0 → ψ1. It needs θ0 and the prompt only where a checkpoint is selected by them."""
        sft = self.config.sft
        selection = None
        if sft.enabled and sft.eval_queries:
            selection = SelectionConfig(
                encoder=self.config.encoder.embedding(),
                rewriter=chosen(replace(self.config.rewriter, backend="transformers")),
                describe=self.config.describe,
                queries=sft.eval_queries,
                example_seed=self._example_seed,
            )
        config = SftStageConfig(
            model=self.config.rewriter.model,
            precision=self.config.rewriter.precision,
            sft=sft,
            selection=selection,
            seed=derived_seed(self.config.seeds.warmup, "S1b"),
        )
        return SFT.spec(
            "S1b",
            config,
            {"data": "data"},
            self.config.resources,
            prompts=self._prompt if selection else None,
            external=self._psi_0 | (self._theta_0 if selection else {}),
        )

    def instruction(self) -> StageSpec:
        """S1c: ψ1 → ψ1'. θ1 is read only by targets that are chosen by what they retrieve."""
        searched = self.config.instruction.targets == "best_of_n"
        config = InstructionStageConfig(
            rewriter=self.config.rewriter,
            instruction=self.config.instruction,
            candidates=self.config.candidates if searched else None,
            encoder=self.config.encoder.embedding() if searched else None,
            reward=self.config.preferences.reward if searched else None,
            example_seed=self._example_seed,
            seed=derived_seed(self.config.seeds.warmup, "S1c"),
        )
        inputs = {"data": "data", "rewriter": "S1b"} | ({"encoder": "S1a"} if searched else {})
        return INSTRUCT.spec("S1c", config, inputs, self.config.resources, prompts=self._prompt)

    # ---------------------------------------------------------------------------------------------- a round

    def describe(self, number: int) -> StageSpec:
        """S2.r: descriptions by ψr."""
        config = DescribeConfig(
            rewriter=self._asked,
            sampling=self.config.describe,
            queries=self.config.retrain.queries,
            dev_queries=self.config.evaluation.dev_sample,
            example_seed=self._example_seed,
            seed=self._seed_if(f"S2.{number}", self.config.retrain.queries, self.config.describe.temperature),
        )
        inputs = {"data": "data", "rewriter": self._rewriter(number)}
        return DESCRIBE.spec(
            f"S2.{number}", config, inputs, self.config.resources, prompts=self._hash_of(self._asked.prompt)
        )

    def hard_negatives(self, number: int) -> StageSpec:
        """S3n.r: what θr confuses with the golds of S3.r's anchors."""
        config = MineConfig(
            encoder=self.config.encoder.embedding(),
            mining=self.config.mining,
            anchor=self.config.retrain.anchor,
            query_share=self.config.retrain.query_share,
            seed=derived_seed(self.config.seeds.loop, f"S3.{number}"),
        )
        inputs = {"data": "data", "descriptions": f"S2.{number}", "encoder": self._encoder(number)}
        return MINE.spec(f"S3n.{number}", config, inputs, self.config.resources)

    def encoder_retrain(self, number: int) -> StageSpec:
        """S3.r: θr → θr+1 on the descriptions of S2.r, with the hard negatives of S3n.r where they are mined."""
        retrain, train = self.config.retrain, self.config.encoder.train
        train = replace(train, lr=retrain.lr or train.lr, epochs=retrain.epochs or train.epochs)
        config = RetrainStageConfig(
            encoder=replace(self.config.encoder.in_training(), train=train),
            anchor=retrain.anchor,
            query_share=retrain.query_share,
            seed=derived_seed(self.config.seeds.loop, f"S3.{number}"),
        )
        inputs = {"data": "data", "descriptions": f"S2.{number}", "encoder": self._encoder(number)}
        if self.config.mining.enabled:
            inputs["negatives"] = f"S3n.{number}"
        return RETRAIN.spec(f"S3.{number}", config, inputs, self.config.resources)

    def candidates(self, number: int) -> StageSpec:
        """S4s.r: N candidates by ψr; beside S3.r."""
        return self._samples(f"S4s.{number}", self._rewriter(number), self._asked)

    def pairs(self, number: int) -> StageSpec:
        """S4p.r: candidates scored under θr+1."""
        return self._pairs(f"S4p.{number}", f"S4s.{number}", self._encoder(number + 1))

    def alignment(self, number: int) -> StageSpec:
        """S4.r: ψr → ψr+1."""
        return self._alignment(f"S4.{number}", f"S4p.{number}", self._rewriter(number))

    def evaluate(self, number: int) -> StageSpec:
        """E.r: the state after round r; E.0 is the state after warm-up."""
        full = self._full_at_end and number == self.config.rounds
        state = self._encoder(number + 1), self._rewriter(number + 1)
        return self._evaluation(f"E.{number}", *state, self._asked, full)

    def report(self) -> StageSpec:
        """The tables over all rounds."""
        rounds = range(self.config.rounds + 1)
        inputs = {UNTRAINED_ID: UNTRAINED_ID} | {f"E.{number}": f"E.{number}" for number in rounds}
        config = ReportConfig(search=self.config.search.mode)
        return replace(REPORT, needs=tuple(inputs)).spec("report", config, inputs, self.config.resources)

    # ------------------------------------------------------------------- what baselines wire in other ways, too

    @property
    def _asked(self) -> RewriterConfig:
        """How the rewriter is asked in the rounds."""
        return self.config.rewriter

    def _samples(self, stage_id: str, rewriter: str, asked: RewriterConfig) -> StageSpec:
        config = GenerationConfig(
            rewriter=asked,
            sampling=self.config.candidates,
            queries=self.config.preferences.queries,
            example_seed=self._example_seed,
            seed=derived_seed(self.config.seeds.loop, stage_id),
        )
        inputs, prompts = {"data": "data", "rewriter": rewriter}, self._hash_of(asked.prompt)
        return CANDIDATES.spec(stage_id, config, inputs, self.config.resources, prompts=prompts)

    def _pairs(self, stage_id: str, candidates: str, encoder: str) -> StageSpec:
        config = PairsConfig(encoder=self.config.encoder.embedding(), preferences=self.config.preferences)
        inputs = {"data": "data", "candidates": candidates, "encoder": encoder}
        return PAIRS.spec(stage_id, config, inputs, self.config.resources)

    def _alignment(self, stage_id: str, pairs: str, rewriter: str) -> StageSpec:
        config = DpoStageConfig(
            dpo=self.config.dpo,
            precision=self.config.rewriter.precision,
            seed=derived_seed(self.config.seeds.loop, stage_id),
        )
        return DPO.spec(stage_id, config, {"pairs": pairs, "rewriter": rewriter}, self.config.resources)

    def _evaluation(self, stage_id: str, encoder: str, rewriter: str, asked: RewriterConfig, full: bool) -> StageSpec:
        config = EvaluateConfig(
            encoder=self.config.encoder.embedding(),
            rewriter=asked,
            describe=self.config.describe,
            evaluation=self.config.evaluation,
            query_weight=self.config.search.query_weight,
            depth=self.config.search.depth,
            full=full,
            example_seed=self._example_seed,
            seed=self._seed_if(stage_id, self.config.describe.temperature),
        )
        inputs = {"data": "data", "encoder": encoder, "rewriter": rewriter}
        prompts = self._hash_of(asked.prompt)
        return EVALUATE.spec(stage_id, config, inputs, self.config.resources, prompts=prompts)

    # -------------------------------------------------------------------------------- which stage wrote what

    def _encoder(self, number: int) -> str:
        """The stage that wrote θ``number`` (θ1 is the warm-up's)."""
        return "S1a" if number == 1 else f"S3.{number - 1}"

    def _rewriter(self, number: int) -> str:
        """The stage that wrote ψ``number`` (ψ1 is the warm-up's)."""
        warmed_up = "S1c" if self.config.instruction.enabled else "S1b"
        return warmed_up if number == 1 else f"S4.{number - 1}"

    # ----------------------------------------------------------------------------------- what bears identity

    @cached_property
    def _theta_0(self) -> dict[str, str]:
        return {"encoder": self.found.model_identity(self.config.encoder.model)}

    @cached_property
    def _psi_0(self) -> dict[str, str]:
        return {"rewriter": self.found.model_identity(self.config.rewriter.model)}

    @cached_property
    def _prompt(self) -> dict[str, str]:
        return self._hash_of(self.config.rewriter.prompt)

    def _hash_of(self, *prompts: str) -> dict[str, str]:
        return {name: self.found.prompt(name).sha256 for name in prompts}

    @property
    def _scored(self) -> dict[str, Any]:
        """What every evaluation that stands beside the rounds has in common (:class:`stages.scoring.ScoredConfig`)."""
        return {
            "evaluation": self.config.evaluation,
            "full": self._full_at_end,
            "depth": self.config.search.depth,
            "example_seed": self._example_seed,
        }

    @property
    def _example_seed(self) -> int:
        """Few-shot examples and evaluation samples hang on the split's seed: the same in every round and sweep."""
        return self.config.data.split_seed

    @property
    def _full_at_end(self) -> bool:
        """Whether the last round, and the baseline beside it, score more than the samples."""
        evaluation = self.config.evaluation
        sampled = evaluation.standard_sample is not None or evaluation.vague_sample is not None
        return sampled and evaluation.full_at_end

    def _seed_if(self, stage_id: str, *reasons: float | None) -> int:
        """The stage's seed where there is anything random in it, else 0, so that sweeps share greedy stages."""
        return derived_seed(self.config.seeds.loop, stage_id) if any(reasons) else 0
