"""The encoder on disk and in memory: a sentence-transformers model that gives unit vectors."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.util import batch_to_device

from cohyde.config import EmbeddingConfig
from cohyde.encoder.index import check_unit_rows
from cohyde.encoder.infonce import shortened
from cohyde.encoder.pairs import Side
from cohyde.encoder.tokens import Tokeniser, chunks_by_length, positions_at_once, prompt_of
from cohyde.errors import UserError

POOLINGS: Mapping[str, str] = {"cls": "cls", "mean": "mean", "last_token": "lasttoken"}
"""Names of the configuration to those of sentence-transformers."""
FLASH = "flash_attention_2"
OTHERWISE = "set encoder.attention=auto"
POSITIONS_WITHOUT_GRADIENT = 4096
"""Tokens and padding of a forward pass at least, where none is followed by a backward pass: on a CPU passes of 1,024
took a fifth longer a token."""
PROBES = ("the weather of tomorrow", "the exchange rate of the yen against the euro")
"""Two texts that begin alike."""

# Families whose first positions are taken by padding, so that fewer tokens fit than the table has rows.
OFFSET_POSITIONS = ("camembert", "mpnet", "roberta", "xlm-roberta")


def default_device() -> str:
    """``cuda`` where there is one, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_encoder(path: Path, config: EmbeddingConfig, device: str | None = None) -> SentenceTransformer:
    """Load a sentence-transformers or a plain transformers folder as an encoder of unit vectors.

    The weights are float32 whatever the folder holds. Instructions and the dimensions that are kept are the
    configuration's, not the folder's; they are saved with the encoder, as the prompts ``query`` and ``document``, which
    ``encode_query`` and ``encode_document`` use, and as ``truncate_dim``.

    Args:
        path: a local folder with safetensors weights.
        config: ``pooling`` (``auto`` keeps the folder's, mean where it has none), lengths in tokens, instructions,
            dimensions.
        device: such as ``cpu`` or ``cuda:0``; None takes ``cuda`` where there is one.

    Raises:
        UserError: no such folder, no safetensors weights that load, a pooling that this model does not have, a length
            beyond what it can read, more dimensions than it has, or an attention that this machine lacks.
    """
    if not path.is_dir():
        raise UserError(
            f"{path}: no such model folder", "give a folder that sentence-transformers or transformers saved"
        )
    device = device or default_device()
    attention = {} if config.attention == "auto" else {"attn_implementation": config.attention}
    if config.attention == FLASH:
        _check_flash(device)
    try:
        loaded = SentenceTransformer(
            str(path),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": torch.float32, "use_safetensors": True, **attention},
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be loaded as an encoder: {' '.join(str(error).split())}") from error
    model = SentenceTransformer(modules=_modules(loaded, config.pooling, path), device=device)
    if config.attention == FLASH:
        flash: Any = model[0]
        flash.unpad_inputs = False  # texts are padded here, chunk by chunk; attention leaves the padding out again
    lengths = {"max_length": config.max_length, "tool_max_length": config.tool_max_length or config.max_length}
    for name, length in lengths.items():
        _check_length(loaded, name, length, path)
    model.max_seq_length = max(lengths.values())
    if config.tool_max_length is not None:
        transformer: Any = model[0]
        transformer.query_length, transformer.document_length = config.max_length, config.tool_max_length
    if config.query_instruction or config.tool_instruction:
        model.prompts = {"query": config.query_instruction, "document": config.tool_instruction}
    if config.dimensions is not None:
        check_dimensions(model, "encoder.dimensions", config.dimensions)
        model.truncate_dim = config.dimensions
    _check_pooling(model.eval(), config.pooling, path)
    return model


def _modules(loaded: SentenceTransformer, pooling: str, path: Path) -> list[torch.nn.Module]:
    """The folder's modules with the pooling that is asked for, and exactly one Normalize, at the end."""
    modules = [module for module in loaded if not isinstance(module, Normalize)]
    if pooling != "auto":
        if not any(isinstance(module, Pooling) for module in modules):
            raise UserError(
                f"{path}: encoder.pooling is {pooling!r}, but this model gives one vector a text by itself",
                "set encoder.pooling=auto",
            )
        modules = with_pooling(modules, pooling)
    return [*modules, Normalize()]


def with_pooling(modules: Iterable[torch.nn.Module], pooling: str) -> list[torch.nn.Module]:
    """The same modules, but for the pooling, which is the one of this name in the configuration."""
    return [
        Pooling(module.embedding_dimension, pooling_mode=POOLINGS[pooling]) if isinstance(module, Pooling) else module
        for module in modules
    ]


def _check_flash(device: str) -> None:
    """Without the package transformers would fetch a kernel from the hub and run it."""
    from transformers.utils.import_utils import is_flash_attn_2_available

    if not device.startswith("cuda"):
        raise UserError(f"encoder.attention is {FLASH!r}, which needs a CUDA device, and this is {device!r}", OTHERWISE)
    if not is_flash_attn_2_available():
        raise UserError(f"encoder.attention is {FLASH!r}, which needs the package flash-attn", OTHERWISE)


def embedding_precision(model: SentenceTransformer) -> Literal["float32", "bf16"]:
    """Arithmetic of a forward pass that embeds: float32, but for an attention that has no such thing."""
    config = getattr(model[0], "config", None)
    return "bf16" if getattr(config, "_attn_implementation", None) == FLASH else "float32"


def _check_pooling(model: SentenceTransformer, pooling: str, path: Path) -> None:
    """Refuse the first position of a model that reads from left to right: it knows its own token alone.

    Two texts that begin alike show it, whatever the architecture is called.
    """
    if pooling != "cls":
        return
    first, second = embed(model, PROBES, 1)
    if np.allclose(first, second, atol=1e-5):
        raise UserError(
            f"{path}: encoder.pooling is 'cls', but the first position of this model sees no other: "
            "texts that begin alike get the same vector",
            "set encoder.pooling=last_token (or mean, if it was trained so)",
        )


def _check_length(model: SentenceTransformer, name: str, length: int, path: Path) -> None:
    config: Any = model[0].config
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return
    readable = positions - (config.pad_token_id + 1 if config.model_type in OFFSET_POSITIONS else 0)
    if length > readable:
        raise UserError(
            f"{path}: encoder.{name} is {length}, but this model reads at most {readable} tokens",
            f"set encoder.{name} to {readable} or less",
        )


def full_dimensions(model: SentenceTransformer) -> int | None:
    """Dimensions of the encoder's vectors before any is cut; None where the model does not know."""
    kept, model.truncate_dim = model.truncate_dim, None
    try:
        return model.get_embedding_dimension()
    finally:
        model.truncate_dim = kept


def check_dimensions(model: SentenceTransformer, name: str, dimensions: int) -> None:
    """Refuse to keep more of a vector than there is.

    Raises:
        UserError: names the setting and the encoder's dimensions.
    """
    full = full_dimensions(model)
    if full is not None and dimensions > full:
        raise UserError(
            f"{name} has {dimensions}, but this encoder's vectors have {full} dimensions", f"give {full} or less"
        )


def embed(
    model: SentenceTransformer,
    texts: Sequence[str],
    batch_size: int,
    side: Side = "query",
    tokens: Tokeniser | None = None,
) -> np.ndarray:
    """Embed texts, each distinct one once; deterministic on a CPU.

    Equal texts get equal vectors, bit for bit, so that tools with the same rendering tie. All texts are tokenised
    before the first is encoded and sorted by their tokens, so that next to nothing of a forward pass is padding.

    Args:
        model: what :func:`load_encoder` gives.
        texts: n texts, none of them empty.
        batch_size: texts of a forward pass, if they are of the longest; speed only (up to rounding).
        side: whether they are searched with or of the catalogue, for encoders with instructions or two lengths.
        tokens: what has read many of these texts already; None tokenises them all.

    Returns:
        (n, d) float32 in the order of ``texts``, unit rows.

    Raises:
        ValueError: a vector is not finite or not of length 1.
    """
    if not texts:
        return np.empty((0, model.get_embedding_dimension() or 0), dtype=np.float32)
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    if isinstance(model[0], Transformer):
        vectors = _by_length(model.eval(), list(row_of), batch_size, side, tokens or Tokeniser(model))
    else:  # static embeddings and their like
        vectors = model.encode(
            list(row_of),
            prompt=prompt_of(model, side),
            task=side,
            batch_size=batch_size,
            show_progress_bar=False,
            normalize_embeddings=model.truncate_dim is not None,  # once more, of what is kept
        )
    return check_unit_rows(vectors, "embedding")[[row_of[text] for text in texts]]


@torch.inference_mode()
def _by_length(
    model: SentenceTransformer, texts: list[str], batch_size: int, side: Side, tokeniser: Tokeniser
) -> np.ndarray:
    """(n, d) unit rows, by forward passes of texts that have about as many tokens."""
    tokens = tokeniser(texts, side)
    lengths = [len(text) for text in tokens]
    most = max(POSITIONS_WITHOUT_GRADIENT, positions_at_once(model.device))
    chunks = chunks_by_length(lengths, min(most, batch_size * max(lengths)))
    passes = (batch_to_device(tokeniser.padded([tokens[row] for row in chunk]), model.device) for chunk in chunks)
    bf16 = embedding_precision(model) == "bf16"
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=bf16):
        vectors = torch.cat([model(features, task=side)["sentence_embedding"].float().cpu() for features in passes])
    if model.truncate_dim is not None:
        vectors = shortened(vectors, model.truncate_dim)
    rows: np.ndarray = vectors.numpy()[np.argsort([row for chunk in chunks for row in chunk])]
    return rows


def save_encoder(model: SentenceTransformer, path: Path) -> None:
    """Write a plain sentence-transformers folder with safetensors weights; it overwrites what is there.

    ``SentenceTransformer(str(path))`` loads it without us and embeds alike.
    """
    path.mkdir(parents=True, exist_ok=True)
    model.save(str(path), create_model_card=False, safe_serialization=True)
