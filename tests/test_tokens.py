"""Tokenising once: what the model reads is what ``model.encode`` would make of the texts."""

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from cohyde.config import EmbeddingConfig
from cohyde.encoder.model import load_encoder
from cohyde.encoder.tokens import TextCounts, Tokeniser, chunks_by_length

TEXTS = ["weather forecast for a city", "x", "Returns the exchange rate of two currencies", "سعر الصرف", "music " * 60]


@pytest.fixture(scope="module")
def model(tiny_encoder_path: Path) -> SentenceTransformer:
    return load_encoder(tiny_encoder_path, EmbeddingConfig(pooling="cls", max_length=32), "cpu")


@pytest.mark.parametrize("side", ["right", "left"])
def test_padded_tokens_are_what_the_model_preprocesses(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr(model.tokenizer, "padding_side", side)
    tokeniser = Tokeniser(model)
    for texts in (TEXTS, TEXTS[:2], TEXTS[1:2], TEXTS[::-1]):
        expected = model.preprocess(texts)
        found = tokeniser.padded(tokeniser(texts))
        assert set(found) == set(expected)
        assert found["modality"] == expected["modality"]
        for name in set(found) - {"modality"}:
            assert torch.equal(found[name], expected[name]), name


def test_lengths_and_what_is_cut_off_are_in_tokens(model: SentenceTransformer) -> None:
    whole = [len(model.tokenizer(text)["input_ids"]) for text in TEXTS]
    found = Tokeniser(model)(TEXTS)
    assert [len(text) for text in found] == [min(count, 32) for count in whole]
    assert [text.cut for text in found] == [max(0, count - 32) for count in whole]
    assert found[4].cut > 20


def test_counts_are_of_what_is_computed(model: SentenceTransformer) -> None:
    texts = Tokeniser(model)(["x", "music " * 60])
    counts = TextCounts()
    counts.add(texts)
    counts.add(texts[:1])
    short = len(texts[0])
    assert (counts.texts, counts.truncated, counts.cut_tokens) == (3, 1, texts[1].cut)
    assert (counts.positions, counts.padding) == (2 * 32 + short, 32 - short)
    assert counts.tokens() == short + 32 + short


def test_chunks_go_from_short_to_long_and_stay_within_their_positions() -> None:
    lengths = [5, 2, 9, 2, 3, 40]
    # 2, 2, 3 padded to 3 are 9 positions, a fourth text of 5 would make 20; 5 and 9 would make 18; 40 stands alone.
    assert chunks_by_length(lengths, 16) == [[1, 3, 4], [0], [2], [5]]
    assert chunks_by_length(lengths, 1000) == [[1, 3, 4, 0, 2, 5]]
    assert chunks_by_length(lengths, 16, most_texts=4) == [[1, 3, 4, 0], [2, 5]]
    assert chunks_by_length([], 16) == []
