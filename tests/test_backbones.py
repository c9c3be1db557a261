"""Other encoders than BERT: tiny random models of each family, trained in full and by adapters, saved, read again."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from test_encoder_train import CONFIG, PAIRS, TOOLS, Listener

from cohyde.catalog import render
from cohyde.config import EncoderConfig, EncoderLoraConfig
from cohyde.encoder.lora import adapt, merged
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.train import train_encoder
from cohyde.errors import UserError
from cohyde.models.reference import resolve

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LARGE = {"initializer_range": 0.1, "max_position_embeddings": 300}


def bert(vocabulary: int, pad: int) -> Any:
    return transformers.BertModel(transformers.BertConfig(vocab_size=vocabulary, pad_token_id=pad, **SHAPE, **LARGE))


def xlm_roberta(vocabulary: int, pad: int) -> Any:
    config = transformers.XLMRobertaConfig(vocab_size=vocabulary, pad_token_id=pad, **SHAPE, **LARGE)
    return transformers.XLMRobertaModel(config)


def modern_bert(vocabulary: int, pad: int) -> Any:
    ends = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    config = transformers.ModernBertConfig(vocab_size=vocabulary, pad_token_id=pad, **ends, **SHAPE, **LARGE)
    return transformers.ModernBertModel(config)


def qwen3(vocabulary: int, pad: int) -> Any:
    heads = {"num_key_value_heads": 2, "head_dim": 8}
    config = transformers.Qwen3Config(vocab_size=vocabulary, pad_token_id=pad, **SHAPE, **LARGE, **heads)
    return transformers.Qwen3Model(config)


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture, the tiny model whose tokenizer it borrows, and how encoders of it are used."""

    build: Callable[[int, int], Any]
    tokenizer: str
    settings: dict[str, Any]
    targets: tuple[str, ...]


E5 = {"query_instruction": "query: ", "tool_instruction": "passage: "}
QWEN = {"pooling": "last_token", "tool_max_length": 48, "query_instruction": "Instruct: find the tool\nQuery: "}
FAMILIES = {
    "BGE": Family(bert, "tiny:bert", {"pooling": "cls", "query_instruction": "search: "}, ("query", "value")),
    "MiniLM": Family(bert, "tiny:bert", {"pooling": "mean"}, ("query", "value")),
    "E5": Family(xlm_roberta, "tiny:bert", {"pooling": "mean", **E5}, ("query", "value")),
    "GTE": Family(modern_bert, "tiny:bert", {"pooling": "cls"}, ("Wqkv",)),
    "Qwen3": Family(qwen3, "tiny:qwen3_5", QWEN, ("q_proj", "v_proj")),
}


@pytest.fixture(scope="module")
def folders(cohyde_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain transformers folder of each family."""
    root, found = tmp_path_factory.mktemp("families"), {}
    for name, family in FAMILIES.items():
        tokenizer = transformers.AutoTokenizer.from_pretrained(resolve(family.tokenizer))
        tokenizer.chat_template = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            family.build(len(tokenizer), tokenizer.pad_token_id).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        found[name] = root / name
    return found


def config_of(name: str, lora: bool = False) -> EncoderConfig:
    family = FAMILIES[name]
    train = dataclasses.replace(
        CONFIG.train,
        epochs=1,
        lr=1e-2 if lora else 1e-3,
        mini_batch_size=4,
        lora=EncoderLoraConfig(enabled=lora, rank=4, alpha=8, dropout=0.1, targets=family.targets),
    )
    return dataclasses.replace(CONFIG, train=train, **family.settings)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_and_is_saved_as_what_anyone_can_load(
    folders: dict[str, Path], tmp_path: Path, name: str, lora: bool
) -> None:
    config = config_of(name, lora)
    model, out = load_encoder(folders[name], config, "cpu"), tmp_path / "out"
    texts = [pair.anchor for pair in PAIRS[:3]]
    before = embed(model, texts, 4)
    result = train_encoder(model, PAIRS, TOOLS, config, forms=(4, 5), seed=0, dev=None, out=out, progress=Listener())
    assert np.isfinite([row["loss"] for row in result.history]).all()
    again = load_encoder(out, config, "cpu")
    assert np.abs(embed(again, texts, 4) - before).max() > 1e-3
    assert {name.rpartition(".")[2] for name, _ in again.named_parameters()} <= {"weight", "bias"}
    np.testing.assert_allclose(embed(again, texts, 4), embed(model.eval(), texts, 4), atol=1e-5)

    plain = SentenceTransformer(str(out), device="cpu")
    renderings = [render(tool, 5) for tool in TOOLS]
    np.testing.assert_allclose(plain.encode_query(texts), embed(again, texts, 1), atol=1e-5)
    np.testing.assert_allclose(plain.encode_document(renderings), embed(again, renderings, 1, "document"), atol=1e-5)


@pytest.mark.parametrize("name", ["E5", "Qwen3"])
def test_instructions_and_lengths_belong_to_their_side(folders: dict[str, Path], name: str) -> None:
    config = config_of(name)
    model = load_encoder(folders[name], config, "cpu")
    bare = load_encoder(folders[name], dataclasses.replace(config, query_instruction="", tool_instruction=""), "cpu")
    text = ["music of the city"]
    for side, instruction in (("query", config.query_instruction), ("document", config.tool_instruction)):
        expected = embed(bare, [instruction + text[0]], 1, side)
        np.testing.assert_allclose(embed(model, text, 1, side), expected, atol=1e-6)
    lengths = {
        side: model.preprocess(["music " * 90], task=side)["input_ids"].shape[1] for side in ("query", "document")
    }
    assert lengths == {"query": 32, "document": config.tool_max_length or 32}


def test_the_last_token_of_a_padded_batch_is_the_text_s_own(folders: dict[str, Path]) -> None:
    model = load_encoder(folders["Qwen3"], config_of("Qwen3"), "cpu")
    texts = ["x", "the weather of tomorrow in the city", "news"]
    alone = np.concatenate([embed(model, [text], 1) for text in texts])
    np.testing.assert_allclose(embed(model, texts, 3), alone, atol=1e-5)


def test_the_first_token_of_a_model_that_reads_from_left_to_right_is_refused(folders: dict[str, Path]) -> None:
    config = dataclasses.replace(config_of("Qwen3"), pooling="cls")
    with pytest.raises(
        UserError, match=r"pooling is 'cls', but the first position of this model sees no other"
    ) as refused:
        load_encoder(folders["Qwen3"], config, "cpu")
    assert "last_token" in str(refused.value.remedy)


def test_a_model_that_pools_nothing_is_refused_a_pooling(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("tiny:bert")).backend_tokenizer
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)]).save(str(tmp_path / "static"))
    with pytest.raises(UserError, match="pooling is 'cls', but this model gives one vector a text by itself"):
        load_encoder(tmp_path / "static", CONFIG, "cpu")


def test_adapters_begin_without_effect_and_merging_leaves_them_as_they_are(folders: dict[str, Path]) -> None:
    model = load_encoder(folders["MiniLM"], config_of("MiniLM"), "cpu")
    before = embed(model, ["x", "music"], 2)
    torch.manual_seed(0)
    adapt(model, config_of("MiniLM", lora=True).train.lora)
    assert embed(model.eval(), ["x", "music"], 2).tobytes() == before.tobytes()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(trained) == 2 * 2 * 2  # two layers, two targets, two matrices
    with torch.no_grad():
        for weight in trained.values():
            weight.normal_()
    kept = {name: weight.clone() for name, weight in model.named_parameters()}
    plain = merged(model)
    assert all(torch.equal(weight, kept[name]) for name, weight in model.named_parameters())
    assert not [name for name, _ in plain.named_parameters() if "lora" in name]
    np.testing.assert_allclose(embed(plain, ["x", "music"], 2), embed(model, ["x", "music"], 2), atol=1e-5)
    assert np.abs(embed(plain, ["x", "music"], 2) - before).max() > 0.01


def test_an_adapter_s_target_that_no_layer_is_called_is_named(folders: dict[str, Path]) -> None:
    model = load_encoder(folders["MiniLM"], config_of("MiniLM"), "cpu")
    with pytest.raises(UserError, match="'q_proj' matches no layer of BertModel"):
        adapt(model, EncoderLoraConfig(enabled=True))
