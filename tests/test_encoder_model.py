"""Loading, embedding and saving the encoder, on the tiny BERT."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from cohyde.config import EmbeddingConfig
from cohyde.encoder.model import embed, load_encoder, save_encoder
from cohyde.errors import UserError

CONFIG = EmbeddingConfig(pooling="cls", max_length=32)
TEXTS = [
    "weather forecast for a city",
    "x",
    "Returns the current exchange rate of two currencies, with the time of the last change " * 3,
    "weather forecast for a city",
    "سعر الصرف",
    "zero\u200bwidth",
]


@pytest.fixture(scope="module")
def model(tiny_encoder_path: Path) -> SentenceTransformer:
    return load_encoder(tiny_encoder_path, CONFIG, "cpu")


def test_vectors_are_float32_unit_rows_in_the_order_of_the_texts(model: SentenceTransformer) -> None:
    vectors = embed(model, TEXTS, batch_size=2)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(len(TEXTS)), atol=1e-6)
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(embed(model, [text], 1)[0], vector, atol=1e-6)


def test_equal_texts_have_equal_vectors_bit_for_bit(model: SentenceTransformer) -> None:
    vectors = embed(model, TEXTS, batch_size=1)
    assert vectors[0].tobytes() == vectors[3].tobytes()


def test_no_texts_give_no_vectors_of_the_model_s_dimension(model: SentenceTransformer) -> None:
    assert embed(model, [], 4).shape == (0, embed(model, ["x"], 4).shape[1])


def test_cls_and_mean_pooling_are_what_they_say(tiny_encoder_path: Path) -> None:
    for pooling in ("cls", "mean"):
        model = load_encoder(tiny_encoder_path, dataclasses.replace(CONFIG, pooling=pooling), "cpu")
        with torch.inference_mode():
            states = model[0](model.preprocess(TEXTS[:1]))["token_embeddings"][0]
        pooled = states[0] if pooling == "cls" else states.mean(dim=0)
        np.testing.assert_allclose(embed(model, TEXTS[:1], 1)[0], pooled / pooled.norm(), atol=1e-6)
        assert [type(module) for module in model][-2:] == [Pooling, Normalize]


def test_auto_pooling_keeps_what_the_folder_says(tiny_encoder_path: Path, tmp_path: Path) -> None:
    mean = load_encoder(tiny_encoder_path, dataclasses.replace(CONFIG, pooling="mean"), "cpu")
    save_encoder(mean, tmp_path / "mean")
    again = load_encoder(tmp_path / "mean", dataclasses.replace(CONFIG, pooling="auto"), "cpu")
    assert embed(again, TEXTS, 4).tobytes() == embed(mean, TEXTS, 4).tobytes()


def test_a_plain_transformers_folder_loads_with_normalize_last(model: SentenceTransformer, tmp_path: Path) -> None:
    model[0].model.save_pretrained(tmp_path / "plain")
    model.tokenizer.save_pretrained(tmp_path / "plain")
    plain = load_encoder(tmp_path / "plain", CONFIG, "cpu")
    assert [type(module) for module in plain][1:] == [Pooling, Normalize]
    assert embed(plain, TEXTS, 4).tobytes() == embed(model, TEXTS, 4).tobytes()


def test_half_precision_weights_are_loaded_as_float32(model: SentenceTransformer, tmp_path: Path) -> None:
    save_encoder(model, tmp_path / "encoder")
    half = SentenceTransformer(str(tmp_path / "encoder"), device="cpu").bfloat16()
    save_encoder(half, tmp_path / "half")
    assert {parameter.dtype for parameter in load_encoder(tmp_path / "half", CONFIG, "cpu").parameters()} == {
        torch.float32
    }


def test_text_beyond_max_length_is_not_read(model: SentenceTransformer) -> None:
    long = "weather " * 100
    assert model.preprocess([long])["input_ids"].shape == (1, 32)
    assert embed(model, [long], 1).tobytes() == embed(model, [long + "exchange"], 1).tobytes()


def test_a_saved_encoder_loads_without_us_and_embeds_alike(model: SentenceTransformer, tmp_path: Path) -> None:
    save_encoder(model, tmp_path / "encoder")
    code = (
        "import sys, json; from sentence_transformers import SentenceTransformer; "
        "model = SentenceTransformer(sys.argv[1], device='cpu'); "
        "print(json.dumps([model.max_seq_length, model.encode(json.loads(sys.argv[2])).tolist()]))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "encoder"), json.dumps(TEXTS)]
    max_length, vectors = json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert max_length == 32
    np.testing.assert_allclose(vectors, embed(model, TEXTS, 4), atol=1e-6)
    files = [path.name for path in (tmp_path / "encoder").rglob("*") if path.is_file()]
    assert "model.safetensors" in files
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


def test_a_prompt_of_the_folder_is_not_used(model: SentenceTransformer, tmp_path: Path) -> None:
    save_encoder(model, tmp_path / "encoder")
    prompted = SentenceTransformer(
        str(tmp_path / "encoder"), device="cpu", prompts={"query": "find: "}, default_prompt_name="query"
    )
    save_encoder(prompted, tmp_path / "prompted")
    again = load_encoder(tmp_path / "prompted", CONFIG, "cpu")
    assert embed(again, TEXTS, 4).tobytes() == embed(model, TEXTS, 4).tobytes()


def test_a_diverged_model_is_an_error_and_not_an_index(tiny_encoder_path: Path) -> None:
    model = load_encoder(tiny_encoder_path, CONFIG, "cpu")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="2 of 2 vectors are not of length 1"):
        embed(model, ["one", "two"], 2)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such model folder"):
        load_encoder(tmp_path / "nowhere", CONFIG, "cpu")


def test_a_folder_without_safetensors_is_refused(model: SentenceTransformer, tmp_path: Path) -> None:
    save_encoder(model, tmp_path / "encoder")
    weights = tmp_path / "encoder" / "model.safetensors"
    torch.save(model[0].model.state_dict(), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(UserError, match="cannot be loaded as an encoder"):
        load_encoder(tmp_path / "encoder", CONFIG, "cpu")


def test_a_max_length_beyond_the_model_s_positions_is_refused(tiny_encoder_path: Path) -> None:
    with pytest.raises(UserError, match="max_length is 100000, but this model reads at most 512 tokens"):
        load_encoder(tiny_encoder_path, dataclasses.replace(CONFIG, max_length=100000), "cpu")
