"""What is searched with, and ranked lists, on the tiny BERT."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cohyde.config import EmbeddingConfig, SearchConfig
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.search import SEARCH_MODES, Embed, rank, search_vectors
from cohyde.errors import UserError

QUERIES = ["will it rain", "how many dollars is a euro"]
DESCRIPTIONS = ["Returns a forecast.", "Returns an exchange rate."]


@pytest.fixture(scope="module")
def model(tiny_encoder_path: Path) -> SentenceTransformer:
    return load_encoder(tiny_encoder_path, EmbeddingConfig(max_length=32), "cpu")


def vectors(model: SentenceTransformer, mode: str, weight: float = 0.5) -> np.ndarray:
    return search_vectors(by(model), QUERIES, DESCRIPTIONS, SearchConfig(mode=mode, query_weight=weight))


def by(model: SentenceTransformer) -> Embed:
    return lambda texts: embed(model, texts, 8)


def test_the_paper_s_mode_comes_first() -> None:
    assert next(iter(SEARCH_MODES)) == SearchConfig().mode == "description"


@pytest.mark.parametrize("mode", SEARCH_MODES)
def test_every_mode_gives_unit_rows(model: SentenceTransformer, mode: str) -> None:
    found = vectors(model, mode)
    assert (found.shape[0], found.dtype) == (2, np.float32)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1], atol=1e-6)


def test_modes_embed_what_they_say(model: SentenceTransformer) -> None:
    assert vectors(model, "description").tobytes() == embed(model, DESCRIPTIONS, 8).tobytes()
    assert vectors(model, "query").tobytes() == embed(model, QUERIES, 8).tobytes()
    joined = ["will it rain Returns a forecast.", "how many dollars is a euro Returns an exchange rate."]
    assert vectors(model, "concatenated").tobytes() == embed(model, joined, 8).tobytes()


def test_fused_is_the_normalised_weighted_mean(model: SentenceTransformer) -> None:
    mean = 0.7 * embed(model, QUERIES, 8) + 0.3 * embed(model, DESCRIPTIONS, 8)
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(model, "fused", weight=0.7), expected, atol=1e-6)
    np.testing.assert_allclose(vectors(model, "fused", weight=1.0), vectors(model, "query"), atol=1e-6)
    np.testing.assert_allclose(vectors(model, "fused", weight=0.0), vectors(model, "description"), atol=1e-6)


def test_vectors_that_cancel_out_cannot_be_fused() -> None:
    opposite = {"q": [1.0, 0.0], "d": [-1.0, 0.0]}
    with pytest.raises(ValueError, match="cancel each other out"):
        SEARCH_MODES["fused"](lambda texts: np.array([opposite[t] for t in texts]), ["q"], ["d"], SearchConfig())


def test_query_mode_needs_no_descriptions_and_the_others_do(model: SentenceTransformer) -> None:
    assert search_vectors(by(model), QUERIES, [], SearchConfig(mode="query")).shape[0] == 2
    with pytest.raises(ValueError, match="2 queries but 0 descriptions"):
        search_vectors(by(model), QUERIES, [], SearchConfig(mode="description"))


def test_an_unknown_mode_is_an_error_that_names_the_valid_ones(model: SentenceTransformer) -> None:
    with pytest.raises(UserError, match="'fuse'"):
        vectors(model, "fuse")


def test_ranked_lists_name_tools_and_scores_with_ties_in_catalogue_order() -> None:
    index = ExactIndex(np.array([[0, 1], [1, 0], [0.6, 0.8], [1, 0]], dtype=np.float32))
    ranked = rank(index, np.array([[1, 0]], dtype=np.float32), ["a", "b", "c", "d"], 3)
    assert ranked == [[("b", 1.0), ("d", 1.0), ("c", pytest.approx(0.6))]]


def test_a_catalogue_smaller_than_the_depth_is_ranked_whole() -> None:
    index = ExactIndex(np.eye(2, dtype=np.float32))
    assert rank(index, np.eye(2, dtype=np.float32), ["a", "b"], 50) == [
        [("a", 1.0), ("b", 0.0)],
        [("b", 1.0), ("a", 0.0)],
    ]


def test_ids_of_another_catalogue_are_refused() -> None:
    with pytest.raises(ValueError, match="holds 2 vectors but there are 1 tool ids"):
        rank(ExactIndex(np.eye(2, dtype=np.float32)), np.eye(2, dtype=np.float32), ["a"], 1)
