"""Gradients of a batch: cut into chunks, or cached, they are those of the plain loss."""

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from test_encoder_train import CONFIG, PAIRS, TOOLS, without_dropout

from cohyde.catalog import render
from cohyde.encoder.gradients import Backward, at_once, cached, encode
from cohyde.encoder.infonce import infonce
from cohyde.encoder.model import load_encoder
from cohyde.encoder.tokens import TokenisedText, Tokeniser, chunks_by_length

TEXTS = [pair.anchor for pair in PAIRS[:20]] + [render(tool, form) for form in (5, 1) for tool in TOOLS]
"""20 anchors, then 20 tool texts of unequal length."""


@pytest.fixture(scope="module")
def start(tiny_encoder_path: Path) -> SentenceTransformer:
    return load_encoder(tiny_encoder_path, CONFIG, "cpu").train()


def gradients(
    start: SentenceTransformer, backward: Backward, most_texts: int, precision: str = "float32"
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Loss, gradient of every weight, and the next random number, of one batch encoded in chunks from seed 7."""
    model = copy.deepcopy(start)
    tokeniser = Tokeniser(model)
    tokens = tokeniser(TEXTS)
    chunks = chunks_by_length([len(text) for text in tokens], 0, most_texts)
    row_of = {place: row for row, place in enumerate(place for chunk in chunks for place in chunk)}
    rows = torch.tensor([row_of[place] for place in range(len(TEXTS))])

    def encode_chunk(chunk: Sequence[TokenisedText]) -> torch.Tensor:
        return encode(model, tokeniser.padded(chunk), precision)

    passes = [[tokens[place] for place in chunk] for chunk in chunks]
    torch.manual_seed(7)
    loss = backward(
        encode_chunk,
        passes,
        lambda vectors: infonce(vectors[rows[:20]], vectors[rows[20:]], 0.05),
        torch.device("cpu"),
    )
    return loss, [weight.grad for weight in model.parameters() if weight.grad is not None], torch.rand(1)


@pytest.mark.parametrize("most_texts", [1, 7, 40])
def test_cached_gradients_equal_plain_ones_dropout_and_all(start: SentenceTransformer, most_texts: int) -> None:
    loss, plain, after = gradients(start, at_once, most_texts)
    cached_loss, from_cache, cached_after = gradients(start, cached, most_texts)
    assert torch.equal(loss, cached_loss)
    assert torch.equal(after, cached_after)
    assert len(plain) == len(from_cache) > 20
    for mine, theirs in zip(from_cache, plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_cached_gradients_in_bf16_are_those_of_the_same_arithmetic(start: SentenceTransformer) -> None:
    loss, plain, _ = gradients(start, at_once, 7, "bf16")
    cached_loss, from_cache, _ = gradients(start, cached, 7, "bf16")
    assert torch.equal(loss, cached_loss)
    for mine, theirs in zip(from_cache, plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backward", [at_once, cached])
def test_chunks_of_similar_length_give_the_gradient_of_one_padded_batch(
    start: SentenceTransformer, backward: Backward
) -> None:
    model = without_dropout(copy.deepcopy(start))
    loss, whole, _ = gradients(model, at_once, 40)
    chunked_loss, chunked, _ = gradients(model, backward, 7)
    assert chunked_loss.item() == pytest.approx(loss.item(), abs=1e-6)
    for mine, theirs in zip(chunked, whole, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)


def test_a_chunk_s_graph_is_gone_before_the_next_one_is_made(start: SentenceTransformer) -> None:
    """What makes memory independent of the batch: no more than one chunk is held with a gradient at a time."""
    weight, alive, most = torch.ones(3, requires_grad=True), [0], [0]

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, vector: torch.Tensor) -> torch.Tensor:
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            return vector * 1

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            alive[0] -= 1
            return gradient

    def encode_chunk(chunk: int) -> torch.Tensor:
        vector = (weight * chunk)[None]
        return Held.apply(vector) if torch.is_grad_enabled() else vector

    for backward, expected in ((at_once, 5), (cached, 1)):
        weight.grad, alive[0], most[0] = None, 0, 0
        backward(encode_chunk, [1, 2, 3, 4, 5], lambda vectors: vectors.square().sum(), torch.device("cpu"))
        assert most[0] == expected
        assert weight.grad is not None
        assert weight.grad.tolist() == [2 * (1 + 4 + 9 + 16 + 25)] * 3
