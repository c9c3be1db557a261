"""``cohyde index``: built with a tiny encoder, changed, measured, searched in; what does not fit is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Call, caller

from cohyde import Retriever, exported
from cohyde.catalog import Tool, render, tool_to_row
from cohyde.config import EmbeddingConfig, IndexConfig, RewriterConfig, SamplingConfig, SearchConfig
from cohyde.encoder.index_kinds import make_index
from cohyde.encoder.index_recall import recall_of_neighbours
from cohyde.encoder.model import embed, load_encoder
from cohyde.errors import UserError
from cohyde.io import read_rows, write_jsonl
from cohyde.progress import Silent
from cohyde.retrieval.index_building import add_tools, build_index, remove_tools
from cohyde.retrieval.index_folder import open_index_folder
from cohyde.retrieval.live import LiveRetriever
from cohyde.retrieval.trained import Trained
from cohyde.rewriter.prompts import load_prompt

TOPICS = ("weather", "money", "music", "travel", "food")
TOOLS = tuple(
    Tool(id=f"{topic}/{number}", title=topic, api_name=f"call {number}", api_description=f"Returns {topic} {number}.")
    for topic in TOPICS
    for number in range(8)
)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capfd, monkeypatch)


@pytest.fixture
def trained(tiny_encoder_path: Path) -> Trained:
    return Trained(
        name="tiny",
        state="E.0",
        encoder=tiny_encoder_path,
        rewriter=Path("none"),
        tools=TOOLS,
        embedding=EmbeddingConfig(max_length=64),
        rewriting=RewriterConfig(),
        sampling=SamplingConfig(),
        prompt=load_prompt("hyde"),
        search=SearchConfig(mode="query"),
    )


@pytest.fixture
def folder(trained: Trained, tmp_path: Path) -> Path:
    build_index(trained, TOOLS, tmp_path / "index", Silent())
    return tmp_path / "index"


class Counting(Silent):
    """Keeps how many texts were embedded."""

    texts = 0

    def update(self, done: float, total: float, what: str = "") -> None:
        self.texts = int(total)


def test_an_index_finds_what_a_live_catalogue_of_the_same_tools_does(trained: Trained, folder: Path) -> None:
    with LiveRetriever.open(trained) as fresh, LiveRetriever.open(trained, index=folder) as stored:
        texts = ["will it rain", "a song for dinner"]
        for one, other in zip(fresh.search(texts, 5), stored.search(texts, 5), strict=True):
            assert [(tool.id, round(score, 5)) for tool, score in one.tools] == [
                (tool.id, round(score, 5)) for tool, score in other.tools
            ]


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf"])
def test_adding_embeds_what_is_new_alone_and_removing_embeds_nothing(
    trained: Trained, tmp_path: Path, kind: str
) -> None:
    folder, counting = tmp_path / "index", Counting()
    build_index(replace(trained, indexing=IndexConfig(kind=kind)), TOOLS[:20], folder, Silent())
    changed = replace(TOOLS[3], api_description="Says something else.")
    change = add_tools(folder, [TOOLS[0], changed, *TOOLS[20:23]], trained, counting)
    assert (change.added, change.changed, change.unchanged, change.embedded, change.tools) == (3, 1, 1, 4, 23)
    assert counting.texts == 4
    assert remove_tools(folder, [TOOLS[0].id, TOOLS[21].id]).tools == 21
    snapshot, card = open_index_folder(folder)
    expected = [*TOOLS[1:3], changed, *TOOLS[4:21], TOOLS[22]]
    assert (list(snapshot.tools), card.tools, card.config.kind) == (expected, 21, kind)
    vectors = embed(load_encoder(trained.encoder, trained.embedding), [render(tool, 5) for tool in expected], 64)
    np.testing.assert_allclose(snapshot.index.vectors, vectors, atol=1e-5)


def test_vectors_of_another_encoder_are_refused(trained: Trained, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vectors of another encoder, E\.0 of tiny when it was built"):
        add_tools(folder, TOOLS[:1], replace(trained, embedding=EmbeddingConfig(max_length=32)), Silent())
    other = tmp_path / "other"
    shutil.copytree(trained.encoder, other)
    weights = next(other.rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match="another encoder"):
        LiveRetriever.open(replace(trained, encoder=other), index=folder)


def test_what_is_no_index_or_is_damaged_is_refused(trained: Trained, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"index\.json: does not exist"):
        LiveRetriever.open(trained, index=tmp_path)
    vectors = folder / "vectors.faiss"
    content = vectors.read_bytes()
    vectors.write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(UserError, match="its checksum is another"):
        remove_tools(folder, [TOOLS[0].id])
    vectors.write_bytes(content[:-4])
    with pytest.raises(UserError, match=f"has {len(content) - 4:,} bytes, of {len(content):,}"):
        open_index_folder(folder)
    (folder / "index.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match="damaged"):
        open_index_folder(folder)


def test_the_last_tool_is_not_removed_and_a_failure_leaves_the_index_as_it_was(folder: Path) -> None:
    before = (folder / "index.json").read_bytes()
    with pytest.raises(UserError, match="no tool would be left"):
        remove_tools(folder, [tool.id for tool in TOOLS])
    with pytest.raises(UserError, match=r"'nowhere': not in the catalogue\n.*catalog\.jsonl lists what there is"):
        remove_tools(folder, [TOOLS[0].id, "nowhere"])
    assert (folder / "index.json").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


def test_recall_is_the_share_of_the_exact_neighbours_without_the_vector_itself() -> None:
    # On a circle at 0, 10, 30 and 70 degrees. The other index has the last two in each other's place.
    angles = np.radians([0, 10, 30, 70])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert recall_of_neighbours(make_index(vectors, IndexConfig()), vectors, 2, 4).value == 1.0
    # Places of the two nearest: 1 2, 0 2, 1 0, 2 1. The other finds, without the place itself: 1 3, 0 3, 3 1, 2 1.
    swapped = make_index(vectors[[0, 1, 3, 2]], IndexConfig())
    assert recall_of_neighbours(swapped, vectors, 2, 4).value == (1 / 2 + 1 / 2 + 1 / 2 + 2 / 2) / 4


def test_what_float16_costs_is_measured_when_the_index_is_built(trained: Trained, tmp_path: Path) -> None:
    half = replace(trained, indexing=IndexConfig(dtype="float16"))
    card = build_index(half, TOOLS, tmp_path / "half", Silent())
    assert card.recall is not None and card.recall["k"] == 10 and card.recall["sampled"] == len(TOOLS)
    assert 0.5 < card.recall["value"] <= 1.0
    assert open_index_folder(tmp_path / "half")[1] == card


def export_of(trained: Trained, folder: Path) -> Path:
    """What of an exported run a search by request alone needs."""
    shutil.copytree(trained.encoder, folder / exported.ENCODER)
    recipe = exported.Recipe(
        encoder=trained.embedding,
        rewriter=trained.rewriting,
        describe=trained.sampling,
        search=trained.search,
        prompt=trained.prompt,
        run="tiny",
        stage="E.0",
    )
    exported.write_recipe(folder, recipe)
    write_jsonl(folder / exported.CATALOG, map(tool_to_row, trained.tools[:10]))
    return folder


def test_from_the_command_line_an_index_is_built_changed_measured_and_searched_in(
    call: Call, trained: Trained, tmp_path: Path
) -> None:
    run, catalog, more = export_of(trained, tmp_path / "run"), tmp_path / "tools.jsonl", tmp_path / "more.jsonl"
    index = str(tmp_path / "index")
    write_jsonl(catalog, map(tool_to_row, TOOLS[:30]))
    write_jsonl(more, map(tool_to_row, TOOLS[30:]))
    build = ("index", "build", str(run), "--to", index, "--catalog", str(catalog))
    status, shown, _ = call(*build, "index.kind=hnsw", "--json")
    built = json.loads(shown)
    assert (status, built["tools"], built["dimensions"], built["config"]["kind"]) == (0, 30, 64, "hnsw")
    assert 0.9 <= built["recall"]["value"] <= 1.0
    status, _, told = call(*build)
    assert status == 2 and "exists already" in told and "--overwrite" in told
    status, _, told = call("index", "build", str(run), "--to", str(tmp_path / "no"), "index.kind=hsnw")
    assert status == 2 and "index.kind is one of: exact, hnsw, ivf" in told and not (tmp_path / "no").exists()

    status, shown, _ = call("index", "add", index, str(more), "--run", str(run), "--json")
    assert status == 0 and {"added": 10, "embedded": 10, "tools": 40}.items() <= json.loads(shown).items()
    status, _, told = call("index", "remove", index, "music/0", "music/100")
    assert status == 2 and "'music/100': not in the catalogue" in told and "Traceback" not in told
    status, _, told = call("index", "remove", index, "music/0", "music/1")
    assert status == 0 and "2 removed; 0 embedded; 38 tools now" in told

    status, shown, _ = call("index", "stats", index, "-k", "5", "--json")
    found = json.loads(shown)
    assert (status, found["tools"], found["recall"]["k"], found["built_recall"]) == (0, 38, 5, None)
    assert found["bytes"]["catalog.jsonl"] == (tmp_path / "index" / "catalog.jsonl").stat().st_size
    status, shown, _ = call("index", "stats", index)
    assert status == 0 and "recall@10" in shown and "38, 64 dimensions" in shown
    assert {row["id"] for row in read_rows(tmp_path / "index" / "catalog.jsonl")} == {
        tool.id for tool in TOOLS if tool.id not in ("music/0", "music/1")
    }
    with Retriever.from_export(run, index=index) as retriever:
        [answer] = retriever.search(["call 7"], 38)
    assert len(answer.tools) == 38


def test_a_file_that_names_a_tool_twice_is_refused_by_line(call: Call, folder: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "twice.jsonl", map(tool_to_row, [*TOOLS[:2], TOOLS[0]]))
    status, _, told = call("index", "add", str(folder), str(tmp_path / "twice.jsonl"))
    assert status == 2 and "twice.jsonl:3: tool 'weather/0' is there twice" in told
