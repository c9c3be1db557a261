"""What is remembered of a training by TRL: its history, its best and last good adapter, its checkpoints."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from cohyde.checkpoints import Checkpoints
from cohyde.errors import DivergedError
from cohyde.progress import Progress
from cohyde.training_state import read_state, read_tensors, write_state, write_tensors

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

GOOD_COPIES = 20
"""How often in a training the adapter is set aside, in case the loss stops being a number."""


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
    done: int = 0
    """Steps that were done before the checkpoint that training goes on from; they are recorded already."""
    good: "Copy | None" = None
    untried: "Copy | None" = None
    """Set aside after an update, and good once the next loss is a number."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **kwargs: Any) -> None:
        """One row a step; a loss or gradient that is not a number ends the training."""
        if not _of_step(logs) or state.global_step <= self.done:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(float(logs.get(name, 0.0))):
                raise DivergedError(f"{name} is {logs[name]} at step {state.global_step} of {self.steps}")
        row = {ours: float(logs[theirs]) for theirs, ours in LOGGED.items() if theirs in logs}
        self.history.append({"step": state.global_step, "epoch": float(state.epoch), **row})
        self.progress.track(self.history[-1])
        self.progress.update(state.global_step, self.steps, "steps")
        self.good = self.untried or self.good
        if state.global_step % max(1, self.steps // GOOD_COPIES) == 0:
            self.untried = Copy(step=state.global_step, adapter=_adapter_of(model))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Score the model now and then, and at the end."""
        due = state.global_step == self.steps or (self.eval_every and state.global_step % self.eval_every == 0)
        if self.select is None or not due or state.global_step <= self.done:
            return
        score = self._score(model)
        self.history.append({"step": state.global_step, "score": score})
        self.progress.track(self.history[-1])
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


@dataclass
class Keeper(TrainerCallback):
    """Saves checkpoints, and gives the training back the state of the one that it goes on from.

    Both happen at the same place in the trainer's loop, after a step was logged, and the steps before are passed over
    (:meth:`TrainerHabits.training_step`). So whatever else the trainer holds is as it was at that place, and nothing of
    it has to be saved.
    """

    recorder: Recorder
    checkpoints: Checkpoints
    found: tuple[int, Path] | None = None

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any = None,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Save where it is time to, or restore where the step is the checkpoint's."""
        if not _of_step(logs) or state.global_step < self.recorder.done:
            return
        if self.found and state.global_step == self.recorder.done:
            self._restore(self.found[1], model, optimizer)
        else:
            self.checkpoints.after(state.global_step, lambda folder: self._write(folder, model, optimizer))

    def _write(self, folder: Path, model: Any, optimizer: Any) -> None:
        recorder = self.recorder
        notes: dict[str, Any] = {"history": recorder.history}
        if recorder.best_adapter is not None:
            notes |= {"best_step": recorder.best_step, "best_score": recorder.best_score}
            write_tensors(folder / "best.safetensors", recorder.best_adapter)
        if recorder.good is not None:
            notes |= {"good_step": recorder.good.step}
            write_tensors(folder / "good.safetensors", recorder.good.adapter)
        write_state(folder, _adapter_of(model), optimizer, notes)

    def _restore(self, folder: Path, model: Any, optimizer: Any) -> None:
        recorder = self.recorder
        adapter, notes = read_state(folder, optimizer)
        set_adapter(model, adapter)
        recorder.history[:] = notes["history"]
        if "best_step" in notes:
            recorder.best_step, recorder.best_score = notes["best_step"], notes["best_score"]
            recorder.best_adapter = read_tensors(folder / "best.safetensors")
        if "good_step" in notes:
            recorder.good = Copy(step=notes["good_step"], adapter=read_tensors(folder / "good.safetensors"))
        recorder.untried = Copy(step=recorder.done, adapter=adapter)


def _of_step(logs: Any) -> bool:
    """Whether a log is a step's; there is another at the end of the training."""
    return bool(logs) and "loss" in logs


def _adapter_of(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the adapter's weights."""
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


def set_adapter(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Give the adapter these weights."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, dict(weights))
