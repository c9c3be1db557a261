"""Kinds of index beside the exact one: what they find, float16, mapped reading, and changes."""

from pathlib import Path

import numpy as np
import pytest

from cohyde.config import IndexConfig
from cohyde.encoder.approximate import ApproximateIndex
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.index_kinds import INDEX_KINDS, Index, make_index, open_index
from cohyde.errors import UserError

DTYPES = ("float32", "float16")


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def clusters(count: int, seed: int = 0, dimensions: int = 16) -> np.ndarray:
    """Unit rows about twenty centres, as texts of a catalogue lie."""
    centres = np.random.default_rng(99).normal(size=(20, dimensions))
    draw = np.random.default_rng(seed)
    return unit(centres[draw.integers(20, size=count)] + 0.4 * draw.normal(size=(count, dimensions)))


def recall(index: Index, vectors: np.ndarray, queries: np.ndarray, k: int) -> float:
    """Share of the exact first k that the index finds, by a sort of all float64 products."""
    exact = np.argsort(-(queries.astype(np.float64) @ vectors.astype(np.float64).T), axis=1)[:, :k]
    found = index.search(queries, k)[1]
    return float(np.mean([len(set(one) & set(other)) / k for one, other in zip(exact, found, strict=True)]))


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_exact_and_ties_come_in_catalogue_order(kind: str, dtype: str) -> None:
    # (0.6, 0.8) · (1, 0) = 0.6, · (0, 1) = 0.8, · (0.8, 0.6) = 0.48 + 0.48 = 0.96; rows 1 and 3 tie.
    vectors = np.array([[1, 0], [0, 1], [0.8, 0.6], [0, 1]], dtype=np.float32)
    index = make_index(vectors, IndexConfig(kind=kind, dtype=dtype, ivf_lists=2, ivf_probes=2))
    scores, positions = index.search(np.array([[0.6, 0.8]], dtype=np.float32), 3)
    assert positions.tolist() == [[2, 1, 3]]
    np.testing.assert_allclose(scores, [[0.96, 0.8, 0.8]], atol=1e-6 if dtype == "float32" else 5e-4)
    assert scores[0, 1] == scores[0, 2] and scores.dtype == np.float32


@pytest.mark.parametrize(("kind", "floor"), [("exact", 1.0), ("hnsw", 0.98), ("ivf", 0.9)])
def test_recall_against_exact_on_clustered_vectors(kind: str, floor: float) -> None:
    vectors, queries = clusters(3000), clusters(100, seed=1)
    index = make_index(vectors, IndexConfig(kind=kind, ivf_lists=40, ivf_probes=8))
    assert recall(index, vectors, queries, 10) >= floor


def test_looking_into_all_lists_or_keeping_all_in_view_misses_nothing() -> None:
    vectors, queries = clusters(300), clusters(20, seed=1)
    for config in (IndexConfig(kind="ivf", ivf_lists=10, ivf_probes=10), IndexConfig(kind="hnsw", hnsw_ef_search=300)):
        assert recall(make_index(vectors, config), vectors, queries, 10) == 1.0


def test_what_lists_are_short_of_is_found_by_comparing_with_all() -> None:
    vectors, queries = clusters(200), clusters(5, seed=1)
    index = make_index(vectors, IndexConfig(kind="ivf", ivf_lists=50, ivf_probes=1))  # about four vectors a list
    scores, positions = index.search(queries, 150)
    expected = ExactIndex(vectors).search(queries, 150)
    assert (positions >= 0).all()
    assert (scores.tolist(), positions.tolist()) == (expected[0].tolist(), expected[1].tolist())


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_a_catalogue_smaller_than_k_gives_all_that_it_has(kind: str) -> None:
    index = make_index(np.eye(3, dtype=np.float32), IndexConfig(kind=kind))
    scores, positions = index.search(np.eye(3, dtype=np.float32)[:1], 50)
    assert (len(index), positions.tolist(), scores.tolist()) == (3, [[0, 1, 2]], [[1.0, 0.0, 0.0]])


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_no_vectors_and_vectors_of_another_length_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="at least one vector"):
        make_index(np.empty((0, 3), dtype=np.float32), IndexConfig(kind=kind))
    with pytest.raises(ValueError, match="not of length 1"):
        make_index(2 * np.eye(3, dtype=np.float32), IndexConfig(kind=kind))


def test_a_kind_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"index\.kind is one of: exact, hnsw, ivf"):
        make_index(np.eye(3, dtype=np.float32), IndexConfig(kind="hsnw"))


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_float16_is_rounded_to_nearest_and_takes_half_the_space(tmp_path: Path, kind: str) -> None:
    vectors = clusters(500, dimensions=64)
    sizes = []
    for dtype in DTYPES:
        index = make_index(vectors, IndexConfig(kind=kind, dtype=dtype, hnsw_m=2, ivf_lists=4))
        index.save_faiss(tmp_path / dtype)
        sizes.append((tmp_path / dtype).stat().st_size)
        assert np.array_equal(index.vectors, vectors.astype(dtype).astype(np.float32))
    assert sizes[0] - sizes[1] == pytest.approx(500 * 64 * 2, rel=0.05)  # two of four bytes a number


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mapped_index_finds_what_a_read_one_does_and_can_grow(tmp_path: Path, kind: str, dtype: str) -> None:
    vectors, queries = clusters(400), clusters(20, seed=1)
    config = IndexConfig(kind=kind, dtype=dtype)
    made, path = make_index(vectors, config), tmp_path / "index.faiss"
    made.save_faiss(path)
    mapped, read = open_index(path, config), open_index(path, config, mapped=False)
    for other in (mapped, read):
        for ours, theirs in zip(made.search(queries, 7), other.search(queries, 7), strict=True):
            assert ours.tolist() == theirs.tolist()
    grown = mapped.with_rows(np.arange(401), queries[:1])
    assert grown.search(queries[:1], 1)[1].tolist() == [[400]]
    assert (len(grown), len(mapped)) == (401, 400)


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_rows_are_kept_added_replaced_and_repeated(kind: str) -> None:
    old, new = np.eye(4, dtype=np.float32)[:3], np.eye(4, dtype=np.float32)[3:]
    config = IndexConfig(kind=kind)
    changed = make_index(old, config).with_rows(np.array([2, 3, 0, 3]), new)
    assert np.array_equal(changed.vectors, np.eye(4, dtype=np.float32)[[2, 3, 0, 3]])
    assert changed.search(new, 2)[1].tolist() == [[1, 3]]


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("keep", [0, 20, 3000])
def test_a_file_cut_short_or_of_another_kind_is_refused(tmp_path: Path, kind: str, keep: int) -> None:
    path, config = tmp_path / "index.faiss", IndexConfig(kind=kind)
    make_index(clusters(200), config).save_faiss(path)
    other = IndexConfig(kind="ivf" if kind != "ivf" else "exact")
    with pytest.raises(ValueError, match="not an index of this kind"):
        open_index(path, other)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="cut short"):
        open_index(path, config)


def test_a_saved_approximate_index_is_one(tmp_path: Path) -> None:
    config = IndexConfig(kind="hnsw")
    make_index(clusters(50), config).save_faiss(tmp_path / "index")
    assert isinstance(open_index(tmp_path / "index", config), ApproximateIndex)
