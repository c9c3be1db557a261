"""Low-rank adapters on an encoder: trained in its place, and merged into what is saved."""

import copy
from typing import Any

from sentence_transformers import SentenceTransformer

from cohyde.config import LoraConfig
from cohyde.rewriter.lora import peft_config


def adapt(model: SentenceTransformer, config: LoraConfig) -> None:
    """Put adapters into the encoder, drawn from torch's generator; nothing else of it is trained from here on.

    An adapter's second matrix starts at zero, so that the encoder embeds as before.

    Raises:
        UserError: a target matches no linear layer of the model; lists those there are.
    """
    import peft

    transformer: Any = model[0]
    backbone = transformer.model
    peft.inject_adapter_in_model(peft_config(backbone, config, "FEATURE_EXTRACTION"), backbone)


def merged(model: SentenceTransformer) -> SentenceTransformer:
    """The encoder as an ordinary one: a copy with every adapter added to its layer, in float32.

    One that has no adapters is returned as it is. The original keeps its adapters bit for bit: merging and unmerging
    in place would round, and a training that goes on from a checkpoint would come out otherwise.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    if not any(isinstance(part, BaseTunerLayer) for part in model.modules()):
        return model
    plain = copy.deepcopy(model)
    adapted = [(name, part) for name, part in plain.named_modules() if isinstance(part, BaseTunerLayer)]
    for name, part in adapted:
        part.merge(safe_merge=True)
        parent, _, child = name.rpartition(".")
        setattr(plain.get_submodule(parent), child, part.get_base_layer())
    return plain
