"""Train the encoder: symmetric InfoNCE on (anchor, rendered tool) pairs, the checkpoint that is best on dev kept."""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device

from cohyde.catalog import Tool, render
from cohyde.checkpoints import Checkpoints
from cohyde.config import EncoderConfig, EncoderTrainConfig
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.infonce import NEGATIVES, infonce
from cohyde.encoder.model import embed, save_encoder
from cohyde.encoder.pairs import Pair, draw_form
from cohyde.encoder.search import rank
from cohyde.errors import DivergedError
from cohyde.evaluation.metrics import QueryScore, ndcg_at, summarise
from cohyde.progress import Progress
from cohyde.training_state import read_state, write_state

__all__ = ["DevSet", "Pair", "TrainingResult", "dev_ndcg", "train_encoder"]

DEV_METRIC = "dev_ndcg@5"
DEV_CUTOFF = 5
BEST = "best"
"""The folder in a checkpoint with the best model so far."""
CHUNK_TEXTS = 64  # texts of similar length a forward pass: less padding than a whole batch, and enough work for a GPU


@dataclass(frozen=True, kw_only=True)
class DevSet:
    """What checkpoints are selected on: n texts, each with its gold tool ids (at least one) and its tier."""

    texts: tuple[str, ...]
    gold: tuple[frozenset[str], ...]
    tiers: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.gold) == len(self.tiers):
            raise ValueError(
                f"dev set: {len(self.texts)} texts, {len(self.gold)} gold sets and {len(self.tiers)} tiers; "
                "each text needs one of both"
            )
        if not self.texts:
            raise ValueError("dev set: there is no text; give None to train without selection")


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """``metrics`` of the run, and a ``history`` with one row a step, as :mod:`cohyde.tracking` has it.

    A row has ``step``, ``epoch``, ``loss`` (nats), ``grad_norm`` (before clipping) and ``lr``; ``dev_ndcg@5`` is in the
    rows of evaluated steps only, and all that step 0, the start, has. No row holds a time: equal runs have equal ones.
    """

    metrics: dict[str, float]
    history: list[dict[str, float]]


@dataclass(kw_only=True)
class TextCounts:
    """Texts and tokens that went through the encoder in training."""

    texts: int = 0
    truncated: int = 0
    tokens: int = 0
    padding: int = 0

    def add(self, features: dict[str, Any]) -> None:
        """Count one tokenised chunk."""
        encodings = getattr(features, "encodings", None) or []
        self.texts += len(encodings)
        self.truncated += sum(bool(encoding.overflowing) for encoding in encodings)
        self.tokens += features["input_ids"].numel()
        if "attention_mask" in features:
            self.padding += int((features["attention_mask"] == 0).sum())


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
) -> TrainingResult:
    """Train ``model`` in place and leave the best checkpoint in ``out`` as a sentence-transformers folder.

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

    Raises:
        ValueError: fewer than two pairs, a pair's tool that the catalogue lacks, or an unknown strategy.
        DivergedError: the loss or its gradient is no longer finite; names the step. ``out`` has the best so far.
        Interrupted: ``progress`` asked to stop; a checkpoint is saved.
    """
    _check(pairs, tools, forms, negatives)
    run = _Run(model=model, pairs=pairs, tools=tools, config=config, forms=forms, seed=seed, negatives=negatives)
    best = _Best(model=model, dev=dev, tools=tools, config=config, out=out)
    progress.log(f"{len(pairs)} pairs, {run.rows_per_epoch} of them used in each epoch; {run.total} steps")
    with _seeded(seed, model.device):
        history = _fit(run, best, progress)
    if dev is not None and best.step == 0:
        progress.warn("no checkpoint was better on dev than the start, which is kept")
    steps = {"steps": run.total, "final_loss": history[-1]["loss"]}
    return TrainingResult(metrics=run.metrics() | best.metrics() | steps, history=history)


def _fit(run: "_Run", best: "_Best", progress: Progress) -> list[dict[str, float]]:
    """The loop: a row of the history for every step, an evaluation every ``eval_every`` steps and at the end."""
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
        best.consider(0, lambda row: history.append({"epoch": 0.0, **row}))
        for row in history:
            progress.track(row)
        checkpoints.after(0, write)
    for step, (batch, epoch) in enumerate(run.batches(), start=1):
        if found and step <= found[0]:
            continue
        lr = learning_rate(step - 1, run.total, run.recipe)
        loss, norm = run.backward(batch, epoch)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"step {step} of {run.total}: the loss is {loss} and its gradient's length {norm}; {best.words()} "
                "is kept. A smaller encoder.train.lr or encoder.train.precision=float32 may help"
            )
        run.update(lr)
        history.append({"step": step, "epoch": run.epochs_after(step), "loss": loss, "grad_norm": norm, "lr": lr})
        if step % run.recipe.eval_every == 0 or step == run.total:
            best.consider(step, history[-1].update)
        progress.track(history[-1])
        progress.update(step, run.total, "steps")
        checkpoints.after(step, write)
    return history


def _check(pairs: Sequence[Pair], tools: Sequence[Tool], forms: tuple[int, ...], negatives: str) -> None:
    if len(pairs) < 2:
        raise ValueError(
            f"{len(pairs)} training pairs: InfoNCE needs at least 2, since pairs are each other's negatives"
        )
    known = {tool.id for tool in tools}
    unknown = sorted({pair.tool for pair in pairs} - known)
    if unknown:
        raise ValueError(f"{len(unknown)} tools of the pairs are not in the catalogue, the first is {unknown[0]!r}")
    if not forms:
        raise ValueError("no rendering to draw from: forms is empty")
    if negatives not in NEGATIVES:
        raise ValueError(f"no negatives strategy is called {negatives!r}; there are: {', '.join(NEGATIVES)}")


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
    warmup = min(math.ceil(recipe.warmup_ratio * total), total - 1)
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


def batches_of(count: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Positions 0 … ``count`` - 1, shuffled by seed and epoch, in batches; a last one of at least 2 is used.

    A single position left over has no negative and sits this epoch out; the shuffle makes it another one each time.
    """
    order = np.random.default_rng([seed, epoch]).permutation(count).tolist()
    batches = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    return [batch for batch in batches if len(batch) >= 2]


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
    ) -> None:
        self.model, self.pairs, self.forms, self.seed, self.recipe = model, pairs, forms, seed, config.train
        self.optimizer = make_optimizer(model, config.train)
        self.counts = TextCounts()
        self._tools = {tool.id: tool for tool in tools}
        self._negatives = NEGATIVES[negatives]
        self._golds: dict[str, set[str]] = {}
        for pair in pairs:
            self._golds.setdefault(pair.anchor, set()).add(pair.tool)
        sizes = [len(batch) for batch in batches_of(len(pairs), self.recipe.batch_size, seed, 0)]
        self.rows_per_epoch, self.total = sum(sizes), len(sizes) * self.recipe.epochs

    def batches(self) -> Iterator[tuple[list[int], int]]:
        """Every batch of every epoch: positions in ``pairs``, and the epoch."""
        for epoch in range(self.recipe.epochs):
            for batch in batches_of(len(self.pairs), self.recipe.batch_size, self.seed, epoch):
                yield batch, epoch

    def epochs_after(self, step: int) -> float:
        """Passes over the pairs that are finished after so many steps."""
        return step * self.recipe.epochs / self.total

    def backward(self, batch: Sequence[int], epoch: int) -> tuple[float, float]:
        """Leave the clipped gradient of a batch; returns the loss (nats) and the gradient's length before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch, epoch)
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_grad_norm)
        return loss.item(), norm.item()

    def update(self, lr: float) -> None:
        """Move the weights along the gradient that :meth:`backward` left."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        """Whatever training moves, by name."""
        return dict(self.model.named_parameters())

    def notes(self) -> dict[str, Any]:
        """What belongs to the state beside tensors, for :meth:`restore`."""
        return {"counts": asdict(self.counts)}

    def restore(self, checkpoint: Path) -> dict[str, Any]:
        """Go back to the state of a checkpoint, random numbers included; returns its notes."""
        weights, notes = read_state(checkpoint, self.optimizer)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        self.counts = TextCounts(**notes["counts"])
        return notes

    def _loss(self, batch: Sequence[int], epoch: int) -> torch.Tensor:
        pairs = [self.pairs[position] for position in batch]
        forms = [draw_form(self.forms, self.seed, epoch, position) for position in batch]
        positives = [render(self._tools[pair.tool], form) for pair, form in zip(pairs, forms, strict=True)]
        vectors = encode_with_gradient(
            self.model, [pair.anchor for pair in pairs] + positives, self.recipe.precision, self.counts
        )
        mask = self._negatives([pair.tool for pair in pairs], [self._golds[pair.anchor] for pair in pairs])
        negatives = None if mask is None else torch.from_numpy(mask).to(vectors.device)
        return infonce(vectors[: len(pairs)], vectors[len(pairs) :], self.recipe.temperature, negatives)

    def metrics(self) -> dict[str, float]:
        """What was trained on; shares are of text occurrences and of tokens in training."""
        return {
            "pairs": len(self.pairs),
            "rows_per_epoch": self.rows_per_epoch,
            "truncated_share": self.counts.truncated / max(1, self.counts.texts),
            "padding_share": self.counts.padding / max(1, self.counts.tokens),
        }


def encode_with_gradient(
    model: SentenceTransformer, texts: Sequence[str], precision: str, counts: TextCounts
) -> torch.Tensor:
    """Embed texts with dropout and a gradient, in chunks of similar length, each padded to its own longest text.

    Returns:
        (n, d) float32 in the order of ``texts``.
    """
    model.train()
    order = sorted(range(len(texts)), key=lambda position: len(texts[position]))
    parts = []
    for start in range(0, len(order), CHUNK_TEXTS):
        features = model.preprocess([texts[position] for position in order[start : start + CHUNK_TEXTS]])
        counts.add(features)
        transformer, *head = model
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            output = transformer(batch_to_device(features, model.device))
        # Pooling and normalising stay float32: at τ = 0.05 a bfloat16 vector would be off by 0.1 in the scores.
        output["token_embeddings"] = output["token_embeddings"].float()
        for layer in head:
            output = layer(output)
        parts.append(output["sentence_embedding"])
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(parts)[back.to(model.device)]


# -------------------------------------------------------------------------------------------------- selection


def dev_ndcg(model: SentenceTransformer, dev: DevSet, tools: Sequence[Tool], config: EncoderConfig) -> float:
    """NDCG@5 of the dev texts over the catalogue in ``config.index_form``: the mean over tiers, in [0, 1]."""
    catalogue = embed(model, [render(tool, config.index_form) for tool in tools], config.embed_batch_size)
    vectors = embed(model, dev.texts, config.embed_batch_size)
    ranked = rank(ExactIndex(catalogue), vectors, [tool.id for tool in tools], DEV_CUTOFF)
    rows = [
        QueryScore(
            id=str(number), tier=tier, values={DEV_METRIC: ndcg_at([tool for tool, _ in best], gold, DEV_CUTOFF)}
        )
        for number, (best, gold, tier) in enumerate(zip(ranked, dev.gold, dev.tiers, strict=True))
    ]
    return summarise(rows).mean_over_tiers.values[DEV_METRIC]


class _Best:
    """Evaluates checkpoints and keeps the best on disk; of equals the earliest, without a dev set the latest."""

    def __init__(
        self, *, model: SentenceTransformer, dev: DevSet | None, tools: Sequence[Tool], config: EncoderConfig, out: Path
    ) -> None:
        self._model, self._dev, self._tools, self._config, self._out = model, dev, tools, config, out
        self._start = self._value = -math.inf
        self.step = 0

    def consider(self, step: int, record: Any) -> None:
        """Evaluate the model as it is after ``step`` steps; ``record`` is called with the row of the history."""
        if self._dev is None:
            self._keep(step)
            return
        value = dev_ndcg(self._model, self._dev, self._tools, self._config)
        record({"step": step, DEV_METRIC: value})
        if step == 0:
            self._start = value
        if value > self._value:
            self._value = value
            self._keep(step)

    def _keep(self, step: int) -> None:
        save_encoder(self._model, self._out)
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
        score = "" if self._dev is None else f" (dev NDCG@5 {self._value:.4f})"
        return f"the checkpoint of step {self.step}{score} in {self._out}"

    def metrics(self) -> dict[str, float]:
        """``best_step``, and with a dev set the values of the start and of the best."""
        if self._dev is None:
            return {"best_step": self.step}
        return {"best_step": self.step, f"best_{DEV_METRIC}": self._value, f"start_{DEV_METRIC}": self._start}
