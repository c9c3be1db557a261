"""Training the tiny BERT: it learns, it repeats itself, the best checkpoint is on disk, and bad input is refused."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import get_cosine_schedule_with_warmup

from cohyde.catalog import Tool, render
from cohyde.config import EncoderConfig, EncoderTrainConfig
from cohyde.encoder import tokens
from cohyde.encoder import train as module
from cohyde.encoder.infonce import infonce
from cohyde.encoder.model import load_encoder
from cohyde.encoder.pairs import Pair
from cohyde.encoder.retriever import DenseRetriever
from cohyde.encoder.train import (
    DevSet,
    TrainingResult,
    dev_ndcg,
    learning_rate,
    make_optimizer,
    train_encoder,
)
from cohyde.errors import UserError
from cohyde.evaluation.metrics import ndcg_at
from cohyde.io import sha256_file
from cohyde.progress import TIMED_METRICS, Silent

WORDS = ["weather", "currency", "recipe", "flight", "hotel", "music", "stock", "news", "map", "translate"]
TOOLS = [
    Tool(id=word, title=f"{word} service", api_name=f"get {word}", api_description=f"Returns the {word} you ask for")
    for word in WORDS
]
PAIRS = [Pair(anchor=f"please tell me about {word} number {n}", tool=word) for n in range(3) for word in WORDS]
DEV = DevSet(
    texts=tuple(f"what is the {word}" for word in WORDS),
    gold=tuple(frozenset({word}) for word in WORDS),
    tiers=("G1",) * 7 + ("G2",) * 3,
)
CONFIG = EncoderConfig(
    max_length=32,
    train=EncoderTrainConfig(lr=5e-3, batch_size=8, epochs=6, eval_every=8, precision="float32"),
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small spends its time waiting for threads, where there are any."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mean_loss(result: TrainingResult, first: int, last: int) -> float:
    return sum(result.history[step]["loss"] for step in range(first, last + 1)) / (last + 1 - first)


class Listener(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.updates: list[tuple[float, float, str]] = []
        self.warnings: list[str] = []

    def update(self, done: float, total: float, what: str = "") -> None:
        self.updates.append((done, total, what))

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def with_train(**changes: Any) -> EncoderConfig:
    return dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, **changes))


def run(start: Path, out: Path, config: EncoderConfig = CONFIG, **changes: Any) -> TrainingResult:
    model = changes.pop("model", None) or load_encoder(start, config, "cpu")
    arguments: dict[str, Any] = {"forms": (1, 2, 3, 4, 5), "seed": 0, "dev": DEV, "progress": Listener()} | changes
    pairs, tools = arguments.pop("pairs", PAIRS), arguments.pop("tools", TOOLS)
    return train_encoder(model, pairs, tools, config, out=out, **arguments)


def without_dropout(model: SentenceTransformer) -> SentenceTransformer:
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


@pytest.fixture(scope="module")
def trained(tiny_encoder_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult, Listener]:
    out, listener = tmp_path_factory.mktemp("trained") / "encoder", Listener()
    return out, run(tiny_encoder_path, out, progress=listener), listener


def test_training_lowers_the_loss_and_raises_dev_ndcg(trained: tuple[Path, TrainingResult, Listener]) -> None:
    metrics = trained[1].metrics
    assert mean_loss(trained[1], 21, 24) < 0.7 * mean_loss(trained[1], 1, 4)  # the last epoch and the first
    assert metrics["best_dev_ndcg@5"] > metrics["start_dev_ndcg@5"] + 0.1
    assert metrics["best_step"] > 0
    assert trained[2].warnings == []


def test_history_has_a_row_a_step_and_dev_values_where_they_were_taken(
    trained: tuple[Path, TrainingResult, Listener],
) -> None:
    _, result, listener = trained
    total = 6 * 4  # 30 pairs in batches of 8, 8, 8, 6
    assert [row["step"] for row in result.history] == list(range(total + 1))
    assert [row["step"] for row in result.history if "dev_ndcg@5" in row] == [0, 8, 16, 24]
    assert set(result.history[1]) == {"step", "epoch", "loss", "grad_norm", "lr"}
    assert listener.updates == [(step, total, "steps") for step in range(1, total + 1)]
    assert (result.metrics["steps"], result.metrics["rows_per_epoch"], result.metrics["pairs"]) == (total, 30, 30)
    assert result.metrics["final_loss"] == result.history[-1]["loss"]
    assert result.metrics["start_dev_ndcg@5"] == result.history[0]["dev_ndcg@5"]
    assert result.metrics["best_dev_ndcg@5"] == max(row.get("dev_ndcg@5", 0) for row in result.history)
    json.dumps([result.metrics, result.history], allow_nan=False)


def test_the_best_checkpoint_read_from_disk_scores_what_was_recorded(
    trained: tuple[Path, TrainingResult, Listener],
) -> None:
    out, result, _ = trained
    assert dev_ndcg(load_encoder(out, CONFIG, "cpu"), DEV, TOOLS, CONFIG) == result.metrics["best_dev_ndcg@5"]


def test_equal_runs_give_equal_bytes_and_another_seed_gives_others(
    trained: tuple[Path, TrainingResult, Listener], tiny_encoder_path: Path, tmp_path: Path
) -> None:
    out, result, _ = trained
    torch.manual_seed(12345)  # whatever state the caller's generator is in
    np.random.seed(12345)
    again = run(tiny_encoder_path, tmp_path / "again")
    assert again == result
    assert sha256_file(tmp_path / "again" / "model.safetensors") == sha256_file(out / "model.safetensors")
    run(tiny_encoder_path, tmp_path / "other", seed=1)
    assert sha256_file(tmp_path / "other" / "model.safetensors") != sha256_file(out / "model.safetensors")


def test_training_leaves_the_caller_s_random_state_alone(tiny_encoder_path: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1).item()
    torch.manual_seed(3)
    run(tiny_encoder_path, tmp_path / "out", with_train(epochs=1))
    assert torch.rand(1).item() == expected


def test_a_start_that_is_never_beaten_is_kept_and_said_so(
    trained: tuple[Path, TrainingResult, Listener], tmp_path: Path
) -> None:
    start, listener = trained[0], Listener()
    result = run(start, tmp_path / "out", with_train(lr=1.0, epochs=1), progress=listener)
    assert result.metrics["best_step"] == 0
    assert result.metrics["best_dev_ndcg@5"] == result.metrics["start_dev_ndcg@5"]
    assert sha256_file(tmp_path / "out" / "model.safetensors") == sha256_file(start / "model.safetensors")
    assert listener.warnings == ["no checkpoint was better on dev than the start, which is kept"]


def test_without_a_dev_set_the_last_step_is_kept(tiny_encoder_path: Path, tmp_path: Path) -> None:
    model = load_encoder(tiny_encoder_path, CONFIG, "cpu")
    result = run(tiny_encoder_path, tmp_path / "out", with_train(epochs=1), model=model, dev=None)
    assert result.metrics["best_step"] == result.metrics["steps"] == 4
    assert not [name for name in result.metrics if "dev" in name]
    saved = load_encoder(tmp_path / "out", CONFIG, "cpu").state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_best_on_disk(
    tiny_encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))

    def nan_at_the_eleventh(*arguments: Any) -> torch.Tensor:
        return infonce(*arguments) * (math.nan if next(calls) == 10 else 1.0)

    monkeypatch.setattr(module, "infonce", nan_at_the_eleventh)
    with pytest.raises(RuntimeError, match=r"step 11 of 24: the loss is nan .* checkpoint of step 8 \(dev NDCG@5 0\."):
        run(tiny_encoder_path, tmp_path / "out")
    assert dev_ndcg(load_encoder(tmp_path / "out", CONFIG, "cpu"), DEV, TOOLS, CONFIG) > 0


def test_bf16_trains_float32_weights(tiny_encoder_path: Path, tmp_path: Path) -> None:
    result = run(tiny_encoder_path, tmp_path / "out", with_train(precision="bf16"))
    assert mean_loss(result, 21, 24) < 0.7 * mean_loss(result, 1, 4)
    dtypes = {parameter.dtype for parameter in load_encoder(tmp_path / "out", CONFIG, "cpu").parameters()}
    assert dtypes == {torch.float32}


def test_gold_aware_negatives_change_the_training(
    trained: tuple[Path, TrainingResult, Listener], tiny_encoder_path: Path, tmp_path: Path
) -> None:
    # Three pairs a tool: batches hold false negatives, which cost "all" a loss that "gold_aware" does not have.
    result = run(tiny_encoder_path, tmp_path / "out", negatives="gold_aware")
    assert result.history[1]["loss"] < trained[1].history[1]["loss"]


def test_a_list_smaller_than_a_batch_still_trains(tiny_encoder_path: Path, tmp_path: Path) -> None:
    result = run(tiny_encoder_path, tmp_path / "out", with_train(batch_size=256), pairs=PAIRS[:3], tools=TOOLS[:3])
    assert (result.metrics["steps"], result.metrics["rows_per_epoch"]) == (6, 3)


def test_a_tool_without_any_text_is_trained_under_its_id(tiny_encoder_path: Path, tmp_path: Path) -> None:
    tools = [*TOOLS[:2], Tool(id="bare")]
    pairs = [*PAIRS[:2], Pair(anchor="what nobody described", tool="bare")]
    result = run(tiny_encoder_path, tmp_path / "out", with_train(epochs=1), pairs=pairs, tools=tools, dev=None)
    assert result.metrics["rows_per_epoch"] == 3 and math.isfinite(result.metrics["final_loss"])


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_pairs_are_refused(tiny_encoder_path: Path, tmp_path: Path, count: int) -> None:
    with pytest.raises(UserError, match=f"{count} training pairs: InfoNCE needs at least 2"):
        run(tiny_encoder_path, tmp_path / "out", pairs=PAIRS[:count])


def test_a_pair_with_an_unknown_tool_is_named(tiny_encoder_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 tools of the pairs are not in the catalogue, the first is 'nothing'"):
        run(tiny_encoder_path, tmp_path / "out", pairs=[*PAIRS, Pair(anchor="x", tool="nothing")])


def test_an_unknown_negatives_strategy_is_named(tiny_encoder_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'some'; there are: all, gold_aware"):
        run(tiny_encoder_path, tmp_path / "out", negatives="some")


def test_a_dev_set_has_a_gold_set_and_a_tier_for_each_text() -> None:
    with pytest.raises(ValueError, match="2 texts, 1 gold sets and 2 tiers"):
        DevSet(texts=("a", "b"), gold=(frozenset({"x"}),), tiers=("G1", "G1"))
    with pytest.raises(ValueError, match="there is no text"):
        DevSet(texts=(), gold=(), tiers=())


@pytest.mark.parametrize("total", [2, 7, 100])
def test_the_learning_rate_follows_transformers_cosine_schedule(total: int) -> None:
    recipe = EncoderTrainConfig(lr=0.5, warmup_ratio=0.05)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = get_cosine_schedule_with_warmup(optimizer, math.ceil(0.05 * total), total)
    for step in range(total):
        assert learning_rate(step, total, recipe) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()


def test_a_run_of_one_step_is_not_all_warm_up() -> None:
    assert learning_rate(0, 1, EncoderTrainConfig(lr=0.5, warmup_ratio=0.05)) == 0.5


def test_steps_of_warm_up_are_counted_where_they_are_given() -> None:
    recipe = EncoderTrainConfig(lr=1.0, warmup_ratio=0.5, warmup_steps=4)
    assert [learning_rate(step, 100, recipe) for step in range(5)] == [0, 0.25, 0.5, 0.75, 1.0]


def test_biases_and_norms_are_not_decayed(tiny_encoder_path: Path) -> None:
    model = load_encoder(tiny_encoder_path, CONFIG, "cpu")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, plain = (
        [names[id(parameter)] for parameter in group["params"]]
        for group in make_optimizer(model, CONFIG.train).param_groups
    )
    assert not [name for name in decayed if name.endswith("bias") or "LayerNorm" in name]
    assert [name for name in plain if not (name.endswith("bias") or "LayerNorm" in name)] == []
    assert len(decayed) + len(plain) == len(names)


def test_a_text_is_tokenised_once_a_training_however_often_it_is_used(
    tiny_encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = load_encoder(tiny_encoder_path, CONFIG, "cpu"), Counter[str]()
    preprocess = model.preprocess
    monkeypatch.setattr(model, "preprocess", lambda texts, **how: (seen.update(texts), preprocess(texts, **how))[1])
    result = run(tiny_encoder_path, tmp_path / "out", with_train(epochs=2, eval_every=2), model=model, forms=(4, 5))
    assert sum("dev_ndcg@5" in row for row in result.history) == 1 + 8 / 2
    renderings = {render(tool, form) for tool in TOOLS for form in (4, 5)}
    assert seen == Counter({pair.anchor for pair in PAIRS} | renderings | set(DEV.texts))


def test_dev_evaluation_ranks_as_a_retriever_does(trained: tuple[Path, TrainingResult, Listener]) -> None:
    retriever = DenseRetriever.build(trained[0], TOOLS, CONFIG.embedding())
    best = [[tool for tool, _ in ranking] for ranking in retriever.rank_texts(DEV.texts, 5)]
    values = [ndcg_at(tools, gold, 5) for tools, gold in zip(best, DEV.gold, strict=True)]
    tiers = [sum(values[:7]) / 7, sum(values[7:]) / 3]
    assert trained[1].metrics["best_dev_ndcg@5"] == pytest.approx(sum(tiers) / 2)


def test_dev_evaluation_that_costs_too_much_of_a_long_training_is_said_so(
    tiny_encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, recipe = Listener(), with_train(epochs=1)
    monkeypatch.setattr(module, "DEV_SHARE", 0.0)
    run(tiny_encoder_path, tmp_path / "short", recipe, progress=listener)
    assert not [line for line in listener.warnings if "dev evaluation" in line]
    monkeypatch.setattr(module, "DEV_SECONDS", 0.0)
    run(tiny_encoder_path, tmp_path / "long", recipe, progress=listener)
    [line] = [line for line in listener.warnings if "dev evaluation" in line]
    assert "% of the training's time; a larger encoder.train.eval_every (now 8) takes less" in line


def test_texts_that_are_cut_and_padding_are_counted_over_all_epochs(tiny_encoder_path: Path, tmp_path: Path) -> None:
    model = load_encoder(tiny_encoder_path, CONFIG, "cpu")
    pairs = [Pair(anchor="music " * 60, tool="music"), Pair(anchor="weather", tool="weather")]
    words = len(model.tokenizer("music " * 60)["input_ids"])
    widths = sorted(
        len(model.tokenizer(text)["input_ids"]) for text in ("weather", *(render(t, 5) for t in TOOLS[:6:5]))
    )
    result = run(tiny_encoder_path, tmp_path / "out", with_train(epochs=2), model=model, pairs=pairs, forms=(5,))
    assert result.metrics["truncated_share"] == 1 / 4  # of the four texts of the one batch
    assert result.metrics["cut_tokens"] == 2 * (words - 32)
    assert result.metrics["padding_share"] == 1 - (32 + sum(widths)) / (4 * 32)  # the four fit one forward pass


def test_speed_is_told_apart_from_what_equal_runs_share(trained: tuple[Path, TrainingResult, Listener]) -> None:
    speed = trained[1].speed
    assert set(speed) == TIMED_METRICS
    assert speed["tokens_per_second"] > 0
    assert 0 < speed["dev_time_share"] < 1
    assert not TIMED_METRICS & set(trained[1].metrics)


def test_cached_gradients_train_as_plain_ones_do(
    tiny_encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One text a forward pass in both, so that dropout draws alike.
    monkeypatch.setitem(tokens.POSITIONS_AT_ONCE, "cpu", 1)
    plain = run(tiny_encoder_path, tmp_path / "plain", with_train(epochs=1))
    cached = run(tiny_encoder_path, tmp_path / "cached", with_train(epochs=1, mini_batch_size=1))
    losses = [[row["loss"] for row in result.history[1:]] for result in (plain, cached)]
    assert losses[0][0] == losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_window_of_similar_lengths_pads_less(
    trained: tuple[Path, TrainingResult, Listener], tiny_encoder_path: Path, tmp_path: Path
) -> None:
    lengthy = [Pair(anchor=f"{'please ' * (n % 20)}{pair.anchor}", tool=pair.tool) for n, pair in enumerate(PAIRS)]
    shares = [
        run(tiny_encoder_path, tmp_path / str(w), with_train(epochs=1, length_window=w), pairs=lengthy, forms=(5,))
        for w in (1, 4)
    ]
    assert shares[1].metrics["padding_share"] < 0.8 * shares[0].metrics["padding_share"]
    assert [result.metrics["rows_per_epoch"] for result in shares] == [30, 30]


def test_hard_negatives_stand_in_the_batch_of_their_anchor_and_no_tool_counts_twice(
    tiny_encoder_path: Path, tmp_path: Path
) -> None:
    pairs = [Pair(anchor="rain or shine", tool="weather"), Pair(anchor="euros to yen", tool="currency")]
    losses = {}
    for name, hard in {
        "none": {},
        "of one": {"rain or shine": ["music"]},
        "a gold of the other": {"rain or shine": ["currency"]},
    }.items():
        model = without_dropout(load_encoder(tiny_encoder_path, CONFIG, "cpu"))
        settings = {"pairs": pairs, "dev": None, "forms": (5,), "hard_negatives": hard}
        result = run(tiny_encoder_path, tmp_path / name, model=model, **settings)
        losses[name] = result.history[0]["loss"]
        assert result.metrics["hard_negatives"] == len(hard)
    assert losses["of one"] > losses["none"]
    assert losses["a gold of the other"] == losses["none"]  # currency is a negative of the first anchor already


def test_a_hard_negative_that_the_catalogue_lacks_is_named(tiny_encoder_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1 tools of the hard negatives are not in the catalogue.* 'nothing'"):
        run(tiny_encoder_path, tmp_path / "out", hard_negatives={PAIRS[0].anchor: ["nothing"]})
