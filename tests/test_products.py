"""The largest inner products: equal to a sort over all of them, whatever is cut into blocks and groups."""

import numpy as np
import pytest

from cohyde.encoder import products
from cohyde.encoder.products import room_for_products


def largest_products(queries: np.ndarray, vectors: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    return products.largest_products(queries, vectors, width, room_for_products(len(queries), len(vectors)))


def expected(queries: np.ndarray, vectors: np.ndarray, width: int) -> np.ndarray:
    """The largest scores of each query, from low to high, by a sort of all of them."""
    return np.sort(queries.astype(np.float64) @ vectors.astype(np.float64).T, axis=1)[:, -width:]


@pytest.mark.parametrize("size", [1, 7, 700, 1025, 3000])
@pytest.mark.parametrize("width", [1, 7, 20])
def test_the_largest_are_found_in_blocks_and_groups(monkeypatch: pytest.MonkeyPatch, size: int, width: int) -> None:
    monkeypatch.setattr(products, "VECTORS_AT_ONCE", 1024)
    draw = np.random.default_rng(size)
    vectors = draw.normal(size=(size, 8)).astype(np.float32)
    queries, width = draw.normal(size=(9, 8)).astype(np.float32), min(width, size)
    scores, positions = largest_products(queries, vectors, width)
    np.testing.assert_allclose(np.sort(scores, axis=1), expected(queries, vectors, width), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ vectors.T, positions, 1), rtol=1e-5, atol=1e-5)
    assert all(len(set(row)) == width for row in positions.tolist())


def test_the_largest_may_all_lie_in_one_group_or_in_what_is_left_over() -> None:
    # 1,001 vectors of one dimension: groups of places i, i + 62, i + 124, ...; places 992 to 1,000 are in no group.
    vectors = np.zeros((1001, 1), dtype=np.float32)
    vectors[[3, 65, 127, 999], 0] = [4, 3, 2, 1]
    scores, positions = largest_products(np.ones((1, 1), dtype=np.float32), vectors, 4)
    assert sorted(zip(positions[0].tolist(), scores[0].tolist(), strict=True)) == [(3, 4), (65, 3), (127, 2), (999, 1)]


def test_float16_vectors_are_widened() -> None:
    vectors = np.array([[0.25], [0.5], [-1]], dtype=np.float16)
    scores, positions = largest_products(np.array([[0.5]], dtype=np.float32), vectors, 2)
    assert sorted(zip(positions[0].tolist(), scores[0].tolist(), strict=True)) == [(0, 0.125), (1, 0.25)]
    assert scores.dtype == np.float32
