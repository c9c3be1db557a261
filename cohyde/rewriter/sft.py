"""Supervised fine-tuning of the rewriter: next-token on catalogue texts (S1b), completions only on prompts (S1c)."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trl.trainer.sft_config import SFTConfig as TrlSftConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from cohyde.config import LoraConfig
from cohyde.progress import Progress
from cohyde.rewriter.lora import peft_config
from cohyde.rewriter.merge import merge_adapter
from cohyde.rewriter.packing import pack_batches
from cohyde.rewriter.recording import Recorder, Select
from cohyde.rewriter.rows import Encoded, PromptRow, TextRow, check_dropped, encode, set_padding
from cohyde.rewriter.training import (
    Schedule,
    SortedBatches,
    TrainerHabits,
    TrainingResult,
    base_model,
    load_base,
    report_merge,
    run_training,
    trainer_arguments,
    training_metrics,
)

__all__ = ["PromptRow", "SftRecipe", "TextRow", "train_sft"]


@dataclass(frozen=True, kw_only=True)
class SftRecipe:
    """Everything that S1b and S1c decide about a fine-tuning."""

    lora: LoraConfig = field(default_factory=LoraConfig)
    """The adapter."""
    lr: float
    """Peak learning rate, linear schedule."""
    warmup_ratio: float = 0.0
    """Share of the steps in linear warm-up."""
    warmup_steps: int | None = None
    """Steps of linear warm-up, instead of a share."""
    batch_size: int
    """Rows an optimiser step."""
    micro_batch_size: int
    """Rows a forward pass at most; the rest is accumulated."""
    max_length: int
    """Tokens of a row; what is cut is counted."""
    epochs: int = 1
    """Passes over the rows."""
    max_steps: int | None = None
    """Optimiser steps, whatever the number of epochs."""
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of the passes; the adapter is float32."""
    gradient_checkpointing: bool = False
    """Recompute activations (non-reentrant) to save memory."""
    eval_every: int | None = None
    """Steps between calls of ``select``; the last step is always scored."""

    def warmup(self, steps: int) -> int:
        """Steps of warm-up out of ``steps``."""
        return self.warmup_steps if self.warmup_steps is not None else int(self.warmup_ratio * steps)


class _Trainer(TrainerHabits, SFTTrainer):
    """TRL's trainer on rows that are token ids already."""


def train_sft(
    base: Path,
    rows: Sequence[TextRow | PromptRow],
    recipe: SftRecipe,
    seed: int,
    out: Path,
    progress: Progress,
    select: Select | None = None,
) -> TrainingResult:
    """Fine-tune with LoRA and write the merged model.

    Args:
        base: folder of the model to start from.
        rows: texts, or prompts with completions.
        recipe: the settings.
        seed: of the adapter's start, the dropout and the order of the rows.
        out: folder of the merged model.
        progress: is told every step, and asked where checkpoints lie and whether to stop.
        select: scores the model every ``recipe.eval_every`` steps; the best adapter is kept. None keeps the last.

    Raises:
        ValueError: there are no rows.
        UserError: too many prompts fill ``max_length``; a LoRA target does not fit the model.
        RuntimeError: the loss is not a number (names the step); merging failed.
        Interrupted: ``progress`` asked to stop; a checkpoint is saved.
    """
    if not rows:
        raise ValueError("no rows to train on")
    model, tokenizer = load_base(base, recipe.precision)
    encoded = [encode(tokenizer, row, recipe.max_length) for row in rows]
    kept = [row for row in encoded if row is not None]
    check_dropped(len(rows) - len(kept), len(rows), recipe.max_length, "rows")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        trainer, schedule = _trainer(model, tokenizer, kept, recipe, seed, Path(scratch))
        recorder = Recorder(progress, tokenizer, schedule.steps, select, recipe.eval_every)
        run_training(trainer, recorder, Path(scratch) / "adapter", left=out.parent / "last-good-adapter")
        del model, trainer
        merge = merge_adapter(base, Path(scratch) / "adapter", out)
    report_merge(merge, progress)
    return TrainingResult(
        metrics={**_row_metrics(len(rows), kept), **training_metrics(recorder), **merge}, history=recorder.history
    )


def _trainer(
    model: Any, tokenizer: Any, rows: Sequence[Encoded], recipe: SftRecipe, seed: int, scratch: Path
) -> tuple[_Trainer, Schedule]:
    from datasets import Dataset

    schedule = Schedule.of(recipe, len(rows))
    arguments = trainer_arguments(
        schedule,
        lr=recipe.lr,
        warmup_steps=recipe.warmup(schedule.steps),
        precision=recipe.precision,
        gradient_checkpointing=recipe.gradient_checkpointing,
        seed=seed,
        scratch=scratch,
    )
    padding = set_padding(tokenizer)
    trainer = _Trainer(
        model=model,
        args=TrlSftConfig(
            **arguments,
            max_length=recipe.max_length,
            packing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list([{"input_ids": row.input_ids, "labels": row.labels} for row in rows]),
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(pad_token_id=padding),
        peft_config=peft_config(model, recipe.lora),
    )
    trainer.sampler = SortedBatches([len(row.input_ids) for row in rows], recipe.batch_size, seed)
    pack_batches(base_model(trainer))
    return trainer, schedule


def _row_metrics(total: int, kept: Sequence[Encoded]) -> dict[str, float]:
    return {
        "rows": len(kept),
        "rows_dropped": total - len(kept),
        "truncated_share": sum(row.truncated for row in kept) / len(kept),
        "mean_tokens": sum(len(row.input_ids) for row in kept) / len(kept),
        "mean_target_tokens": sum(len(row.target) for row in kept) / len(kept),
    }
