"""From seeds and settings to runs: what is a value, what a run is called, what is refused."""

import pytest

from cohyde.config import load_configs
from cohyde.dag.runs import check_name
from cohyde.errors import UserError
from cohyde.grid import grid, parse_seeds, split_values


def names(*overrides: str, seeds: tuple[int, ...] = (0,), name: str = "x") -> list[str]:
    return [point.name for point in grid(name, seeds, overrides)]


def test_a_sweep_over_seeds_has_a_run_for_each() -> None:
    points = grid("tiny", [0, 123, 7], ["dpo.beta=0.2"])
    assert [point.name for point in points] == ["tiny-s0", "tiny-s123", "tiny-s7"]
    assert points[1].overrides == ("dpo.beta=0.2", "seeds.loop=123")
    assert points[1].settings == {}


def test_every_combination_is_a_run_and_the_seed_varies_fastest() -> None:
    points = grid("x", [0, 1], ["encoder.train.lr=1e-5,2e-5", "rounds=2", "dpo.beta=0.1, 0.2"])
    assert [point.name for point in points] == [
        "x-lr1e-05-beta0.1-s0", "x-lr1e-05-beta0.1-s1", "x-lr1e-05-beta0.2-s0", "x-lr1e-05-beta0.2-s1",
        "x-lr2e-05-beta0.1-s0", "x-lr2e-05-beta0.1-s1", "x-lr2e-05-beta0.2-s0", "x-lr2e-05-beta0.2-s1",
    ]  # fmt: skip
    assert points[2].settings == {"encoder.train.lr": "1e-5", "dpo.beta": "0.2"}
    assert points[2].overrides == ("rounds=2", "encoder.train.lr=1e-5", "dpo.beta=0.2", "seeds.loop=0")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-5,2e-5", ["1e-5", "2e-5"]),
        ("1e-5", ["1e-5"]),
        ("[1,2]", ["[1,2]"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{a: 1, b: 2},{a: 3}", ["{a: 1, b: 2}", "{a: 3}"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("it's,ours", ["it's", "ours"]),
        ("[1,2", ["[1,2"]),
        ("'a,b", ["'a,b"]),
        ("", [""]),
    ],
)
def test_a_comma_separates_values_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_lists_are_values() -> None:
    points = grid("x", [0], ["encoder.training_forms=[1,2],[5]"])
    assert [point.name for point in points] == ["x-training_forms1-2-s0", "x-training_forms5-s0"]
    first, second = load_configs("tiny", [point.overrides for point in points])
    assert (first.encoder.training_forms, second.encoder.training_forms) == ((1, 2), (5,))


def test_settings_of_one_last_word_are_told_apart_by_more_words() -> None:
    assert names("encoder.train.lr=1e-5,2e-5", "dpo.lr=1e-6,2e-6")[0] == "x-train.lr1e-05-dpo.lr1e-06-s0"


def test_any_value_makes_a_name_that_is_valid_and_unlike_the_others() -> None:
    found = names("data.path=/data/a b,/data/a_b,~/ä/" + "long/" * 30 + "end", "search.mode=query,fused")
    assert len(set(found)) == 6
    assert [check_name(name) for name in found] == found
    assert found[0] == "x-pathdata-a-b-modequery-s0"
    assert found[-1].endswith("long-long-long-long-end-modefused-s0")


def test_values_that_would_be_written_alike_get_a_mark() -> None:
    first, second = names("data.path=a/b,a b")
    assert first.startswith("x-patha-b-") and second.startswith("x-patha-b-")
    assert first != second


def test_a_value_is_named_as_the_configuration_reads_it() -> None:
    assert names("sft.enabled=true,false") == ["x-enabledtrue-s0", "x-enabledfalse-s0"]
    assert names("dpo.max_steps=null,10") == ["x-max_stepsnone-s0", "x-max_steps10-s0"]


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["dpo.beta=0.1,,0.2"], "'dpo.beta=0.1,,0.2': a value is empty", "without a comma at either end"),
        (["dpo.beta=0.1,"], "a value is empty", "write key=v1,v2"),
        (["dpo.beta=0.1,0.2,0.1"], "dpo.beta=0.1,0.2,0.1: 0.1 is given twice", "give each value once"),
        (["dpo.beta=0.1", "dpo.beta=0.2"], "dpo.beta is given twice", "write dpo.beta=v1,v2"),
        (["seeds.loop=1,2"], "'seeds.loop=1,2': a sweep's seeds are an option", "write --seeds 1,2"),
        (["dpo.beta"], "'dpo.beta' is no setting", "write key=value"),
        (["=1,2"], "'=1,2' is no setting", "write key=value"),
        (["dpo.beta=[1,{2"], "'dpo.beta=[1,{2': ", "write key=value"),
    ],
)
def test_what_is_no_setting_is_refused(overrides: list[str], message: str, remedy: str) -> None:
    with pytest.raises(UserError) as refused:
        load_configs("tiny", [point.overrides for point in grid("x", [0], overrides)])
    assert message in refused.value.message
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("text", ["", "1,", "1,x", "-1", "1.5", "1e3", "²"])
def test_a_seed_is_a_whole_number(text: str) -> None:
    with pytest.raises(UserError, match="is no seed"):
        parse_seeds(text)


def test_seeds_are_read_in_their_order() -> None:
    assert parse_seeds("0, 123,7") == [0, 123, 7]
    with pytest.raises(UserError, match="7 is given twice"):
        parse_seeds("7,1,07")


def test_a_name_that_is_too_long_is_told() -> None:
    with pytest.raises(UserError, match="characters, 100 at most"):
        names(name="n" * 98)
    assert len(names(name="n" * 97)[0]) == 100  # -s0


def test_a_slip_of_the_keyboard_is_no_sweep() -> None:
    values = ",".join(map(str, range(1, 200)))
    with pytest.raises(UserError, match="a sweep of 39,601 runs"):
        grid("x", [0], [f"dpo.epochs={values}", f"sft.epochs={values}"])
