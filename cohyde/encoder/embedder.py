"""Who embeds texts for search: this process, or a server. Importing it imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from cohyde.config import EmbeddingConfig
from cohyde.encoder.pairs import Side
from cohyde.errors import UserError


class Embedder(Protocol):
    """An encoder that texts are searched with and for."""

    def embed(self, texts: Sequence[str], side: Side = "query") -> np.ndarray:
        """(n, d) float32 in the order of ``texts``, unit rows; equal texts of a call get equal vectors.

        Raises:
            UserError: a server does not answer, or not with this encoder's vectors.
            ValueError: a vector is not finite or not of length 1.
        """

    def check(self, texts: Sequence[str]) -> None:
        """See to it, before anything stands on it, that vectors are this encoder's; ``texts`` are what it is tried on.

        Raises:
            UserError: they are not; says how far off, and why that may be.
        """

    def close(self) -> None:
        """Close connections, where there are any."""


class InProcess:
    """The encoder, loaded here."""

    def __init__(self, encoder: Path, config: EmbeddingConfig) -> None:
        """Load it; see :func:`cohyde.encoder.model.load_encoder`."""
        from cohyde.encoder.model import load_encoder

        self.model = load_encoder(encoder, config)
        self._batch_size = config.embed_batch_size

    def embed(self, texts: Sequence[str], side: Side = "query") -> np.ndarray:
        """As :func:`cohyde.encoder.model.embed`."""
        from cohyde.encoder.model import embed

        return embed(self.model, texts, self._batch_size, side)

    def check(self, texts: Sequence[str]) -> None:
        """There is nothing that could differ."""

    def close(self) -> None:
        """There is nothing to close."""


def served(encoder: Path, config: EmbeddingConfig) -> Embedder:
    """A server that holds the same encoder; see :class:`cohyde.encoder.served.Served`."""
    from cohyde.encoder.served import Served

    return Served(encoder, config)


EMBEDDERS: Mapping[str, Callable[[Path, EmbeddingConfig], Embedder]] = {"in_process": InProcess, "endpoint": served}


def open_embedder(encoder: Path, config: EmbeddingConfig) -> Embedder:
    """An encoder's folder, ready to embed as ``config.embedder`` says.

    Raises:
        UserError: no embedder has that name, or the folder or the server's address cannot be used.
    """
    if config.embedder not in EMBEDDERS:
        raise UserError(
            f"no embedder is called {config.embedder!r}", f"encoder.embedder is one of: {', '.join(EMBEDDERS)}"
        )
    return EMBEDDERS[config.embedder](encoder, config)
