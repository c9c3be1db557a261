"""Merging: the merged folder behaves like the adapter, keeps its base's files and loads without PEFT."""

import json
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file
from tiny_language_models import save_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohyde.config import LoraConfig
from cohyde.errors import UserError
from cohyde.rewriter.lora import peft_config
from cohyde.rewriter.merge import copy_companions, merge_adapter

TEXT = "Find an API that converts currencies."
ATTENTION = LoraConfig(rank=4, alpha=8, dropout=0.0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def save_adapter(base: Path, folder: Path, config: LoraConfig = ATTENTION, size: float = 0.3) -> Path:
    """An adapter that was never trained, but whose B matrices are not zero."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = get_peft_model(model, peft_config(model, config))
    torch.manual_seed(1)
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=size)
    tuned.save_pretrained(folder, save_embedding_layers=False)
    return folder


def adapter_logits(base: Path, adapter: Path) -> torch.Tensor:
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return logits(PeftModel.from_pretrained(model, adapter).eval(), base)


def logits(model: torch.nn.Module, folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return model(**AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")).logits.float()


def test_merged_folder_reloads_with_the_adapters_logits_and_differs_from_the_base(llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(llama, tmp_path / "adapter")
    metrics = merge_adapter(llama, adapter, tmp_path / "merged")
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), tmp_path / "merged")
    base = logits(AutoModelForCausalLM.from_pretrained(llama), llama)
    assert (merged - adapter_logits(llama, adapter)).abs().max() < 1e-4
    assert (merged - base).abs().max() > 0.1
    assert metrics["merge_error"] < 1e-4 and metrics["merge_change"] > 0.1


def test_hybrid_model_merges_in_linear_and_full_attention_layers(tiny_rewriter_path: Path, tmp_path: Path) -> None:
    config = LoraConfig(rank=4, alpha=8, dropout=0.0, targets=("q_proj", "v_proj", "in_proj_qkv", "out_proj"))
    adapter = save_adapter(tiny_rewriter_path, tmp_path / "adapter", config)
    metrics = merge_adapter(tiny_rewriter_path, adapter, tmp_path / "merged")
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), tmp_path / "merged")
    assert (merged - adapter_logits(tiny_rewriter_path, adapter)).abs().max() < 1e-3
    assert metrics["merge_change"] > 0.1
    before = load_file(tiny_rewriter_path / "model.safetensors")
    after = load_file(tmp_path / "merged" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert changed == {name for name in before if any(f".{target}." in name for target in config.targets)}


def test_every_file_but_the_weights_is_copied_byte_for_byte(llama: Path, tmp_path: Path) -> None:
    merge_adapter(llama, save_adapter(llama, tmp_path / "adapter"), tmp_path / "merged")
    companions = {path.name for path in llama.iterdir()} - {"model.safetensors"}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"} <= companions
    assert {path.name for path in (tmp_path / "merged").iterdir()} == companions | {"model.safetensors"}
    for name in companions:
        assert (tmp_path / "merged" / name).read_bytes() == (llama / name).read_bytes(), name


def test_weights_are_cast_back_to_the_types_of_the_base(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base", dtype=torch.bfloat16)
    metrics = merge_adapter(base, save_adapter(base, tmp_path / "adapter"), tmp_path / "merged")
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged").dtype == torch.bfloat16
    assert 0 < metrics["merge_error"] < metrics["merge_change"]  # rounding, but less than what was learnt


def test_zero_adapter_leaves_the_weights_as_they_were(llama: Path, tmp_path: Path) -> None:
    metrics = merge_adapter(llama, save_adapter(llama, tmp_path / "adapter", size=0.0), tmp_path / "merged")
    assert metrics == {"merge_error": 0.0, "merge_change": 0.0}
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == (llama / "model.safetensors").read_bytes()


def test_a_merge_that_differs_from_the_adapter_fails(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohyde.rewriter import merge

    monkeypatch.setitem(merge.TOLERANCE, torch.float32, -1.0)
    with pytest.raises(RuntimeError, match="differs from the adapter's by"):
        merge_adapter(llama, save_adapter(llama, tmp_path / "adapter"), tmp_path / "merged")


def test_companions_leave_out_weights_hidden_files_and_a_foreign_config(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "extra").mkdir(parents=True)
    for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", ".lock", "config.json"):
        (base / name).write_text(json.dumps(name))
    (base / "extra" / "template.jinja").write_text("x")
    copy_companions(base, tmp_path / "out", keep_config=False)
    assert [str(path.relative_to(tmp_path / "out")) for path in sorted((tmp_path / "out").rglob("*.*"))] == [
        "extra/template.jinja"
    ]


def test_target_that_matches_no_module_names_it_and_what_exists(tiny_rewriter_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_rewriter_path)
    with pytest.raises(UserError) as error:
        peft_config(model, LoraConfig(targets=("q_proj", "query")))
    assert "'query'" in error.value.message
    assert "q_proj (1)" in error.value.remedy and "in_proj_qkv (3)" in error.value.remedy


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_tied_embeddings_are_no_targets(llama: Path, target: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama)
    with pytest.raises(UserError, match=target):
        peft_config(model, LoraConfig(targets=("q_proj", target)))


def test_untied_embedding_survives_save_and_reload(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base", tied=False)
    config = LoraConfig(rank=4, alpha=8, dropout=0.0, targets=("q_proj", "embed_tokens"))
    metrics = merge_adapter(base, save_adapter(base, tmp_path / "adapter", config), tmp_path / "merged")
    assert metrics["merge_error"] < 1e-4 < metrics["merge_change"]
