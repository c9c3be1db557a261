"""What SFT and DPO have in common around TRL's trainers: arguments, batches, and the way from start to adapter."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback

from cohyde.checkpoints import Checkpoints
from cohyde.errors import DivergedError
from cohyde.progress import Progress
from cohyde.rewriter.recording import Keeper, Recorder, set_adapter

FIRST_AND_LAST = ("logps_chosen", "logps_rejected", "reward_accuracy", "reward_margin")
"""What of DPO's history the manifest shows: chosen log-probabilities fall too, so accuracy alone says little."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a training leaves beside the model: one number a name, and one row a step."""

    metrics: dict[str, float]
    history: list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many optimiser steps there will be and how batches are put together."""

    rows: int
    batch_size: int
    micro_batch_size: int
    epochs: int = 1
    max_steps: int | None = None

    @classmethod
    def of(cls, recipe: Any, rows: int) -> "Schedule":
        """The schedule of a recipe (of SFT or DPO) over so many rows."""
        names = ("batch_size", "micro_batch_size", "epochs", "max_steps")
        return cls(rows=rows, **{name: getattr(recipe, name) for name in names})

    @property
    def micro(self) -> int:
        """Rows a forward pass: the largest divisor of the effective batch that is not above what was asked for."""
        return next(n for n in range(min(self.micro_batch_size, self.batch_size), 0, -1) if self.batch_size % n == 0)

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return self.max_steps or self.epochs * math.ceil(self.rows / self.batch_size)


def trainer_arguments(
    schedule: Schedule,
    *,
    lr: float,
    warmup_steps: int,
    precision: str,
    gradient_checkpointing: bool,
    seed: int,
    scratch: Path,
) -> dict[str, Any]:
    """Arguments of ``SFTConfig`` and ``DPOConfig`` alike: nothing is saved, reported or printed by the trainer."""
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(scratch),
        "per_device_train_batch_size": schedule.micro,
        "gradient_accumulation_steps": schedule.batch_size // schedule.micro,
        "max_steps": schedule.steps,
        "learning_rate": lr,
        "lr_scheduler_type": "linear",
        "warmup_steps": warmup_steps,
        "bf16": precision == "bf16",
        "use_cpu": not cuda,
        "gradient_checkpointing": gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if gradient_checkpointing else None,
        "seed": seed,
        "data_seed": seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": cuda,
        "remove_unused_columns": True,
    }


def load_base(base: Path, precision: str) -> tuple[Any, Any]:
    """Model and tokenizer to train: frozen weights in the arithmetic's type, the adapter will be float32."""
    from cohyde.rewriter.load import load_rewriter

    with no_progress_bars():
        return load_rewriter(base, precision)


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Silence transformers' bars for loading and saving: progress goes through ``Progress`` alone."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def base_model(trainer: Any) -> Any:
    """The language model inside a trainer's PEFT wrapper."""
    return trainer.model.get_base_model()


class SortedBatches(torch.utils.data.Sampler[int]):
    """Random effective batches, each sorted by length, so that the rows of one forward pass are about equally long.

    The effective batches, and therefore the gradients, are those of plain shuffling. The k-th pass draws from
    ``seed`` and k alone.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        """Rows a pass."""
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Say which pass comes next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Row numbers, each once."""
        draw = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(len(self.lengths), generator=draw).tolist()
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            yield from sorted(batch, key=lambda row: (self.lengths[row], row))


class TrainerHabits:
    """Mixed into TRL's trainers: our batches, steps that are behind a checkpoint, and no message to anybody."""

    sampler: SortedBatches
    done: int = 0
    """Optimiser steps that were done before the checkpoint that training goes on from."""
    state: Any
    args: Any

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Pass over what is done already, without a gradient: data and schedule advance as they did then."""
        if self.state.global_step < self.done:
            return torch.zeros((), device=self.args.device)
        loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        return loss

    def _get_train_sampler(self, train_dataset: Any = None) -> SortedBatches:
        return self.sampler

    def _send_telemetry(self) -> None:
        """TRL reports every trainer's start to the hub; a training of ours tells nobody."""


def run_training(trainer: Any, recorder: Recorder, adapter: Path, left: Path) -> None:
    """Train, from the newest checkpoint if there is one, go back to the best adapter where one was selected, save it.

    Raises:
        DivergedError: the loss is not a number; the last good adapter, if there was one, is saved in ``left``.
        Interrupted: the recorder's progress asked to stop; a checkpoint is saved.
    """
    checkpoints = Checkpoints.of_training(recorder.progress)
    found = checkpoints.newest()
    trainer.done = recorder.done = found[0] if found else 0
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
    trainer.add_callback(Keeper(recorder, checkpoints, found))
    try:
        trainer.train()
    except DivergedError as error:
        if recorder.good is None:
            raise
        _save_adapter(trainer.model, recorder.good.adapter, left)
        raise DivergedError(f"{error}; the adapter of step {recorder.good.step} is kept") from None
    _save_adapter(trainer.model, recorder.best_adapter, adapter)


def _save_adapter(model: Any, weights: dict[str, torch.Tensor] | None, folder: Path) -> None:
    """Save these weights of the adapter, or those it has; none but the adapter's files are written."""
    if weights is not None:
        set_adapter(model, weights)
    model.save_pretrained(folder, save_embedding_layers=False)


def training_metrics(recorder: Recorder) -> dict[str, float]:
    """First and last loss, steps, and which step was kept."""
    losses = [row["loss"] for row in recorder.history if "loss" in row]
    metrics: dict[str, float] = {"steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1]}
    for name in FIRST_AND_LAST:
        values = [row[name] for row in recorder.history if name in row]
        if values:
            metrics |= {f"first_{name}": values[0], f"last_{name}": values[-1]}
    if recorder.select is not None:
        metrics |= {"best_step": recorder.best_step, "best_score": recorder.best_score}
    return metrics


def report_merge(metrics: Mapping[str, float], progress: Progress) -> None:
    """Say so where training left no trace in the stored weights."""
    if metrics["merge_change"] == 0:
        progress.warn("training changed nothing that is stored: the merged model equals its base on the probe text")
