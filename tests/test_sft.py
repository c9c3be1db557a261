"""Fine-tuning: what the token ids are, what bears loss, and that two runs give the same bytes."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language_models import byte_tokenizer, save_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohyde.config import LoraConfig
from cohyde.errors import DivergedError, Interrupted, UserError
from cohyde.progress import Silent
from cohyde.rewriter.packing import pack, pack_batches
from cohyde.rewriter.prompts import encode_prompt
from cohyde.rewriter.rows import PromptRow, TextRow, encode, set_padding, target_ids
from cohyde.rewriter.sft import SftRecipe, train_sft
from cohyde.rewriter.training import Schedule, SortedBatches

EOS = byte_tokenizer().eos_token_id
RECIPE = SftRecipe(
    lora=LoraConfig(rank=4, alpha=8, dropout=0.1), lr=1e-2, batch_size=4, micro_batch_size=2, max_length=64, epochs=2
)
TEXTS = [TextRow(f"Weather API {number}: forecast") for number in range(6)]
PROMPT = "<|im_start|>user\nfind weather<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def weights_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def losses(result: Any) -> list[float]:
    return [row["loss"] for row in result.history if "loss" in row]


# ------------------------------------------------------------------------------------------------------ token ids


def test_text_and_completion_end_in_exactly_one_eos() -> None:
    tokenizer = byte_tokenizer()
    for row in (TextRow("a tool"), TextRow("a tool<|im_end|>"), PromptRow(PROMPT, "a <|im_end|>tool<|im_end|>")):
        encoded = encode(tokenizer, row, 100)
        assert encoded is not None
        assert encoded.target.count(EOS) == 1 and encoded.target[-1] == EOS
        assert tokenizer.decode(encoded.target[:-1]) == "a tool"


def test_padding_is_never_the_end_of_sequence() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.pad_token_id == EOS  # as published models have it
    assert set_padding(tokenizer) == tokenizer.pad_token_id != EOS


def test_prompt_ids_are_those_of_generation_and_bear_no_loss(tiny_rewriter_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_rewriter_path)
    messages = [{"role": "user", "content": "find weather"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    encoded = encode(tokenizer, PromptRow(prompt, "a tool"), 500)
    assert encoded is not None
    generation = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert encoded.prompt == generation == encode_prompt(tokenizer, prompt)
    assert encoded.input_ids == generation + target_ids(tokenizer, "a tool")
    assert encoded.labels == [-100] * len(generation) + target_ids(tokenizer, "a tool")


def test_no_special_token_is_added_before_a_prompt() -> None:
    tokenizer = byte_tokenizer()
    assert encode_prompt(tokenizer, PROMPT).count(tokenizer.bos_token_id) == PROMPT.count("<|im_start|>")


def test_long_target_is_cut_and_long_prompt_leaves_no_row() -> None:
    tokenizer = byte_tokenizer()
    cut = encode(tokenizer, TextRow("abcdef"), 4)
    assert cut is not None and cut.truncated and len(cut.target) == 4 and EOS not in cut.target
    fits = encode(tokenizer, TextRow("abc"), 4)
    assert fits is not None and not fits.truncated and fits.target[-1] == EOS
    length = len(encode_prompt(tokenizer, PROMPT))
    assert encode(tokenizer, PromptRow(PROMPT, "a"), length) is None
    assert encode(tokenizer, PromptRow(PROMPT, "a"), length + 1) is not None


# -------------------------------------------------------------------------------------------------------- batches


def test_pack_keeps_every_distinct_beginning_once() -> None:
    packed = pack([[1, 2, 3], [1, 2, 4, 5], [9], [1, 2, 3]])
    assert packed.input_ids.tolist() == [1, 2, 3, 4, 5, 9]
    assert packed.positions.tolist() == [0, 1, 2, 2, 3, 0]
    assert [path.tolist() for path in packed.paths] == [[0, 1, 2], [0, 1, 3, 4], [5], [0, 1, 2]]
    assert packed.mask.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],  # token 4 sees 1 and 2, not its sibling 3
        [1, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]


def test_packed_batch_has_the_loss_and_gradient_of_a_padded_one(llama: Path) -> None:
    from trl.trainer.utils import add_fused_lm_head

    rows = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 1, 2], [5, 3, 4, 0, 0]])
    attention = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels = rows.masked_fill(attention == 0, -100)
    labels[:, :2] = -100
    results = []
    for packed in (False, True):
        model = AutoModelForCausalLM.from_pretrained(llama)
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
        assert not packed or pack_batches(model)
        output = model(input_ids=rows, attention_mask=attention, labels=labels, fused_lm_head=True)
        output.log_probs.sum().backward()
        results.append((output, model.model.layers[0].self_attn.q_proj.weight.grad))
    (padded, padded_gradient), (packed_output, packed_gradient) = results
    for name in ("log_probs", "entropy", "mean_logits", "loss"):
        torch.testing.assert_close(packed_output[name], padded[name], rtol=1e-5, atol=1e-5)
    assert torch.equal(packed_output.is_top1, padded.is_top1)
    torch.testing.assert_close(packed_gradient, padded_gradient, rtol=1e-4, atol=1e-5)


def test_models_with_recurrent_layers_are_not_packed(tiny_rewriter_path: Path) -> None:
    assert not pack_batches(AutoModelForCausalLM.from_pretrained(tiny_rewriter_path))


def test_sorted_batches_are_shuffled_batches_in_order_of_length() -> None:
    lengths = [5, 1, 4, 2, 3, 9, 7]
    sampler = SortedBatches(lengths, batch_size=3, seed=0)
    first = list(sampler)
    assert sorted(first) == list(range(7)) and len(sampler) == 7
    for start in (0, 3, 6):
        batch = [lengths[row] for row in first[start : start + 3]]
        assert batch == sorted(batch)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_micro_batch_divides_the_batch() -> None:
    assert Schedule(rows=10, batch_size=12, micro_batch_size=5).micro == 4
    assert Schedule(rows=10, batch_size=4, micro_batch_size=8).micro == 4
    assert Schedule(rows=10, batch_size=4, micro_batch_size=2, epochs=2).steps == 6  # 2 x ceil(10 / 4)
    assert Schedule(rows=10, batch_size=4, micro_batch_size=2, epochs=2, max_steps=5).steps == 5


# ------------------------------------------------------------------------------------------------------- training


def test_texts_are_learnt_and_two_runs_give_the_same_bytes(llama: Path, tmp_path: Path) -> None:
    first = train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "first", Silent())
    second = train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "second", Silent())
    assert losses(first)[-1] < losses(first)[0] - 0.1
    assert [row["step"] for row in first.history] == [1, 2, 3, 4]  # 2 epochs x ceil(6 / 4)
    assert first == second
    assert weights_hash(tmp_path / "first") == weights_hash(tmp_path / "second")
    assert first.metrics["merge_change"] > 0.01 > first.metrics["merge_error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]  # no scratch is left
    other = train_sft(llama, TEXTS, RECIPE, 4, tmp_path / "other", Silent())
    assert losses(other) != losses(first)


def test_first_loss_is_the_mean_over_completion_tokens_alone(llama: Path, tmp_path: Path) -> None:
    rows = [PromptRow(PROMPT, "weather by city"), PromptRow(PROMPT + "x", "news")]
    recipe = replace(RECIPE, batch_size=2, micro_batch_size=1, max_length=100, max_steps=1)
    result = train_sft(llama, rows, recipe, 0, tmp_path / "out", Silent())
    tokenizer, model = AutoTokenizer.from_pretrained(llama), AutoModelForCausalLM.from_pretrained(llama)
    total, count = 0.0, 0
    for row in rows:
        prompt = tokenizer(row.prompt, add_special_tokens=False)["input_ids"]
        target = tokenizer(row.completion, add_special_tokens=False)["input_ids"] + [EOS]
        with torch.no_grad():
            scores = model(torch.tensor([prompt + target])).logits[0].log_softmax(-1)
        total -= sum(float(scores[len(prompt) - 1 + k, token]) for k, token in enumerate(target))
        count += len(target)
    assert count == 15 + 1 + 4 + 1
    assert math.isclose(losses(result)[0], total / count, abs_tol=1e-5)
    assert result.metrics["mean_target_tokens"] == count / 2


def test_hybrid_model_trains_on_prompts(tiny_rewriter_path: Path, tmp_path: Path) -> None:
    rows = [PromptRow(PROMPT, "weather by city"), PromptRow(PROMPT, "news of the day")] * 2
    recipe = replace(RECIPE, gradient_checkpointing=True, max_length=200, max_steps=2)
    result = train_sft(tiny_rewriter_path, rows, recipe, 0, tmp_path / "out", Silent())
    assert losses(result)[-1] < losses(result)[0]
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_bf16_keeps_the_stored_type_of_the_base(llama: Path, tmp_path: Path) -> None:
    result = train_sft(llama, TEXTS, replace(RECIPE, precision="bf16", max_steps=2), 0, tmp_path / "out", Silent())
    assert losses(result)[-1] < losses(result)[0]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.float32


def test_best_adapter_is_kept_and_its_step_recorded(llama: Path, tmp_path: Path) -> None:
    scores = iter([0.2, 0.9, 0.9, 0.5])
    seen = []

    def select(model: Any, tokenizer: Any) -> float:
        torch.rand(3)  # a callback may draw random numbers: training must not notice
        assert not model.training
        seen.append(tokenizer.eos_token)
        return next(scores)

    recipe = replace(RECIPE, eval_every=1)
    selected = train_sft(llama, TEXTS, recipe, 3, tmp_path / "selected", Silent(), select)
    assert len(seen) == 4 and selected.metrics["best_step"] == 2 and selected.metrics["best_score"] == 0.9
    assert [row["score"] for row in selected.history if "score" in row] == [0.2, 0.9, 0.9, 0.5]
    plain = train_sft(llama, TEXTS, recipe, 3, tmp_path / "plain", Silent())
    assert losses(selected) == losses(plain)
    assert weights_hash(tmp_path / "selected") != weights_hash(tmp_path / "plain")


class Stopping(Silent):
    """A progress that asks to stop after a step."""

    def __init__(self, checkpoints: Path, stop_after: int = 0) -> None:
        self.checkpoints, self.checkpoint_seconds, self.stop_after = checkpoints, 0.0, stop_after

    def update(self, done: float, total: float, what: str = "") -> None:
        self.stopping = done == self.stop_after


@pytest.mark.parametrize("stop_after", [1, 2, 4])
def test_resumed_losses_are_those_of_a_training_that_went_through(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    from cohyde.rewriter import sft

    through = train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "through", Silent())  # 2 epochs of 4 and 2 rows
    with pytest.raises(Interrupted, match=f"after step {stop_after}"):
        train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "out", Stopping(tmp_path / "kept", stop_after))
    assert not (tmp_path / "out").exists()
    passes = []
    compute_loss = sft._Trainer.compute_loss
    monkeypatch.setattr(sft._Trainer, "compute_loss", lambda *a, **k: passes.append(1) or compute_loss(*a, **k))
    resumed = train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "out", Stopping(tmp_path / "kept"))
    assert resumed == through
    assert weights_hash(tmp_path / "out") == weights_hash(tmp_path / "through")
    assert len(passes) == sum([2, 1, 2, 1][stop_after:])  # micro-batches of 2 in the steps that were left


def test_after_a_resume_too_the_last_good_adapter_is_left_by_a_training_that_fails(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohyde.rewriter import sft

    with pytest.raises(Interrupted):
        train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "out", Stopping(tmp_path / "kept", 3))
    compute_loss = sft._Trainer.compute_loss
    monkeypatch.setattr(sft._Trainer, "compute_loss", lambda *a, **k: compute_loss(*a, **k) * math.nan)
    with pytest.raises(DivergedError, match="at step 4 of 4; the adapter of step 2 is kept"):
        train_sft(llama, TEXTS, RECIPE, 3, tmp_path / "out", Stopping(tmp_path / "kept"))
    assert (tmp_path / "last-good-adapter" / "adapter_model.safetensors").is_file()


def test_rows_without_room_are_dropped_and_counted(llama: Path, tmp_path: Path) -> None:
    rows = [*[PromptRow("p", "ok")] * 4, PromptRow("p" * 20, "lost")]
    recipe = replace(RECIPE, max_length=20, max_steps=1)
    metrics = train_sft(llama, rows, recipe, 0, tmp_path / "out", Silent()).metrics
    assert metrics["rows"] == 4 and metrics["rows_dropped"] == 1  # 1 of 5 is not more than a fifth
    with pytest.raises(UserError, match="2 of 6 rows"):
        train_sft(llama, [*rows, rows[-1]], recipe, 0, tmp_path / "other", Silent())
    assert not (tmp_path / "other").exists()


def test_truncated_share_counts_targets_that_were_cut(llama: Path, tmp_path: Path) -> None:
    rows = [TextRow("short"), TextRow("x" * 40), TextRow("x" * 19), TextRow("x" * 20)]
    metrics = train_sft(llama, rows, replace(RECIPE, max_length=20, max_steps=1), 0, tmp_path / "o", Silent()).metrics
    assert metrics["truncated_share"] == 2 / 4  # 19 letters and the end of sequence fit, 20 do not


def test_loss_that_is_not_a_number_names_the_step(llama: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, lr=1e30, max_steps=3)
    with pytest.raises(RuntimeError, match=r"at step \d of 3"):
        train_sft(llama, TEXTS, recipe, 0, tmp_path / "out", Silent())
    assert list(tmp_path.iterdir()) == []


def test_no_rows_is_an_error(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        train_sft(llama, [], RECIPE, 0, tmp_path / "out", Silent())
