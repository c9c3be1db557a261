"""Which implementation of attention an encoder has: it is passed on, and refused where a machine lacks it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_encoder_train import CONFIG, run, with_train

from cohyde.config import EmbeddingConfig, identity_of
from cohyde.encoder import model as module
from cohyde.encoder.model import embed, embedding_precision, load_encoder
from cohyde.errors import UserError

TEXTS = ["what is the weather", "euros to yen, and back again tomorrow", "x"]


def test_attention_is_passed_on_and_gives_the_same_vectors(tiny_encoder_path: Path) -> None:
    models = {
        name: load_encoder(tiny_encoder_path, replace(CONFIG, attention=name), "cpu")
        for name in ("auto", "eager", "sdpa")
    }
    told: dict[str, Any] = {name: model[0] for name, model in models.items()}
    assert {name: told[name].config._attn_implementation for name in ("eager", "sdpa")} == {
        "eager": "eager",
        "sdpa": "sdpa",
    }
    for model in models.values():
        assert embedding_precision(model) == "float32"
        np.testing.assert_allclose(embed(model, TEXTS, 4), embed(models["auto"], TEXTS, 4), atol=1e-5)


def test_flash_attention_is_refused_where_there_is_no_gpu_or_no_package(
    tiny_encoder_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, attention="flash_attention_2")
    with pytest.raises(UserError, match="needs a CUDA device, and this is 'cpu'"):
        load_encoder(tiny_encoder_path, config, "cpu")
    monkeypatch.setattr("transformers.utils.import_utils.is_flash_attn_2_available", lambda: False)
    with pytest.raises(UserError, match="needs the package flash-attn"):
        load_encoder(tiny_encoder_path, config, "cuda:0")


def test_an_attention_of_half_precision_embeds_in_bf16_and_does_not_train_in_float32(
    tiny_encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_encoder(tiny_encoder_path, CONFIG, "cpu")
    before = embed(model, TEXTS, 4)
    monkeypatch.setattr(module, "FLASH", "sdpa")
    found = embed(model, TEXTS, 4)
    assert not np.array_equal(found, before)
    assert (found * before).sum(axis=1).min() > 0.999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    with pytest.raises(UserError, match="computes in bf16 alone"):
        run(tiny_encoder_path, tmp_path / "out", with_train(precision="float32"), model=model)


def test_attention_bears_identity_where_it_is_chosen() -> None:
    assert "attention" not in identity_of(EmbeddingConfig())
    assert identity_of(EmbeddingConfig(attention="sdpa"))["attention"] == "sdpa"
