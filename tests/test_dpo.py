"""Preference alignment: step 0 is ln 2, the loss is the paper's, and two runs give the same bytes."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language_models import byte_tokenizer, save_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohyde.config import DpoConfig, LoraConfig
from cohyde.errors import Interrupted, UserError
from cohyde.progress import Silent
from cohyde.rewriter.dpo import PreferencePair, encode_pairs, length_choice_correlation, train_dpo
from cohyde.rewriter.rows import PromptRow, encode

PROMPT = "<|im_start|>user\nfind {}<|im_end|>\n<|im_start|>assistant\n"
PAIRS = [
    PreferencePair(str(n), PROMPT.format(n), "weather by city", "news of the day, all of it"[: 10 + n], 0.5)
    for n in range(6)
]
CONFIG = DpoConfig(
    lora=LoraConfig(rank=4, alpha=8, dropout=0.0),
    lr=1e-2,
    warmup_ratio=0.0,
    batch_size=4,
    micro_batch_size=2,
    max_length=200,
    epochs=2,
    gradient_checkpointing=False,
)
FIVE_STEPS = replace(CONFIG, max_steps=5)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def weights_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def losses(result: Any) -> list[float]:
    return [row["loss"] for row in result.history]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_policy_and_reference_agree_at_step_0(llama: Path, tmp_path: Path, dropout: float) -> None:
    config = replace(CONFIG, lora=replace(CONFIG.lora, dropout=dropout), max_steps=1)
    result = train_dpo(llama, PAIRS, config, "float32", 0, tmp_path / "out", Silent())
    assert math.isclose(result.metrics["first_loss"], math.log(2), abs_tol=1e-6)
    assert abs(result.history[0]["reward_margin"]) < 1e-5


def test_hybrid_model_starts_at_ln_2_with_gradient_checkpointing(tiny_rewriter_path: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, gradient_checkpointing=True, max_steps=2)
    result = train_dpo(tiny_rewriter_path, PAIRS, config, "float32", 0, tmp_path / "out", Silent())
    assert math.isclose(result.metrics["first_loss"], math.log(2), abs_tol=1e-6)
    assert losses(result)[1] < losses(result)[0]


def test_bf16_starts_at_ln_2(llama: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=1)
    result = train_dpo(llama, PAIRS, config, "bf16", 0, tmp_path / "out", Silent())
    assert math.isclose(result.metrics["first_loss"], math.log(2), abs_tol=1e-6)


def test_preference_is_learnt_and_two_runs_give_the_same_bytes(llama: Path, tmp_path: Path) -> None:
    first = train_dpo(llama, PAIRS, CONFIG, "float32", 3, tmp_path / "first", Silent())
    second = train_dpo(llama, PAIRS, CONFIG, "float32", 3, tmp_path / "second", Silent())
    assert first == second
    assert weights_hash(tmp_path / "first") == weights_hash(tmp_path / "second")
    assert [row["step"] for row in first.history] == [1, 2, 3, 4]  # 2 epochs x ceil(6 / 4)
    last = first.history[-1]
    assert last["loss"] < 0.6 and last["reward_accuracy"] == 1 and last["reward_margin"] > 0
    assert {"logps_chosen", "logps_rejected", "lr", "grad_norm"} <= last.keys()
    assert first.metrics["merge_change"] > 0.01 > first.metrics["merge_error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_merged_model_has_the_log_probabilities_that_the_loss_implies(llama: Path, tmp_path: Path) -> None:
    """The last step's reward moves the merged model: margin x beta over the reference, measured without TRL."""
    pair = PAIRS[0]
    config = replace(CONFIG, beta=0.2, batch_size=1, micro_batch_size=1, max_steps=2)
    result = train_dpo(llama, [pair], config, "float32", 0, tmp_path / "two", Silent())
    one = train_dpo(llama, [pair], replace(config, max_steps=1), "float32", 0, tmp_path / "one", Silent())
    tokenizer = AutoTokenizer.from_pretrained(llama)
    base, moved = (AutoModelForCausalLM.from_pretrained(folder) for folder in (llama, tmp_path / "one"))
    ratio = [
        log_probability(moved, tokenizer, pair.prompt, text) - log_probability(base, tokenizer, pair.prompt, text)
        for text in (pair.chosen, pair.rejected)
    ]
    margin = 0.2 * (ratio[0] - ratio[1])
    assert margin > 0.05 and len(one.history) == 1
    # Step 2 of the longer run starts from the weights after step 1: equal first steps, as the learning rate is at its
    # peak in both.
    assert math.isclose(result.history[1]["reward_margin"], margin, abs_tol=1e-3)
    assert math.isclose(result.history[1]["loss"], math.log(1 + math.exp(-margin)), abs_tol=1e-3)


def log_probability(model: Any, tokenizer: Any, prompt: str, completion: str) -> float:
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    target = tokenizer(completion, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    with torch.no_grad():
        scores = model(torch.tensor([ids + target])).logits[0].log_softmax(-1)
    return sum(float(scores[len(ids) - 1 + k, token]) for k, token in enumerate(target))


def test_reference_computed_beforehand_or_in_the_loop_gives_the_same_losses(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohyde.rewriter import dpo

    before = train_dpo(llama, PAIRS, FIVE_STEPS, "float32", 0, tmp_path / "before", Silent())
    monkeypatch.setattr(dpo._Trainer, "precompute_reference", lambda self, progress: None)
    in_loop = train_dpo(llama, PAIRS, FIVE_STEPS, "float32", 0, tmp_path / "loop", Silent())
    assert losses(before) == pytest.approx(losses(in_loop), abs=1e-5)


def test_padded_and_packed_batches_give_the_same_losses(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohyde.rewriter import dpo

    packed = train_dpo(llama, PAIRS, FIVE_STEPS, "float32", 0, tmp_path / "packed", Silent())
    monkeypatch.setattr(dpo, "pack_batches", lambda model: False)
    padded = train_dpo(llama, PAIRS, FIVE_STEPS, "float32", 0, tmp_path / "padded", Silent())
    assert losses(packed) == pytest.approx(losses(padded), abs=1e-4)


class Stopping(Silent):
    """A progress that asks to stop after a step."""

    def __init__(self, checkpoints: Path, stop_after: tuple[float, str] | None = None) -> None:
        self.checkpoints, self.stop_after = checkpoints, stop_after

    def update(self, done: float, total: float, what: str = "") -> None:
        self.stopping = (done, what) == self.stop_after


def test_resumed_losses_are_those_of_a_training_that_went_through(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohyde.rewriter import dpo

    config = replace(CONFIG, lora=replace(CONFIG.lora, dropout=0.2))
    through = train_dpo(llama, PAIRS, config, "float32", 3, tmp_path / "through", Silent())
    for stop_after in ((6, "pairs read by the reference"), (2, "steps"), (3, "steps")):
        with pytest.raises(Interrupted):
            train_dpo(llama, PAIRS, config, "float32", 3, tmp_path / "out", Stopping(tmp_path / "kept", stop_after))
    monkeypatch.setattr(dpo._Trainer, "compute_ref_log_probs", lambda *a: pytest.fail("the reference was asked again"))
    resumed = train_dpo(llama, PAIRS, config, "float32", 3, tmp_path / "out", Stopping(tmp_path / "kept"))
    assert resumed == through
    assert weights_hash(tmp_path / "out") == weights_hash(tmp_path / "through")


def test_pairs_are_tokenised_as_fine_tuning_tokenises_them() -> None:
    tokenizer = byte_tokenizer()
    pair = encode_pairs(tokenizer, PAIRS[:1], 200)[0]
    for completion, text in ((pair.chosen, PAIRS[0].chosen), (pair.rejected, PAIRS[0].rejected)):
        assert completion == encode(tokenizer, PromptRow(PAIRS[0].prompt, text), 200)
        assert completion.target[-1] == tokenizer.eos_token_id
        assert completion.target.count(tokenizer.eos_token_id) == 1
    assert pair.row == {
        "prompt_ids": tokenizer(PAIRS[0].prompt, add_special_tokens=False)["input_ids"],
        "chosen_ids": pair.chosen.target,
        "rejected_ids": pair.rejected.target,
    }


def test_pairs_without_room_or_difference_are_dropped_and_counted(llama: Path, tmp_path: Path) -> None:
    long = PreferencePair("long", "p" * 200, "a", "b", 1.0)
    same = PreferencePair("same", "p", "a", "a", 1.0)
    metrics = train_dpo(
        llama, [*PAIRS, long, same], replace(CONFIG, max_steps=1), "float32", 0, tmp_path / "out", Silent()
    ).metrics
    assert metrics["pairs"] == 6 and metrics["pairs_dropped"] == 2
    with pytest.raises(UserError, match="2 of 8 pairs"):
        train_dpo(llama, [*PAIRS, long, long], CONFIG, "float32", 0, tmp_path / "other", Silent())


def test_truncated_share_and_lengths(llama: Path, tmp_path: Path) -> None:
    pairs = [PreferencePair("1", "pp", "abc", "x" * 50, 1.0), PreferencePair("2", "pp", "abcde", "x", 1.0)]
    config = replace(CONFIG, max_length=20, max_steps=1)
    metrics = train_dpo(llama, pairs, config, "float32", 0, tmp_path / "out", Silent()).metrics
    assert metrics["truncated_share"] == 1 / 2
    assert metrics["mean_prompt_tokens"] == 2
    assert metrics["mean_chosen_tokens"] == (4 + 6) / 2
    assert metrics["mean_rejected_tokens"] == (18 + 2) / 2


def test_length_choice_correlation() -> None:
    assert length_choice_correlation([4, 4], [2, 2]) == pytest.approx(1.0)
    assert length_choice_correlation([2, 2], [4, 4]) == pytest.approx(-1.0)
    assert length_choice_correlation([2, 4], [2, 4]) == pytest.approx(0.0)
    assert length_choice_correlation([3, 3], [3, 3]) == 0.0


def test_no_pairs_is_an_error(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no preference pairs"):
        train_dpo(llama, [], CONFIG, "float32", 0, tmp_path / "out", Silent())


def test_wrong_lora_target_is_an_error_before_anything_is_written(llama: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, lora=replace(CONFIG.lora, targets=("qkv",)))
    with pytest.raises(UserError, match="'qkv'"):
        train_dpo(llama, PAIRS, config, "float32", 0, tmp_path / "out", Silent())
    assert list(tmp_path.iterdir()) == []
