"""Killed at any step and started again, long work leaves the bytes of work that nobody touched."""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from killing import Fate, Job, Work
from test_encoder_train import CONFIG, DEV, PAIRS, TOOLS
from tiny_language_models import save_llama

from cohyde.catalog import Query
from cohyde.config import DpoConfig, EncoderConfig, EncoderLoraConfig, LoraConfig, RewriterConfig, SamplingConfig
from cohyde.io import write_jsonl
from cohyde.models.reference import resolve
from cohyde.progress import Progress


def killed(*updates: int) -> list[Fate]:
    return [Fate(killed_at=update) for update in updates]


SHORT = replace(CONFIG, train=replace(CONFIG.train, epochs=3, eval_every=5))
"""12 steps, of which 5, 10 and 12 are evaluated."""


def encoder(out: Path, progress: Progress, config: EncoderConfig = SHORT, **changes: Any) -> Any:
    from cohyde.encoder.model import load_encoder
    from cohyde.encoder.train import train_encoder

    model = load_encoder(resolve("tiny:bert"), config, "cpu")
    arguments: dict[str, Any] = {"forms": (1, 2, 3, 4, 5), "seed": 0, "dev": DEV} | changes
    result = train_encoder(model, PAIRS, TOOLS, config, out=out / "encoder", progress=progress, **arguments)
    return {"metrics": result.metrics, "history": result.history}


def encoder_with_cached_gradients(out: Path, progress: Progress) -> Any:
    """Batches of a length window, their gradients cached in chunks of three texts."""
    train = replace(SHORT.train, mini_batch_size=3, length_window=2, negatives="gold_aware")
    return encoder(out, progress, replace(SHORT, train=train), negatives="gold_aware")


def encoder_with_adapters(out: Path, progress: Progress) -> Any:
    """Scored, and so merged, in the middle of the training."""
    lora = EncoderLoraConfig(enabled=True, rank=4, dropout=0.1, targets=("query", "value"))
    return encoder(out, progress, replace(SHORT, train=replace(SHORT.train, lora=lora)))


def encoder_without_dev(out: Path, progress: Progress) -> Any:
    return encoder(out, progress, dev=None)


QUERIES = [Query(id=f"q{n}", text=f"tell me {'more ' * (n % 4)}about {n}", tools=("a",)) for n in range(40)]


def description(out: Path, progress: Progress) -> Any:
    from cohyde.rewriter.describe import describe, described_to_row

    rewriter = RewriterConfig(precision="float32", max_prompt_tokens=512, batch_size=8)
    sampling = SamplingConfig(n=2, temperature=1.0, max_new_tokens=4)
    described, metrics = describe(resolve("tiny:qwen3_5"), QUERIES, [], rewriter, sampling, 0, progress)
    write_jsonl(out / "candidates.jsonl", map(described_to_row, described))
    return metrics


def fine_tuning(out: Path, progress: Progress) -> Any:
    """Six steps in two epochs of 4, 4 and 2 rows, dropout and all; every other one is scored, the second best."""
    from cohyde.rewriter.rows import TextRow
    from cohyde.rewriter.sft import SftRecipe, train_sft

    def score(model: Any, tokenizer: Any) -> float:
        import torch

        ids = torch.tensor([tokenizer("weather by city")["input_ids"]])
        return float(model(input_ids=ids, labels=ids).loss) + float(torch.rand(1)) / 1000

    lora = LoraConfig(rank=4, alpha=8, dropout=0.1)
    batches = {"batch_size": 4, "micro_batch_size": 2, "max_length": 64, "epochs": 2}
    recipe = SftRecipe(lora=lora, lr=1e-2, warmup_steps=2, eval_every=2, **batches)
    rows = [TextRow(f"Weather API {'x' * (number % 4)}{number}: forecast") for number in range(10)]
    return asdict(train_sft(save_llama(out.parent / "llama"), rows, recipe, 3, out / "rewriter", progress, score))


def alignment(out: Path, progress: Progress) -> Any:
    """Two shards of the reference's log-probabilities, then six steps in two epochs of 16, 16 and 8 pairs."""
    from cohyde.rewriter.dpo import PreferencePair, train_dpo

    pairs = [
        PreferencePair(str(n), f"find {n}", f"weather {'by city ' * (n % 3)}", f"news of the day {n}", 0.5)
        for n in range(40)
    ]
    config = DpoConfig(
        lora=LoraConfig(rank=4, alpha=8, dropout=0.1),
        lr=1e-2,
        batch_size=16,
        micro_batch_size=8,
        max_length=64,
        epochs=2,
        gradient_checkpointing=False,
    )
    return asdict(train_dpo(save_llama(out.parent / "llama"), pairs, config, "float32", 3, out / "rewriter", progress))


@pytest.fixture(scope="module")
def untouched(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder_path: Path, tiny_rewriter_path: Path
) -> dict[Job, dict[str, str]]:
    """What each job leaves when nobody touches it."""
    jobs = (
        encoder,
        encoder_with_cached_gradients,
        encoder_with_adapters,
        encoder_without_dev,
        description,
        fine_tuning,
        alignment,
    )
    return {job: Work(job, tmp_path_factory.mktemp(job.__name__)).live_through([]).left() for job in jobs}


@pytest.mark.parametrize(
    ("job", "fates"),
    [
        (encoder, [*killed(1, 5, 2), Fate(stopped_at=3), *killed(1)]),
        (encoder_with_cached_gradients, killed(2, 4)),
        (encoder_with_adapters, killed(6, 3)),
        (encoder_without_dev, killed(8)),
        (fine_tuning, [*killed(1, 3, 2), Fate(stopped_at=2), *killed(1)]),  # in the middle of epochs and at their ends
        (alignment, [*killed(1, 3), Fate(stopped_at=1), *killed(4)]),  # in the reference's pass, and after it
        (description, [*killed(2, 5), Fate(stopped_at=3)]),  # each batch is told of, and each shard of two
    ],
)
def test_killed_and_resumed_work_leaves_the_same_bytes(
    untouched: dict[Job, dict[str, str]], tmp_path: Path, job: Job, fates: Sequence[Fate]
) -> None:
    work = Work(job, tmp_path).live_through(fates)
    assert list(work.checkpoints.glob("*/*"))
    assert work.left() == untouched[job]


def damage(checkpoint: Path) -> None:
    """Cut the largest file in half."""
    largest = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


@pytest.mark.parametrize(("damaged", "step"), [(1, 6), (2, 0)])
def test_from_a_damaged_checkpoint_nothing_is_taken(
    untouched: dict[Job, dict[str, str]], tmp_path: Path, damaged: int, step: int
) -> None:
    work = Work(encoder, tmp_path)
    assert work.attempt(Fate(killed_at=8)) < 0
    kept = sorted(work.checkpoints.rglob("step-*"), reverse=True)
    assert [path.name for path in kept] == ["step-7", "step-6"]
    for checkpoint in kept[:damaged]:
        damage(checkpoint)
    assert work.attempt() == 0
    assert work.log().count("warning: the checkpoint of step") == damaged
    assert ("going on from the checkpoint of step 6" in work.log()) == (step == 6)
    assert work.left() == untouched[encoder]


def random_fates(seed: int, count: int) -> list[Fate]:
    """Kills at any moment, of imports, loading and saving too, and at steps, and stops."""
    draw = random.Random(seed)
    kinds = [
        lambda: Fate(killed_after=draw.uniform(0.05, 6)),
        lambda: Fate(killed_at=draw.randint(1, 4)),
        lambda: Fate(stopped_at=draw.randint(1, 3)),
    ]
    return [draw.choice(kinds)() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("job", [encoder, encoder_without_dev, description, fine_tuning, alignment])
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_work_leaves_the_same_bytes(
    untouched: dict[Job, dict[str, str]], tmp_path: Path, job: Job, seed: int
) -> None:
    assert Work(job, tmp_path).live_through(random_fates(seed, 5)).left() == untouched[job]
