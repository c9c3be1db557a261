"""A server that embeds as the encoder here does: tried before use, and found out where it does not."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import EMBEDDINGS, Act, ChatServer, body, chat_server, hang

from cohyde.catalog import Tool
from cohyde.config import (
    EmbeddingConfig,
    EncoderEndpointConfig,
    RewriterConfig,
    SamplingConfig,
    SearchConfig,
    identity_of,
    load_config,
)
from cohyde.encoder.embedder import open_embedder
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.retriever import DenseRetriever
from cohyde.encoder.served import cut_to, sampled
from cohyde.errors import UserError
from cohyde.models.reference import resolve
from cohyde.retrieval.live import LiveRetriever
from cohyde.retrieval.trained import Trained, with_settings
from cohyde.rewriter.prompts import load_prompt
from stages.pipelines import specs_of

CONFIG = EmbeddingConfig(
    max_length=24, tool_max_length=40, query_instruction="search: ", tool_instruction="tool: ", pooling="cls"
)
"""With an instruction and a length for each side, none of which the server knows."""
PLAIN = EmbeddingConfig(max_length=512, pooling="cls")
"""What the server makes of a text."""
TOOLS = [
    Tool(id=word, title=word, api_description=f"Returns the {word} you ask for. " + "And the rest of it. " * times)
    for times, word in enumerate(["weather", "currency", "recipe", "flight", "hotel"])
]
TEXTS = ["what is the weather", "euros to yen " * 30, "a table for two"]
Vectors = Callable[[list[str]], list[Any]]


def answered(vectors: Vectors) -> Callable[[dict[str, Any], int], Act]:
    def answer(asked: dict[str, Any], before: int) -> Act:
        rows = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors(asked["input"]))]
        return body(json.dumps({"object": "list", "model": "m", "data": rows[::-1]}))

    return answer


@contextmanager
def serving(vectors: Vectors, config: EmbeddingConfig = CONFIG) -> Iterator[tuple[ChatServer, EmbeddingConfig]]:
    with chat_server(answered(vectors), route=EMBEDDINGS) as server:
        endpoint = EncoderEndpointConfig(url=server.url, model="m", retries=0, concurrency=2, batch_size=4)
        yield server, replace(config, embedder="endpoint", endpoint=endpoint)


@pytest.fixture(scope="module")
def real(tiny_encoder_path: Path) -> Vectors:
    model = load_encoder(tiny_encoder_path, PLAIN, "cpu")
    return lambda texts: (3 * embed(model, texts, 8)).tolist()


def test_served_vectors_are_the_encoder_s_own(real: Vectors, tiny_encoder_path: Path) -> None:
    ours = load_encoder(tiny_encoder_path, CONFIG, "cpu")
    with serving(real) as (server, config):
        served = open_embedder(tiny_encoder_path, config)
        for side in ("query", "document"):
            found = served.embed([*TEXTS, TEXTS[0]], side)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, embed(ours, [*TEXTS, TEXTS[0]], 4, side), atol=1e-5)
            assert found[3].tobytes() == found[0].tobytes()
        assert served.embed([]).shape == (0, found.shape[1])
        served.close()
    sent = [text for request in server.requests for text in request["input"]]
    # On either side the three texts, as they are tried and as they are asked for; each distinct text once.
    assert len(sent) == 2 * 3 + 2 * 3
    assert all(text.startswith(("search: ", "tool: ")) for text in sent)
    assert all("dimensions" not in request for request in server.requests)


def test_a_server_s_whole_vectors_are_cut_here(real: Vectors, tiny_encoder_path: Path) -> None:
    with serving(real, replace(CONFIG, dimensions=16)) as (_, config):
        found = open_embedder(tiny_encoder_path, config).embed(TEXTS)
    ours = load_encoder(tiny_encoder_path, replace(CONFIG, dimensions=16), "cpu")
    np.testing.assert_allclose(found, embed(ours, TEXTS, 4), atol=1e-5)
    assert found.shape == (3, 16)


def test_a_retriever_of_served_vectors_ranks_as_its_own_does(real: Vectors, tiny_encoder_path: Path) -> None:
    own = DenseRetriever.build(tiny_encoder_path, TOOLS, CONFIG)
    with serving(real) as (_, config):
        served = DenseRetriever.build(tiny_encoder_path, TOOLS, config)
        np.testing.assert_allclose(served.index.vectors, own.index.vectors, atol=1e-5)
        for mine, theirs in zip(own.rank_texts(TEXTS, 5), served.rank_texts(TEXTS, 5), strict=True):
            assert [score for _, score in theirs] == pytest.approx([score for _, score in mine], abs=1e-5)


def test_live_requests_are_embedded_by_the_server_and_it_is_tried_at_the_start(
    real: Vectors, tiny_encoder_path: Path, tmp_path: Path
) -> None:
    own = DenseRetriever.build(tiny_encoder_path, TOOLS, CONFIG)
    own.save_index(tmp_path / "index")
    how = {"search": SearchConfig(mode="query"), "index": tmp_path / "index"}
    with serving(real) as (server, config):
        with LiveRetriever(tiny_encoder_path, TOOLS, embedding=config, **how) as live:
            tried = len(server.requests)
            [answer] = live.search(["what is the weather"], 3)
        assert [request["input"] for request in server.requests[tried:]] == [["search: what is the weather"]]
    [expected] = own.rank_texts(["what is the weather"], 3)
    assert [score for _, score in answer.tools] == pytest.approx([score for _, score in expected], abs=1e-5)


def refused(encoder: Path, vectors: Vectors, config: EmbeddingConfig = CONFIG) -> UserError:
    with serving(vectors, config) as (_, served), pytest.raises(UserError) as told:
        open_embedder(encoder, served).embed(TEXTS)
    return told.value


def test_other_weights_are_found_out_with_the_measured_mean_and_the_worst_text(tiny_encoder_path: Path) -> None:
    vectors = iter(np.random.default_rng(0).normal(size=(100, 64)))
    error = refused(tiny_encoder_path, lambda texts: [next(vectors).tolist() for _ in texts])
    assert "the mean cosine over 3 texts is" in error.message and "at least 0.999 is wanted" in error.message
    assert any(repr(text[:60]) in error.message for text in TEXTS)
    assert "The server may hold other weights" in error.message
    assert f"vllm serve {tiny_encoder_path} --runner pooling" in str(error)


def test_another_pooling_is_named(tiny_encoder_path: Path) -> None:
    mean = load_encoder(tiny_encoder_path, replace(PLAIN, pooling="mean"), "cpu")
    error = refused(tiny_encoder_path, lambda texts: embed(mean, texts, 4).tolist())
    assert "The server's pooling is 'mean'" in error.message


def test_an_instruction_of_the_server_s_own_is_found_out(tiny_encoder_path: Path, real: Vectors) -> None:
    error = refused(tiny_encoder_path, lambda texts: real([f"Represent this sentence: {text}" for text in texts]))
    assert "put an instruction of its own before texts" in error.message


def test_a_server_that_cuts_long_texts_elsewhere_is_found_out(tiny_encoder_path: Path) -> None:
    short = load_encoder(tiny_encoder_path, replace(PLAIN, max_length=16), "cpu")
    error = refused(tiny_encoder_path, lambda texts: embed(short, texts, 4).tolist(), replace(CONFIG, max_length=40))
    assert "Most texts agree: the server may cut long ones elsewhere" in error.message
    assert repr(TEXTS[1][:60]) in error.message


def test_vectors_of_another_dimension_are_refused(tiny_encoder_path: Path) -> None:
    error = refused(tiny_encoder_path, lambda texts: [[1.0, 0.0, 0.0]] * len(texts))
    assert "gives vectors of 3 dimensions" in error.message and "ones of 64" in error.message


def test_fewer_vectors_than_texts_are_refused(tiny_encoder_path: Path, real: Vectors) -> None:
    assert "2 vectors for 3 texts" in refused(tiny_encoder_path, lambda texts: real(texts)[1:]).message


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (body("<html>Bad Gateway</html>", "text/html"), "the answer is not JSON: '<html>Bad Gateway</html>'"),
        (hang(5), "no answer in 0.1 seconds"),
    ],
)
def test_a_server_that_answers_otherwise_or_never_is_quoted(act: Act, says: str, tiny_encoder_path: Path) -> None:
    with chat_server(lambda asked, before: act, route=EMBEDDINGS) as server:
        endpoint = EncoderEndpointConfig(url=server.url, model="m", retries=0, timeout_seconds=0.1)
        with pytest.raises(UserError) as told:
            open_embedder(tiny_encoder_path, replace(CONFIG, embedder="endpoint", endpoint=endpoint)).embed(TEXTS)
    assert says in told.value.message


def test_the_sample_is_fixed_and_holds_the_longest_text() -> None:
    texts = [f"text {place}" for place in range(1000)]
    texts[500] *= 50
    assert sampled(texts) == sampled(texts)
    assert len(set(sampled(texts))) == 64 and texts[500] in sampled(texts)
    assert sorted(sampled(["b", "a", "b"])) == ["a", "b"]


@pytest.mark.parametrize("most", [8, 9, 10, 13])
def test_a_cut_text_is_read_as_the_encoder_reads_the_whole(tiny_encoder_path: Path, most: int) -> None:
    tokenizer: Any = load_encoder(tiny_encoder_path, CONFIG, "cpu").tokenizer
    for text in (
        "Translating unbelievable cryptocurrencies into pesetas " * 3,
        "naïve Ünïcödé façades — 天気予報 " * 4,
    ):
        cut = cut_to(tokenizer, text, most)
        whole = tokenizer(text, truncation=True, max_length=most)["input_ids"]
        assert text.startswith(cut) and tokenizer(cut)["input_ids"] == whole
    assert cut_to(tokenizer, "rain", most) == "rain"


def test_who_embeds_bears_identity_and_where_the_server_is_does_not() -> None:
    here = EmbeddingConfig()
    url, other = (EncoderEndpointConfig(url=f"http://127.0.0.1:{port}/v1") for port in (1, 2))
    served = replace(here, embedder="endpoint", endpoint=url)
    assert identity_of(replace(here, endpoint=url)) == identity_of(here)
    assert (
        identity_of(served)
        == identity_of(replace(served, endpoint=other))
        == {**identity_of(here), "embedder": "endpoint"}
    )


def test_training_is_the_same_whoever_embeds_later() -> None:
    told = ["encoder.embedder=endpoint", "encoder.endpoint.url=http://127.0.0.1:1/v1", "encoder.endpoint.model=m"]
    own, served = (
        {spec.id: identity_of(spec.config) for spec in specs_of(load_config("tiny", ["rounds=1", *settings]))}
        for settings in ([], told)
    )
    assert {stage for stage in own if own[stage] != served[stage]} == {"E.untrained", "S1b", "S4p.1", "E.0", "E.1"}


def test_a_finished_run_is_asked_through_a_server_and_stays_what_it_was_trained_as(tmp_path: Path) -> None:
    run = Trained(
        name="r",
        state="E.0",
        encoder=tmp_path,
        rewriter=tmp_path,
        tools=(),
        embedding=CONFIG,
        rewriting=RewriterConfig(),
        sampling=SamplingConfig(),
        prompt=load_prompt("hyde"),
        search=SearchConfig(),
    )
    told = with_settings(run, ["encoder.embedder=endpoint", "encoder.endpoint.url=http://127.0.0.1:1/v1"])
    there = replace(CONFIG.endpoint, url="http://127.0.0.1:1/v1")
    assert told == replace(run, embedding=replace(CONFIG, embedder="endpoint", endpoint=there))
    with pytest.raises(UserError, match=r"encoder\.pooling is what r was trained with"):
        with_settings(run, ["encoder.pooling=mean"])


def test_a_plan_needs_to_know_who_embeds() -> None:
    with pytest.raises(UserError, match="it is not said who embeds"):
        specs_of(load_config("tiny", ["encoder.embedder=endpoint"]))
    with pytest.raises(UserError, match=r"encoder\.embedder is 'elsewhere', which does not exist"):
        specs_of(load_config("tiny", ["encoder.embedder=elsewhere"]))
    with pytest.raises(UserError, match="in_process, endpoint"):
        open_embedder(resolve("tiny:bert"), replace(CONFIG, embedder="elsewhere"))
