"""An encoder behind a server: what comes back is checked, and what is wrong is said."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import EMBEDDINGS, Act, body, chat_server, status

from cohyde.catalog import Dataset, Query, Tool
from cohyde.config import EmbeddingEndpointConfig, EvaluationConfig, load_config
from cohyde.data.dataset import write_dataset
from cohyde.encoder.embedding_endpoint import EmbeddingEndpoint
from cohyde.errors import UserError
from cohyde.evaluation.per_query import read_per_query
from cohyde.progress import Silent
from stages.embedding_endpoint import EndpointStageConfig, run
from stages.folders import QUERIES
from stages.pipelines import specs_of

Vector = Callable[[str], Any]
TEXTS = ["north", "east", "both"]
PLANE = {"north": [0.0, 2.0], "east": [3.0, 0.0], "both": [1.0, 1.0]}


def vectors(values: list[Any], order: list[int] | None = None) -> Act:
    places = order or list(range(len(values)))
    rows = [{"object": "embedding", "index": place, "embedding": values[place]} for place in places]
    return body(json.dumps({"object": "list", "model": "m", "data": rows}))


def each(vector: Vector) -> Callable[[dict[str, Any], int], Act]:
    return lambda asked, before: vectors([vector(text) for text in asked["input"]])


def settings(url: str, **more: Any) -> EmbeddingEndpointConfig:
    return EmbeddingEndpointConfig(url=url, model="m", **{"retries": 0, "concurrency": 2, "batch_size": 2, **more})


def embedded(answer: Callable[[dict[str, Any], int], Act], **more: Any) -> np.ndarray:
    with chat_server(answer, route=EMBEDDINGS) as server:
        config = settings(server.url, **more)
        endpoint = EmbeddingEndpoint(config, config.dimensions)
        try:
            return endpoint.embed(TEXTS, Silent())
        finally:
            endpoint.close()


def test_vectors_come_back_in_order_and_of_length_1() -> None:
    half = 1 / math.sqrt(2)
    assert embedded(each(PLANE.__getitem__)).tolist() == [[0, 1], [1, 0], [pytest.approx(half), pytest.approx(half)]]


def test_the_place_that_a_server_names_counts_and_not_the_order_of_its_answer() -> None:
    def answer(asked: dict[str, Any], before: int) -> Act:
        values = [PLANE[text] for text in asked["input"]]
        return vectors(values, list(reversed(range(len(values)))))

    assert embedded(answer)[:2].tolist() == [[0, 1], [1, 0]]


def test_dimensions_are_asked_for_where_they_are_set_alone() -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any], before: int) -> Act:
        asked.append(request)
        return vectors([PLANE[text] for text in request["input"]])

    embedded(answer)
    embedded(answer, dimensions=2)
    assert [request.get("dimensions") for request in asked] == [None, None, 2, 2]
    assert all(request["encoding_format"] == "float" for request in asked)


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        (lambda text: [1.0] if text == "both" else [1.0, 0.0], "vectors of 1 and 2 dimensions"),
        (lambda text: [1.0] if text == "east" else [1.0, 0.0], "vectors of 1 and 2 dimensions"),
        (lambda text: [float("nan"), 0.0] if text == "east" else [1.0, 0.0], "none (NaN or infinite), for text 2"),
        (lambda text: [0.0, 0.0] if text == "both" else [1.0, 0.0], "a vector of noughts, for text 3"),
        (lambda text: None if text == "east" else [1.0], "no vector for text 2"),
        (lambda text: "AAAA", "no vector for text 1"),
        (lambda text: [], "no vector for text 1"),
    ],
)
def test_what_is_no_vector_for_each_text_is_refused(vector: Vector, says: str) -> None:
    with pytest.raises(UserError) as told:
        embedded(each(vector), concurrency=1)
    assert says in told.value.message and "'m'" in told.value.message


def test_fewer_vectors_than_texts_are_refused() -> None:
    with pytest.raises(UserError, match="1 vectors for 2 texts"):
        embedded(lambda asked, before: vectors([[1.0]]))


def test_another_dimension_than_was_asked_for_is_refused() -> None:
    with pytest.raises(UserError, match="2 dimensions, and 3 were asked for"):
        embedded(each(PLANE.__getitem__), dimensions=3)


def test_a_server_that_refuses_is_quoted_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    with pytest.raises(UserError) as told:
        embedded(lambda asked, before: status(400, "sk-secret-0123456789: input too long"))
    assert "input too long" in str(told.value) and "secret" not in str(told.value)
    with pytest.raises(UserError, match="OPENAI_API_KEY holds a key that it does not take"):
        embedded(lambda asked, before: status(401))


def test_the_stage_ranks_by_the_served_vectors(tmp_path: Path) -> None:
    tools = (Tool(id="n", title="north"), Tool(id="e", title="east"))
    write_dataset(
        tmp_path / "data",
        Dataset(name="d", tools=tools, eval=(Query(id="q", text="both", tools=("e",), split="eval"),)),
        {},
    )
    (tmp_path / "out").mkdir()
    plane = {**PLANE, "both": [0.9, 0.1]}
    with chat_server(each(plane.__getitem__), route=EMBEDDINGS) as server:
        config = EndpointStageConfig(
            endpoint=settings(server.url),
            index_form=1,
            evaluation=EvaluationConfig(),
            full=False,
            depth=50,
            example_seed=0,
        )
        metrics = run({"data": tmp_path / "data"}, config, tmp_path / "out", Silent())
    found = read_per_query(tmp_path / "out" / QUERIES)
    assert found.ranked[0] == ["e", "n"] and metrics["dimensions"] == 2 and list(found.search) == ["query"]


def test_a_run_has_it_only_where_an_endpoint_is_named() -> None:
    url = "baselines.endpoint.url=http://127.0.0.1:1/v1"
    ids = [spec.id for spec in specs_of(load_config("tiny", ["pipeline=baselines", url, "baselines.endpoint.model=m"]))]
    assert "B.endpoint" in ids
    assert "B.endpoint" not in [spec.id for spec in specs_of(load_config("tiny", ["pipeline=baselines"]))]
    with pytest.raises(UserError, match="not what is to be asked there"):
        specs_of(load_config("tiny", ["pipeline=baselines", url]))
