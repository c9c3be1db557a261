"""What changes a fingerprint, and what must not."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from cohyde.config import ResourcesConfig, setting
from cohyde.dag.fingerprint import differences, fingerprints, identify
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    lr: float = 1e-5
    batch_size: int = setting(8, identity=False)
    added_later: int = setting(3, identity="unless_default")
    callback: Any = None


def spec(id_: str = "S3.1", **settings: Any) -> StageSpec:
    defaults = {"id": id_, "entry": "trivial_stages.basic:number", "version": "1", "config": Recipe()}
    return StageSpec(**{**defaults, **settings})


def print_of(**settings: Any) -> str:
    return fingerprints([spec(**settings)])["S3.1"]


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"entry": "trivial_stages.basic:slow"},
        {"config": Recipe(lr=2e-5)},
        {"config": Recipe(added_later=4)},
        {"prompts": {"hyde": "0" * 64}},
        {"external": {"data": "0" * 64}},
    ],
)
def test_what_can_change_the_result_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert print_of(**change) != print_of()


@pytest.mark.parametrize(
    "change",
    [
        {"config": Recipe(batch_size=64)},
        {"config": Recipe(added_later=3)},
        {"resources": ResourcesConfig(cpus=8, gpus=1)},
        {"kind": "another title"},
    ],
)
def test_what_cannot_change_the_result_stays_out(change: dict[str, Any]) -> None:
    assert print_of(**change) == print_of()


def test_an_inputs_change_reaches_everything_below() -> None:
    before = fingerprints([spec("a"), spec("b", inputs={"x": "a"}), spec("c", inputs={"x": "b"}), spec("d")])
    after = fingerprints(
        [spec("a", version="2"), spec("b", inputs={"x": "a"}), spec("c", inputs={"x": "b"}), spec("d")]
    )
    assert {id_ for id_ in before if before[id_] != after[id_]} == {"a", "b", "c"}


def test_an_inputs_name_and_the_stages_id_are_part_of_it() -> None:
    def below(name: str) -> str:
        return fingerprints([spec("a"), spec("b", inputs={name: "a"})])["b"]

    assert below("encoder") != below("rewriter")
    assert fingerprints([spec("a")])["a"] != fingerprints([spec("b")])["b"]


def test_order_of_specs_and_keys_does_not_matter() -> None:
    one = fingerprints([spec("a"), spec("b"), spec("c", inputs={"x": "a", "y": "b"})])
    other = fingerprints([spec("c", inputs={"y": "b", "x": "a"}), spec("b"), spec("a")])
    assert one == other
    assert list(other) == ["b", "a", "c"]  # inputs first, in the order in which c names them


@pytest.mark.parametrize("value", [lambda row: row, float("nan"), object(), {1, 2}])
def test_a_value_without_stable_bytes_is_refused_by_stage_and_field(value: Any) -> None:
    with pytest.raises(UserError, match=r"stage S3\.1: config\.callback: "):
        fingerprints([spec(config=Recipe(callback=value))])


def test_a_nested_unstable_value_is_named_by_its_path() -> None:
    with pytest.raises(UserError, match=r"stage S3\.1: config\.callback\[1\]\.lr: "):
        fingerprints([spec(config=Recipe(callback=[1, Recipe(lr=float("inf"))]))])


def test_differences_are_told_field_by_field() -> None:
    old = identify([spec()])[0].identity
    new = identify([spec(version="2", config=Recipe(lr=2e-5, added_later=4), prompts={"hyde": "f" * 64})])[0].identity
    assert differences(old, new) == [
        "version: '1' → '2'",
        "config.lr: 1e-05 → 2e-05",
        "config.added_later: new, 4",
        f"prompts.hyde: new, '{'f' * 64}'",
    ]
    assert differences(old, old) == []


def test_thousands_of_rounds_do_not_exhaust_the_stack() -> None:
    shared = Recipe()
    specs = [spec("0", config=shared)]
    specs += [spec(str(n), config=replace(shared, lr=n), inputs={"previous": str(n - 1)}) for n in range(1, 6000)]
    assert len(set(fingerprints(specs[::-1]).values())) == 6000
