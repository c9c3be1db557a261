"""Exact inner-product search with a stated order of ties."""

from pathlib import Path

import faiss
import numpy as np

NORM_TOLERANCE = 1e-3
MARGIN = 1e-5  # more than twice the float32 rounding of an inner product of unit vectors, whatever the order of its sum
RESCORED_AT_ONCE = 1 << 22  # float64 numbers gathered at a time: 32 MiB


def check_unit_rows(vectors: np.ndarray, what: str) -> np.ndarray:
    """The vectors as contiguous float32 (n, d), if every row is finite and of length 1.

    An inner-product index takes anything and ranks it wrongly (faiss#2343), so both sides are checked.

    Raises:
        ValueError: another shape, a NaN or infinite value, or a length off by more than 1e-3; names the first row.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2:
        raise ValueError(f"{what}: expected vectors of shape (n, d), got {vectors.shape}")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    wrong = np.flatnonzero(~(np.abs(lengths - 1) <= NORM_TOLERANCE))
    if wrong.size:
        raise ValueError(
            f"{what}: {wrong.size} of {len(vectors)} vectors are not of length 1, "
            f"the first in row {wrong[0]} with length {lengths[wrong[0]]:.6g}; the encoder may have diverged"
        )
    return vectors


class ExactIndex:
    """Inner products of unit vectors against all of a catalogue, by FAISS's flat index.

    FAISS leaves the order of ties open, and its float32 sums depend on the size of the batch and on the machine. So
    more candidates than asked for are fetched, their scores computed again in float64 and rounded to float32, and
    ordered by (score down, position up): equal vectors always tie, and every backend ranks alike.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        """Index (n, d) unit rows, in catalogue order; n is at least 1.

        Raises:
            ValueError: no vector, or one that is no unit vector.
        """
        self._vectors = check_unit_rows(vectors, "index")
        if not len(self._vectors):
            raise ValueError("an index needs at least one vector")
        self._flat = faiss.IndexFlatIP(self._vectors.shape[1])
        self._flat.add(self._vectors)

    def __len__(self) -> int:
        """Vectors in the index."""
        return len(self._vectors)

    @property
    def vectors(self) -> np.ndarray:
        """What is indexed, (n, d) float32: to be read alone."""
        return self._vectors

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The ``k`` best vectors for each query, ties by position.

        Args:
            queries: (m, d) unit rows.
            k: at least 1; an index with fewer vectors gives all that it has.

        Returns:
            ``(scores, positions)``, both (m, min(k, n)): float32 descending, and int64 from 0.

        Raises:
            ValueError: queries that are no unit vectors of the index's dimension, or ``k`` below 1.
        """
        queries = check_unit_rows(queries, "queries")
        size, dimensions = self._vectors.shape
        if queries.shape[1] != dimensions:
            raise ValueError(f"queries have {queries.shape[1]} dimensions, the index has {dimensions}")
        if k < 1:
            raise ValueError(f"k has to be at least 1, got {k}")
        k = min(k, size)
        scores = np.empty((len(queries), k), dtype=np.float32)
        positions = np.empty((len(queries), k), dtype=np.int64)
        undecided, width = np.arange(len(queries)), min(size, 2 * k + 16)
        while undecided.size:
            found, candidates = self._flat.search(queries[undecided], width)
            # Settled once all that was not fetched is certainly below the k-th; else a tie may reach further: widen.
            settled = found[:, -1] < found[:, k - 1] - MARGIN if width < size else np.ones(len(found), dtype=bool)
            rows = undecided[settled]
            scores[rows], positions[rows] = self._best(queries[rows], candidates[settled], k)
            undecided, width = undecided[~settled], min(size, 4 * width)
        return scores, positions

    def _best(self, queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Order (m, c) candidate positions by (exact score down, position up) and keep the first ``k``."""
        rows_at_once = max(1, RESCORED_AT_ONCE // (candidates.shape[1] * self._vectors.shape[1]))
        scores = np.empty(candidates.shape, dtype=np.float32)
        for start in range(0, len(queries), rows_at_once):
            rows = slice(start, start + rows_at_once)
            gathered = self._vectors[candidates[rows]].astype(np.float64)
            # einsum sums every row the same way; a BLAS product may not, and equal vectors would differ in score.
            scores[rows] = np.einsum("md,mcd->mc", queries[rows].astype(np.float64), gathered)
        order = np.lexsort((candidates, -scores), axis=-1)[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(candidates, order, axis=1)

    def save(self, path: Path) -> None:
        """Write the vectors as one ``.npy`` file, float32 (n, d)."""
        with path.open("wb") as handle:
            np.save(handle, self._vectors, allow_pickle=False)

    def save_faiss(self, path: Path) -> None:
        """Write the flat inner-product index as ``faiss.read_index`` reads it."""
        faiss.write_index(self._flat, str(path))

    @classmethod
    def load_faiss(cls, path: Path) -> "ExactIndex":
        """Read what :meth:`save_faiss` wrote, and check it again.

        Raises:
            ValueError: the file is no flat index or is cut short.
        """
        try:
            flat = faiss.read_index(str(path))
            vectors = flat.reconstruct_n(0, flat.ntotal)
        except RuntimeError as error:
            raise ValueError(f"{path}: not an index, or cut short: {str(error).splitlines()[-1]}") from None
        return cls(vectors)

    @classmethod
    def load(cls, path: Path) -> "ExactIndex":
        """Read what :meth:`save` wrote, and check it again.

        Raises:
            ValueError: the file is no such array or is cut short.
        """
        try:
            vectors = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path}: not an index, or cut short: {error}") from None
        return cls(vectors)
