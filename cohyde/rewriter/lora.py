"""LoRA configuration against a real model: every target has to exist and to survive merging."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from cohyde.config import LoraConfig
from cohyde.errors import UserError


def peft_config(model: Any, config: LoraConfig, task_type: str = "CAUSAL_LM") -> Any:
    """The ``peft.LoraConfig`` for a causal language model, or for whatever else PEFT calls ``task_type``.

    Raises:
        UserError: a target matches no linear layer, or is the output head or the embedding of a model that ties
            them: merged into a shared weight, an adapter of one would change the other.
    """
    import peft

    _check_targets(model, config.targets)
    return peft.LoraConfig(
        task_type=task_type,
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.targets),
        bias="none",
    )


def _check_targets(model: Any, targets: Iterable[str]) -> None:
    import torch

    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding))
    }
    for target in targets:
        matched = [module for name, module in layers.items() if name == target or name.endswith(f".{target}")]
        if not matched:
            raise UserError(
                f"LoRA target {target!r} matches no layer of {type(model).__name__}",
                f"layers that can be adapted are: {_names(layers)}",
            )
        if any(module is embeddings[1] for module in matched):
            raise UserError(f"LoRA target {target!r} is the output head, which is not trained", "leave it out")
        if model.config.get_text_config().tie_word_embeddings and any(module is embeddings[0] for module in matched):
            raise UserError(
                f"LoRA target {target!r} is the embedding, and {type(model).__name__} ties it to the output head: "
                "merging would change both",
                "leave it out",
            )


def _names(layers: Iterable[str]) -> str:
    """Last parts of the layers' names with how often each occurs, most frequent first."""
    counts = Counter(name.rpartition(".")[2] for name in layers)
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} ({count})" for name, count in frequent)
