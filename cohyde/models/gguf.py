"""GGUF files as plain safetensors folders: dequantised once, then loaded like any other model."""

from pathlib import Path

from cohyde.errors import UserError
from cohyde.filesystem import cache_root
from cohyde.models.cache import build_once

CONVERTER = 1
"""Raised when the conversion changes, so that old folders are not taken for new ones."""


def converted_folder(file: Path, sha256: str) -> Path:
    """The safetensors folder of a GGUF file; the first call converts (about half a minute for 135M parameters)."""
    return build_once(cache_root() / "models" / f"gguf-{CONVERTER}-{sha256}", lambda out: convert(file, out))


def convert(file: Path, out: Path) -> None:
    """Dequantise a GGUF file to float32 and save model, tokenizer and generation settings to ``out``.

    Raises:
        UserError: the ``gguf`` package is missing, or the file is not of the Llama architecture.
    """
    try:
        import gguf  # noqa: F401 (transformers reads the file with it)
    except ImportError:
        raise UserError(f"{file}: reading GGUF files needs the gguf package", "pip install gguf") from None
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    if source.config.model_type != "llama":
        raise UserError(
            f"{file}: its architecture is {source.config.model_type!r}; GGUF files of Llama models alone are read",
            "give a safetensors folder of the model instead",
        )
    # The loaded model calls itself quantised and refuses to be saved, although its weights are plain float32.
    config = source.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(type(source.config).from_dict(config))  # type: ignore[no-untyped-call]
    model.load_state_dict(source.state_dict())
    model.generation_config = source.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
