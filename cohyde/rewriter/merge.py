"""Merge a LoRA adapter into its base: an ordinary transformers folder that anyone can load without PEFT."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from cohyde.errors import UserError
from cohyde.rewriter.training import no_progress_bars

PROBE = "Get the current weather forecast for a city by name, with temperature, humidity and wind speed."
"""A text on which adapter, base and merged model are compared."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
"""Largest accepted difference of a logit between adapter and merged model, by the type of the stored weights."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx")


@no_progress_bars()
def merge_adapter(base: Path, adapter: Path, out: Path, *, probe: str = PROBE) -> dict[str, float]:
    """Merge in float32, cast once to the base's types, save, load the result again and compare it on a probe text.

    Args:
        base: folder of the model that the adapter was trained on.
        adapter: PEFT adapter folder.
        out: folder to write; everything of ``base`` but its weights is copied byte for byte.
        probe: the text on which logits are compared.

    Returns:
        ``merge_error``: largest difference of a logit between adapter and merged model; ``merge_change``: largest
        difference between base and merged model (0 means that training changed nothing that is stored).

    Raises:
        RuntimeError: the merged model does not behave like the adapter.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = torch.tensor([AutoTokenizer.from_pretrained(base)(probe)["input_ids"]])
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    base_logits = _logits(model, ids)
    types = _stored_types(base)
    default = _default_type(types)
    tuned = PeftModel.from_pretrained(model, adapter)
    adapter_logits = _logits(tuned, ids)
    merged = tuned.merge_and_unload(safe_merge=True)
    _cast(merged, types, default)
    out.mkdir(parents=True, exist_ok=True)
    merged.config.dtype = default
    merged.save_pretrained(out)
    copy_companions(base, out, keep_config=_same_architecture(base, merged))
    del model, tuned, merged
    merged_logits = _reloaded_logits(out, probe, ids)
    error = _difference(merged_logits, adapter_logits)
    if not error <= TOLERANCE.get(default, TOLERANCE[torch.bfloat16]):
        raise RuntimeError(
            f"{out}: a logit of the merged model differs from the adapter's by {error:.4g} "
            f"(accepted: {TOLERANCE.get(default, TOLERANCE[torch.bfloat16])}): the merge has failed"
        )
    return {"merge_error": error, "merge_change": _difference(merged_logits, base_logits)}


def copy_companions(base: Path, out: Path, *, keep_config: bool = True) -> None:
    """Copy all of a model folder but its weights: tokenizer, chat template, generation defaults (TRAPS 11, 15).

    ``keep_config=False`` leaves the ``config.json`` of ``out`` alone, for a model that is only a part of the base.
    """
    for source in sorted(path for path in base.rglob("*") if path.is_file()):
        relative = source.relative_to(base)
        hidden = any(part.startswith(".") for part in relative.parts)
        weights = source.suffix in WEIGHT_SUFFIXES or source.name.endswith(".index.json")
        if hidden or weights or (relative == Path("config.json") and not keep_config):
            continue
        target = out / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


def _reloaded_logits(folder: Path, probe: str, ids: torch.Tensor) -> torch.Tensor:
    """The saved folder's logits in float32 arithmetic; its tokenizer has to agree with the base's."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if AutoTokenizer.from_pretrained(folder)(probe)["input_ids"] != ids[0].tolist():
        raise RuntimeError(f"{folder}: the saved tokenizer reads the probe text differently from the base's")
    return _logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), ids)


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def _stored_types(base: Path) -> dict[str, torch.dtype]:
    """The type of every stored tensor, from the headers alone."""
    from safetensors import safe_open

    files = sorted(base.glob("*.safetensors"))
    if not files:
        raise UserError(f"{base}: no .safetensors file", "convert the model to safetensors first")
    types: dict[str, torch.dtype] = {}
    for file in files:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - the handle is no dict, it cannot be iterated
                types[name] = _TORCH_TYPES.get(handle.get_slice(name).get_dtype(), torch.float32)
    return types


_TORCH_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _default_type(types: dict[str, torch.dtype]) -> torch.dtype:
    """The type of most of the stored tensors."""
    counts = {kind: list(types.values()).count(kind) for kind in TOLERANCE}
    return max(counts, key=lambda kind: counts[kind])


def _cast(model: Any, types: dict[str, torch.dtype], default: torch.dtype) -> None:
    """Each weight to the type it has in the base: some models keep a few in float32."""
    stored = set(model.state_dict())
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if name in stored and weight.is_floating_point():
            weight.data = weight.data.to(types.get(name, default))


def _same_architecture(base: Path, model: Any) -> bool:
    """Whether the base's ``config.json`` describes this model, and not a larger one that contains it."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("model_type") == model.config.model_type)
