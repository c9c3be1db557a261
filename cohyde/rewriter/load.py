"""Loading the rewriter from its folder, and copying such folders."""

import shutil
from pathlib import Path
from typing import Any

from cohyde.errors import UserError


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a model folder.

    Raises:
        UserError: the folder holds none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: its tokenizer does not load: {str(error).splitlines()[0]}") from None


def load_rewriter(path: Path, precision: str) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, for inference, on the GPU if there is one.

    Args:
        path: a transformers folder with safetensors weights.
        precision: ``float32`` or ``bf16``.

    Raises:
        UserError: the folder is not a causal language model that transformers knows.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(path)
    dtype = {"float32": torch.float32, "bf16": torch.bfloat16}[precision]
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: does not load as a causal language model: {str(error).splitlines()[0]}",
            "the rewriter has to be a transformers folder with safetensors weights",
        ) from None
    device: Any = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), tokenizer


def declared_stops(generation_config: Any, config: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a completion: those of ``generation_config.json`` (else ``config.json``) and the tokenizer's.

    Nothing else of a folder's generation settings is ever used.

    Raises:
        UserError: there are none.
    """
    declared = getattr(generation_config, "eos_token_id", None)
    if declared is None:
        declared = getattr(config.get_text_config(), "eos_token_id", None)
    ids = declared if isinstance(declared, (list, tuple)) else [declared]
    stops = frozenset(int(token) for token in (*ids, tokenizer.eos_token_id) if token is not None)
    if not stops:
        raise UserError("the rewriter has no end-of-sequence token", "set eos_token_id in its generation_config.json")
    return stops


def copy_model(source: Path, target: Path) -> None:
    """Copy a model folder. Never linked: the source may be the user's own, and they may write into it."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
