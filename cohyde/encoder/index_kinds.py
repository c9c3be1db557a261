"""The kinds of index by name, and how one is made, opened and changed without knowing which it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from cohyde.config import IndexConfig
from cohyde.encoder.approximate import APPROXIMATE, ApproximateIndex
from cohyde.encoder.index import ExactIndex
from cohyde.errors import UserError

EXACT = "exact"
INDEX_KINDS: Sequence[str] = (EXACT, *APPROXIMATE)
"""Names of ``index.kind``."""


class Index(Protocol):
    """Unit vectors of a catalogue, in its order, that can be searched."""

    def __len__(self) -> int:
        """Vectors in the index."""

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""

    @property
    def vectors(self) -> np.ndarray:
        """What is indexed, (n, d) float32."""

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`cohyde.encoder.index.ExactIndex.search`."""

    def with_rows(self, places: np.ndarray, new: np.ndarray) -> "Index":
        """See :meth:`cohyde.encoder.index.ExactIndex.with_rows`."""

    def save_faiss(self, path: Path) -> None:
        """Write it as ``faiss.read_index`` reads it."""


def check_kind(kind: str) -> None:
    """Refuse a kind that does not exist.

    Raises:
        UserError: names those that do.
    """
    if kind not in INDEX_KINDS:
        raise UserError(f"no index is of the kind {kind!r}", f"index.kind is one of: {', '.join(INDEX_KINDS)}")


def make_index(vectors: np.ndarray, config: IndexConfig) -> Index:
    """Index (n, d) unit rows, in catalogue order, as the configuration says.

    Raises:
        UserError: there is no such kind.
        ValueError: no vector, or one that is no unit vector.
    """
    check_kind(config.kind)
    return ExactIndex(vectors, config.dtype) if config.kind == EXACT else ApproximateIndex.of(vectors, config)


def open_index(path: Path, config: IndexConfig, *, mapped: bool = True) -> Index:
    """Read what ``save_faiss`` of an index made with this configuration wrote.

    Args:
        path: the file.
        config: kind, numbers, and how hard a search tries.
        mapped: read vectors from the file when a search comes to them, in place of all of them now.

    Raises:
        UserError: there is no such kind.
        ValueError: the file is no such index, or is cut short.
    """
    check_kind(config.kind)
    if config.kind != EXACT:
        return ApproximateIndex.open(path, config, mapped=mapped)
    return ExactIndex.map_faiss(path) if mapped else ExactIndex.load_faiss(path)
