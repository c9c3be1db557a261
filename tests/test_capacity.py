"""What stages ask of machines: custom resources, and who is told what to lower."""

import os
from typing import Any

import pytest
from trivial_stages.basic import Numbers

from cohyde.config import Config, ResourcesConfig, load_config
from cohyde.dag.capacity import (
    UNKNOWN,
    check_resources,
    demand,
    describe,
    how_many,
    local_cpus,
    local_gpus,
    local_machine,
)
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError
from stages.pipeline import pipeline

GIB = 1024**3


def plan_of(key: str = "resources.training", stages: int = 1, **resources: Any) -> Plan:
    asked = ResourcesConfig(**resources)
    common: dict[str, Any] = {"entry": "trivial_stages.basic:number", "version": "1", "resources": asked}
    specs = [
        StageSpec(id=f"s{number}", config=Numbers(value=number), resources_key=key, **common)
        for number in range(stages)
    ]
    return make_plan(specs)


def refusal(plan: Plan, *machines: dict[str, float]) -> str:
    with pytest.raises(UserError) as refused:
        check_resources(plan, plan.nodes.values(), machines)
    return str(refused.value)


def test_what_is_asked_has_rays_names() -> None:
    asked = ResourcesConfig(cpus=2, gpus=0.5, memory_gib=1.5, custom={"h200": 1, "fast_disk": 0})
    assert demand(asked) == {"CPU": 2, "GPU": 0.5, "memory": 1.5 * GIB, "h200": 1}
    assert demand(ResourcesConfig()) == {"CPU": 1}


def test_resources_are_described_without_rays_own() -> None:
    machine = {
        "CPU": 8.0,
        "GPU": 1.0,
        "memory": 2.5 * GIB,
        "object_store_memory": 1e9,
        "node:10.0.0.1": 1.0,
        "h200": 1.0,
    }
    assert describe(machine) == "8 CPUs, 1 GPU, 2.5 GiB of memory, 1 h200"
    assert describe({}) == "0 CPUs, 0 GPUs"


def test_a_stage_has_to_fit_on_one_machine() -> None:
    plan = plan_of(cpus=4, gpus=1)
    check_resources(plan, plan.nodes.values(), [{"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}])
    assert refusal(plan, {"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}) == (
        "stage s0 asks for 4 CPUs, 1 GPU (resources.training)\n"
        "  there is: 4 CPUs, 0 GPUs; 2 CPUs, 1 GPU\n"
        # each is met by some machine, no machine meets both
        "  lower resources.training.cpus, resources.training.gpus"
    )


@pytest.mark.parametrize(
    ("asked", "to_lower"),
    [
        ({"gpus": 8}, "resources.training.gpus"),
        ({"cpus": 3}, "resources.training.cpus"),
        ({"memory_gib": 3}, "resources.training.memory_gib"),
        ({"custom": {"h200": 1}}, "resources.training.custom.h200"),
        ({"gpus": 8, "custom": {"h200": 1}}, "resources.training.gpus, resources.training.custom.h200"),
    ],
)
def test_the_setting_to_lower_is_named(asked: dict[str, Any], to_lower: str) -> None:
    assert refusal(plan_of(**asked), {"CPU": 2.0, "GPU": 1.0, "memory": 2 * GIB}).endswith(f"\n  lower {to_lower}")


def test_workers_have_to_find_room_on_all_machines_together() -> None:
    plan = plan_of("resources.generation", cpus=2, gpus=0.5, workers=5)
    machine = {"CPU": 6.0, "GPU": 1.0}  # 2 workers: 3 by its CPUs, 2 by its GPU
    check_resources(plan, plan.nodes.values(), [machine, {"CPU": 64.0}, machine, {"CPU": 2.0, "GPU": 1.0}])
    assert refusal(plan, machine, machine) == (
        "stage s0 asks for 5 workers with 2 CPUs, 0.5 GPUs each (resources.generation)\n"
        "  there is: 6 CPUs, 1 GPU\n"
        "  lower resources.generation.workers"
    )
    assert refusal(plan, {"CPU": 64.0}).endswith("\n  lower resources.generation.gpus")


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        ({"CPU": 2, "GPU": 1}, 3),  # of 7 CPUs and 4 GPUs
        ({"CPU": 1, "GPU": 0.1}, 7),
        ({"GPU": 0.1}, 40),  # 4 / 0.1, which is no whole number to a computer
        ({"CPU": 8}, 0),
        ({"h200": 1}, 0),
        ({"memory": GIB}, UNKNOWN),
    ],
)
def test_how_many_find_room(asked: dict[str, float], times: float) -> None:
    assert how_many(asked, {"CPU": 7.0, "GPU": 4.0, "memory": UNKNOWN}) == times


def test_many_stages_are_told_in_a_line() -> None:
    first, *_ = refusal(plan_of(stages=7, gpus=2), {"CPU": 1.0}).splitlines()
    assert first == "stages s0, s1, s2, s3, s4 and 2 more ask for 1 CPU, 2 GPUs (resources.training)"


def test_a_cluster_without_machines_is_told() -> None:
    assert "there is: no machine at all" in refusal(plan_of())


def test_every_stage_says_which_section_its_resources_come_from(cohyde_cache: object) -> None:
    sections = {spec.id: spec.resources_key.removeprefix("resources.") for spec in pipeline(load_config("tiny"))}
    assert {id_: sections[id_] for id_ in ("data", "S1a", "S1b", "S2.1", "S3.1", "S4s.1", "S4p.1", "S4.1", "E.1")} == {
        "data": "light", "S1a": "encoder", "S1b": "training", "S2.1": "generation", "S3.1": "encoder",
        "S4s.1": "generation", "S4p.1": "encoder", "S4.1": "training", "E.1": "generation",
    }  # fmt: skip


# --------------------------------------------------------------------------------------------- this machine


def test_cpus_are_those_that_we_may_use() -> None:
    assert 1 <= local_cpus() <= (os.cpu_count() or 1)


def test_no_more_gpus_are_there_than_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_gpus() == 0


def test_what_a_local_ray_would_have_is_known_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_OVERRIDE_RESOURCES", raising=False)
    here = local_machine({"CPU", "GPU", "h200", "accelerator_type:H200"})
    # A Ray that we start declares nothing of its own names, but it may find an accelerator's type by itself.
    assert here == {"CPU": local_cpus(), "GPU": 0, "memory": UNKNOWN, "h200": 0, "accelerator_type:H200": UNKNOWN}
    assert describe(here) == f"{local_cpus()} CPU{'s' if local_cpus() > 1 else ''}, 0 GPUs, 0 h200"


# -------------------------------------------------------------------------------------------- configuration


def custom(*overrides: str, file: str = "tiny") -> dict[str, float]:
    return dict(load_config(file, overrides).resources.generation.custom)


def test_custom_resources_add_up_over_layers(tmp_path: object) -> None:
    assert custom() == {}
    assert custom("resources.generation.custom.h200=1", "resources.generation.custom.fast_disk=0.5") == {
        "h200": 1.0,
        "fast_disk": 0.5,
    }
    assert custom("resources.generation.custom={accelerator_type:H200: 0.001}") == {"accelerator_type:H200": 0.001}
    taken_back = custom("resources.generation.custom.h200=1", "resources.generation.custom.h200=0")
    assert demand(ResourcesConfig(custom=taken_back)) == {"CPU": 1}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("custom.h200=-1", "resources.generation.custom has to be at least 0, got -1.0"),
        ("custom.h200=many", "resources.generation.custom has to be names with a number each, got {'h200': 'many'}"),
        ("custom=h200", "resources.generation.custom has to be names with a number each, got 'h200'"),
        ("custom.h200=.nan", "resources.generation.custom has to be a finite number"),
        ("custom.GPU=1", "resources.generation: custom names 'GPU', which is set by gpus"),
        ("workers=0", "resources.generation.workers has to be at least 1, got 0"),
        ("workers=1.5", "resources.generation.workers has to be a whole number, got 1.5"),
        ("gpus=1.5", "resources.generation: gpus has to be a part of one GPU or a whole number, got 1.5"),
    ],
)
def test_wrong_resources_are_told_by_their_key(override: str, expected: str) -> None:
    with pytest.raises(UserError) as refused:
        load_config("tiny", [f"resources.generation.{override}"])
    assert expected in str(refused.value)


def test_only_generation_has_workers() -> None:
    assert load_config("tiny", ["resources.generation.workers=4"]).resources.generation.workers == 4
    with pytest.raises(UserError, match=r"resources: training\.workers has to be 1: only generation spreads its work"):
        load_config("tiny", ["resources.training.workers=2"])


def test_stages_that_spread_their_work_have_workers(cohyde_cache: object) -> None:
    specs = pipeline(load_config("tiny", ["resources.generation.workers=4", "rounds=1"]))
    assert {spec.id for spec in specs if spec.resources.workers == 4} == {"S2.1", "S4s.1", "E.0", "E.1"}
    assert {spec.resources.workers for spec in specs} == {1, 4}


def test_resources_bear_no_identity() -> None:
    from cohyde.config import identity_of

    with_custom = load_config("tiny", ["resources.generation.custom.h200=1", "resources.generation.workers=2"])
    assert identity_of(with_custom) == identity_of(load_config("tiny"))
    assert Config().resources.generation.custom == {}
