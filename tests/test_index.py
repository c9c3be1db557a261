"""Exact search: order, ties, small catalogues, checks, and files."""

from pathlib import Path

import numpy as np
import pytest

from cohyde.encoder.index import ExactIndex


def unit_rows(count: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute_force(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Score, then position, by Python's own sort."""
    scores, positions = [], []
    for query in queries.astype(np.float64):
        exact = [float(np.float32((query * vector).sum())) for vector in vectors.astype(np.float64)]
        order = sorted(range(len(vectors)), key=lambda position: (-exact[position], position))[:k]
        scores.append([exact[position] for position in order])
        positions.append(order)
    return scores, positions


@pytest.mark.parametrize("count", [1, 3, 600])
def test_search_equals_brute_force_for_few_and_many_queries(count: int) -> None:
    vectors, queries = unit_rows(300, 16, 0), unit_rows(count, 16, 1)
    scores, positions = ExactIndex(vectors).search(queries, 10)
    expected_scores, expected_positions = brute_force(vectors, queries, 10)
    assert positions.tolist() == expected_positions
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6)
    assert (scores.dtype, positions.dtype) == (np.float32, np.int64)


def test_ties_come_in_catalogue_order_even_beyond_the_over_fetch() -> None:
    # 500 copies of one vector, scattered among 500 worse ones: far more than any first fetch for k = 5.
    best, worse = np.array([1, 0, 0], dtype=np.float32), np.array([0.6, 0.8, 0], dtype=np.float32)
    copies = np.random.default_rng(0).permutation(1000)[:500]
    vectors = np.tile(worse, (1000, 1))
    vectors[copies] = best
    queries = np.tile(best, (30, 1))
    scores, positions = ExactIndex(vectors).search(queries, 5)
    assert positions.tolist() == [sorted(copies.tolist())[:5]] * 30
    assert scores.tolist() == [[1.0] * 5] * 30


def test_duplicates_among_random_vectors_tie_exactly_whatever_the_batch() -> None:
    distinct = unit_rows(40, 384, 2)
    vectors = distinct[np.random.default_rng(3).integers(40, size=400)]
    queries = unit_rows(64, 384, 4)
    scores, positions = ExactIndex(vectors).search(queries, 50)
    for row_scores, row_positions in zip(scores, positions, strict=True):
        for left in range(49):
            same = (vectors[row_positions[left]] == vectors[row_positions[left + 1]]).all()
            assert (row_scores[left] == row_scores[left + 1]) == same
            assert not same or row_positions[left] < row_positions[left + 1]
    for number in range(64):
        alone_scores, alone_positions = ExactIndex(vectors).search(queries[number : number + 1], 50)
        assert alone_positions.tolist() == positions[number : number + 1].tolist()
        assert alone_scores.tolist() == scores[number : number + 1].tolist()


def test_a_catalogue_of_equal_vectors_is_ranked_by_position() -> None:
    vectors = np.tile(unit_rows(1, 8, 5), (200, 1))
    _, positions = ExactIndex(vectors).search(unit_rows(2, 8, 6), 20)
    assert positions.tolist() == [list(range(20))] * 2


def test_a_catalogue_smaller_than_k_gives_all_it_has_without_padding() -> None:
    scores, positions = ExactIndex(np.eye(3, dtype=np.float32)).search(np.eye(3, dtype=np.float32)[:2], 50)
    assert positions.tolist() == [[0, 1, 2], [1, 0, 2]]
    assert scores.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


def test_no_queries_give_an_empty_result() -> None:
    scores, positions = ExactIndex(np.eye(3, dtype=np.float32)).search(np.empty((0, 3), dtype=np.float32), 2)
    assert scores.shape == positions.shape == (0, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 2.0])
def test_vectors_that_are_no_unit_vectors_are_refused_on_both_sides(value: float) -> None:
    wrong = np.eye(3, dtype=np.float32)
    wrong[1] = [value, 0, 0]
    with pytest.raises(ValueError, match=r"index: 1 of 3 vectors .* row 1"):
        ExactIndex(wrong)
    with pytest.raises(ValueError, match=r"queries: 1 of 3 vectors .* row 1"):
        ExactIndex(np.eye(3, dtype=np.float32)).search(wrong, 1)


def test_wrong_shapes_and_k_are_refused() -> None:
    index = ExactIndex(np.eye(3, dtype=np.float32))
    with pytest.raises(ValueError, match="4 dimensions, the index has 3"):
        index.search(np.eye(4, dtype=np.float32), 1)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        index.search(np.eye(3, dtype=np.float32), 0)
    with pytest.raises(ValueError, match="at least one vector"):
        ExactIndex(np.empty((0, 3), dtype=np.float32))
    with pytest.raises(ValueError, match=r"shape \(n, d\)"):
        ExactIndex(np.ones(3, dtype=np.float32))


def test_a_saved_index_searches_alike(tmp_path: Path) -> None:
    vectors, queries = unit_rows(50, 8, 7), unit_rows(5, 8, 8)
    index = ExactIndex(vectors)
    index.save(tmp_path / "index.npy")
    loaded = ExactIndex.load(tmp_path / "index.npy")
    assert len(loaded) == 50
    for ours, theirs in zip(index.search(queries, 7), loaded.search(queries, 7), strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("keep", [0, 20, 300])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "index.npy"
    ExactIndex(unit_rows(50, 8, 9)).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="cut short"):
        ExactIndex.load(path)
