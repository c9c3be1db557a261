"""Rewards, the pick, and what a round of preference pairs is judged by."""

from math import log2

import pytest

from cohyde.rewriter.preferences import PICKS, REWARD_DEPTH, REWARDS, ScoredCandidates, argmax_argmin, preference_pairs


def scored(
    id_: str, *rewards: float, tokens: tuple[int, ...] | None = None, finished: tuple[bool, ...] | None = None
) -> ScoredCandidates:
    return ScoredCandidates(
        id=id_,
        prompt=f"prompt of {id_}",
        raw=tuple(f" {id_} candidate {number}\n" for number in range(len(rewards))),
        tokens=tokens or (5,) * len(rewards),
        finished=finished or (True,) * len(rewards),
        rewards=rewards,
    )


def test_the_paper_s_strategies_come_first() -> None:
    assert (next(iter(REWARDS)), next(iter(PICKS))) == ("ndcg@5", "argmax_argmin")


def test_rewards_are_the_metrics_that_they_are_called_after() -> None:
    ranked, gold = ["a", "x", "b", "y", "z", "c"], {"a", "b", "c"}
    ideal = 1 / log2(2) + 1 / log2(3) + 1 / log2(4)
    five = 1 / log2(2) + 1 / log2(4)
    assert REWARDS["ndcg@5"](ranked, gold) == pytest.approx(five / ideal)
    assert REWARDS["ndcg@20"](ranked, gold) == pytest.approx((five + 1 / log2(7)) / ideal)
    assert REWARDS["recall@5"](ranked, gold) == pytest.approx(2 / 3)


@pytest.mark.parametrize("reward", REWARDS)
def test_no_reward_looks_deeper_than_is_searched(reward: str) -> None:
    """A hit just below the depth is worth as much as none."""
    ranked = [f"tool {number}" for number in range(REWARD_DEPTH)]
    assert REWARDS[reward]([*ranked, "gold"], {"gold"}) == REWARDS[reward](ranked, {"gold"}) == 0


def test_best_against_worst_the_first_of_equals() -> None:
    assert argmax_argmin([0.2, 0.9, 0.9, 0.1, 0.1]) == (1, 3)
    assert argmax_argmin([0.0, 1.0]) == (1, 0)


def test_a_tie_of_all_has_no_pair() -> None:
    assert argmax_argmin([0.5, 0.5, 0.5]) is None
    assert argmax_argmin([0.0]) is None


def test_a_pair_says_what_was_chosen_over_what_and_by_how_much() -> None:
    rows, _ = preference_pairs([scored("q1", 0.25, 1.0, 0.0)], "argmax_argmin", None)
    assert rows == [
        {
            "id": "q1",
            "prompt": "prompt of q1",
            "chosen": "q1 candidate 1",
            "rejected": "q1 candidate 2",
            "chosen_reward": 1.0,
            "rejected_reward": 0.0,
            "margin": 1.0 - 0.0,
        }
    ]


def test_a_round_is_judged_by_ties_rewards_and_lengths() -> None:
    candidates = [
        scored("q1", 1.0, 0.0, tokens=(10, 20)),
        scored("q2", 0.5, 0.5, tokens=(30, 40)),
        scored("q3", 0.25, 0.75, tokens=(12, 16)),
        scored("q4", 0.0, 0.0, tokens=(1, 1)),
    ]
    rows, metrics = preference_pairs(candidates, "argmax_argmin", None)
    assert [row["id"] for row in rows] == ["q1", "q3"]
    assert (metrics["queries"], metrics["pairs"]) == (4, 2)
    assert metrics["tie_rate"] == 2 / 4
    assert metrics["mean_reward"] == (1.0 + 0.0 + 0.5 + 0.5 + 0.25 + 0.75 + 0.0 + 0.0) / 8
    assert metrics["best_of_n_reward"] == (1.0 + 0.5 + 0.75 + 0.0) / 4
    assert metrics["chosen_tokens"] == (10 + 16) / 2
    assert metrics["rejected_tokens"] == (20 + 12) / 2


def test_length_and_reward_correlate_as_pearson_says() -> None:
    def correlation(*candidates: ScoredCandidates) -> float:
        return preference_pairs(candidates, "argmax_argmin", None)[1]["length_reward_correlation"]

    assert correlation(scored("q", 0.0, 0.5, 1.0, tokens=(10, 20, 30))) == pytest.approx(1.0)
    assert correlation(scored("q", 1.0, 0.0, tokens=(10, 30))) == pytest.approx(-1.0)
    # deviations of length -1, 0, 1 and of reward -1/3, 2/3, -1/3: covariance (1/3 + 0 - 1/3) = 0
    assert correlation(scored("q", 0.0, 1.0, 0.0, tokens=(1, 2, 3))) == pytest.approx(0.0)
    assert correlation(scored("q", 1.0, 0.0, tokens=(7, 7))) == 0.0
    assert correlation(scored("q", 0.5, 0.5, tokens=(1, 9))) == 0.0


def test_the_widest_margins_are_kept_in_the_order_of_the_queries() -> None:
    candidates = [scored("q1", 0.2, 0.1), scored("q2", 1.0, 0.0), scored("q3", 0.7, 0.2), scored("q4", 0.9, 0.0)]
    rows, metrics = preference_pairs(candidates, "argmax_argmin", 3)
    assert [row["id"] for row in rows] == ["q2", "q3", "q4"]
    assert [row["id"] for row in preference_pairs(candidates, "argmax_argmin", 1)[0]] == ["q2"]
    assert metrics["pairs"] == 4  # before the cut: it says how many queries had one


def test_of_equal_margins_the_first_queries_are_kept() -> None:
    candidates = [scored(f"q{number}", 0.5, 0.0) for number in range(4)]
    assert [row["id"] for row in preference_pairs(candidates, "argmax_argmin", 2)[0]] == ["q0", "q1"]


def test_a_round_of_ties_has_no_pairs() -> None:
    rows, metrics = preference_pairs([scored("q1", 0.3, 0.3), scored("q2", 0.0, 0.0)], "argmax_argmin", 5)
    assert rows == []
    assert (metrics["tie_rate"], metrics["pairs"], metrics["chosen_tokens"]) == (1.0, 0, 0.0)


def test_no_queries_make_no_pairs() -> None:
    rows, metrics = preference_pairs([], "argmax_argmin", None)
    assert rows == [] and metrics["queries"] == metrics["tie_rate"] == metrics["mean_reward"] == 0


def test_the_share_of_chosen_texts_that_were_cut_off_is_told() -> None:
    cut = scored("q1", 0.0, 1.0, finished=(True, False))
    whole = scored("q2", 1.0, 0.0, finished=(True, False))
    _, metrics = preference_pairs([cut, whole], "argmax_argmin", None)
    assert metrics["chosen_unfinished_share"] == 1 / 2
