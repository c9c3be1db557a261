"""Order, reachability, the checks before a start, and plans of several pipelines."""

from dataclasses import dataclass
from typing import Any

import pytest

from cohyde.config import ResourcesConfig
from cohyde.dag.graph import topological
from cohyde.dag.lint import problems
from cohyde.dag.plan import make_plan, merge
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Seeded:
    seed: int = 0


@dataclass(kw_only=True)
class Thawed:
    seed: int = 0


def spec(id_: str, *inputs: str, **settings: Any) -> StageSpec:
    named = {f"in{position}": stage for position, stage in enumerate(inputs)}
    defaults = {"id": id_, "entry": "trivial_stages.basic:number", "version": "1", "inputs": named}
    return StageSpec(**{**defaults, **settings})


def diamond() -> list[StageSpec]:
    return [spec("d", "b", "c"), spec("b", "a"), spec("c", "a"), spec("a"), spec("alone")]


def test_inputs_come_first() -> None:
    assert [one.id for one in topological(diamond())] == ["a", "b", "c", "d", "alone"]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "it has no stages"),
        ([spec("a"), spec("a")], "stage a: 2 stages have this id"),
        ([spec("a/b")], "stage 'a/b': an id has letters"),
        ([spec("a", "b")], "stage a: its input 'in0' is 'b', which is no stage"),
        ([spec("a", "c"), spec("b", "a"), spec("c", "b")], "stage a: it needs itself: a needs c needs b needs a"),
        ([spec("a", "a")], "stage a: it needs itself: a needs a"),
        ([spec("a", entry="trivial_stages.basic")], "stage a: entry 'trivial_stages.basic' has to read"),
        ([spec("a", entry="no_such_package.x:run")], "there is no package 'no_such_package'"),
        ([spec("a", version="")], "stage a: version '' has to be"),
        ([spec("a", config={"lr": 1})], "stage a: config has to be a frozen dataclass or None, got dict"),
        ([spec("a", config=Thawed())], "stage a: config has to be a frozen dataclass or None, got Thawed"),
        ([spec("a", external={"model": ""})], "stage a: external['model'] has to be a text"),
        ([spec("a", resources=ResourcesConfig(gpus=-1))], "stage a: resources.gpus has to be"),
        ([spec("a", resources=ResourcesConfig(cpus=0))], "stage a: resources.cpus has to be greater than 0"),
    ],
)
def test_each_fault_names_its_stage(specs: list[StageSpec], words: str) -> None:
    found = problems(specs)
    assert len(found) == 1
    assert words in found[0]
    with pytest.raises(UserError, match="the pipeline cannot run"):
        make_plan(specs)


def test_until_keeps_what_the_stage_needs() -> None:
    plan = make_plan(diamond())
    assert [node.id for node in plan.until("b").nodes.values()] == ["a", "b"]
    assert [node.id for node in plan.below("c")] == ["c", "d"]
    with pytest.raises(UserError, match="stages are: a, b, c, d, alone"):
        plan.until("x")


def test_pipelines_of_a_sweep_share_what_is_the_same() -> None:
    def pipeline(seed: int) -> list[StageSpec]:
        return [spec("data"), spec("S1a", "data"), spec("S3.1", "S1a", config=Seeded(seed=seed)), spec("E.1", "S3.1")]

    plan = merge(make_plan(pipeline(seed)) for seed in range(3))
    assert len(plan.nodes) == 1 + 1 + 3 + 3
    assert len(plan.named("E.1")) == 3
    assert len(plan.until("S3.1").nodes) == 1 + 1 + 3
    assert set(plan.specs) == set(plan.identities) == set(plan.nodes)
