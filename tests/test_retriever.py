"""An encoder with its indexed catalogue, on the tiny BERT."""

from pathlib import Path

import pytest

from cohyde.catalog import Tool, render
from cohyde.config import EmbeddingConfig, SearchConfig
from cohyde.encoder.retriever import DenseRetriever
from cohyde.io import read_rows

CONFIG = EmbeddingConfig(max_length=64)
TOOLS = [
    Tool(id="rain", title="Weather", api_name="forecast", api_description="Returns the forecast for a city."),
    Tool(id="euro", title="Money", api_name="rate", api_description="Returns an exchange rate."),
    Tool(id="twin", title="Money", api_name="rate", api_description="Returns an exchange rate."),
    Tool(id="wake", title="Clock", api_name="alarm", api_description="Sets an alarm."),
]


@pytest.fixture(scope="module")
def retriever(tiny_encoder_path: Path) -> DenseRetriever:
    return DenseRetriever.build(tiny_encoder_path, TOOLS, CONFIG)


def ids(ranking: list[tuple[str, float]]) -> list[str]:
    return [tool_id for tool_id, _ in ranking]


def test_a_tool_s_own_rendering_finds_it_first(retriever: DenseRetriever) -> None:
    for tool in (TOOLS[0], TOOLS[3]):
        best, score = retriever.rank_texts([render(tool, 5)], 1)[0][0]
        assert best == tool.id and score == pytest.approx(1, abs=1e-6)


def test_equal_tools_tie_and_stand_in_catalogue_order(retriever: DenseRetriever) -> None:
    (ranking,) = retriever.rank_texts([render(TOOLS[1], 5)], 4)
    assert ids(ranking)[:2] == ["euro", "twin"]
    assert ranking[0][1] == ranking[1][1]


def test_scores_are_inner_products_and_fall(retriever: DenseRetriever) -> None:
    (ranking,) = retriever.rank_texts(["will it rain"], 4)
    vectors = retriever.embedder.embed(["will it rain", *(render(tool, 5) for tool in TOOLS)])
    expected = dict(zip(retriever.tool_ids, (vectors[1:] @ vectors[0]).tolist(), strict=True))
    assert dict(ranking) == pytest.approx(expected, abs=1e-6)
    assert [score for _, score in ranking] == sorted((score for _, score in ranking), reverse=True)


def test_a_catalogue_smaller_than_the_depth_gives_all_it_has(retriever: DenseRetriever) -> None:
    assert sorted(ids(retriever.rank_texts(["anything"], 50)[0])) == sorted(tool.id for tool in TOOLS)
    assert len(retriever.rank_texts(["anything"], 2)[0]) == 2


def test_no_texts_have_no_rankings(retriever: DenseRetriever) -> None:
    assert retriever.rank_texts([], 5) == []
    assert retriever.rank([], [], SearchConfig()) == []


def test_the_mode_chooses_between_query_and_description(retriever: DenseRetriever) -> None:
    query, description = render(TOOLS[0], 5), render(TOOLS[3], 5)
    best = {
        mode: retriever.rank([query], [description], SearchConfig(mode=mode), 1)[0][0][0]
        for mode in ("query", "description")
    }
    assert best == {"query": "rain", "description": "wake"}


def test_the_index_form_decides_what_is_indexed(tiny_encoder_path: Path) -> None:
    by_title = DenseRetriever.build(tiny_encoder_path, TOOLS, EmbeddingConfig(max_length=64, index_form=1))
    assert by_title.rank_texts(["Clock"], 1)[0][0] == ("wake", pytest.approx(1, abs=1e-6))


def test_a_saved_index_ranks_alike(retriever: DenseRetriever, tiny_encoder_path: Path, tmp_path: Path) -> None:
    retriever.save_index(tmp_path / "index")
    assert [row["id"] for row in read_rows(tmp_path / "index" / "tools.jsonl")] == [tool.id for tool in TOOLS]
    loaded = DenseRetriever.load(tiny_encoder_path, tmp_path / "index", CONFIG)
    assert loaded.rank_texts(["will it rain", "wake me"], 4) == retriever.rank_texts(["will it rain", "wake me"], 4)


def test_an_index_of_another_catalogue_is_refused(
    retriever: DenseRetriever, tiny_encoder_path: Path, tmp_path: Path
) -> None:
    retriever.save_index(tmp_path / "index")
    (tmp_path / "index" / "tools.jsonl").write_text('{"id": "rain"}\n', "utf-8")
    with pytest.raises(ValueError, match="4 vectors but there are 1 tool ids"):
        DenseRetriever.load(tiny_encoder_path, tmp_path / "index", CONFIG).rank_texts(["x"], 1)
