"""Vectors whose first numbers serve alone: the loss is sentence-transformers', and what is kept is used everywhere."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesSymmetricRankingLoss
from test_encoder_train import CONFIG, DEV, PAIRS, TOOLS, Listener, run, with_train, without_dropout

from cohyde.catalog import render
from cohyde.config import EmbeddingConfig, EncoderTrainConfig, identity_of
from cohyde.encoder.gradients import at_once, cached, encode
from cohyde.encoder.infonce import infonce, matryoshka, shortened
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.pairs import Pair
from cohyde.encoder.retriever import DenseRetriever
from cohyde.encoder.train import dev_ndcg
from cohyde.errors import UserError

DIMENSIONS = (64, 16, 8)
ANCHORS = [pair.anchor for pair in PAIRS[:10]]
POSITIVES = [render(tool, 5) for tool in TOOLS]


@pytest.fixture(scope="module")
def model(tiny_encoder_path: Path) -> SentenceTransformer:
    torch.set_num_threads(1)
    return without_dropout(load_encoder(tiny_encoder_path, CONFIG, "cpu"))


def gradients(model: SentenceTransformer) -> list[torch.Tensor]:
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def test_loss_and_gradient_equal_those_of_sentence_transformers(model: SentenceTransformer) -> None:
    ours, theirs = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    peer = MatryoshkaLoss(theirs, MultipleNegativesSymmetricRankingLoss(theirs, scale=1 / 0.05), list(DIMENSIONS))
    expected = peer([theirs.preprocess(ANCHORS), theirs.preprocess(POSITIVES)], None)
    expected.backward()
    vectors = torch.cat([encode(ours, ours.preprocess(texts), "float32") for texts in (ANCHORS, POSITIVES)])
    loss = matryoshka(lambda rows: infonce(rows[:10], rows[10:], 0.05), vectors, DIMENSIONS)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6 * len(DIMENSIONS), rel=1e-6)
    assert len(gradients(ours)) == len(gradients(theirs)) > 20
    for mine, other in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_cached_gradients_of_a_masked_loss_equal_plain_ones(model: SentenceTransformer) -> None:
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[0, 1] = mask[3, 7] = False
    found = []
    for backward in (at_once, cached):
        own = copy.deepcopy(model).train()
        chunks = [own.preprocess(texts) for texts in (ANCHORS, POSITIVES[:4], POSITIVES[4:])]
        loss = backward(
            lambda chunk, own=own: encode(own, dict(chunk), "float32"),
            chunks,
            lambda vectors: matryoshka(lambda rows: infonce(rows[:10], rows[10:], 0.05, mask), vectors, DIMENSIONS),
            torch.device("cpu"),
        )
        found.append((loss, gradients(own)))
    assert torch.equal(found[0][0], found[1][0])
    for plain, from_cache in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(from_cache, plain, atol=1e-5, rtol=0)


def test_a_step_of_training_has_the_loss_of_all_dimensions(tiny_encoder_path: Path, tmp_path: Path) -> None:
    pairs = [Pair(anchor="rain or shine", tool="weather"), Pair(anchor="euros to yen", tool="currency")]
    model = without_dropout(load_encoder(tiny_encoder_path, CONFIG, "cpu"))
    anchors = torch.from_numpy(embed(model, [pair.anchor for pair in pairs], 2))
    tools = torch.from_numpy(embed(model, [render(tool, 5) for tool in TOOLS[:2]], 2))
    expected = [infonce(shortened(anchors, size), shortened(tools, size), 0.05).item() for size in (64, 8)]
    config = with_train(matryoshka_dimensions=(8, 64), epochs=1)
    result = run(tiny_encoder_path, tmp_path / "out", config, model=model, pairs=pairs, forms=(5,), dev=None)
    assert result.history[0]["loss"] == pytest.approx(sum(expected), rel=1e-4)


def test_what_is_kept_is_the_first_numbers_at_length_1(tiny_encoder_path: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, dimensions=16)
    whole, cut = (embed(load_encoder(tiny_encoder_path, how, "cpu"), ANCHORS, 4) for how in (CONFIG, config))
    np.testing.assert_allclose(cut, whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True), atol=1e-6)
    retriever = DenseRetriever.build(tiny_encoder_path, TOOLS, config.embedding())
    assert retriever.index.vectors.shape == (len(TOOLS), 16)
    # What is trained with it carries it along, and is whole all the same.
    run(tiny_encoder_path, tmp_path / "out", replace(config, train=replace(config.train, epochs=1)))
    told = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text("utf-8"))
    assert told["truncate_dim"] == 16
    users = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(ANCHORS, normalize_embeddings=True)
    ours = load_encoder(tmp_path / "out", config, "cpu")
    np.testing.assert_allclose(users, embed(ours, ANCHORS, 4), atol=1e-6)
    assert embed(load_encoder(tmp_path / "out", CONFIG, "cpu"), ANCHORS, 4).shape == (10, 64)


def test_dev_evaluation_is_of_what_is_kept(tiny_encoder_path: Path) -> None:
    config = replace(CONFIG, dimensions=4)
    retriever = DenseRetriever.build(tiny_encoder_path, TOOLS, config.embedding())
    model = load_encoder(tiny_encoder_path, config, "cpu")
    best = [[tool for tool, _ in ranking] for ranking in retriever.rank_texts(DEV.texts, 5)]
    found = [word in tools for word, tools in zip((next(iter(gold)) for gold in DEV.gold), best, strict=True)]
    assert (dev_ndcg(model, DEV, TOOLS, config) > 0) == any(found)
    whole = dev_ndcg(load_encoder(tiny_encoder_path, CONFIG, "cpu"), DEV, TOOLS, CONFIG)
    assert dev_ndcg(model, DEV, TOOLS, config) != whole


def test_more_dimensions_than_there_are_is_an_error(tiny_encoder_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"encoder\.dimensions has 65, but this encoder's vectors have 64 dimensions"):
        load_encoder(tiny_encoder_path, EmbeddingConfig(max_length=32, dimensions=65), "cpu")
    with pytest.raises(UserError, match="matryoshka_dimensions has 128"):
        run(tiny_encoder_path, tmp_path / "out", with_train(matryoshka_dimensions=(128, 8)))


def test_dimensions_that_are_not_trained_are_said_so(tiny_encoder_path: Path, tmp_path: Path) -> None:
    listener, recipe = Listener(), with_train(matryoshka_dimensions=(16, 8), epochs=1)
    run(tiny_encoder_path, tmp_path / "whole", recipe, dev=None, progress=listener)
    run(tiny_encoder_path, tmp_path / "cut", replace(recipe, dimensions=16), dev=None, progress=listener)
    assert listener.warnings == [
        "vectors of 64 dimensions are searched with, which matryoshka_dimensions does not train"
    ]


def test_a_dimension_named_twice_is_refused_and_none_leaves_identity_alone() -> None:
    with pytest.raises(ValueError, match="matryoshka_dimensions has a number twice: 8, 8"):
        EncoderTrainConfig(matryoshka_dimensions=(8, 8))
    assert "matryoshka_dimensions" not in identity_of(EncoderTrainConfig())
    assert identity_of(EmbeddingConfig(dimensions=8))["dimensions"] == 8
    assert "dimensions" not in identity_of(EmbeddingConfig())
