"""Ablations: their files, what each departs in, and how much each shares with the main run."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cohyde.config import Config, load_config, preset_chain, preset_names
from cohyde.dag.fingerprint import fingerprints
from cohyde.dag.plan import make_plan
from cohyde.data.dataset import read_dataset
from cohyde.errors import UserError
from cohyde.models.reference import resolve
from cohyde.resources import sample_folder
from cohyde.rewriter.examples import few_shot_examples
from cohyde.rewriter.prompts import build_messages, encode_prompt, load_prompt, render_chat
from stages import ablations as module
from stages.ablations import ablations, load_ablation, measured_by
from stages.pipeline import Surroundings
from stages.pipelines import PIPELINES, specs_of
from stages.search import searchable

KEYS = [one.key for one in ablations()]
FOUND = Surroundings()


def under(key: str, preset: str = "tiny", *overrides: str) -> Config:
    return load_config(preset, [*overrides, *load_ablation(key).overrides(preset_chain(preset))])


def fingerprints_of(config: Config) -> dict[str, str]:
    return fingerprints(specs_of(config, FOUND))


def own_stages(key: str, *overrides: str) -> set[str]:
    """What of an ablation's row the main run has not got."""
    config = under(key, "tiny", *overrides)
    main = set(fingerprints_of(load_config("tiny", overrides)).values())
    plan = make_plan(specs_of(config, FOUND))
    needed = plan.until(measured_by(config, [node.id for node in plan.nodes.values()]))
    return {node.id for node in needed.nodes.values() if node.fingerprint not in main}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("preset", preset_names())
def test_every_ablation_fits_every_preset(key: str, preset: str) -> None:
    config = under(key, preset)
    assert config.pipeline in PIPELINES
    assert config != load_config(preset) or key in ("search-concatenated", "search-description", "description-anchors")


def test_titles_tell_ablations_apart_and_fit_a_table() -> None:
    found = ablations()
    assert len({one.title for one in found}) == len(found) and all(len(one.title) <= 30 for one in found)
    assert all(len(one.about) <= 90 for one in found)
    assert all(len(title) <= 30 for one in found for title in one.titles.values())


@pytest.mark.parametrize("key", [key for key in KEYS if key.startswith("sft-")])
@pytest.mark.parametrize("preset", preset_names())
def test_a_title_that_tells_steps_tells_those_that_are_taken(key: str, preset: str) -> None:
    chain, steps = preset_chain(preset), under(key, preset).instruction.steps
    assert load_ablation(key).title_under(chain) == f"With S1c, {steps:,} step{'s' if steps > 1 else ''}"


def test_the_demo_s_prompts_leave_room_for_a_description_in_training() -> None:
    config, (dataset, _) = under("sft-100", "demo"), read_dataset(sample_folder())
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(config.rewriter.model))
    except UserError as error:
        pytest.skip(error.message)
    prompt, examples = load_prompt(config.rewriter.prompt), few_shot_examples(dataset, config.rewriter.few_shot, 0)
    longest = max(
        len(encode_prompt(tokenizer, render_chat(tokenizer, build_messages(prompt, {"query": query.text}, examples))))
        for query in dataset.train
    )
    assert longest + config.candidates.max_new_tokens <= config.instruction.max_length


def test_other_pairs_of_models_add_what_scores_them_and_nothing_else() -> None:
    assert own_stages("untrained-encoder") == {"A.untrained-encoder"}
    assert own_stages("untrained-rewriter") == {"B.rewriter", "B.hyde.texts", "A.untrained-rewriter"}


def test_an_untrained_rewriter_writes_once_for_baselines_and_ablations() -> None:
    baselines = fingerprints_of(load_config("tiny", ["pipeline=baselines"]))
    ablation = fingerprints_of(under("untrained-rewriter"))
    assert {"B.rewriter", "B.hyde.texts"} <= set(baselines) & set(ablation)
    assert all(baselines[stage] == ablation[stage] for stage in ("B.rewriter", "B.hyde.texts", "E.3", "S3.3"))


def test_fewer_rounds_are_those_of_the_main_run() -> None:
    assert own_stages("rounds-1") == own_stages("rounds-2") == set()
    assert own_stages("rounds-4") == {"S2.4", "S3.4", "S4s.4", "S4p.4", "S4.4", "E.4"}


def test_a_change_of_what_the_encoder_is_trained_on_shares_all_before_it() -> None:
    first = {"S3.1", "S4p.1", "S4.1"}
    later = {f"{stage}.{number}" for stage in ("S2", "S3", "S4s", "S4p", "S4") for number in (2, 3)}
    for key in ("one-rendering", "mixed-anchors"):
        assert own_stages(key) == first | later | {"E.3"}


def test_a_rewriter_that_restates_is_told_names_wherever_it_writes() -> None:
    specs = {spec.id: spec for spec in specs_of(under("query-rewrite", "tiny", "rounds=2"), FOUND)}
    told = {stage for stage, spec in specs.items() if "tools" in spec.inputs}
    assert told == {"E.0", "S2.1", "S4s.1", "E.1", "S2.2", "S4s.2", "E.2"}
    assert all(list(specs[stage].prompts) == ["rewrite"] and specs[stage].inputs["tools"] == "tools" for stage in told)
    assert {"S1a", "S1b", "data", "E.untrained"}.isdisjoint(own_stages("query-rewrite"))
    assert "tools" in own_stages("query-rewrite")


def test_a_rewriter_that_is_told_names_is_not_searched_with_as_if_it_were_not() -> None:
    plan = make_plan(specs_of(under("query-rewrite"), FOUND))
    with pytest.raises(UserError, match=r"E\.1: its rewriter is told more than the request \(tools\)"):
        searchable(plan, "E.1")


def test_what_is_searched_with_costs_nothing() -> None:
    assert own_stages("search-concatenated") == set()
    assert under("search-concatenated").search.mode == "concatenated"


def test_figures_of_a_preset_come_before_those_of_what_it_extends() -> None:
    plain, small = load_ablation("sft-1000").overrides(["other"]), load_ablation("sft-1000").overrides(["demo"])
    assert "instruction.steps=1000" in plain and "instruction.steps=1000" not in small
    steps = [
        under(f"sft-{size}", preset).instruction.steps for preset in ("demo", "tiny") for size in (100, 1000, 5000)
    ]
    assert steps == sorted(steps[:3]) + sorted(steps[3:]) and len(set(steps[:3])) == len(set(steps[3:])) == 3
    chain = preset_chain("toolbench-mini")
    assert chain == ["demo", "toolbench-mini"]
    assert under("sft-1000", "toolbench-mini").instruction.steps == under("sft-1000", "demo").instruction.steps


def test_an_unknown_ablation_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError, match="no ablation is called 'no-warmup'") as told:
        load_ablation("no-warmup")
    assert "no-warm-up" in (told.value.remedy or "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title: [", "not YAML"),
        ("title: X\nabout: y", "has title, about and settings"),
        ("- 1", "has title"),
        ("title: X\nabout: y\nsettings: {}\nsetting: {}", "nothing else"),
    ],
)
def test_a_file_that_is_no_ablation_is_named(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ablations"
    folder.mkdir()
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(module, "resource_folder", lambda name: tmp_path)
    with pytest.raises(UserError, match=says) as told:
        load_ablation("mine")
    assert "mine.yaml" in told.value.message


def test_an_unknown_pipeline_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError, match="pipeline is 'baseline'") as told:
        specs_of(load_config("tiny", ["pipeline=baseline"]))
    assert "baselines" in (told.value.remedy or "")
