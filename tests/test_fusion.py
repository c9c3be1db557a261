"""Two rankings of a query made one."""

import pytest

from cohyde.evaluation.fusion import FUSIONS, fuse

POSITION = {"a": 0, "b": 1, "c": 2, "d": 3}
FIRST = [("b", 0.9), ("a", 0.5), ("c", 0.1)]
SECOND = [("c", 12.0), ("b", 8.0)]


def test_reciprocal_ranks_are_summed() -> None:
    fused = fuse([FIRST, SECOND], "rrf", 60.0, POSITION, 10)
    assert fused == [
        ("b", pytest.approx(1 / 61 + 1 / 62)),
        ("c", pytest.approx(1 / 63 + 1 / 61)),
        ("a", pytest.approx(1 / 62)),
    ]


def test_scores_are_brought_to_one_scale_before_they_are_summed() -> None:
    fused = fuse([FIRST, SECOND], "score_sum", 60.0, POSITION, 10)
    # 0.9, 0.5, 0.1 become 1, 0.5, 0; 12 and 8 become 1 and 0.
    assert fused == [("b", pytest.approx(1.0)), ("c", pytest.approx(1.0)), ("a", pytest.approx(0.5))]


@pytest.mark.parametrize("strategy", FUSIONS)
def test_ties_stand_in_catalogue_order_and_the_end_is_cut(strategy: str) -> None:
    fused = fuse([[("d", 1.0)], [("a", 7.0)]], strategy, 60.0, POSITION, 10)
    assert [tool for tool, _ in fused] == ["a", "d"]
    assert fuse([[("d", 1.0)], [("a", 7.0)]], strategy, 60.0, POSITION, 1)[0][0] == "a"


@pytest.mark.parametrize("strategy", FUSIONS)
def test_an_empty_ranking_has_no_say(strategy: str) -> None:
    assert [tool for tool, _ in fuse([FIRST, []], strategy, 60.0, POSITION, 10)] == ["b", "a", "c"]
    assert fuse([[], []], strategy, 60.0, POSITION, 10) == []


def test_only_the_constant_of_reciprocal_ranks_matters_for_how_much_the_top_counts() -> None:
    rankings = [[("a", 1.0), ("b", 0.9)], [("c", 1.0), ("b", 0.9)], [("d", 1.0), ("b", 0.9)]]
    assert fuse(rankings, "rrf", 60.0, POSITION, 1)[0][0] == "b"  # 3/62 > 1/61
    assert fuse(rankings, "rrf", 0.01, POSITION, 1)[0][0] == "b"  # 3/2.01 > 1/1.01
    assert fuse(rankings[:2], "rrf", 0.01, POSITION, 1)[0][0] == "b"  # 2/2.01 > 1/1.01
    with_one = [[("a", 1.0), ("b", 0.9)], [("a", 1.0), ("c", 0.9)]]
    assert fuse(with_one, "rrf", 60.0, POSITION, 1) == [("a", pytest.approx(2 / 61))]
