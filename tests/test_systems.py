"""The rows of the main table."""

from stages.systems import BASELINE, COHYDE, FUSION, GROUPS, PRIOR, SYSTEMS, systems_of

RUN = ("data", "E.untrained", "S1a", "S1b", "E.0", "S2.1", "S3.1", "S4.1", "E.1", "report")


def test_a_plain_run_measures_its_rounds_and_the_encoders_before_them() -> None:
    found = systems_of(RUN, "concatenated")
    assert [(system.key, system.stage, system.search) for system in found] == [
        ("untrained", "E.untrained", "query"),
        ("warm-up", "E.0", "query"),
        ("r0", "E.0", "concatenated"),
        ("r1", "E.1", "concatenated"),
    ]


def test_groups_stand_together_and_rounds_in_their_order() -> None:
    stages = [*(f"E.{number}" for number in (10, 2, 1, 0)), *(entry.stage for entry in SYSTEMS)]
    found = systems_of(stages, "description")
    assert [system.group for system in found] == [BASELINE] * 7 + [PRIOR] * 2 + [COHYDE] * 4 + [FUSION] * 2
    assert [system.key for system in found if system.group == COHYDE] == ["r0", "r1", "r2", "r10"]


def test_what_writes_is_read_under_the_run_s_own_search_mode() -> None:
    by_key = {system.key: system.search for system in systems_of(("B.hyde", "B.bm25", "B.refine"), "fused")}
    assert by_key == {"hyde": "fused", "bm25": "query", "refine": "description"}


def test_keys_titles_and_stages_tell_systems_apart() -> None:
    assert len({entry.key for entry in SYSTEMS}) == len({entry.stage for entry in SYSTEMS}) == len(SYSTEMS)
    assert all(len(entry.title) <= 30 and entry.group in GROUPS for entry in SYSTEMS)
