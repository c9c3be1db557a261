"""Exact inner-product search with a stated order of ties."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import faiss
import numpy as np
from threadpoolctl import ThreadpoolController

from cohyde.encoder.products import largest_products, room_for_products

NORM_TOLERANCE = 1e-3
MARGIN = 1e-5  # more than twice the float32 rounding of an inner product of unit vectors, whatever the order of its sum
ALONE = Lock()
MOST_AT_ONCE = 16
"""Matrix products side by side: 1 GiB of scores."""
QUERIES_AT_ONCE = 256
"""Queries of a matrix product: enough for it to run at full speed."""
MORE_THAN_ASKED_FOR = 8
"""Candidates beyond the k-th: enough to see a gap in scores below it, unless there are ties."""
RESCORED_AT_ONCE = 1 << 17
"""float64 numbers gathered at a time: 1 MiB stays in a core's cache."""


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


def check_queries(queries: np.ndarray, dimensions: int, k: int) -> np.ndarray:
    """What an index is searched with, as contiguous float32.

    Raises:
        ValueError: queries that are no unit vectors of the index's dimension, or ``k`` below 1.
    """
    queries = check_unit_rows(queries, "queries")
    if queries.shape[1] != dimensions:
        raise ValueError(f"queries have {queries.shape[1]} dimensions, the index has {dimensions}")
    if k < 1:
        raise ValueError(f"k has to be at least 1, got {k}")
    return queries


def exact_products(queries: np.ndarray, gathered_MCD: np.ndarray) -> np.ndarray:
    """Inner products of each of (m, d) queries with c vectors of its own, summed in float64: (m, c) float32.

    einsum sums every row the same way; a BLAS product may not, and equal vectors would differ in score.
    """
    products: np.ndarray = np.einsum("md,mcd->mc", queries.astype(np.float64), gathered_MCD.astype(np.float64))
    return products.astype(np.float32)


def ordered(scores: np.ndarray, positions: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ``k`` of (m, c) candidates by (score down, position up)."""
    order = np.lexsort((positions, -scores), axis=-1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)


def side_by_side(work: Callable[[Sequence[int]], None], items: Sequence[int]) -> None:
    """Divide items among as many cores as a matrix product would have, and do the work on each share.

    Each product then has one core for itself: none waits for the others at the end of every product, and what comes
    after a product has all cores, too. A single item is left with all of them.
    """
    if len(items) <= 1:
        work(items)
        return
    with ALONE:  # the limit is the whole process's
        blas = ThreadpoolController().select(user_api="blas")
        cores = max((library["num_threads"] for library in blas.info()), default=1)
        shares = min(cores, len(items), MOST_AT_ONCE)
        with blas.limit(limits=1), ThreadPoolExecutor(shares) as pool:
            list(pool.map(work, (items[share::shares] for share in range(shares))))


class ExactIndex:
    """Inner products of unit vectors against all of a catalogue.

    Sums in float32 depend on the size of the batch and on the machine, and no library says how it orders ties. So more
    candidates than asked for are fetched, their scores computed again in float64 and rounded to float32, and ordered
    by (score down, position up): equal vectors always tie, and every backend ranks alike. The candidates come from
    matrix products of our own (:mod:`cohyde.encoder.products`), whose selection costs less than that of FAISS's flat
    index, so that there is time for all of this; files are FAISS's.
    """

    def __init__(self, vectors: np.ndarray, dtype: Literal["float32", "float16"] = "float32") -> None:
        """Index (n, d) unit rows, in catalogue order; n is at least 1. ``dtype`` is what they are kept in.

        Raises:
            ValueError: no vector, or one that is no unit vector.
        """
        self._vectors = check_unit_rows(vectors, "index").astype(dtype, copy=False)
        if not len(self._vectors):
            raise ValueError("an index needs at least one vector")
        self._mapped: Any = None

    def __len__(self) -> int:
        """Vectors in the index."""
        return len(self._vectors)

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return int(self._vectors.shape[1])

    @property
    def vectors(self) -> np.ndarray:
        """What is indexed, (n, d) float32: to be read alone."""
        return self._vectors.astype(np.float32, copy=False)

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
        queries, k = check_queries(queries, self.dimensions, k), min(k, len(self))
        scores = np.empty((len(queries), k), dtype=np.float32)
        positions = np.empty((len(queries), k), dtype=np.int64)

        def answer(starts: Sequence[int]) -> None:
            room = room_for_products(min(QUERIES_AT_ONCE, len(queries)), len(self))
            for start in starts:
                rows = slice(start, start + QUERIES_AT_ONCE)
                scores[rows], positions[rows] = self._nearest(queries[rows], k, room)

        side_by_side(answer, range(0, len(queries), QUERIES_AT_ONCE))
        return scores, positions

    def _nearest(self, queries: np.ndarray, k: int, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The answers to some queries, at most as many as are multiplied at once."""
        size = len(self)
        scores = np.empty((len(queries), k), dtype=np.float32)
        positions = np.empty((len(queries), k), dtype=np.int64)
        undecided, width = np.arange(len(queries)), min(size, k + MORE_THAN_ASKED_FOR)
        while undecided.size:
            found, candidates = largest_products(queries[undecided], self._vectors, width, room)
            # Settled once all that was not fetched is certainly below the k-th; else a tie may reach further: widen.
            kth = np.partition(found, width - k, axis=1)[:, width - k]
            settled = found.min(axis=1) < kth - MARGIN if width < size else np.ones(len(found), dtype=bool)
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
            scores[rows] = exact_products(queries[rows], self._vectors[candidates[rows]])
        return ordered(scores, candidates, k)

    def with_rows(self, places: np.ndarray, new: np.ndarray) -> "ExactIndex":
        """Another index, whose row i is row ``places[i]`` of this one's rows and then the ``new`` ones, together."""
        size, dtype = len(self), self._vectors.dtype.name
        rows = np.empty((len(places), self.dimensions), dtype=np.float32)
        kept = places < size
        rows[kept] = self._vectors[places[kept]]
        rows[~kept] = new[places[~kept] - size]
        return ExactIndex(rows, "float16" if dtype == "float16" else "float32")

    def save(self, path: Path) -> None:
        """Write the vectors as one ``.npy`` file, (n, d)."""
        with path.open("wb") as handle:
            np.save(handle, self._vectors, allow_pickle=False)

    def save_faiss(self, path: Path) -> None:
        """Write a flat inner-product index as ``faiss.read_index`` reads it, float16 as its scalar quantiser has it."""
        flat: Any = faiss.IndexFlatIP(self.dimensions)
        if self._vectors.dtype == np.float16:
            half = faiss.ScalarQuantizer.QT_fp16
            flat = faiss.IndexScalarQuantizer(self.dimensions, half, faiss.METRIC_INNER_PRODUCT)
        flat.add(self.vectors)
        faiss.write_index(flat, str(path))

    @classmethod
    def load_faiss(cls, path: Path) -> "ExactIndex":
        """Read what :meth:`save_faiss` wrote, and check it again.

        Raises:
            ValueError: the file is no flat index or is cut short.
        """
        stored = read_faiss(path)
        vectors, dtype = _flat_vectors(stored, path)
        return cls(np.array(vectors), dtype)

    @classmethod
    def map_faiss(cls, path: Path) -> "ExactIndex":
        """What :meth:`save_faiss` wrote, mapped: pages of the file are read when a search comes to them.

        Its vectors are not checked again, which would read them all.

        Raises:
            ValueError: the file is no flat index or is cut short.
        """
        mapped = read_faiss(path, faiss.IO_FLAG_MMAP_IFC)
        index = cls.__new__(cls)
        index._vectors, _ = _flat_vectors(mapped, path)
        index._mapped = mapped  # whose memory the vectors are
        return index

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


def read_faiss(path: Path, flags: int = 0) -> Any:
    """FAISS's index in a file; ``flags`` are its own for mapped reading.

    Raises:
        ValueError: the file is none, or is cut short.
    """
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise ValueError(f"{path}: not an index, or cut short: {str(error).splitlines()[-1]}") from None


def _flat_vectors(stored: Any, path: Path) -> tuple[np.ndarray, Literal["float32", "float16"]]:
    """The memory of a flat index as (n, d) vectors, without a copy."""
    kinds: dict[type, Literal["float32", "float16"]] = {
        faiss.IndexFlatIP: "float32",
        faiss.IndexScalarQuantizer: "float16",
    }
    dtype = kinds.get(type(stored))
    if dtype is None or stored.code_size != np.dtype(dtype).itemsize * stored.d:
        raise ValueError(f"{path}: not an index of this kind: {type(stored).__name__}")
    codes = faiss.rev_swig_ptr(stored.codes.data(), stored.codes.size())
    vectors = codes.view(dtype).reshape(stored.ntotal, stored.d)
    return vectors, dtype
