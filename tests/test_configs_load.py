"""Every preset loads, holds only departures from the defaults, and names strategies and prompts that exist."""

import pytest
import yaml

from cohyde.config import Config, load_config, plain, preset_names
from cohyde.resources import resource_folder

PRESETS = preset_names()


def leaves(value, prefix=""):
    """The settings of a nested mapping, by dotted key."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def own_settings(name):
    data = yaml.safe_load((resource_folder("configs") / f"{name}.yaml").read_text(encoding="utf-8")) or {}
    base = data.pop("extends", None)
    below = load_config(base) if base else Config()
    return dict(leaves(plain(load_config(name)))), dict(leaves(plain(below))), [key for key, _ in leaves(data)]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads(name):
    assert isinstance(load_config(name), Config)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_takes_overrides(name):
    config = load_config(name, ["rounds=1", "seeds.loop=7", "encoder.train.lr=1e-5"])
    assert (config.rounds, config.seeds.loop, config.encoder.train.lr) == (1, 7, 1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_for_on_its_first_line(name):
    first = (resource_folder("configs") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ") and len(first) > 20


@pytest.mark.parametrize("name", PRESETS)
def test_the_strategies_of_a_preset_exist(name):
    from stages.pipeline import Surroundings, check_strategies

    check_strategies(load_config(name), Surroundings())


@pytest.mark.parametrize("name", PRESETS)
def test_the_prompt_of_a_preset_exists(name):
    from cohyde.rewriter.prompts import load_prompt

    assert load_prompt(load_config(name).rewriter.prompt).user


@pytest.mark.parametrize("name", PRESETS)
def test_training_lengths_of_a_preset_leave_room_for_what_was_generated(name):
    config = load_config(name)
    assert config.dpo.max_length > config.candidates.max_new_tokens
    assert config.instruction.max_length > config.candidates.max_new_tokens


@pytest.mark.parametrize("name", PRESETS)
def test_effective_batches_of_a_preset_are_whole_micro_batches(name):
    config = load_config(name)
    for part in (config.sft, config.instruction, config.dpo):
        assert part.batch_size % part.micro_batch_size == 0


def test_the_presets_of_the_method_are_there():
    assert {"tiny", "demo", "toolbench-mini", "toollens-cpu", "toolbench-h200"} <= set(PRESETS)


def test_the_paper_is_the_default():
    """Every figure of the method is a default, so that the paper's preset only says where and on what."""
    config = load_config("toolbench-h200")
    assert (config.encoder.train.lr, config.encoder.train.batch_size, config.encoder.train.temperature) == (
        2e-5,
        256,
        0.05,
    )
    assert (config.encoder.train.weight_decay, config.encoder.train.epochs, config.encoder.max_length) == (1e-2, 5, 256)
    assert (config.sft.lora.rank, config.sft.lora.alpha, config.sft.lora.dropout) == (16, 32, 0.05)
    assert (config.sft.batch_size, config.sft.epochs, config.sft.max_length) == (64, 8, 1024)
    assert (config.candidates.n, config.candidates.temperature, config.candidates.top_p) == (4, 0.7, 0.95)
    assert (config.candidates.top_k, config.candidates.max_new_tokens, config.describe.max_new_tokens) == (50, 300, 150)
    assert (config.dpo.lora.rank, config.dpo.lora.alpha, config.dpo.beta, config.dpo.max_steps) == (64, 128, 0.1, 4371)
    assert (config.search.depth, config.data.tools, config.data.dev_fraction) == (50, 10_000, 0.1)
    assert not config.instruction.enabled


def test_an_llm_as_the_encoder_has_the_figures_of_toolrank_emb():
    encoder = load_config("qwen3-embedding-lora").encoder
    train = encoder.train
    assert (train.lora.enabled, train.lora.rank, train.lora.alpha, train.lora.dropout) == (True, 16, 32, 0.05)
    assert (train.temperature, train.lr, train.warmup_steps, train.epochs) == (0.05, 1e-4, 50, 1)
    assert (train.batch_size, train.mini_batch_size) == (2 * 16, 16)
    assert (encoder.max_length, encoder.tool_max_length, encoder.pooling) == (256, 768, "last_token")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_repeats_no_setting_of_what_it_extends(name):
    settings, below, named = own_settings(name)
    said_for_clarity = {"encoder.model", "rewriter.model"}
    repeated = [key for key in named if key not in said_for_clarity and settings[key] == below[key]]
    assert not repeated
