"""Train the encoder: symmetric InfoNCE on (anchor, rendered tool) pairs, the checkpoint that is best on dev kept."""

import contextlib
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from cohyde.catalog import Tool, render
from cohyde.checkpoints import Checkpoints
from cohyde.config import EncoderConfig, EncoderTrainConfig
from cohyde.encoder.batches import batches_of
from cohyde.encoder.dev import DEV_METRIC, DevEvaluation, DevSet, dev_ndcg
from cohyde.encoder.gradients import at_once, cached, encode
from cohyde.encoder.infonce import NEGATIVES, gold_aware, infonce, matryoshka
from cohyde.encoder.lora import adapt, merged
from cohyde.encoder.model import check_dimensions, embedding_precision, full_dimensions, save_encoder
from cohyde.encoder.pairs import Pair, draw_form, right_tools, same_texts
from cohyde.encoder.tokens import TextCounts, TokenisedText, Tokeniser, chunks_by_length, positions_at_once
from cohyde.errors import DivergedError, UserError
from cohyde.progress import Progress
from cohyde.training_state import read_state, write_state

__all__ = ["DevSet", "Pair", "TrainingResult", "dev_ndcg", "train_encoder"]

BEST = "best"
"""The folder in a checkpoint with the best model so far."""
DEV_SHARE = 0.1
"""Of a training's time, that dev evaluation should stay below."""
DEV_SECONDS = 60.0
"""Below which nobody minds what its share is."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """``metrics`` of the run, and a ``history`` with one row a step, as :mod:`cohyde.tracking` has it.

    A row has ``step``, ``epoch``, ``loss`` (nats), ``grad_norm`` (before clipping) and ``lr``; ``dev_ndcg@5`` is in the
    rows of evaluated steps only, and all that step 0, the start, has. Neither holds a time, so that equal runs have
    equal ones; ``speed`` does (:data:`cohyde.progress.TIMED_METRICS`).
    """

    metrics: dict[str, float]
    history: list[dict[str, float]]
    speed: dict[str, float] = field(default_factory=dict, compare=False)


@dataclass(kw_only=True)
class Clock:
    """Where the seconds of this attempt go; what it went on from was another attempt's."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the seconds of a block as ``what``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - started

    def share(self, what: str) -> float:
        """Of all seconds that were counted, in [0, 1]."""
        return self.seconds[what] / max(sum(self.seconds.values()), 1e-9)

    def speed(self, tokens: int) -> dict[str, float]:
        """``tokens_per_second`` of training steps, padding left out, and dev evaluation's share of all time."""
        return {
            "tokens_per_second": tokens / max(self.seconds["steps"], 1e-9),
            "dev_time_share": self.share("dev"),
        }


def train_encoder(
    model: SentenceTransformer,
    pairs: Sequence[Pair],
    tools: Sequence[Tool],
    config: EncoderConfig,
    *,
    forms: tuple[int, ...],
    seed: int,
    dev: DevSet | None,
    out: Path,
    progress: Progress,
    negatives: str = "all",
    hard_negatives: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> TrainingResult:
    """Train ``model`` in place and leave the best checkpoint in ``out`` as a sentence-transformers folder.

    With ``config.train.lora`` adapters are put into it and trained, and ``out`` has them merged.

    The start counts as a checkpoint (step 0): if nothing later is better on dev, it is what ``out`` holds, and
    ``best_step`` is 0. Without a dev set ``out`` holds the last step. Afterwards ``model`` itself has the last step's
    weights: load ``out`` to go on with the best. On a CPU equal arguments give equal bytes, from whatever checkpoint
    in ``progress.checkpoints`` the training goes on.

    Args:
        model: what :func:`cohyde.encoder.model.load_encoder` gives.
        pairs: at least two; those of a batch are each other's negatives.
        tools: the catalogue, in its order.
        config: of the encoder; ``config.train`` is the recipe.
        forms: renderings φ from which each pair's tool text is drawn anew in each epoch.
        seed: of the order, the draws of φ and dropout.
        dev: what checkpoints are compared on; None compares nothing.
        out: folder to write.
        progress: told of every step, and asked where checkpoints lie and whether to stop.
        negatives: which in-batch items count as negatives; a name in :data:`cohyde.encoder.infonce.NEGATIVES`.
        hard_negatives: by anchor, ids of tools that stand in a batch with it as further negatives of all its anchors;
            gold-aware whatever ``negatives`` says.

    Raises:
        UserError: fewer than two pairs, an adapter's target that the model lacks, or a dimension that it lacks.
        ValueError: a tool that the catalogue lacks, or an unknown strategy.
        DivergedError: the loss or its gradient is no longer finite; names the step. ``out`` has the best so far.
        Interrupted: ``progress`` asked to stop; a checkpoint is saved.
    """
    _check(pairs, tools, forms, negatives, hard_negatives)
    _check_matryoshka(model, config, progress)
    if embedding_precision(model) == "bf16" and config.train.precision != "bf16":
        raise UserError(
            f"encoder.attention is {config.attention!r}, which computes in bf16 alone",
            "set encoder.train.precision=bf16",
        )
    if config.train.lora.enabled:
        with _seeded(seed, model.device):
            adapt(model, config.train.lora)
    run = _Run(
        model=model,
        pairs=pairs,
        tools=tools,
        config=config,
        forms=forms,
        seed=seed,
        negatives=negatives,
        hard_negatives=hard_negatives,
    )
    evaluation = None if dev is None else DevEvaluation(model, dev, tools, config, run.tokens)
    best = _Best(model=model, evaluation=evaluation, out=out)
    progress.log(f"{len(pairs)} pairs, {run.rows_per_epoch} of them used in each epoch; {run.total} steps")
    clock = Clock()
    with _seeded(seed, model.device):
        history, tokens = _fit(run, best, progress, clock)
    if dev is not None and best.step == 0:
        progress.warn("no checkpoint was better on dev than the start, which is kept")
    if clock.seconds["dev"] > DEV_SECONDS and clock.share("dev") > DEV_SHARE:
        progress.warn(
            f"dev evaluation took {clock.share('dev'):.0%} of the training's time; a larger encoder.train.eval_every "
            f"(now {config.train.eval_every}) takes less"
        )
    steps = {"steps": run.total, "final_loss": history[-1]["loss"]}
    metrics = run.metrics() | best.metrics() | steps
    return TrainingResult(metrics=metrics, history=history, speed=clock.speed(tokens))


def _fit(run: "_Run", best: "_Best", progress: Progress, clock: Clock) -> tuple[list[dict[str, float]], int]:
    """The loop: a row of the history for every step, an evaluation every ``eval_every`` steps and at the end.

    Returns:
        The history, and the tokens of the steps of this attempt.
    """
    checkpoints = Checkpoints.of_training(progress)
    history: list[dict[str, float]] = []

    def write(folder: Path) -> None:
        write_state(folder, run.weights(), run.optimizer, {**run.notes(), **best.notes(), "history": history})
        best.copy_to(folder / BEST)

    found = checkpoints.newest()
    if found:
        notes = run.restore(found[1])
        best.restore(notes, found[1] / BEST)
        history += notes["history"]
    else:
        with clock.on("dev"):
            best.consider(0, lambda row: history.append({"epoch": 0.0, **row}))
        for row in history:
            progress.track(row)
        checkpoints.after(0, write)
    known_tokens = run.counts.tokens()
    for step, (batch, epoch) in enumerate(run.batches(), start=1):
        if found and step <= found[0]:
            continue
        lr = learning_rate(step - 1, run.total, run.recipe)
        with clock.on("steps"):
            loss, norm = run.backward(batch, epoch)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"step {step} of {run.total}: the loss is {loss} and its gradient's length {norm}; {best.words()} "
                "is kept. A smaller encoder.train.lr or encoder.train.precision=float32 may help"
            )
        with clock.on("steps"):
            run.update(lr)
        history.append({"step": step, "epoch": run.epochs_after(step), "loss": loss, "grad_norm": norm, "lr": lr})
        if step % run.recipe.eval_every == 0 or step == run.total:
            with clock.on("dev"):
                best.consider(step, history[-1].update)
        progress.track(history[-1])
        progress.update(step, run.total, "steps")
        checkpoints.after(step, write)
    return history, run.counts.tokens() - known_tokens


def _check(
    pairs: Sequence[Pair],
    tools: Sequence[Tool],
    forms: tuple[int, ...],
    negatives: str,
    hard_negatives: Mapping[str, Sequence[str]],
) -> None:
    if len(pairs) < 2:
        raise UserError(
            f"{len(pairs)} training pairs: InfoNCE needs at least 2, since pairs are each other's negatives",
            "give a dataset with more training queries, or raise data.train_queries or retrain.queries",
        )
    known = {tool.id for tool in tools}
    used = {
        "pairs": {pair.tool for pair in pairs},
        "hard negatives": {t for ids in hard_negatives.values() for t in ids},
    }
    for what, ids in used.items():
        if unknown := sorted(ids - known):
            raise ValueError(
                f"{len(unknown)} tools of the {what} are not in the catalogue, the first is {unknown[0]!r}"
            )
    if not forms:
        raise ValueError("no rendering to draw from: forms is empty")
    if negatives not in NEGATIVES:
        raise ValueError(f"no negatives strategy is called {negatives!r}; there are: {', '.join(NEGATIVES)}")


def _check_matryoshka(model: SentenceTransformer, config: EncoderConfig, progress: Progress) -> None:
    dimensions = config.train.matryoshka_dimensions
    if dimensions is None:
        return
    check_dimensions(model, "encoder.train.matryoshka_dimensions", max(dimensions))
    used = config.dimensions or full_dimensions(model)
    if used not in dimensions:
        progress.warn(f"vectors of {used} dimensions are searched with, which matryoshka_dimensions does not train")


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch (dropout) for the block, and give the caller's generator back as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


# ----------------------------------------------------------------------------------------------------- recipe


def learning_rate(step: int, total: int, recipe: EncoderTrainConfig) -> float:
    """The rate of step 0 … ``total`` - 1: linear from 0 over the warm-up, then half a cosine down towards 0.

    As transformers' ``get_cosine_schedule_with_warmup``, with ceil(ratio · total) warm-up steps; but a run is never
    all warm-up, so that a single step still trains.
    """
    asked = math.ceil(recipe.warmup_ratio * total) if recipe.warmup_steps is None else recipe.warmup_steps
    warmup = min(asked, total - 1)
    if step < warmup:
        return recipe.lr * step / warmup
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def make_optimizer(model: torch.nn.Module, recipe: EncoderTrainConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices only: biases and the weights of norms are vectors."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Texts of a batch of B pairs: B anchors, B positives, H distinct hard negatives; masks (B, B) and (B, H)."""

    anchors: list[str]
    positives: list[str]
    hard: list[str]
    masks: tuple[np.ndarray | None, np.ndarray | None]


class _Run:
    """The model, its optimizer and the pairs: what a step of training needs."""

    def __init__(
        self,
        *,
        model: SentenceTransformer,
        pairs: Sequence[Pair],
        tools: Sequence[Tool],
        config: EncoderConfig,
        forms: tuple[int, ...],
        seed: int,
        negatives: str,
        hard_negatives: Mapping[str, Sequence[str]],
    ) -> None:
        self.model, self.pairs, self.forms, self.seed, self.recipe = model, pairs, forms, seed, config.train
        self.optimizer = make_optimizer(model, config.train)
        self.counts = TextCounts()
        self._tools = {tool.id: tool for tool in tools}
        self.tokens = Tokeniser(model)
        self._negatives, self._hard_negatives = NEGATIVES[negatives], hard_negatives
        self._right = right_tools(pairs, same_texts(tools, config.index_form))
        self._backward = cached if self.recipe.mini_batch_size else at_once
        sizes = [len(batch) for batch in batches_of(len(pairs), self.recipe.batch_size, seed, 0)]
        self.rows_per_epoch, self.total = sum(sizes), len(sizes) * self.recipe.epochs

    def batches(self) -> Iterator[tuple[list[int], int]]:
        """Every batch of every epoch: positions in ``pairs``, and the epoch."""
        window = self.recipe.length_window
        for epoch in range(self.recipe.epochs):
            lengths = self._lengths(epoch) if window > 1 else ()
            for batch in batches_of(len(self.pairs), self.recipe.batch_size, self.seed, epoch, lengths, window):
                yield batch, epoch

    def epochs_after(self, step: int) -> float:
        """Passes over the pairs that are finished after so many steps."""
        return step * self.recipe.epochs / self.total

    def _lengths(self, epoch: int) -> list[int]:
        """Tokens of each pair in an epoch, anchor and tool together."""
        anchors = self.tokens([pair.anchor for pair in self.pairs])
        positives = self.tokens(self._positives(range(len(self.pairs)), epoch), "document")
        return [len(anchor) + len(positive) for anchor, positive in zip(anchors, positives, strict=True)]

    def _positives(self, batch: Sequence[int], epoch: int) -> list[str]:
        """The tool texts of pairs, each in the rendering that is drawn for it in this epoch."""
        return [
            render(self._tools[self.pairs[position].tool], draw_form(self.forms, self.seed, epoch, position))
            for position in batch
        ]

    def backward(self, batch: Sequence[int], epoch: int) -> tuple[float, float]:
        """Leave the clipped gradient of a batch; returns the loss (nats) and the gradient's length before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss_and_gradient(batch, epoch)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_grad_norm)
        return loss.item(), norm.item()

    def _loss_and_gradient(self, batch: Sequence[int], epoch: int) -> torch.Tensor:
        columns, device = self._columns(batch, epoch), self.model.device
        anchors, tools = list(dict.fromkeys(columns.anchors)), list(dict.fromkeys(columns.positives + columns.hard))
        tokens = self.tokens(anchors) + self.tokens(tools, "document")
        lengths = [len(text) for text in tokens]
        chunks = chunks_by_length(lengths, positions_at_once(device), self.recipe.mini_batch_size)
        rows = {place: row for row, place in enumerate(place for chunk in chunks for place in chunk)}
        row_of_anchor = {text: rows[place] for place, text in enumerate(anchors)}
        row_of_tool = {text: rows[place] for place, text in enumerate(tools, start=len(anchors))}
        anchors_B, positives_B, hard_H = (
            torch.tensor([row_of[text] for text in column], dtype=torch.long, device=device)
            for column, row_of in (
                (columns.anchors, row_of_anchor),
                (columns.positives, row_of_tool),
                (columns.hard, row_of_tool),
            )
        )
        negatives_BB, hard_BH = (None if mask is None else torch.from_numpy(mask).to(device) for mask in columns.masks)

        def loss_of(vectors_ND: torch.Tensor) -> torch.Tensor:
            hard_HD = vectors_ND[hard_H] if columns.hard else None
            pairs = vectors_ND[anchors_B], vectors_ND[positives_B]
            return infonce(*pairs, self.recipe.temperature, negatives_BB, hard_HD, hard_BH)

        def encode_chunk(chunk: Sequence[TokenisedText]) -> torch.Tensor:
            return encode(self.model, self.tokens.padded(chunk), self.recipe.precision)

        passes = [[tokens[place] for place in chunk] for chunk in chunks]
        for chunk in passes:
            self.counts.add(chunk)
        self.model.train()
        dimensions = self.recipe.matryoshka_dimensions
        whole = loss_of if dimensions is None else partial(matryoshka, loss_of, dimensions=dimensions)
        return self._backward(encode_chunk, passes, whole, device)

    def _columns(self, batch: Sequence[int], epoch: int) -> "_Columns":
        """The texts of a batch, and which tools are negatives of which anchors.

        A hard negative is rendered as the positive of the pair that brings it. Each distinct text counts once, and one
        that is a positive of the batch is a negative as such.
        """
        pairs = [self.pairs[position] for position in batch]
        positives, right = self._positives(batch, epoch), [self._right[pair.anchor] for pair in pairs]
        hard: dict[str, str] = {}
        for pair, position in zip(pairs, batch, strict=True):
            form = draw_form(self.forms, self.seed, epoch, position)
            for tool in self._hard_negatives.get(pair.anchor, ()):
                hard.setdefault(render(self._tools[tool], form), tool)
        hard = {text: hard[text] for text in hard if text not in positives}
        tools = [pair.tool for pair in pairs]
        hard_BH = None
        if hard:
            hard_BH = gold_aware([*tools, *hard.values()], [*positives, *hard], right)[:, len(tools) :]
        return _Columns(
            anchors=[pair.anchor for pair in pairs],
            positives=positives,
            hard=list(hard),
            masks=(self._negatives(tools, positives, right), hard_BH),
        )

    def update(self, lr: float) -> None:
        """Move the weights along the gradient that :meth:`backward` left."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        """Whatever training moves, by name."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def notes(self) -> dict[str, Any]:
        """What belongs to the state beside tensors, for :meth:`restore`."""
        return {"counts": asdict(self.counts)}

    def restore(self, checkpoint: Path) -> dict[str, Any]:
        """Go back to the state of a checkpoint, random numbers included; returns its notes."""
        weights, notes = read_state(checkpoint, self.optimizer)
        with torch.no_grad():
            for name, weight in self.weights().items():
                weight.copy_(weights[name])
        self.counts = TextCounts(**notes["counts"])
        return notes

    def metrics(self) -> dict[str, float]:
        """What was trained on. ``truncated_share`` is of texts, ``padding_share`` of positions that were computed."""
        return {
            "pairs": len(self.pairs),
            "hard_negatives": sum(len(self._hard_negatives.get(pair.anchor, ())) for pair in self.pairs),
            "rows_per_epoch": self.rows_per_epoch,
            "truncated_share": self.counts.truncated / max(1, self.counts.texts),
            "cut_tokens": self.counts.cut_tokens,
            "padding_share": self.counts.padding / max(1, self.counts.positions),
        }


# -------------------------------------------------------------------------------------------------- selection


class _Best:
    """Evaluates checkpoints and keeps the best on disk; of equals the earliest, without a dev set the latest."""

    def __init__(self, *, model: SentenceTransformer, evaluation: DevEvaluation | None, out: Path) -> None:
        self._model, self._evaluation, self._out = model, evaluation, out
        self._start = self._value = -math.inf
        self.step = 0

    def consider(self, step: int, record: Any) -> None:
        """Evaluate the model as it is after ``step`` steps; ``record`` is called with the row of the history."""
        if self._evaluation is None:
            self._keep(step)
            return
        value = self._evaluation.ndcg()
        record({"step": step, DEV_METRIC: value})
        if step == 0:
            self._start = value
        if value > self._value:
            self._value = value
            self._keep(step)

    def _keep(self, step: int) -> None:
        save_encoder(merged(self._model), self._out)
        self.step = step

    def notes(self) -> dict[str, Any]:
        """Which checkpoint is kept, for :meth:`restore`."""
        return {"best_step": self.step, "best_value": self._value, "start_value": self._start}

    def copy_to(self, folder: Path) -> None:
        """Copy the kept checkpoint."""
        shutil.copytree(self._out, folder, copy_function=shutil.copyfile)

    def restore(self, notes: Mapping[str, Any], folder: Path) -> None:
        """Go back to what :meth:`notes` said and :meth:`copy_to` copied."""
        self.step, self._value, self._start = notes["best_step"], notes["best_value"], notes["start_value"]
        shutil.rmtree(self._out, ignore_errors=True)
        shutil.copytree(folder, self._out, copy_function=shutil.copyfile)

    def words(self) -> str:
        """The kept checkpoint, for a message."""
        score = "" if self._evaluation is None else f" (dev NDCG@5 {self._value:.4f})"
        return f"the checkpoint of step {self.step}{score} in {self._out}"

    def metrics(self) -> dict[str, float]:
        """``best_step``, and with a dev set the values of the start and of the best."""
        if self._evaluation is None:
            return {"best_step": self.step}
        return {"best_step": self.step, f"best_{DEV_METRIC}": self._value, f"start_{DEV_METRIC}": self._start}
