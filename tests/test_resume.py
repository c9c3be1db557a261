"""Killed at any step and started again, long work leaves the bytes of work that nobody touched."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from killing import Fate, Job, Work
from test_encoder_train import CONFIG, DEV, PAIRS, TOOLS

from cohyde.catalog import Query
from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.io import write_jsonl
from cohyde.models.reference import resolve
from cohyde.progress import Progress


def killed(*updates: int) -> list[Fate]:
    return [Fate(killed_at=update) for update in updates]


SHORT = replace(CONFIG, train=replace(CONFIG.train, epochs=3, eval_every=5))
"""12 steps, of which 5, 10 and 12 are evaluated."""


def encoder(out: Path, progress: Progress, **changes: Any) -> Any:
    from cohyde.encoder.model import load_encoder
    from cohyde.encoder.train import train_encoder

    model = load_encoder(resolve("tiny:bert"), SHORT, "cpu")
    arguments: dict[str, Any] = {"forms": (1, 2, 3, 4, 5), "seed": 0, "dev": DEV} | changes
    return asdict(train_encoder(model, PAIRS, TOOLS, SHORT, out=out / "encoder", progress=progress, **arguments))


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


@pytest.fixture(scope="module")
def untouched(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder_path: Path, tiny_rewriter_path: Path
) -> dict[Job, dict[str, str]]:
    """What each job leaves when nobody touches it."""
    jobs = (encoder, encoder_without_dev, description)
    return {job: Work(job, tmp_path_factory.mktemp(job.__name__)).live_through([]).left() for job in jobs}


@pytest.mark.parametrize(
    ("job", "fates"),
    [
        (encoder, [*killed(1, 5, 2), Fate(stopped_at=3), *killed(1)]),
        (encoder_without_dev, killed(8)),
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
