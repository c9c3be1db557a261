"""The stages themselves, on tiny models, in this process: what they write, and what they do where something is odd."""

import importlib
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohyde.catalog import Dataset, Query, Tool, render
from cohyde.config import Config, DataConfig, EvaluationConfig, load_config
from cohyde.dag.spec import StageSpec
from cohyde.data.dataset import read_dataset, write_dataset
from cohyde.encoder.model import embed, load_encoder
from cohyde.errors import Interrupted, UserError
from cohyde.evaluation.metrics import ALL, MEAN_OVER_TIERS
from cohyde.evaluation.per_query import read_per_query
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE
from cohyde.io import read_rows, write_jsonl
from cohyde.models.reference import resolve
from cohyde.progress import Silent, untimed
from cohyde.retrieval.answer import Answer
from cohyde.retrieval.live import LiveRetriever
from cohyde.rewriter.generate import Request, open_generator
from cohyde.rewriter.load import load_tokenizer
from stages import data as data_stage
from stages.folders import QUERIES
from stages.pipeline import pipeline
from stages.report import read_metrics
from stages.scoring import splits_to_score
from stages.search import trained

SMALL = (
    "rounds=1",
    "data.tools=80",
    "data.train_queries=80",
    "data.eval_queries=8",
    "data.dev_fraction=0.3",
    "encoder.train.epochs=4",
    "encoder.train.batch_size=8",
    "retrain.epochs=1",
    "retrain.queries=10",
    "sft.max_steps=2",
    "sft.eval_every=1",
    "sft.eval_queries=2",
    "sft.max_length=48",
    "describe.max_new_tokens=8",
    "candidates.n=2",
    "candidates.max_new_tokens=8",
    "candidates.temperature=1.5",
    "preferences.queries=8",
    "preferences.reward=ndcg@20",
    "dpo.max_steps=2",
    "instruction.queries=6",
    "evaluation.standard_sample=3",
    "evaluation.vague_sample=4",
)


class Told(Silent):
    """A progress that remembers."""

    def __init__(self) -> None:
        self.warnings, self.steps = list[str](), list[tuple[float, float]]()

    def update(self, done: float, total: float, what: str = "") -> None:
        self.steps.append((done, total))

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A stage that was executed."""

    spec: StageSpec
    path: Path
    metrics: Mapping[str, Any]
    told: Told = field(default_factory=Told)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A run's stages, and how to execute one more of them on what the others wrote."""

    config: Config
    done: Mapping[str, Done]

    def __getitem__(self, stage_id: str) -> Done:
        return self.done[stage_id]

    def path(self, stage_id: str) -> Path:
        return self.done[stage_id].path

    def again(self, stage_id: str, out: Path, *overrides: str, told: "Told | None" = None, **instead: Path) -> Done:
        """Execute a stage of this pipeline, under other settings and with other inputs where they are given."""
        spec = spec_of(load_config("tiny", [*SMALL, *overrides]), stage_id)
        inputs = {name: self.done[source].path for name, source in spec.inputs.items()} | instead
        return execute(spec, inputs, out, told)


def spec_of(config: Config, stage_id: str) -> StageSpec:
    return next(spec for spec in pipeline(config) if spec.id == stage_id)


def execute(spec: StageSpec, inputs: Mapping[str, Path], out: Path, told: Told | None = None) -> Done:
    module, _, name = spec.entry.partition(":")
    out.mkdir(parents=True, exist_ok=True)
    told = told or Told()
    metrics = getattr(importlib.import_module(module), name)(inputs, spec.config, out, told)
    return Done(spec=spec, path=out, metrics=metrics, told=told)


@pytest.fixture(scope="module")
def chain(cohyde_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """One round of the whole method."""
    config, root = load_config("tiny", SMALL), tmp_path_factory.mktemp("chain")
    done: dict[str, Done] = {}
    for spec in pipeline(config):
        done[spec.id] = execute(spec, {name: done[source].path for name, source in spec.inputs.items()}, root / spec.id)
    return Chain(config=config, done=done)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, by its path there."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name.endswith(".safetensors")}


# ----------------------------------------------------------------------------------------------- what is written


def test_every_stage_writes_the_files_that_the_next_ones_read(chain: Chain) -> None:
    expected = {
        "data": {"catalog.jsonl", "queries.jsonl", "vague.jsonl", "dataset.yaml"},
        "S1a": {"encoder/modules.json", "encoder/model.safetensors", "steps.jsonl", "training.json"},
        "S1b": {"rewriter/config.json", "rewriter/model.safetensors", "rewriter/tokenizer.json", "steps.jsonl"},
        "S2.1": {"descriptions.jsonl"},
        "S3.1": {"encoder/modules.json", "encoder/model.safetensors", "steps.jsonl", "training.json"},
        "S4s.1": {"candidates.jsonl"},
        "S4p.1": {"pairs.jsonl", "rewards.jsonl"},
        "S4.1": {"rewriter/config.json", "rewriter/model.safetensors", "rewriter/tokenizer.json", "steps.jsonl"},
        "E.1": {"metrics.jsonl", "queries.parquet", "descriptions.jsonl", "index/index.npy", "index/tools.jsonl"},
        "E.untrained": {"metrics.jsonl", "queries.parquet"},
        "report": {"report.md", "report.json"},
    }
    for stage_id, files in expected.items():
        assert files <= set(contents(chain.path(stage_id))), stage_id


def test_hard_negatives_are_mined_for_every_anchor_of_the_retraining_and_used_by_it(
    chain: Chain, tmp_path: Path
) -> None:
    mined = chain.again("S3n.1", tmp_path / "mined", "mining.enabled=true", "mining.max_score_share=1")
    rows = read_rows(mined.path / "negatives.jsonl")
    described = {row["text"] for row in read_rows(chain.path("S2.1") / "descriptions.jsonl")}
    assert {row["anchor"] for row in rows} <= described
    assert mined.metrics["anchors"] == len(rows) > 0
    assert all(len(row["tools"]) == len(row["scores"]) <= 2 for row in rows)
    spec = spec_of(load_config("tiny", [*SMALL, "mining.enabled=true"]), "S3.1")
    paths = {name: chain.path(source) if source in chain.done else mined.path for name, source in spec.inputs.items()}
    retrained = execute(spec, paths, tmp_path / "retrained")
    assert retrained.metrics["hard_negatives"] > 0
    losses = [
        [row["loss"] for row in read_rows(path / "steps.jsonl")[1:]] for path in (retrained.path, chain.path("S3.1"))
    ]
    assert losses[0][0] > losses[1][0]


def test_nothing_but_safetensors_holds_weights(chain: Chain) -> None:
    suffixes = {path.suffix for done in chain.done.values() for path in done.path.rglob("*") if path.is_file()}
    assert not suffixes & {".bin", ".pt", ".pth", ".pkl", ".ckpt"}


def test_metrics_are_plain_and_finite(chain: Chain) -> None:
    for stage_id, done in chain.done.items():
        for name, value in done.metrics.items():
            assert isinstance(value, (int, float, str)), (stage_id, name)
            assert isinstance(value, str) or math.isfinite(value), (stage_id, name)


def test_stages_say_by_what_they_are_to_be_judged(chain: Chain) -> None:
    judged_by = {
        "data": {"tools", "train_queries", "dev_queries", "eval_queries", "vague_queries", "dropped_gold"},
        "S1a": {"best_dev_ndcg@5", "start_dev_ndcg@5", "best_step", "pairs", "final_loss"},
        "S1b": {"texts", "first_loss", "last_loss", "best_score", "merge_error"},
        "S2.1": {"descriptions", "empty_after_clean", "repetitive_share", "most_common_share"},
        "S4s.1": {"descriptions", "distinct_share"},
        "S4p.1": {"pairs", "tie_rate", "mean_reward", "best_of_n_reward", "length_reward_correlation"},
        "S4.1": {"pairs", "first_loss", "last_loss", "merge_error", "merge_change"},
        "E.1": {"dev_ndcg@5 (description)", "dev_ndcg@5 (query)", "vague_ndcg@5 (fused)", "empty_after_clean"},
        "report": {"selected"},
    }
    for stage_id, names in judged_by.items():
        assert names <= set(chain[stage_id].metrics), stage_id


def test_long_stages_tell_how_far_they_are(chain: Chain) -> None:
    for stage_id in ("S1a", "S1b", "S2.1", "S3.1", "S4s.1", "S4.1", "E.1"):
        last, total = chain[stage_id].told.steps[-1]
        assert last == total > 0, stage_id


@pytest.mark.parametrize("stage_id", ["data", "S1a", "S1b", "S2.1", "S3.1", "S4s.1", "S4p.1", "S4.1", "E.1", "report"])
def test_a_stage_writes_the_same_bytes_another_time(chain: Chain, tmp_path: Path, stage_id: str) -> None:
    again = chain.again(stage_id, tmp_path)
    assert contents(again.path) == contents(chain.path(stage_id))
    assert untimed(again.metrics) == untimed(chain[stage_id].metrics)


class Stopped(Told):
    """Asks to stop at the first sign of work."""

    def __init__(self, checkpoints: Path) -> None:
        super().__init__()
        self.checkpoints = checkpoints

    def update(self, done: float, total: float, what: str = "") -> None:
        super().update(done, total, what)
        self.stopping = True


@pytest.mark.parametrize("stage_id", ["S1a", "S1b", "S1c", "S2.1", "S3.1", "S4s.1", "S4p.1", "S4.1", "E.1"])
def test_a_stage_that_was_stopped_goes_on_to_the_same_bytes(chain: Chain, tmp_path: Path, stage_id: str) -> None:
    changes = ("instruction.enabled=true",) if stage_id == "S1c" else ()
    through = chain.again(stage_id, tmp_path / "through", *changes) if changes else chain[stage_id]
    with pytest.raises(Interrupted):
        chain.again(stage_id, tmp_path / "stopped", *changes, told=Stopped(tmp_path / "kept"))
    told = Told()
    told.checkpoints = tmp_path / "kept"
    again = chain.again(stage_id, tmp_path / "again", *changes, told=told)
    assert list((tmp_path / "kept").glob("*/*"))
    assert contents(again.path) == contents(through.path)
    assert untimed(again.metrics) == untimed(through.metrics)


# -------------------------------------------------------------------------------------------------------- data


def test_the_dataset_is_as_small_as_was_asked_and_its_splits_are_disjoint(chain: Chain) -> None:
    dataset, findings = read_dataset(chain.path("data"))
    metrics = chain["data"].metrics
    assert not findings.counts
    assert (len(dataset.tools), len(dataset.eval), len(dataset.vague)) == (80, 8, 8)
    assert (len(dataset.train), len(dataset.dev)) == (metrics["train_queries"], metrics["dev_queries"])
    ids = [{query.id for query in split} for split in (dataset.train, dataset.dev, dataset.eval)]
    assert not ids[0] & ids[1] and not ids[0] & ids[2] and not ids[1] & ids[2]


def run_data(dataset: Dataset, folder: Path, **settings: Any) -> tuple[Dataset, dict[str, float], Told]:
    write_dataset(folder / "in", dataset, {})
    told = Told()
    metrics = data_stage.run({}, DataConfig(path=str(folder / "in"), **settings), folder / "out", told)
    return read_dataset(folder / "out")[0], metrics, told


TOOLS = tuple(Tool(id=f"t{number}", title=f"Tool {number}") for number in range(6))


def query(id_: str, split: str, tool: int = 0) -> Query:
    return Query(id=id_, text=f"request {id_}", tools=(f"t{tool}",), split=split)


def test_a_dev_split_that_is_given_is_kept(tmp_path: Path) -> None:
    train, dev = tuple(query(f"q{number}", "train") for number in range(6)), (query("d", "dev"),)
    written, metrics, _ = run_data(Dataset(name="x", tools=TOOLS, train=train, dev=dev), tmp_path)
    assert ([found.id for found in written.dev], metrics["train_queries"]) == (["d"], 6)


def test_too_few_training_queries_are_an_error_that_says_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 training queries are too few") as error:
        run_data(Dataset(name="x", tools=TOOLS, train=(query("q", "train"),)), tmp_path)
    assert "at least two queries" in error.value.remedy


def test_gold_that_falls_out_of_the_subset_is_counted(tmp_path: Path) -> None:
    train = tuple(query(f"q{number}", "train", number) for number in range(6))
    dataset = Dataset(name="x", tools=TOOLS, train=train, eval=(query("e", "eval", 0),))
    written, metrics, _ = run_data(dataset, tmp_path, tools=4)
    assert metrics["dropped_gold"] == 6 - 4
    assert len(written.train) + len(written.dev) == 4


def test_rows_that_are_dropped_are_told_one_by_kind(tmp_path: Path) -> None:
    train = tuple(query(f"q{number}", "train") for number in range(4))
    write_dataset(tmp_path / "in", Dataset(name="x", tools=TOOLS, train=train), {})
    with (tmp_path / "in" / "queries.jsonl").open("a", encoding="utf-8") as handle:
        handle.write('{"id": "none", "text": "nothing", "tools": []}\n')
    told = Told()
    config = DataConfig(path=str(tmp_path / "in"), drop_invalid=True)
    assert data_stage.run({}, config, tmp_path / "out", told)["dropped_rows"] == 1
    assert len(told.warnings) == 1 and "query without gold" in told.warnings[0]


# ------------------------------------------------------------------------------------------ S2 and S4s: generation


def test_each_described_query_has_a_text_and_none_is_described_twice(chain: Chain) -> None:
    rows = read_rows(chain.path("S2.1") / "descriptions.jsonl")
    dataset = read_dataset(chain.path("data"))[0]
    known = {found.id: found for found in [*dataset.train, *dataset.dev]}
    assert len({row["id"] for row in rows}) == len(rows) == 10 + len(dataset.dev)
    for row in rows:
        assert row["text"].strip() and (row["text"] == known[row["id"]].text or not row["fallback"])


def test_the_encoder_is_retrained_on_training_queries_and_judged_on_dev(chain: Chain) -> None:
    rows = read_rows(chain.path("S2.1") / "descriptions.jsonl")
    train = {found.id: found for found in read_dataset(chain.path("data"))[0].train}
    described = [train[row["id"]] for row in rows if row["id"] in train]
    assert chain["S3.1"].metrics["pairs"] == sum(len(found.tools) for found in described)


def test_fallbacks_are_counted(chain: Chain) -> None:
    rows = read_rows(chain.path("S2.1") / "descriptions.jsonl")
    assert sum(row["fallback"] for row in rows) == chain["S2.1"].metrics["empty_after_clean"]


def test_candidates_keep_the_prompt_and_n_texts(chain: Chain) -> None:
    rows = read_rows(chain.path("S4s.1") / "candidates.jsonl")
    assert len(rows) == 8 and {len(row["candidates"]) for row in rows} == {2}
    train = {found.id: found.text for found in read_dataset(chain.path("data"))[0].train}
    assert all(train[row["id"]] in row["prompt"] for row in rows)
    assert all(0 < candidate["tokens"] <= 8 for row in rows for candidate in row["candidates"])


def test_generation_is_the_same_in_other_batches(chain: Chain, tmp_path: Path) -> None:
    again = chain.again("S4s.1", tmp_path, "rewriter.batch_size=3")
    assert contents(again.path) == contents(chain.path("S4s.1"))


# -------------------------------------------------------------------------------------------------- S1a and S3


def test_training_moves_the_encoder_where_it_helps_on_dev(chain: Chain) -> None:
    assert chain["S1a"].metrics["best_step"] > 0, "the chain's warm-up is meant to help"
    given = weights(resolve(chain.config.encoder.model))
    stages = [given] + [weights(chain.path(stage) / "encoder") for stage in ("S1a", "S3.1")]
    helped = [chain[stage].metrics["best_step"] > 0 for stage in ("S1a", "S3.1")]
    assert [before != after for before, after in pairwise(stages)] == helped


def test_with_a_described_sample_retraining_uses_that_sample_alone(chain: Chain, tmp_path: Path) -> None:
    described = {row["id"] for row in read_rows(chain.path("S2.1") / "descriptions.jsonl")}
    golds = sum(len(found.tools) for found in read_dataset(chain.path("data"))[0].train if found.id in described)
    assert chain["S3.1"].metrics["pairs"] == golds
    assert chain.again("S3.1", tmp_path, "retrain.anchor=both").metrics["pairs"] == 2 * golds


def test_the_encoder_loads_without_us_and_embeds_alike(chain: Chain) -> None:
    from sentence_transformers import SentenceTransformer

    folder, texts = chain.path("S3.1") / "encoder", ["will it rain tomorrow", "Returns an exchange rate. " * 20]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    ours = embed(load_encoder(folder, chain.config.encoder, "cpu"), texts, 2)
    np.testing.assert_allclose(theirs, ours, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(theirs, axis=1), [1, 1], atol=1e-5)


# ---------------------------------------------------------------------------------------------- S4p: preferences


def test_a_pair_s_completions_are_candidates_of_its_query(chain: Chain) -> None:
    candidates = {row["id"]: row for row in read_rows(chain.path("S4s.1") / "candidates.jsonl")}
    pairs = read_rows(chain.path("S4p.1") / "pairs.jsonl")
    assert pairs, "the chain is meant to have pairs"
    for pair in pairs:
        row = candidates[pair["id"]]
        texts = {candidate["raw"].strip() for candidate in row["candidates"]}
        assert {pair["chosen"], pair["rejected"]} <= texts and pair["prompt"] == row["prompt"]
        assert pair["margin"] == pair["chosen_reward"] - pair["rejected_reward"] > 0


def candidates_for(chain: Chain, folder: Path, *texts: str) -> Path:
    """The chain's candidates, with these texts in their place for every query."""
    rows = read_rows(chain.path("S4s.1") / "candidates.jsonl")
    written = [{"raw": text or "```", "text": text, "tokens": 2, "finished": True} for text in texts]
    write_jsonl(folder / "candidates.jsonl", ({**row, "candidates": written} for row in rows))
    return folder


def test_an_empty_candidate_is_never_chosen_over_a_useful_one(chain: Chain, tmp_path: Path) -> None:
    first = read_rows(chain.path("S4s.1") / "candidates.jsonl")[0]["id"]
    dataset, _ = read_dataset(chain.path("data"))
    gold = next(found.tools[0] for found in dataset.train if found.id == first)
    useful = next(render(tool, 5) for tool in dataset.tools if tool.id == gold)
    for order in (("", useful), (useful, "")):
        candidates = candidates_for(chain, tmp_path / order[0][:3], *order)
        done = chain.again("S4p.1", tmp_path / "out", candidates=candidates)
        pairs = read_rows(done.path / "pairs.jsonl")
        assert pairs and {pair["chosen"] for pair in pairs} == {useful}
        rewards = [row["rewards"] for row in read_rows(done.path / "rewards.jsonl")]
        assert {pair[order.index("")] for pair in rewards} == {0.0}


def test_a_round_of_ties_passes_the_rewriter_on_unchanged_and_says_so(chain: Chain, tmp_path: Path) -> None:
    candidates = candidates_for(chain, tmp_path / "same", "Returns a forecast.", "Returns a forecast.")
    tied = chain.again("S4p.1", tmp_path / "pairs", candidates=candidates)
    assert (tied.metrics["pairs"], tied.metrics["tie_rate"]) == (0, 1.0)
    assert "all candidates tie" in tied.told.warnings[0]
    passed_on = chain.again("S4.1", tmp_path / "dpo", pairs=tied.path)
    assert passed_on.metrics == {"unchanged": 1}
    assert "every candidate tied" in passed_on.told.warnings[0]
    assert contents(passed_on.path / "rewriter") == contents(chain.path("S1b") / "rewriter")


# ------------------------------------------------------------------------------------------- S1b, S1c and S4


def test_alignment_moves_the_rewriter(chain: Chain) -> None:
    assert weights(chain.path("S4.1") / "rewriter") != weights(chain.path("S1b") / "rewriter")
    assert "unchanged" not in chain["S4.1"].metrics


def test_the_rewriter_loads_without_us_and_writes_alike(chain: Chain) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = chain.path("S4.1") / "rewriter"
    prompt = read_rows(chain.path("S4s.1") / "candidates.jsonl")[0]["prompt"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    read = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        assert torch.isfinite(model(**read).logits).all()
        written = model.generate(**read, do_sample=False, max_new_tokens=8, temperature=None, top_p=None, top_k=None)
    theirs = tokenizer.decode(written[0, read["input_ids"].shape[1] :], skip_special_tokens=True)
    with open_generator(folder, chain.config.rewriter) as generator:
        requests = [Request(id="q", prompt=prompt, seed=0)]
        (completion,) = generator.generate(requests, chain.config.describe, Silent())
    assert completion.texts == (theirs,)


def test_without_fine_tuning_the_first_rewriter_is_the_given_one(chain: Chain, tmp_path: Path) -> None:
    done = chain.again("S1b", tmp_path, "sft.enabled=false")
    assert done.metrics == {"unchanged": 1} and "sft.enabled is false" in done.told.warnings[0]
    assert weights(done.path / "rewriter") == weights(resolve(chain.config.rewriter.model))
    assert load_tokenizer(done.path / "rewriter").chat_template


@pytest.mark.parametrize("targets", ["gold", "best_of_n"])
def test_instruction_tuning_learns_from_its_targets(chain: Chain, tmp_path: Path, targets: str) -> None:
    done = chain.again("S1c", tmp_path, "instruction.enabled=true", f"instruction.targets={targets}")
    rows = read_rows(done.path / "targets.jsonl")
    assert 0 < len(rows) == done.metrics["rows"] <= 6
    assert all(row["prompt"].strip() and row["completion"].strip() for row in rows)
    assert weights(done.path / "rewriter") != weights(chain.path("S1b") / "rewriter")


def test_gold_targets_are_catalogue_lines_and_leave_out_what_the_prompt_shows(chain: Chain, tmp_path: Path) -> None:
    changes = ("instruction.enabled=true", "instruction.targets=gold", "instruction.queries=null")
    done = chain.again("S1c", tmp_path, *changes)
    dataset, _ = read_dataset(chain.path("data"))
    shown = 1  # tiny's rewriter.few_shot
    assert len(read_rows(done.path / "targets.jsonl")) == len(dataset.train) - shown


# -------------------------------------------------------------------------------------------- E: evaluation


def labels(done: Done) -> set[tuple[str, str]]:
    return {(row.split, row.scope) for row in read_metrics(done.path)}


def test_a_sample_is_scored_in_every_round_and_everything_in_the_last(chain: Chain) -> None:
    sampled = {("standard", SAMPLE), ("vague", SAMPLE), ("dev", SAMPLE)}
    everything = {("standard", EVERY_QUERY), ("vague", EVERY_QUERY)}
    assert labels(chain["E.0"]) == sampled
    assert labels(chain["E.1"]) == labels(chain["E.untrained"]) == sampled | everything
    sizes = {(row.split, row.scope): row.n for row in read_metrics(chain.path("E.1")) if row.tier == ALL}
    dev = int(chain["data"].metrics["dev_queries"])
    assert sizes == {
        ("standard", SAMPLE): 3,
        ("vague", SAMPLE): 4,
        ("dev", SAMPLE): dev,
        ("standard", EVERY_QUERY): 8,
        ("vague", EVERY_QUERY): 8,
    }


def test_all_rounds_score_the_same_sample(chain: Chain) -> None:
    """The untrained encoder scores all; its rows of the sample are means over the very queries that E.0 has."""
    in_round = read_per_query(chain.path("E.0") / QUERIES).select(split="standard", search="query")
    of_untrained = read_per_query(chain.path("E.untrained") / QUERIES).select(split="standard")
    shared = of_untrained.take(np.flatnonzero(np.isin(of_untrained.id, in_round.id)))
    assert list(shared.id) == list(of_untrained.select(in_sample=True).id)
    scores = shared.values["ndcg@5"]
    assert len(scores) == 3
    (of_sample,) = [
        row.value
        for row in read_metrics(chain.path("E.untrained"))
        if (row.split, row.scope, row.tier, row.metric, row.k) == ("standard", SAMPLE, ALL, "ndcg", 5)
    ]
    assert of_sample == pytest.approx(sum(scores) / 3)


def test_every_search_mode_is_scored_and_the_untrained_encoder_on_queries_alone(chain: Chain) -> None:
    modes = {stage: {row.search for row in read_metrics(chain.path(stage))} for stage in ("E.0", "E.untrained")}
    assert modes == {"E.0": {"description", "query", "concatenated", "fused"}, "E.untrained": {"query"}}


def test_each_query_keeps_its_ranking_and_scores(chain: Chain) -> None:
    found = read_per_query(chain.path("E.1") / QUERIES)
    assert set(found.ranked.lengths) == {min(50, chain["data"].metrics["tools"])}
    for row in range(len(found)):
        scores = found.scores[found.ranked.offsets[row] : found.ranked.offsets[row + 1]]
        assert (np.diff(scores) <= 0).all()
        assert found.values["hit@1"][row] == float(found.ranked[row][0] in found.gold[row])


def test_an_evaluation_counts_what_it_scored_and_what_it_left_out(chain: Chain) -> None:
    dev = chain["data"].metrics["dev_queries"]
    counts = {name: value for name, value in chain["E.0"].metrics.items() if "_scored" in name or "_skipped" in name}
    assert counts == {
        "standard_scored": 3,
        "standard_skipped: not sampled": 8 - 3,
        "vague_scored": 4,
        "vague_skipped: not sampled": 8 - 4,
        "dev_scored": dev,
    }
    assert not [name for name in chain["E.1"].metrics if "_skipped" in name]


def test_without_paraphrases_there_is_no_vague_split(chain: Chain, tmp_path: Path) -> None:
    shutil.copytree(chain.path("data"), tmp_path / "data")
    (tmp_path / "data" / "vague.jsonl").unlink()
    for stage in ("E.1", "E.untrained"):
        done = chain.again(stage, tmp_path / stage, data=tmp_path / "data")
        assert {row.split for row in read_metrics(done.path)} == {"standard", "dev"}
        assert not any(name.startswith("vague") for name in done.metrics)


def test_the_headline_is_the_mean_over_tiers_on_the_sample(chain: Chain) -> None:
    (value,) = [
        row.value
        for row in read_metrics(chain.path("E.1"))
        if (row.split, row.scope, row.tier, row.metric, row.k, row.search)
        == ("dev", SAMPLE, MEAN_OVER_TIERS, "ndcg", 5, "fused")
    ]
    assert chain["E.1"].metrics["dev_ndcg@5 (fused)"] == value


EVALUATED = tuple(replace(query(f"e{number}", "eval"), tier=f"G{number % 2}") for number in range(12))
SPLIT = Dataset(name="x", tools=TOOLS, dev=(query("d", "dev"),), eval=EVALUATED, vague=EVALUATED[::-1])


def samples(dataset: Dataset, standard: int | None, vague: int | None) -> dict[str, frozenset[str]]:
    evaluation = EvaluationConfig(standard_sample=standard, vague_sample=vague)
    return {split.name: split.sample for split in splits_to_score(dataset, evaluation, False, 42)}


def test_the_paraphrases_of_the_standard_sample_come_first_whatever_their_order_and_number() -> None:
    found = samples(SPLIT, 4, 4)
    assert found["vague"] == found["standard"] and len(found["vague"]) == 4
    more, fewer = samples(SPLIT, 4, 7), samples(SPLIT, 4, 2)
    assert more["standard"] < more["vague"] and len(more["vague"]) == 7
    assert fewer["vague"] < fewer["standard"] and len(fewer["vague"]) == 2
    part = replace(SPLIT, vague=EVALUATED[3:9])
    assert samples(part, 4, 4)["vague"] >= samples(part, 4, 4)["standard"] & {found.id for found in part.vague}
    assert len(samples(SPLIT, 4, None)["vague"]) == 12


def test_what_is_scored_keeps_the_dataset_s_order() -> None:
    evaluation = EvaluationConfig(standard_sample=5, vague_sample=7)
    for split in splits_to_score(SPLIT, evaluation, False, 42):
        whole = {"standard": SPLIT.eval, "vague": SPLIT.vague, "dev": SPLIT.dev}[split.name]
        assert list(split.queries) == [found for found in whole if found.id in split.sample]


# --------------------------------------------------------------------------------------- report and search


def test_the_report_holds_every_evaluation_and_the_selected_round(chain: Chain) -> None:
    report = json.loads((chain.path("report") / "report.json").read_text("utf-8"))
    stages = {row["stage"].partition(":")[0] for row in report["rows"]}
    assert stages == {"E.untrained", "E.0", "E.1"}
    dev = {stage: chain[stage].metrics["dev_ndcg@5 (description)"] for stage in ("E.0", "E.1")}
    assert report["selected"] == max(dev, key=lambda stage: (dev[stage], stage == "E.0"))
    assert chain["report"].metrics == {"selected": report["selected"]}
    markdown = (chain.path("report") / "report.md").read_text("utf-8")
    assert "| E.untrained | query |" in markdown and "All evaluation queries" in markdown


def searched(chain: Chain, text: str, k: int, **search: Any) -> Answer:
    """What E.1 of the chain answers."""
    inputs = {name: chain.path(source) for name, source in chain["E.1"].spec.inputs.items()}
    config = replace(chain.config, search=replace(chain.config.search, **search))
    with LiveRetriever.open(trained(inputs, chain.path("E.1"), config)) as retriever:
        return retriever.search([text], k)[0]


@pytest.mark.parametrize("mode", ["description", "query", "fused"])
def test_a_search_describes_the_request_and_ranks_tools(chain: Chain, mode: str) -> None:
    answer = searched(chain, "will I get wet on my way home", 5, mode=mode)
    assert len(answer.tools) == 5 and set(answer.timings) == {"rewrite", "retrieve"}
    scores = [score for _, score in answer.tools]
    assert scores == sorted(scores, reverse=True)
    assert answer.rewritten == bool(answer.description) == (answer.reason is None)
    if mode == "query":
        assert (answer.description, answer.reason) == ("", "search.mode is query")


def test_a_search_gives_at_most_the_catalogue(chain: Chain) -> None:
    answer = searched(chain, "anything", 1000, mode="query")
    assert len({tool.id for tool, _ in answer.tools}) == len(answer.tools) == chain["data"].metrics["tools"]


def test_a_search_finds_what_the_evaluation_found(chain: Chain) -> None:
    asked = next(found for found in read_dataset(chain.path("data"))[0].eval)
    answer = searched(chain, asked.text, 10)
    found = read_per_query(chain.path("E.1") / QUERIES).select(split="standard", search="description")
    ranked = found.ranked[list(found.id).index(asked.id)]
    assert [tool.id for tool, _ in answer.tools] == ranked[:10]
