"""What SFT and DPO have in common around TRL's trainers: arguments, batches, the log, the best adapter."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from cohyde.errors import DivergedError
from cohyde.progress import Progress

Select = Callable[[Any, Any], float]
"""Scores the model as it is now: ``(model, tokenizer) -> higher is better``."""

LOGGED = {
    "loss": "loss",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "mean_token_accuracy": "token_accuracy",
    "logps/chosen": "logps_chosen",
    "logps/rejected": "logps_rejected",
    "rewards/accuracies": "reward_accuracy",
    "rewards/margins": "reward_margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
}
"""What the history keeps of the trainers' log, and under which name. No times: two runs have equal histories."""

FIRST_AND_LAST = ("logps_chosen", "logps_rejected", "reward_accuracy", "reward_margin")
"""What of DPO's history the manifest shows: chosen log-probabilities fall too, so accuracy alone says little."""

GOOD_COPIES = 20
"""How often in a training the adapter is set aside, in case the loss stops being a number."""


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
    """Mixed into TRL's trainers: our batches, and no message to anybody."""

    sampler: SortedBatches

    def _get_train_sampler(self, train_dataset: Any = None) -> SortedBatches:
        return self.sampler

    def _send_telemetry(self) -> None:
        """TRL reports every trainer's start to the hub; a training of ours tells nobody."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """An adapter as it was after a step."""

    step: int
    adapter: dict[str, torch.Tensor]


@dataclass
class Recorder(TrainerCallback):
    """Keeps the history, reports progress, stops at NaN and remembers the best adapter."""

    progress: Progress
    tokenizer: Any
    steps: int
    select: Select | None = None
    eval_every: int | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    best_step: int = 0
    best_score: float = -math.inf
    best_adapter: dict[str, torch.Tensor] | None = None
    good: "Copy | None" = None
    untried: "Copy | None" = None
    """Set aside after an update, and good once the next loss is a number."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **kwargs: Any) -> None:
        """One row a step; a loss or gradient that is not a number ends the training."""
        if not logs or "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(float(logs.get(name, 0.0))):
                raise DivergedError(f"{name} is {logs[name]} at step {state.global_step} of {self.steps}")
        row = {ours: float(logs[theirs]) for theirs, ours in LOGGED.items() if theirs in logs}
        self.history.append({"step": state.global_step, **row})
        self.progress.update(state.global_step, self.steps, "steps")
        self.good = self.untried or self.good
        if state.global_step % max(1, self.steps // GOOD_COPIES) == 0:
            self.untried = Copy(step=state.global_step, adapter=_adapter_of(model))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Score the model now and then, and at the end."""
        due = state.global_step == self.steps or (self.eval_every and state.global_step % self.eval_every == 0)
        if self.select is None or not due:
            return
        score = self._score(model)
        self.history.append({"step": state.global_step, "score": score})
        if score > self.best_score:
            self.best_step, self.best_score = state.global_step, score
            self.best_adapter = _adapter_of(model)

    def _score(self, model: Any) -> float:
        """The callback may sample: its draws must not change the training that goes on afterwards."""
        assert self.select is not None
        model.eval()
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            score = float(self.select(model, self.tokenizer))
        model.train()
        self.progress.log(f"score {score:.4f}")
        return score


def _adapter_of(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the adapter's weights."""
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


def run_training(trainer: Any, recorder: Recorder, adapter: Path, left: Path) -> None:
    """Train, go back to the best adapter where one was selected, and save it.

    Raises:
        DivergedError: the loss is not a number; the last good adapter, if there was one, is saved in ``left``.
    """
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
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
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, weights)
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
