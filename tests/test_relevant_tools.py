"""Names of tools for a prompt that is given such names, and a rewriter that is told them."""

from pathlib import Path

from cohyde.catalog import Dataset, Query, Tool
from cohyde.config import EmbeddingConfig, RewriterConfig, SamplingConfig
from cohyde.data.dataset import write_dataset
from cohyde.io import read_rows
from cohyde.progress import Silent
from cohyde.rewriter.describe import describe
from stages.folders import RELEVANT
from stages.relevant_tools import RelevantToolsConfig, fields_of, run

TOOLS = tuple(Tool(id=name, title=name.title(), api_name=f"{name}Call", description="d") for name in ("rain", "money"))
TRAIN = Query(id="t", text="will it rain", tools=("rain",), split="train")
EVAL = Query(id="e", text="change money", tools=("money",), split="eval")
AGAIN = Query(id="d", text="will it rain", tools=("rain",), split="train")


def test_every_request_is_told_once_with_the_names_of_what_is_found(tiny_encoder_path: Path, tmp_path: Path) -> None:
    dataset = Dataset(name="d", tools=TOOLS, train=(TRAIN, AGAIN), eval=(EVAL,))
    write_dataset(tmp_path / "data", dataset, {})
    (tmp_path / "S1a").mkdir()
    (tmp_path / "S1a" / "encoder").symlink_to(tiny_encoder_path)
    (tmp_path / "out").mkdir()
    settings = RelevantToolsConfig(encoder=EmbeddingConfig(pooling="auto", max_length=32), tools=2)
    metrics = run({"data": tmp_path / "data", "encoder": tmp_path / "S1a"}, settings, tmp_path / "out", Silent())
    rows = read_rows(tmp_path / "out" / RELEVANT)
    assert metrics == {"requests": 2} and [row["query"] for row in rows] == ["will it rain", "change money"]
    assert all(set(row["tools"].split("; ")) == {"Rain rainCall", "Money moneyCall"} for row in rows)
    assert fields_of({"tools": tmp_path / "out"})["will it rain"] == {"tools": rows[0]["tools"]}
    assert fields_of({"data": tmp_path}) == {}


def test_a_rewriter_is_asked_with_the_names(tiny_rewriter_path: Path) -> None:
    rewriter = RewriterConfig(backend="transformers", prompt="rewrite", precision="float32")
    fields = {"will it rain": {"tools": "Rain rainCall"}}
    described, _ = describe(
        tiny_rewriter_path, [TRAIN], [], rewriter, SamplingConfig(max_new_tokens=2), 0, Silent(), fields
    )
    assert "Request: will it rain" in described[0].prompt and "Rain rainCall" in described[0].prompt
