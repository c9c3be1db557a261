"""S1b, S1c and S4.r: LoRA training of the rewriter, merged into the base weights each time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cohyde.catalog import Dataset, Query, render
from cohyde.config import (
    DpoConfig,
    EmbeddingConfig,
    InstructionConfig,
    RewriterConfig,
    SamplingConfig,
    SftConfig,
)
from cohyde.data.dataset import read_dataset
from cohyde.data.split import sample_queries
from cohyde.evaluation.metrics import hit_at
from cohyde.io import read_rows, write_jsonl
from cohyde.progress import Progress, Silent
from cohyde.rewriter.examples import few_shot_examples, gold_answer, without_examples
from cohyde.rewriter.prompts import Example
from cohyde.tracking import write_steps
from stages.declaration import Stage
from stages.folders import ENCODER_FOLDER, PAIRS, REWRITER_FOLDER, STEPS

if TYPE_CHECKING:
    from cohyde.rewriter.sft import SftRecipe

Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """How S1b keeps the best checkpoint: dev hit@5 of generated descriptions, searched with θ0."""

    encoder: EmbeddingConfig
    """Its ``model`` is θ0."""
    rewriter: RewriterConfig
    """How the model in training is asked; its weights are in memory, so it is the ``transformers`` backend's to ask."""
    describe: SamplingConfig
    queries: int
    example_seed: int


@dataclass(frozen=True, kw_only=True)
class SftStageConfig:
    """The slice of S1b."""

    model: str = field(metadata={"identity": False})
    """ψ0; the identity of that is an external of the stage."""
    precision: Precision
    sft: SftConfig
    selection: SelectionConfig | None
    seed: int


def sft(inputs: Mapping[str, Path], config: SftStageConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """S1b: next-token fine-tuning on the catalogue under each rendering of the mixture."""
    from cohyde.models.reference import resolve
    from cohyde.rewriter.sft import TextRow, train_sft

    base = resolve(config.model)
    if not config.sft.enabled:
        return _pass_on(base, out_dir, progress, "sft.enabled is false: the rewriter stays as it is")
    dataset, _ = read_dataset(inputs["data"])
    rows = [TextRow(text=render(tool, form)) for form in config.sft.forms for tool in dataset.tools]
    select = _hit_on_dev(dataset, config.selection) if config.selection else None
    recipe = _recipe(
        config.sft,
        config.precision,
        warmup_ratio=config.sft.warmup_ratio,
        epochs=config.sft.epochs,
        max_steps=config.sft.max_steps,
        eval_every=config.sft.eval_every,
    )
    result = train_sft(base, rows, recipe, config.seed, out_dir / REWRITER_FOLDER, progress, select)
    write_steps(out_dir / STEPS, result.history)
    return {**result.metrics, "texts": len(rows)}


SHARED_SETTINGS = ("lora", "lr", "batch_size", "micro_batch_size", "max_length", "gradient_checkpointing")


def _recipe(config: SftConfig | InstructionConfig, precision: Precision, **own: Any) -> "SftRecipe":
    """What S1b and S1c decide alike, and what each decides on its own."""
    from cohyde.rewriter.sft import SftRecipe

    shared = {name: getattr(config, name) for name in SHARED_SETTINGS}
    return SftRecipe(**shared, precision=precision, **own)


def _hit_on_dev(dataset: Dataset, selection: SelectionConfig) -> Callable[[Any, Any], float]:
    """A score for a rewriter in training: dev hit@5 of its descriptions under θ0."""
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.models.reference import resolve
    from cohyde.rewriter.describe import describe_with, or_query
    from cohyde.rewriter.transformers_backend import TransformersGenerator

    rewriter = selection.rewriter
    queries = sample_queries(dataset.dev, selection.queries, selection.example_seed)
    examples = few_shot_examples(dataset, rewriter.few_shot, selection.example_seed)
    retriever = DenseRetriever.build(resolve(selection.encoder.model), dataset.tools, selection.encoder)

    def score(model: Any, tokenizer: Any) -> float:
        generator = TransformersGenerator(model, tokenizer, batch_size=rewriter.batch_size)
        described, _ = describe_with(generator, queries, examples, rewriter, selection.describe, 0, Silent())
        texts = [or_query(item.texts[0], query) for item, query in zip(described, queries, strict=True)]
        return _mean_hit(retriever.rank_texts(texts, 5), queries)

    return score


def _mean_hit(rankings: Sequence[Sequence[tuple[str, float]]], queries: Sequence[Query]) -> float:
    hits = [
        hit_at([tool for tool, _ in ranking], query.tools, 5) for ranking, query in zip(rankings, queries, strict=True)
    ]
    return sum(hits) / len(hits)


@dataclass(frozen=True, kw_only=True)
class InstructionStageConfig:
    """The slice of S1c."""

    rewriter: RewriterConfig
    instruction: InstructionConfig
    candidates: SamplingConfig | None
    """How the candidates are sampled, for targets that need them."""
    encoder: EmbeddingConfig | None
    reward: str | None
    example_seed: int
    seed: int


def instruct(
    inputs: Mapping[str, Path], config: InstructionStageConfig, out_dir: Path, progress: Progress
) -> dict[str, Any]:
    """S1c: fine-tuning on (prompt, description) pairs, whose descriptions a strategy provides."""
    from cohyde.rewriter.sft import PromptRow, train_sft

    dataset, _ = read_dataset(inputs["data"])
    examples = few_shot_examples(dataset, config.rewriter.few_shot, config.example_seed)
    queries = sample_queries(without_examples(dataset.train, examples), config.instruction.queries, config.seed)
    target_strategy = TARGETS[config.instruction.targets]
    prompts, targets, counts = target_strategy(inputs, dataset, queries, examples, config, progress)
    rows = [PromptRow(prompt=prompt, completion=target) for prompt, target in zip(prompts, targets, strict=True)]
    write_jsonl(out_dir / "targets.jsonl", ({"prompt": row.prompt, "completion": row.completion} for row in rows))
    own = {"warmup_steps": config.instruction.warmup_steps, "max_steps": config.instruction.steps}
    recipe = _recipe(config.instruction, config.rewriter.precision, **own)
    base, out = inputs["rewriter"] / REWRITER_FOLDER, out_dir / REWRITER_FOLDER
    result = train_sft(base, rows, recipe, config.seed, out, progress, None)
    write_steps(out_dir / STEPS, result.history)
    return {**result.metrics, **counts, "rows": len(rows)}


Targets = tuple[list[str], list[str], dict[str, float]]
"""Rendered prompts, their target descriptions, and counts for the manifest."""


def _gold_targets(
    inputs: Mapping[str, Path],
    dataset: Dataset,
    queries: Sequence[Query],
    examples: Sequence[Example],
    config: InstructionStageConfig,
    progress: Progress,
) -> Targets:
    """Each query's gold tools in catalogue style."""
    from cohyde.rewriter.load import load_tokenizer
    from cohyde.rewriter.prompts import fit_prompt, load_prompt

    tokenizer = load_tokenizer(inputs["rewriter"] / REWRITER_FOLDER)
    prompt = load_prompt(config.rewriter.prompt)
    prompts = [
        fit_prompt(tokenizer, prompt, {"query": query.text}, examples, config.rewriter.max_prompt_tokens)[0]
        for query in queries
    ]
    tools = {tool.id: tool for tool in dataset.tools}
    return prompts, [gold_answer(query, tools) for query in queries], {}


def _best_of_n_targets(
    inputs: Mapping[str, Path],
    dataset: Dataset,
    queries: Sequence[Query],
    examples: Sequence[Example],
    config: InstructionStageConfig,
    progress: Progress,
) -> Targets:
    """The best of N samples by reward under θ1; a query of which no sample finds anything is left out."""
    from cohyde.encoder.retriever import DenseRetriever
    from cohyde.rewriter.describe import describe
    from cohyde.rewriter.preferences import REWARD_DEPTH, REWARDS

    assert config.candidates and config.encoder and config.reward
    model = inputs["rewriter"] / REWRITER_FOLDER
    described, counts = describe(model, queries, examples, config.rewriter, config.candidates, config.seed, progress)
    retriever = DenseRetriever.build(inputs["encoder"] / ENCODER_FOLDER, dataset.tools, config.encoder)
    prompts, targets = [], []
    for item, query in zip(described, queries, strict=True):
        texts = [text for text in item.texts if text]
        rankings = retriever.rank_texts(texts, REWARD_DEPTH)
        rewards = [REWARDS[config.reward]([tool for tool, _ in ranking], query.tools) for ranking in rankings]
        if rewards and max(rewards) > 0:
            prompts.append(item.prompt)
            targets.append(texts[rewards.index(max(rewards))])
    if not targets:
        raise RuntimeError("no sampled description finds a gold tool: there is nothing to train on; use targets=gold")
    return prompts, targets, counts


TARGETS: Mapping[str, Callable[..., Targets]] = {"best_of_n": _best_of_n_targets, "gold": _gold_targets}
"""Strategies of ``instruction.targets``."""


@dataclass(frozen=True, kw_only=True)
class DpoStageConfig:
    """The slice of S4."""

    dpo: DpoConfig
    precision: Precision
    seed: int


def dpo(inputs: Mapping[str, Path], config: DpoStageConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """S4: DPO with ψr as reference. Without any pair, ψr is passed on unchanged."""
    from cohyde.rewriter.dpo import PreferencePair, train_dpo

    rows = read_rows(inputs["pairs"] / PAIRS)
    base = inputs["rewriter"] / REWRITER_FOLDER
    if not rows:
        return _pass_on(base, out_dir, progress, "every candidate tied in this round: the rewriter stays as it is")
    pairs = [
        PreferencePair(
            id=row["id"],
            prompt=row["prompt"],
            chosen=row["chosen"],
            rejected=row["rejected"],
            margin=row["margin"],
        )
        for row in rows
    ]
    result = train_dpo(base, pairs, config.dpo, config.precision, config.seed, out_dir / REWRITER_FOLDER, progress)
    write_steps(out_dir / STEPS, result.history)
    return result.metrics


def _pass_on(base: Path, out_dir: Path, progress: Progress, why: str) -> dict[str, Any]:
    """The same model under the stage's own artifact."""
    from cohyde.rewriter.load import copy_model

    progress.warn(why)
    copy_model(base, out_dir / REWRITER_FOLDER)
    return {"unchanged": 1}


SFT = Stage(
    kind="rewriter warm-up",
    entry="stages.train_rewriter:sft",
    version="2",
    needs=("data",),
    reserves="training",
)
INSTRUCT = Stage(
    kind="instruction SFT",
    entry="stages.train_rewriter:instruct",
    version="4",
    needs=("data", "rewriter"),
    reserves="training",
    optional=("encoder",),
)
DPO = Stage(
    kind="preference alignment",
    entry="stages.train_rewriter:dpo",
    version="2",
    needs=("pairs", "rewriter"),
    reserves="training",
)
