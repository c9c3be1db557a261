"""Approximate indices, for catalogues that take long to compare with whole: FAISS finds candidates, we order them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss as faiss_with_stubs
import numpy as np

from cohyde.config import IndexConfig
from cohyde.encoder.index import (
    MORE_THAN_ASKED_FOR,
    ExactIndex,
    check_queries,
    check_unit_rows,
    exact_products,
    ordered,
    read_faiss,
)

faiss: Any = faiss_with_stubs
"""Its stubs know neither all of its classes nor all of their arguments."""
QUERIES_AT_ONCE = 64
"""Queries whose candidates' vectors are held in memory together."""
LISTS_PER_ROOT = 4
"""IVF lists of a catalogue of n: this times √n (FAISS's guidelines: 4 to 16 times)."""
PROBED_SHARE = 16
"""IVF lists of which one is probed (ours: a sixteenth of the catalogue is compared)."""


def hnsw(vectors: np.ndarray, config: IndexConfig) -> Any:
    """FAISS's graph of near neighbours (HNSW; Malkov and Yashunin 2018) over (n, d) unit rows."""
    dimensions, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    if config.dtype == "float16":
        half = faiss.ScalarQuantizer.QT_fp16
        stored = faiss.IndexHNSWSQ(dimensions, half, config.hnsw_m, metric)
        stored.train(vectors[:1])  # there is nothing to learn for float16, but FAISS wants it
    else:
        stored = faiss.IndexHNSWFlat(dimensions, config.hnsw_m, metric)
    stored.hnsw.efConstruction = config.hnsw_ef_construction
    return stored


def ivf(vectors: np.ndarray, config: IndexConfig) -> Any:
    """FAISS's inverted lists: the vectors by their nearest of some centroids, of which few lists are searched."""
    size, dimensions = vectors.shape
    lists = min(size, config.ivf_lists or max(1, round(LISTS_PER_ROOT * math.sqrt(size))))
    centroids, metric = faiss.IndexFlatIP(dimensions), faiss.METRIC_INNER_PRODUCT
    if config.dtype == "float16":
        half = faiss.ScalarQuantizer.QT_fp16
        stored = faiss.IndexIVFScalarQuantizer(centroids, dimensions, lists, half, metric, False)
    else:
        stored = faiss.IndexIVFFlat(centroids, dimensions, lists, metric)
    stored.cp.min_points_per_centroid = 1  # else it complains of small catalogues on standard error
    stored.train(vectors)
    return stored


def hnsw_effort(stored: Any, config: IndexConfig, width: int) -> Any:
    """Candidates that a search in the graph keeps in view: no fewer than it is to return."""
    return faiss.SearchParametersHNSW(efSearch=max(config.hnsw_ef_search, width))


def ivf_effort(stored: Any, config: IndexConfig, width: int) -> Any:
    """Lists that a search looks into."""
    return faiss.SearchParametersIVF(nprobe=min(stored.nlist, config.ivf_probes or -(-stored.nlist // PROBED_SHARE)))


@dataclass(frozen=True, kw_only=True)
class ApproximateKind:
    """What a kind of approximate index is made of."""

    empty: Callable[[np.ndarray, IndexConfig], Any]
    """FAISS's index for these vectors, still without them."""
    effort: Callable[[Any, IndexConfig, int], Any]
    """FAISS's parameters for a search of so many candidates."""
    family: type
    """FAISS's class."""
    mapped: int
    """FAISS's flag for reading vectors when a search comes to them."""


APPROXIMATE: Mapping[str, ApproximateKind] = {
    "hnsw": ApproximateKind(empty=hnsw, effort=hnsw_effort, family=faiss.IndexHNSW, mapped=faiss.IO_FLAG_MMAP_IFC),
    "ivf": ApproximateKind(empty=ivf, effort=ivf_effort, family=faiss.IndexIVF, mapped=faiss.IO_FLAG_MMAP),
}


class ApproximateIndex:
    """Candidates from a FAISS index, with scores and an order as :class:`~cohyde.encoder.index.ExactIndex` has them.

    What is found has its exact score; what is missed is missed. A query for which fewer than k are found, since the
    lists that were probed hold no more, is compared with the whole catalogue.
    """

    def __init__(self, stored: Any, config: IndexConfig, mapped: Path | None = None) -> None:
        """A FAISS index whose ids are catalogue positions; ``mapped`` is the file that it reads from, if it does."""
        self._stored = stored
        self._config = config
        self._mapped = mapped

    @classmethod
    def of(cls, vectors: np.ndarray, config: IndexConfig) -> "ApproximateIndex":
        """Index (n, d) unit rows, in catalogue order; n is at least 1.

        Raises:
            ValueError: no vector, or one that is no unit vector.
        """
        vectors = _rounded(vectors, config)
        if not len(vectors):
            raise ValueError("an index needs at least one vector")
        stored = APPROXIMATE[config.kind].empty(vectors, config)
        stored.add(vectors)
        return cls(stored, config)

    @classmethod
    def open(cls, path: Path, config: IndexConfig, *, mapped: bool) -> "ApproximateIndex":
        """Read what :meth:`save_faiss` wrote; ``mapped`` reads the vectors when a search comes to them.

        Raises:
            ValueError: the file is no index of this kind, or is cut short.
        """
        kind = APPROXIMATE[config.kind]
        stored = read_faiss(path, kind.mapped if mapped else 0)
        if not isinstance(stored, kind.family):
            raise ValueError(f"{path}: not an index of this kind: {type(stored).__name__}")
        return cls(stored, config, path if mapped else None)

    def __len__(self) -> int:
        """Vectors in the index."""
        return int(self._stored.ntotal)

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return int(self._stored.d)

    @property
    def vectors(self) -> np.ndarray:
        """What is indexed, (n, d) float32: a copy."""
        rows: np.ndarray = self._stored.reconstruct_n(0, len(self))
        return rows

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The ``k`` best vectors that are found for each query; arguments, result and errors as of the exact index."""
        queries, k = check_queries(queries, self.dimensions, k), min(k, len(self))
        width = min(len(self), k + MORE_THAN_ASKED_FOR)
        effort = APPROXIMATE[self._config.kind].effort(self._stored, self._config, width)
        scores = np.empty((len(queries), k), dtype=np.float32)
        positions = np.empty((len(queries), k), dtype=np.int64)
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            rows = slice(start, start + QUERIES_AT_ONCE)
            _, found, gathered = self._stored.search_and_reconstruct(queries[rows], width, params=effort)
            there = found >= 0  # FAISS pads with -1
            products = exact_products(queries[rows], np.where(there[..., None], gathered, 0))
            scores[rows], positions[rows] = ordered(np.where(there, products, np.float32(-np.inf)), found, k)
        short = np.flatnonzero((positions < 0).any(axis=1))
        if short.size:
            scores[short], positions[short] = ExactIndex(self.vectors).search(queries[short], k)
        return scores, positions

    def with_rows(self, places: np.ndarray, new: np.ndarray) -> "ApproximateIndex":
        """Another index, whose row i is row ``places[i]`` of this one's rows and then the ``new`` ones, together.

        Rows behind all of its own are added to a copy; for any other arrangement the index is built anew.
        """
        size = len(self)
        if not np.array_equal(places[:size], np.arange(size)):
            return ApproximateIndex.of(np.concatenate([self.vectors, new])[places], self._config)
        added = places[size:]
        rows = new[added - size] if (added >= size).all() else np.concatenate([self.vectors, new])[added]
        grown = read_faiss(self._mapped) if self._mapped else faiss.clone_index(self._stored)
        grown.add(_rounded(rows, self._config))
        return ApproximateIndex(grown, self._config)

    def save_faiss(self, path: Path) -> None:
        """Write it as ``faiss.read_index`` reads it."""
        faiss.write_index(self._stored, str(path))


def _rounded(vectors: np.ndarray, config: IndexConfig) -> np.ndarray:
    """Unit rows as they will be kept: rounded to the nearest float16, where FAISS would cut digits off."""
    return check_unit_rows(vectors, "index").astype(config.dtype).astype(np.float32)
