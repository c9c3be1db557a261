"""Our encoder training against sentence-transformers' trainer: the same batches, step by step in turn.

Run: ``python tests/benchmarks/encoder_training.py --pairs 512 --seeds 0 1 2``
(ToolLens is read from ``--data FOLDER`` or ``COHYDE_TOOLLENS``; without it the embedded sample is.)

Both train the same model (all-MiniLM-L6-v2) with the same loss (symmetric InfoNCE), learning rates and clipping, from
the same weights. Sentence-transformers runs ``SentenceTransformerTrainer`` with its default collation; after each of
its steps ours takes one, so that whatever else the machine does slows both. The seconds of either are all from one step
to the next, tokenising included; the first step, which sets things up, and the last, which may be a part of a batch,
are left out. Dropout is off, so that the losses can be compared: it would be drawn in another order. The ratio's
interval is over the pairs of steps, drawn anew 10,000 times; both models are scored on queries that neither has seen.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset as Rows
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesSymmetricRankingLoss
from toollens import MODEL, evenly, read_toollens, scored
from transformers import PrinterCallback, TrainerCallback

from cohyde.catalog import Dataset, Query, render
from cohyde.config import EncoderConfig, EncoderTrainConfig
from cohyde.encoder.batches import batches_of
from cohyde.encoder.model import load_encoder
from cohyde.encoder.pairs import Pair
from cohyde.encoder.train import TrainingResult, train_encoder
from cohyde.evaluation.bootstrap import RESAMPLES, SEED, over_seeds_and_queries
from cohyde.models.reference import resolve
from cohyde.progress import Silent

FORM = 5


@dataclass
class Times:
    """Seconds of each step, on the wall and of all processor cores together."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, since: tuple[float, float]) -> None:
        """A step that began at ``since``."""
        now = moment()
        self.wall.append(now[0] - since[0])
        self.processor.append(now[1] - since[1])


def moment() -> tuple[float, float]:
    """Now, on both clocks."""
    return time.perf_counter(), time.process_time()


def pairs_of(dataset: Dataset, count: int, seed: int) -> list[Pair]:
    """``count`` (query, tool) pairs of the training split, drawn evenly from all of it."""
    pairs = [Pair(anchor=query.text, tool=tool) for query in dataset.train for tool in query.tools]
    generator = torch.Generator().manual_seed(seed)
    return [pairs[place] for place in torch.randperm(len(pairs), generator=generator)[:count].tolist()]


def without_dropout(model: SentenceTransformer) -> SentenceTransformer:
    """The model, in which nothing is dropped."""
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


class InTurn(Silent):
    """Lets our training take one step whenever it is told to, in a thread of its own."""

    def __init__(self) -> None:
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.times, self._since = Times(), (0.0, 0.0)
        self.over = False

    def begin(self) -> None:
        """Wait for the first turn."""
        self.turn.acquire()
        self._since = moment()

    def update(self, done: float, total: float, what: str = "") -> None:
        """A step is over; wait for the next turn."""
        self.times.add(self._since)
        self.done.release()
        if done < total:
            self.begin()

    def step(self) -> None:
        """One turn."""
        self.turn.release()
        self.done.acquire()
        if self.over:
            raise RuntimeError("our training has failed; its error is above")


class AfterEachStep(TrainerCallback):  # type: ignore[misc]
    """Times the other trainer's steps, and calls ``then`` between them."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.times, self._then, self._since = Times(), then, moment()

    def on_train_begin(self, *arguments: Any, **others: Any) -> None:
        self._since = moment()

    def on_step_end(self, *arguments: Any, **others: Any) -> None:
        self.times.add(self._since)
        self._then()
        self._since = moment()


class Recorded(torch.nn.Module):
    """A loss that keeps its values."""

    def __init__(self, loss: torch.nn.Module) -> None:
        super().__init__()
        self.loss, self.values = loss, list[float]()

    def forward(self, *arguments: Any, **others: Any) -> torch.Tensor:
        value: torch.Tensor = self.loss(*arguments, **others)
        self.values.append(value.item())
        return value


def peer(
    pairs: Sequence[Pair], texts: dict[str, str], config: EncoderConfig, seed: int, then: Callable[[], None], out: Path
) -> tuple[SentenceTransformer, Times, list[float]]:
    """Sentence-transformers' trainer on the pairs; returns what it trained, its times and its losses."""
    recipe = config.train
    batches = batches_of(len(pairs), recipe.batch_size, seed, 0)

    class OurBatches(DefaultBatchSampler):  # type: ignore[misc]
        def __iter__(self) -> Iterator[list[int]]:
            return iter(batches)

        def __len__(self) -> int:
            return len(batches)

    def batch_sampler(dataset: Rows, **settings: Any) -> OurBatches:
        return OurBatches(torch.utils.data.SequentialSampler(dataset), settings["batch_size"], settings["drop_last"])

    model = SentenceTransformer(str(resolve(config.model)), device="cpu", local_files_only=True)
    model.max_seq_length = config.max_length
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        num_train_epochs=1,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.lr,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        lr_scheduler_type="cosine",
        warmup_steps=recipe.warmup_ratio,
        batch_sampler=batch_sampler,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    loss = Recorded(MultipleNegativesSymmetricRankingLoss(model, scale=1 / recipe.temperature))
    callback = AfterEachStep(then)
    columns = {"anchor": [pair.anchor for pair in pairs], "positive": [texts[pair.tool] for pair in pairs]}
    trainer = SentenceTransformerTrainer(
        model=without_dropout(model),
        args=arguments,
        train_dataset=Rows.from_dict(columns),
        loss=loss,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)  # what is printed here is the result alone
    trainer.train()
    return model, callback.times, loss.values


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Both trainings under one seed, and what came of them."""

    ours: Times
    theirs: Times
    losses: tuple[list[float], list[float]]
    ndcg: tuple[list[float], list[float]]
    """NDCG@5 of queries that neither has seen, one value a query."""
    padding_share: float


def compare(
    dataset: Dataset, pairs: Sequence[Pair], unseen: Sequence[Query], config: EncoderConfig, seed: int, threads: int
) -> Turn:
    """Both trainings in turn."""
    ours, texts = InTurn(), {tool.id: render(tool, FORM) for tool in dataset.tools}
    results: list[TrainingResult] = []
    model = without_dropout(load_encoder(resolve(config.model), config, "cpu"))

    def train(out: Path) -> None:
        torch.set_num_threads(threads)
        ours.begin()
        try:
            results.append(
                train_encoder(
                    model, pairs, dataset.tools, config, forms=(FORM,), seed=seed, dev=None, out=out, progress=ours
                )
            )
        finally:
            ours.over = not results
            ours.done.release()

    with tempfile.TemporaryDirectory() as scratch:
        worker = threading.Thread(target=train, args=(Path(scratch) / "ours",), daemon=True)
        worker.start()
        other, theirs, losses = peer(pairs, texts, config, seed, ours.step, Path(scratch) / "theirs")
        worker.join()
    mine, yours = (scored(one, dataset.tools, unseen, config)["ndcg@5"].tolist() for one in (model, other))
    return Turn(
        ours=ours.times,
        theirs=theirs,
        losses=([row["loss"] for row in results[0].history], losses),
        ndcg=(mine, yours),
        padding_share=results[0].metrics["padding_share"],
    )


def summary(turns: Sequence[Turn], batch_size: int) -> dict[str, Any]:
    """Rates without each first step, which sets things up, and each last, which may be a part of a batch."""
    full = slice(1, -1)
    sides = {
        "cohyde": [turn.ours for turn in turns],
        "sentence_transformers": [turn.theirs for turn in turns],
    }
    wall = {name: np.array([s for times in found for s in times.wall[full]]) for name, found in sides.items()}
    cpu = {name: [s for times in found for s in times.processor[full]] for name, found in sides.items()}
    mine, yours = wall["cohyde"], wall["sentence_transformers"]
    drawn = np.random.default_rng(SEED).integers(len(mine), size=(RESAMPLES, len(mine)))
    gained = [[a - b for a, b in zip(*turn.ndcg, strict=True)] for turn in turns]
    between = over_seeds_and_queries(gained)
    return {
        "ratio": float(yours.sum() / mine.sum()),
        "ratio_interval": np.quantile(yours[drawn].sum(1) / mine[drawn].sum(1), [0.025, 0.975]).tolist(),
        "processor_ratio": sum(cpu["sentence_transformers"]) / sum(cpu["cohyde"]),
        "steps_compared": len(mine),
        "largest_difference_of_loss": max(abs(a - b) for turn in turns for a, b in zip(*turn.losses, strict=True)),
        "last_losses": [[own[-1] for own in turn.losses] for turn in turns],
        "ndcg@5": [float(np.mean([turn.ndcg[side] for turn in turns])) for side in (0, 1)],
        "ndcg@5_difference": float(np.mean(gained)),
        "ndcg@5_difference_interval": [between.low, between.high],
        "padding_share": statistics.mean(turn.padding_share for turn in turns),
        **{
            name: {
                "pairs_per_second": batch_size * len(wall[name]) / float(wall[name].sum()),
                "processor_seconds_a_step": statistics.mean(cpu[name]),
            }
            for name in sides
        },
    }


def main() -> None:
    """Print what was measured, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=512)
    parser.add_argument("--data", type=Path, help="ToolLens as published (corpus.jsonl, queries.jsonl, qrels)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--eval-queries", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.pairs < 3 * arguments.batch_size:
        parser.error(f"--pairs has to be at least 3 batches: {3 * arguments.batch_size}")
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(arguments.threads)
    name, dataset = read_toollens(arguments.data)
    recipe = EncoderTrainConfig(batch_size=arguments.batch_size, epochs=1, lr=arguments.lr, precision="float32")
    config = EncoderConfig(model=arguments.model, pooling="auto", max_length=arguments.max_length, train=recipe)
    unseen = evenly(dataset.eval, arguments.eval_queries, SEED)
    turns = [
        compare(dataset, pairs_of(dataset, arguments.pairs, seed), unseen, config, seed, arguments.threads)
        for seed in arguments.seeds
    ]
    found = {"data": name, "pairs": arguments.pairs, "seeds": arguments.seeds} | summary(turns, recipe.batch_size)
    print(json.dumps(found) if arguments.json else told(found, config, len(unseen)))


def told(found: dict[str, Any], config: EncoderConfig, unseen: int) -> str:
    """What was measured, for people."""
    lines = [
        f"{found['pairs']} pairs of {found['data']} a seed, {len(found['seeds'])} seeds, batches of "
        f"{config.train.batch_size}, {config.max_length} tokens at most"
    ]
    for trainer, ndcg in zip(("cohyde", "sentence_transformers"), found["ndcg@5"], strict=True):
        rate, seconds = found[trainer]["pairs_per_second"], found[trainer]["processor_seconds_a_step"]
        lines.append(
            f"{trainer:22} {rate:7.1f} pairs/s  {seconds:7.1f} processor seconds a step  NDCG@5 {100 * ndcg:.2f}"
        )
    low, high = found["ratio_interval"]
    lines.append(f"ratio {found['ratio']:.2f} (95%: {low:.2f} to {high:.2f}; processor {found['processor_ratio']:.2f})")
    lines.append(
        f"losses differ by {found['largest_difference_of_loss']:.1e} at most, padding {found['padding_share']:.0%}"
    )
    low, high = (100 * one for one in found["ndcg@5_difference_interval"])
    difference = 100 * found["ndcg@5_difference"]
    lines.append(f"NDCG@5 differs by {difference:+.2f} points (95%: {low:+.2f} to {high:+.2f}) over {unseen} queries")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
