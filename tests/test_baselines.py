"""Baselines: how their pipeline is wired, and their stages on tiny models, in this process."""

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohyde.config import Config, load_config
from cohyde.dag.fingerprint import fingerprints
from cohyde.dag.spec import StageSpec
from cohyde.data.dataset import read_dataset
from cohyde.errors import UserError
from cohyde.evaluation.fusion import fuse
from cohyde.evaluation.metrics import ndcg_at
from cohyde.evaluation.per_query import PerQuery, read_per_query
from cohyde.io import read_rows, write_jsonl
from cohyde.progress import Silent
from stages.folders import DESCRIPTIONS, ENCODER_FOLDER, QUERIES, REWRITER_FOLDER
from stages.pipeline import Surroundings, pipeline
from stages.pipelines import specs_of
from stages.report import read_metrics
from stages.scoring import splits_to_score
from stages.systems import SYSTEMS

SMALL = (
    *("pipeline=baselines", "rounds=1", "data.tools=50", "data.train_queries=20", "data.eval_queries=5"),
    *("data.dev_fraction=0.3", "describe.max_new_tokens=4", "baselines.refine.rounds=1"),
    *("baselines.refine.sampling.max_new_tokens=4", "evaluation.standard_sample=3"),
)
FOUND = Surroundings()


def under(*overrides: str) -> Config:
    return load_config("tiny", ["pipeline=baselines", *overrides])


def by_id(config: Config) -> dict[str, StageSpec]:
    return {spec.id: spec for spec in specs_of(config, FOUND)}


def arrows(config: Config) -> dict[str, dict[str, str]]:
    return {stage: dict(spec.inputs) for stage, spec in by_id(config).items() if stage.startswith("B.")}


# ------------------------------------------------------------------------------------------------------ the pipeline


def test_the_arrows_of_the_baselines() -> None:
    assert arrows(under("rounds=2")) == {
        "B.bm25": {"data": "data"},
        "B.rewriter": {"data": "data"},
        "B.expand.texts": {"data": "data", "rewriter": "B.rewriter"},
        "B.expand": {"data": "data", "descriptions": "B.expand.texts"},
        "B.hyde.texts": {"data": "data", "rewriter": "B.rewriter"},
        "B.hyde": {"data": "data", "descriptions": "B.hyde.texts"},
        "B.hyde-warm-up": {"data": "data", "descriptions": "B.hyde.texts", "encoder": "S1a"},
        "B.refine": {"data": "data", "encoder": "S1a", "rewriter": "B.rewriter"},
        "B.aligned.S4s.1": {"data": "data", "rewriter": "B.rewriter"},
        "B.aligned.S4p.1": {"data": "data", "candidates": "B.aligned.S4s.1", "encoder": "S1a"},
        "B.aligned.S4.1": {"pairs": "B.aligned.S4p.1", "rewriter": "B.rewriter"},
        "B.aligned": {"data": "data", "encoder": "S1a", "rewriter": "B.aligned.S4.1"},
        "B.fused-texts": {"data": "data", "first": "E.2", "second": "E.2"},
        "B.fused-bm25": {"data": "data", "first": "E.2", "second": "B.bm25"},
    }


def test_all_that_cohyde_itself_does_is_the_main_run_s() -> None:
    main = fingerprints(pipeline(load_config("tiny"), FOUND))
    with_baselines = fingerprints(specs_of(under(), FOUND))
    assert {stage: with_baselines[stage] for stage in main} == main


def test_every_system_but_the_endpoint_is_a_stage() -> None:
    assert {entry.stage for entry in SYSTEMS} - set(by_id(under())) == {"B.endpoint"}


def test_an_aligned_rewriter_goes_on_from_the_round_before() -> None:
    found = arrows(under("baselines.aligned_rounds=2"))
    assert found["B.aligned.S4s.2"]["rewriter"] == found["B.aligned.S4.2"]["rewriter"] == "B.aligned.S4.1"
    assert found["B.aligned.S4p.2"]["encoder"] == "S1a" and found["B.aligned"]["rewriter"] == "B.aligned.S4.2"


def test_a_restated_request_is_shown_no_catalogue_lines() -> None:
    specs = by_id(under("rewriter.few_shot=3"))
    for stage in ("B.expand.texts", "B.aligned.S4s.1", "B.aligned"):
        assert specs[stage].config.rewriter.few_shot == 0 and list(specs[stage].prompts) == ["expand"]
    assert specs["B.hyde.texts"].config.rewriter == specs["E.0"].config.rewriter
    assert list(specs["B.refine"].prompts) == ["comprehension", "assessment", "refinement"]


def test_settings_touch_the_baselines_that_they_are_of() -> None:
    base = fingerprints(specs_of(under(), FOUND))

    def touched(change: str) -> set[str]:
        after = fingerprints(specs_of(under(change), FOUND))
        return {stage for stage in base if base[stage] != after.get(stage)}

    assert touched("baselines.bm25.k1=1.2") == {"B.bm25", "B.fused-bm25"}
    assert touched("baselines.refine.rounds=1") == {"B.refine"}
    assert touched("baselines.fusion=score_sum") == {"B.fused-texts", "B.fused-bm25"}
    assert touched("search.mode=fused") == {"report", "B.fused-bm25"}
    assert touched("sft.lr=1e-4").isdisjoint({"B.rewriter", "B.hyde.texts", "B.hyde", "B.refine", "B.aligned"})


def test_a_fusion_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"baselines\.fusion is 'borda'") as told:
        specs_of(under("baselines.fusion=borda"), FOUND)
    assert "rrf" in (told.value.remedy or "")


# -------------------------------------------------------------------------------------------------------- the stages


class Stages:
    """The stages of a small pipeline, executed one by one on what others wrote; untrained models stand for trained."""

    def __init__(self, root: Path, encoder: Path, rewriter: Path) -> None:
        self.root, self.specs = root, by_id(load_config("tiny", SMALL))
        for stage, folder, model in (
            *(("S1a", ENCODER_FOLDER, encoder), ("S3.1", ENCODER_FOLDER, encoder)),
            *(("B.rewriter", REWRITER_FOLDER, rewriter), ("S4.1", REWRITER_FOLDER, rewriter)),
        ):
            shutil.copytree(model, root / stage / folder)
        self.metrics: dict[str, Mapping[str, Any]] = {}
        for stage in ("data", "E.1", "B.bm25", "B.hyde.texts", "B.hyde", "B.hyde-warm-up", "B.fused-bm25", "B.refine"):
            self.metrics[stage] = self.execute(stage)

    def execute(self, stage: str, out: str | None = None, **instead: Path) -> Mapping[str, Any]:
        spec, folder = self.specs[stage], self.root / (out or stage)
        module, _, name = spec.entry.partition(":")
        folder.mkdir(exist_ok=True)
        inputs = {key: self.root / source for key, source in spec.inputs.items()} | instead
        found: Mapping[str, Any] = getattr(importlib.import_module(module), name)(inputs, spec.config, folder, Silent())
        return found

    def results(self, stage: str) -> PerQuery:
        return read_per_query(self.root / stage / QUERIES)


@pytest.fixture(scope="module")
def stages(tiny_encoder_path: Path, tiny_rewriter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp("baselines"), tiny_encoder_path, tiny_rewriter_path)


def test_a_number_of_the_table_is_what_its_queries_come_to_by_hand(stages: Stages) -> None:
    found = stages.results("B.bm25").select(split="standard", in_sample=True)
    tier = found.tier[0]
    by_hand = [ndcg_at(found.ranked[row], found.gold[row], 5) for row in range(len(found)) if found.tier[row] == tier]
    [row] = [
        row
        for row in read_metrics(stages.root / "B.bm25")
        if (row.split, row.tier, row.metric, row.k, row.scope) == ("standard", tier, "ndcg", 5, "sample")
    ]
    assert row.value == pytest.approx(sum(by_hand) / len(by_hand)) and row.n == len(by_hand)


def test_texts_are_written_for_every_query_that_the_last_round_scores(stages: Stages) -> None:
    texts = read_rows(stages.root / "B.hyde.texts" / DESCRIPTIONS)
    assert [(row["split"], row["id"]) for row in texts] == [
        (row["split"], row["id"]) for row in read_rows(stages.root / "E.1" / DESCRIPTIONS)
    ]
    dataset, _ = read_dataset(stages.root / "data")
    config = stages.specs["B.hyde.texts"].config
    splits = splits_to_score(dataset, config.evaluation, config.full, config.example_seed)
    assert config.full and len(texts) == sum(len(split.queries) for split in splits)


def test_hyde_with_the_models_of_an_evaluation_finds_what_that_found(stages: Stages) -> None:
    for search in ("description", "concatenated", "fused"):
        one, other = (stages.results(stage).select(search=search) for stage in ("B.hyde-warm-up", "E.1"))
        assert list(one.id) == list(other.id) and len(one) > 0
        assert [one.ranked[row] for row in range(len(one))] == [other.ranked[row] for row in range(len(one))]
    assert set(stages.results("B.hyde").search) == {"description", "concatenated", "fused"}


def test_a_query_without_a_text_stops_the_search(stages: Stages, tmp_path: Path) -> None:
    write_jsonl(tmp_path / DESCRIPTIONS, read_rows(stages.root / "B.hyde.texts" / DESCRIPTIONS)[1:])
    with pytest.raises(RuntimeError, match=r"1 of \d+ queries have no text, the first: \('standard', "):
        stages.execute("B.hyde", "again", descriptions=tmp_path)


def test_rankings_are_fused_from_what_is_written(stages: Stages) -> None:
    fused = stages.results("B.fused-bm25")
    dense, sparse = stages.results("E.1").select(search="description"), stages.results("B.bm25")
    assert set(fused.search) == {"fused rankings"} and list(fused.id) == list(sparse.id) == list(dense.id)
    dataset, _ = read_dataset(stages.root / "data")
    for row in range(len(fused)):
        both = [[(tool, 0.0) for tool in results.ranked[row]] for results in (dense, sparse)]
        expected = fuse(both, "rrf", 60.0, dataset.position_of(), 50)
        assert fused.ranked[row] == [tool for tool, _ in expected]
    start = int(fused.ranked.offsets[0])
    assert np.all(np.diff(fused.scores[start : int(fused.ranked.offsets[1])]) <= 0)


def test_a_query_without_a_ranking_stops_the_fusion(stages: Stages) -> None:
    with pytest.raises(RuntimeError, match=r"(\d+) of \1 queries have no ranking"):
        stages.execute("B.fused-bm25", "again", first=stages.root / "B.bm25", second=stages.root / "B.hyde")


def test_refinement_keeps_every_step_beside_what_was_searched_with_at_last(stages: Stages) -> None:
    rows = read_rows(stages.root / "B.refine" / DESCRIPTIONS)
    results = stages.results("B.refine")
    assert [row["id"] for row in rows] == list(results.id) and set(results.search) == {"description"}
    assert all(len(row["steps"]) == 1 and row["fallback"] == (row["rounds"] == 0) for row in rows)
    assert stages.metrics["B.refine"]["descriptions"] == len(rows)
