"""Configuration: what is wrong is named by key, file and nearest valid key; what is right arrives typed."""

import dataclasses
import json
from dataclasses import dataclass

import pytest

from cohyde.config import (
    Config,
    EncoderConfig,
    SamplingConfig,
    build,
    identity_of,
    load_config,
    plain,
    section,
    setting,
)
from cohyde.errors import UserError

FORMS = "encoder.training_forms has to be a list of one or more: a whole number"


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and return its path as text."""

    def writer(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return writer


def error_of(source, overrides=()):
    with pytest.raises(UserError) as error:
        load_config(source, overrides)
    return str(error.value)


# ------------------------------------------------------------------------------------------------- unknown keys


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("round: 2", "round", "rounds"),
        ("encoder: {pool: cls}", "encoder.pool", "encoder.pooling"),
        ("encoder: {train: {lrr: 0.1}}", "encoder.train.lrr", "encoder.train.lr"),
        ("dpo: {lora: {ranc: 4}}", "dpo.lora.ranc", "dpo.lora.rank"),
        ("resources: {encoder: {cpu: 1}}", "resources.encoder.cpu", "resources.encoder.cpus"),
    ],
)
def test_an_unknown_key_at_any_level_is_named_with_its_file_and_the_nearest_key(write, text, key, nearest):
    path = write(text)
    message = error_of(path)
    assert f"{path}: unknown key {key}; did you mean {nearest}?" in message
    assert "keys here are: " in message


def test_an_unknown_key_on_the_command_line_is_named_so(write):
    assert "command line: unknown key encoder.trian; did you mean encoder.train?" in error_of(
        write(""), ["encoder.trian.lr=1"]
    )


def test_a_key_that_resembles_none_gets_the_list_alone(write):
    message = error_of(write("zzz: 1"))
    assert "did you mean" not in message and "rounds" in message


def test_a_key_that_is_no_text_is_unknown(write):
    assert "unknown key 1" in error_of(write("1: 2"))


# ------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("number", ["1e-5", "1.0e-5", "0.00001", "1E-5"])
def test_exponents_are_numbers_in_a_file_and_on_the_command_line(write, number):
    in_file = load_config(write(f"encoder: {{train: {{lr: {number}}}}}"))
    on_line = load_config(write(""), [f"encoder.train.lr={number}"])
    assert in_file.encoder.train.lr == on_line.encoder.train.lr == 1e-5
    assert in_file == on_line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=three", "rounds has to be a whole number, got 'three' (str)"),
        ("rounds=3.0", "rounds has to be a whole number, got 3.0 (float)"),
        ("rounds=true", "rounds has to be a whole number, got True (bool)"),
        ("rounds=", "rounds has to be a whole number, got None (NoneType)"),
        ("encoder.train.lr=true", "encoder.train.lr has to be a number, got True (bool)"),
        ('encoder.train.lr="1e-5"', "encoder.train.lr has to be a number, got '1e-5' (str)"),
        ("data.drop_invalid=1", "data.drop_invalid has to be true or false, got 1 (int)"),
        ("data.path=2024", "data.path has to be a text, got 2024 (int)"),
        ("data.tools=some", "data.tools has to be a whole number or null, got 'some' (str)"),
        ("encoder.pooling=max", "encoder.pooling has to be one of auto, cls, mean, last_token, got 'max' (str)"),
        (
            "encoder.training_forms=5",
            "encoder.training_forms has to be a list of one or more: a whole number, got 5 (int)",
        ),
        (
            "encoder.training_forms=[]",
            "encoder.training_forms has to be a list of one or more: a whole number, got [] (list)",
        ),
        (
            "encoder.training_forms=[1,x]",
            "encoder.training_forms has to be a list of one or more: a whole number, got [1, 'x'] (list)",
        ),
        ("encoder=5", "encoder has to be a section with keys, got 5"),
        ("encoder.train=null", "encoder.train has to be a section with keys, got None"),
        ("rounds.more=1", "rounds has to be a whole number, got {'more': 1} (dict)"),
    ],
)
def test_a_wrong_type_is_named_by_key_value_and_what_it_has_to_be(write, override, message):
    assert f"command line: {message}" in error_of(write(""), [override])


def test_a_whole_number_is_a_number(write):
    lr = load_config(write(""), ["dpo.beta=1"]).dpo.beta
    assert (lr, type(lr)) == (1.0, float)


def test_null_is_taken_where_a_setting_is_optional(write):
    base = write("data: {tools: 10}", "base.yaml")
    assert load_config(base).data.tools == 10
    assert load_config(base, ["data.tools=null"]).data.tools is None


def test_lists_become_tuples(write):
    assert load_config(write("sft: {forms: [5, 4]}")).sft.forms == (5, 4)


# ------------------------------------------------------------------------------------------------------ ranges


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=-1", "rounds has to be at least 0, got -1"),
        ("rounds=1001", "rounds has to be at most 1000, got 1001"),
        ("data.dev_fraction=1", "data.dev_fraction has to be less than 1, got 1"),
        ("data.dev_fraction=0", "data.dev_fraction has to be greater than 0, got 0"),
        ("data.tools=0", "data.tools has to be at least 1, got 0"),
        ("encoder.index_form=6", "encoder.index_form has to be at most 5, got 6"),
        ("encoder.training_forms=[1,6]", "encoder.training_forms has to be at most 5, got 6"),
        ("sft.forms=[0]", "sft.forms has to be at least 1, got 0"),
        ("encoder.train.lr=.nan", "encoder.train.lr has to be a finite number, got nan"),
        ("encoder.train.lr=1e400", "encoder.train.lr has to be a finite number, got inf"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_bound(write, override, message):
    assert f"command line: {message}" in error_of(write(""), [override])


def test_several_greedy_completions_are_refused_and_the_section_is_named(write):
    message = error_of(write(""), ["candidates.temperature=0"])
    assert "command line: candidates: n=4 with temperature 0 gives 4 equal completions" in message
    assert "set temperature above 0" in message


def test_one_greedy_completion_is_fine(write):
    assert load_config(write(""), ["candidates.temperature=0", "candidates.n=1"]).candidates.n == 1


# ------------------------------------------------------------------------------------------------------ layers


def test_the_command_line_wins_over_the_file_and_the_last_override_over_the_first(write):
    path = write("rounds: 1\nseeds: {loop: 7}")
    config = load_config(path, ["rounds=2", "rounds=5"])
    assert (config.rounds, config.seeds.loop, config.seeds.warmup) == (5, 7, 42)


def test_a_section_keeps_its_own_defaults_where_a_file_gives_only_some_keys(write):
    config = load_config(write("candidates: {n: 8}\ndpo: {lora: {dropout: 0.0}}"))
    assert (config.candidates.n, config.candidates.temperature, config.candidates.top_k) == (8, 0.7, 50)
    assert (config.dpo.lora.rank, config.dpo.lora.alpha, config.dpo.lora.dropout) == (64, 128, 0.0)


def test_extends_reads_a_chain_of_files_and_the_nearest_wins(write):
    write("rounds: 1\nseeds: {loop: 1, warmup: 1}", "far.yaml")
    write("extends: far.yaml\nseeds: {loop: 2}", "middle.yaml")
    config = load_config(write("extends: middle.yaml\nencoder: {train: {epochs: 9}}"))
    assert (config.rounds, config.seeds.warmup, config.seeds.loop, config.encoder.train.epochs) == (1, 1, 2, 9)


def test_an_error_names_the_file_of_the_chain_that_holds_it(write):
    far = write("rouns: 1", "far.yaml")
    assert f"{far}: unknown key rouns" in error_of(write("extends: far.yaml"))


def test_extends_that_goes_round_in_a_circle_is_refused(write):
    write("extends: mine.yaml", "other.yaml")
    assert "'extends' goes round in a circle" in error_of(write("extends: other.yaml"))
    assert "'extends' goes round in a circle" in error_of(write("extends: self.yaml", "self.yaml"))


def test_extends_has_to_name_something_that_exists(write):
    assert "no such configuration file" in error_of(write("extends: nowhere.yaml"))
    assert "no preset is called 'nowhere'" in error_of(write("extends: nowhere"))
    assert "'extends' has to name one preset or file, got ['a']" in error_of(write("extends: [a]"))


def test_an_empty_file_gives_the_defaults(write):
    assert load_config(write("")) == Config()
    assert load_config(write("# nothing but a remark\n")) == Config()


# ------------------------------------------------------------------------------------------------- what is read


def test_interpolation_is_resolved_within_a_file(write):
    config = load_config(write("seeds: {warmup: 7, loop: '${seeds.warmup}'}"))
    assert config.seeds.loop == 7


def test_interpolation_of_a_missing_key_is_named(write):
    path = write("seeds: {loop: '${seeds.other}'}")
    message = error_of(path)
    assert path in message and "seeds.other" in message


def test_a_value_that_is_still_missing_is_named(write):
    path = write("seeds:\n  loop: ???")
    message = error_of(path)
    assert path in message and "Missing mandatory value" in message and "loop" in message
    assert "Missing mandatory value" in error_of(write("", "empty.yaml"), ["seeds.loop=???"])


@pytest.mark.parametrize("text", ["rounds: [1", "a: b: c", "rounds: 1\nrounds: 2", "\tx: 1"])
def test_what_is_no_yaml_is_named_by_its_file(write, text):
    path = write(text)
    assert f"{path}: not YAML" in error_of(path)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"rounds: \xff\xfe")
    assert f"{path}: not YAML" in error_of(str(path))


@pytest.mark.parametrize("text", ["- 1\n- 2", "[1, 2]"])
def test_a_list_is_no_configuration(write, text):
    assert "expected keys and values, got list" in error_of(write(text))


@pytest.mark.parametrize("override", ["rounds", "=3", "", " =3"])
def test_an_override_needs_key_and_value(write, override):
    assert f"{override!r} is not an override" in error_of(write(""), [override])


def test_an_override_that_is_no_yaml_is_named(write):
    assert "'rounds=[1'" in error_of(write(""), ["rounds=[1"])


def test_a_missing_file_and_an_unknown_preset_name_what_there_is():
    assert "nowhere.yaml: no such configuration file" in error_of("nowhere.yaml")
    message = error_of("dmeo")
    assert "no preset is called 'dmeo'; did you mean demo?" in message
    assert "presets are: " in message


# ---------------------------------------------------------------------------------------------------- identity


def test_identity_leaves_out_what_cannot_change_a_result():
    identity = identity_of(Config())
    assert not {"rounds", "resources", "runner"} & set(identity)
    assert "path" not in identity["data"]
    assert not {"model", "embed_batch_size"} & set(identity["encoder"])
    assert not {"model", "prompt", "batch_size"} & set(identity["rewriter"])
    assert identity["encoder"]["train"]["lr"] == 2e-5


def test_identity_follows_every_setting_that_can_change_a_result():
    before = identity_of(EncoderConfig())
    assert identity_of(EncoderConfig(embed_batch_size=1, model="other")) == before
    assert identity_of(EncoderConfig(max_length=64)) != before
    assert identity_of(EncoderConfig(training_forms=(5,))) != before


def test_identity_is_json_and_the_same_however_it_was_written(write):
    whole = load_config(write("dpo: {beta: 1}"))
    dotted = load_config(write("", "empty.yaml"), ["dpo.beta=1.0"])
    assert json.dumps(identity_of(whole)) == json.dumps(identity_of(dotted))


def test_a_setting_added_later_does_not_change_identity_until_it_is_used():
    @dataclass(frozen=True, kw_only=True)
    class Grown:
        old: int = setting(1)
        new: int = setting(0, identity="unless_default")

    assert identity_of(Grown()) == {"old": 1}
    assert identity_of(Grown(new=2)) == {"old": 1, "new": 2}


def test_a_section_outside_identity_is_left_out_whole():
    @dataclass(frozen=True, kw_only=True)
    class Outer:
        inner: SamplingConfig = section(SamplingConfig, identity=False)
        kept: int = setting(1)

    assert identity_of(Outer()) == {"kept": 1}


@pytest.mark.parametrize("value", [object(), len, float("nan"), {1, 2}])
def test_a_value_without_a_stable_form_is_refused(value):
    with pytest.raises(TypeError, match="no stable JSON form"):
        plain({"key": [value]})


def test_plain_turns_dataclasses_and_tuples_into_json_data():
    assert plain({"a": SamplingConfig(), "b": (1, None)})["b"] == [1, None]
    assert plain(SamplingConfig())["max_new_tokens"] == 150


# ------------------------------------------------------------------------------------------------- the schema


def sections(kind, prefix=""):
    for item in dataclasses.fields(kind):
        current = getattr(kind(), item.name)
        if dataclasses.is_dataclass(current):
            yield from sections(type(current), f"{prefix}{item.name}.")
        else:
            yield kind, item, f"{prefix}{item.name}"


def test_defaults_pass_their_own_checks():
    for kind, item, key in sections(Config):
        value = plain(getattr(kind(), item.name))
        assert build(kind, [("defaults", {item.name: value})]) == kind(), key


def test_a_whole_configuration_survives_its_plain_form():
    config = load_config("demo", ["seeds.loop=3", "data.tools=100"])
    assert build(Config, [("run.yaml", plain(config))]) == config


def test_a_mutable_default_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="immutable"):
        setting([1])
