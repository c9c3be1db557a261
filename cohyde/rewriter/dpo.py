"""Direct preference optimisation of the rewriter (S4), with the model it starts from as the reference.

Rafailov et al. 2023, arXiv:2305.18290. The reference is the same model with the fresh adapter switched off, so at step
0 policy and reference agree and the loss is ln 2.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from trl.trainer.dpo_config import DPOConfig as TrlDpoConfig
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer

from cohyde.config import DpoConfig
from cohyde.executor import AtHand, Row
from cohyde.io import canonical_json, sha256_text
from cohyde.progress import Progress
from cohyde.rewriter.lora import peft_config
from cohyde.rewriter.merge import merge_adapter
from cohyde.rewriter.packing import pack_batches
from cohyde.rewriter.recording import Recorder
from cohyde.rewriter.rows import Encoded, PromptRow, check_dropped, encode, set_padding
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
from cohyde.shards import in_shards

REFERENCE_BATCH = 8
"""Pairs a forward pass when the reference's log-probabilities are computed beforehand; no gradients are held."""
REFERENCE_SHARD = 4 * REFERENCE_BATCH
"""Pairs after which the reference's log-probabilities are kept, in case of a kill."""


@dataclass(frozen=True)
class PreferencePair:
    """Two completions of one rendered chat prompt, the better one first."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    margin: float


@dataclass(frozen=True, kw_only=True)
class EncodedPair:
    """A pair's token ids."""

    chosen: Encoded
    rejected: Encoded

    @property
    def row(self) -> dict[str, list[int]]:
        """As TRL's collator wants it."""
        return {
            "prompt_ids": self.chosen.prompt,
            "chosen_ids": self.chosen.target,
            "rejected_ids": self.rejected.target,
        }

    @property
    def tokens(self) -> int:
        """Tokens of the longer of both sequences."""
        return max(len(self.chosen.input_ids), len(self.rejected.input_ids))


class _Trainer(TrainerHabits, DPOTrainer):
    """TRL's trainer on pairs that are token ids already."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def precompute_reference(self, progress: Progress) -> None:
        """One pass of the reference over all pairs now, in memory, instead of one in every epoch."""
        dataset: Any = self.train_dataset
        rows = list(dataset)
        key = sha256_text(canonical_json(rows))
        work = AtHand(self._reference_of)
        done = in_shards(rows, REFERENCE_SHARD, work, key, progress, "pairs read by the reference")
        for ours, theirs in (("chosen", "ref_chosen_logps"), ("rejected", "ref_rejected_logps")):
            dataset = dataset.add_column(theirs, np.array([row[ours] for row in done], dtype=np.float32))
        self.train_dataset = dataset
        self.precompute_ref_logps = True

    def _reference_of(self, rows: Sequence[Any], progress: Progress) -> list[Row]:
        found: list[Row] = []
        for start in range(0, len(rows), REFERENCE_BATCH):
            batch = self._prepare_inputs(self.data_collator(list(rows[start : start + REFERENCE_BATCH])))
            chosen, rejected = self.compute_ref_log_probs(self.model, batch)  # type: ignore[no-untyped-call]
            pairs = zip(chosen.float().tolist(), rejected.float().tolist(), strict=True)
            found += [{"chosen": better, "rejected": worse} for better, worse in pairs]
        return found


def train_dpo(
    base: Path,
    pairs: Sequence[PreferencePair],
    config: DpoConfig,
    precision: str,
    seed: int,
    out: Path,
    progress: Progress,
) -> TrainingResult:
    """Align with preference pairs through a fresh LoRA adapter and write the merged model.

    Args:
        base: folder of the merged model to start from; it is the reference too.
        pairs: what to learn from.
        config: the settings.
        precision: ``float32`` or ``bf16`` arithmetic; the adapter is float32.
        seed: of the adapter's start, the dropout and the order of the pairs.
        out: folder of the merged model.
        progress: is told every step, and asked where checkpoints lie and whether to stop.

    Raises:
        ValueError: there are no pairs.
        UserError: too many prompts fill ``max_length``; a LoRA target does not fit the model.
        RuntimeError: the loss is not a number (names the step); merging failed.
        Interrupted: ``progress`` asked to stop; what a later attempt goes on from is saved.
    """
    if not pairs:
        raise ValueError("no preference pairs to train on")
    model, tokenizer = load_base(base, precision)
    kept = encode_pairs(tokenizer, pairs, config.max_length)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        trainer, schedule = _trainer(model, tokenizer, kept, config, precision, seed, Path(scratch), progress)
        recorder = Recorder(progress, tokenizer, schedule.steps)
        run_training(trainer, recorder, Path(scratch) / "adapter", left=out.parent / "last-good-adapter")
        del model, trainer
        merge = merge_adapter(base, Path(scratch) / "adapter", out)
    report_merge(merge, progress)
    return TrainingResult(
        metrics={**_pair_metrics(len(pairs), kept), **training_metrics(recorder), **merge}, history=recorder.history
    )


def encode_pairs(tokenizer: Any, pairs: Sequence[PreferencePair], max_length: int) -> list[EncodedPair]:
    """Token ids of the pairs; those without room for a completion are left out.

    A pair whose completions are equal as far as they are read teaches nothing and is left out as well.

    Raises:
        UserError: too many prompts fill ``max_length``.
        ValueError: the completions of every pair are equal.
    """
    kept: list[EncodedPair] = []
    without_room = 0
    for pair in pairs:
        chosen = encode(tokenizer, PromptRow(pair.prompt, pair.chosen), max_length)
        rejected = encode(tokenizer, PromptRow(pair.prompt, pair.rejected), max_length)
        if chosen is None or rejected is None:
            without_room += 1
        elif chosen.target != rejected.target:
            kept.append(EncodedPair(chosen=chosen, rejected=rejected))
    check_dropped(without_room, len(pairs), max_length, "pairs")
    if not kept:
        raise ValueError(f"all {len(pairs)} pairs have equal completions: nothing to prefer")
    return kept


def _trainer(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[EncodedPair],
    config: DpoConfig,
    precision: str,
    seed: int,
    scratch: Path,
    progress: Progress,
) -> tuple[_Trainer, Schedule]:
    from datasets import Dataset

    schedule = Schedule.of(config, len(pairs))
    arguments = trainer_arguments(
        schedule,
        lr=config.lr,
        warmup_steps=int(config.warmup_ratio * schedule.steps),
        precision=precision,
        gradient_checkpointing=config.gradient_checkpointing,
        seed=seed,
        scratch=scratch,
    )
    padding = set_padding(tokenizer)
    trainer = _Trainer(
        model=model,
        args=TrlDpoConfig(**arguments, beta=config.beta, max_length=config.max_length, disable_dropout=False),
        train_dataset=Dataset.from_list([pair.row for pair in pairs]),
        processing_class=tokenizer,
        data_collator=DataCollatorForPreference(pad_token_id=padding, max_length=config.max_length),
        peft_config=peft_config(model, config.lora),
    )
    trainer.sampler = SortedBatches([pair.tokens for pair in pairs], config.batch_size, seed)
    pack_batches(base_model(trainer))
    # In bf16 a log-probability depends on the batch it was computed in: there the reference shares the policy's batch.
    if precision == "float32" and schedule.steps * config.batch_size >= len(pairs):
        trainer.precompute_reference(progress)
    return trainer, schedule


def _pair_metrics(total: int, kept: Sequence[EncodedPair]) -> dict[str, float]:
    chosen = [len(pair.chosen.target) for pair in kept]
    rejected = [len(pair.rejected.target) for pair in kept]
    truncated = sum(pair.chosen.truncated or pair.rejected.truncated for pair in kept)
    return {
        "pairs": len(kept),
        "pairs_dropped": total - len(kept),
        "truncated_share": truncated / len(kept),
        "mean_prompt_tokens": float(np.mean([len(pair.chosen.prompt) for pair in kept])),
        "mean_chosen_tokens": float(np.mean(chosen)),
        "mean_rejected_tokens": float(np.mean(rejected)),
        "length_choice_correlation": length_choice_correlation(chosen, rejected),
    }


def length_choice_correlation(chosen: Sequence[int], rejected: Sequence[int]) -> float:
    """Pearson correlation, over all completions, of the length in tokens with being chosen (1) or rejected (0).

    0 where all lengths are equal. Far from 0, the preference is about length (TRAPS 24).
    """
    lengths = np.array([*chosen, *rejected], dtype=float)
    if lengths.std() == 0:
        return 0.0
    labels = np.array([1.0] * len(chosen) + [0.0] * len(rejected))
    return float(np.corrcoef(lengths, labels)[0, 1])
