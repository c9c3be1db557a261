"""From scored candidates to preference pairs: what a candidate is worth, and which two make a pair."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohyde.evaluation.metrics import mean_or_zero, ndcg_at, recall_at

Reward = Callable[[Sequence[str], Collection[str]], float]
"""Ranked tool ids (best first) and gold ids to a number; higher is better."""
Pick = Callable[[Sequence[float]], tuple[int, int] | None]
"""Rewards of one query's candidates to (chosen, rejected) positions, or None where they tie."""

REWARD_DEPTH = 20
"""Ranks that a reward may look at: so deep is searched when candidates are scored."""
REWARDS: Mapping[str, Reward] = {
    "ndcg@5": lambda ranked, gold: ndcg_at(ranked, gold, 5),
    "ndcg@20": lambda ranked, gold: ndcg_at(ranked, gold, 20),
    "recall@5": lambda ranked, gold: recall_at(ranked, gold, 5),
}


def argmax_argmin(rewards: Sequence[float]) -> tuple[int, int] | None:
    """Best against worst, the first of equals; None where all tie (paper)."""
    best, worst = max(rewards), min(rewards)
    return None if best == worst else (rewards.index(best), rewards.index(worst))


PICKS: Mapping[str, Pick] = {"argmax_argmin": argmax_argmin}


@dataclass(frozen=True, kw_only=True)
class ScoredCandidates:
    """One query's candidates. A candidate that is empty after cleaning is worth 0, whatever the query would find."""

    id: str
    prompt: str
    raw: tuple[str, ...]
    tokens: tuple[int, ...]
    finished: tuple[bool, ...]
    """Whether a candidate came to its end; training closes a cut one all the same, which a high share makes unwise."""
    rewards: tuple[float, ...]


def preference_pairs(
    scored: Sequence[ScoredCandidates], pick: str, max_pairs: int | None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Choose a pair for each query that has one.

    Returns:
        Rows (id, prompt, chosen, rejected, rewards, margin) in the order of ``scored``, and what the round should be
        judged by: tie rate, mean reward, lengths, and the correlation of length with reward (TRAPS 24, 38).
    """
    rows = []
    lengths: dict[str, list[int]] = {"chosen": [], "rejected": []}
    unfinished = 0
    for item in scored:
        picked = PICKS[pick](item.rewards)
        if picked is None:
            continue
        chosen, rejected = picked
        rows.append(
            {
                "id": item.id,
                "prompt": item.prompt,
                "chosen": item.raw[chosen].strip(),
                "rejected": item.raw[rejected].strip(),
                "chosen_reward": item.rewards[chosen],
                "rejected_reward": item.rewards[rejected],
                "margin": item.rewards[chosen] - item.rewards[rejected],
            }
        )
        unfinished += not item.finished[chosen]
        lengths["chosen"].append(item.tokens[chosen])
        lengths["rejected"].append(item.tokens[rejected])
    metrics = {
        "queries": len(scored),
        "pairs": len(rows),
        "tie_rate": 1 - len(rows) / len(scored) if scored else 0.0,
        "mean_reward": mean_or_zero([reward for item in scored for reward in item.rewards]),
        "best_of_n_reward": mean_or_zero([max(item.rewards) for item in scored]),
        "chosen_unfinished_share": unfinished / len(rows) if rows else 0.0,
        "chosen_tokens": mean_or_zero(lengths["chosen"]),
        "rejected_tokens": mean_or_zero(lengths["rejected"]),
        "length_reward_correlation": _correlation(
            [float(number) for item in scored for number in item.tokens],
            [reward for item in scored for reward in item.rewards],
        ),
    }
    return _widest(rows, max_pairs), metrics


def _widest(rows: list[dict[str, Any]], max_pairs: int | None) -> list[dict[str, Any]]:
    if max_pairs is None or len(rows) <= max_pairs:
        return rows
    kept = sorted(range(len(rows)), key=lambda position: (-rows[position]["margin"], position))[:max_pairs]
    return [rows[position] for position in sorted(kept)]


def _correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's r; 0 where either side does not vary."""
    left_mean, right_mean = mean_or_zero(left), mean_or_zero(right)
    covariance = sum((a - left_mean) * (b - right_mean) for a, b in zip(left, right, strict=True))
    left_square = sum((a - left_mean) ** 2 for a in left)
    right_square = sum((b - right_mean) ** 2 for b in right)
    return covariance / (left_square * right_square) ** 0.5 if left_square > 0 and right_square > 0 else 0.0
