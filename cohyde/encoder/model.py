"""The encoder on disk and in memory: a sentence-transformers model that gives unit vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from cohyde.config import EmbeddingConfig
from cohyde.encoder.index import check_unit_rows
from cohyde.errors import UserError

# Families whose first positions are taken by padding, so that fewer tokens fit than the table has rows.
OFFSET_POSITIONS = ("camembert", "mpnet", "roberta", "xlm-roberta")


def default_device() -> str:
    """``cuda`` where there is one, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_encoder(path: Path, config: EmbeddingConfig, device: str | None = None) -> SentenceTransformer:
    """Load a sentence-transformers or a plain transformers folder as an encoder of unit vectors.

    The weights are float32 whatever the folder holds; prompts that the folder carries are not used, since queries,
    tools and descriptions are embedded alike.

    Args:
        path: a local folder with safetensors weights.
        config: ``pooling`` (``auto`` keeps the folder's, mean where it has none) and ``max_length`` in tokens.
        device: such as ``cpu`` or ``cuda:0``; None takes ``cuda`` where there is one.

    Raises:
        UserError: no such folder, no safetensors weights that load, or a ``max_length`` beyond what the model can read.
    """
    if not path.is_dir():
        raise UserError(
            f"{path}: no such model folder", "give a folder that sentence-transformers or transformers saved"
        )
    device = device or default_device()
    try:
        loaded = SentenceTransformer(
            str(path),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": torch.float32, "use_safetensors": True},
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be loaded as an encoder: {' '.join(str(error).split())}") from error
    model = SentenceTransformer(modules=_modules(loaded, config.pooling), device=device)
    _check_length(loaded, config.max_length, path)
    model.max_seq_length = config.max_length
    return model.eval()


def _modules(loaded: SentenceTransformer, pooling: str) -> list[torch.nn.Module]:
    """The folder's modules with the pooling that is asked for, and exactly one Normalize, at the end."""
    modules = [module for module in loaded if not isinstance(module, Normalize)]
    if pooling != "auto":
        modules = [
            Pooling(module.embedding_dimension, pooling_mode=pooling) if isinstance(module, Pooling) else module
            for module in modules
        ]
    return [*modules, Normalize()]


def _check_length(model: SentenceTransformer, max_length: int, path: Path) -> None:
    config: Any = model[0].config
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return
    readable = positions - (config.pad_token_id + 1 if config.model_type in OFFSET_POSITIONS else 0)
    if max_length > readable:
        raise UserError(
            f"{path}: encoder.max_length is {max_length}, but this model reads at most {readable} tokens",
            f"set encoder.max_length to {readable} or less",
        )


def embed(model: SentenceTransformer, texts: Sequence[str], batch_size: int) -> np.ndarray:
    """Embed texts, each distinct one once, in batches of similar length; deterministic on a CPU.

    Equal texts get equal vectors, bit for bit, so that tools with the same rendering tie.

    Args:
        model: what :func:`load_encoder` gives.
        texts: n texts, none of them empty.
        batch_size: texts a forward pass; speed only (up to rounding).

    Returns:
        (n, d) float32 in the order of ``texts``, unit rows.

    Raises:
        ValueError: a vector is not finite or not of length 1.
    """
    if not texts:
        return np.empty((0, model.get_embedding_dimension() or 0), dtype=np.float32)
    position_of = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    vectors = model.encode(list(position_of), batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
    return check_unit_rows(vectors, "embedding")[[position_of[text] for text in texts]]


def save_encoder(model: SentenceTransformer, path: Path) -> None:
    """Write a plain sentence-transformers folder with safetensors weights; it overwrites what is there.

    ``SentenceTransformer(str(path))`` loads it without us and embeds alike.
    """
    path.mkdir(parents=True, exist_ok=True)
    model.save(str(path), create_model_card=False, safe_serialization=True)
