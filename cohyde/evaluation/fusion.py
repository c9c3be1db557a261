"""Two or more rankings of the same query made one."""

from collections.abc import Callable, Mapping, Sequence

from cohyde.evaluation.results import Ranking

Fusion = Callable[[Sequence[Ranking], float], dict[str, float]]
"""``(the rankings of one query, constant)`` to each tool's score; a tool that a ranking lacks gets nothing from it."""


def reciprocal_rank(rankings: Sequence[Ranking], constant: float) -> dict[str, float]:
    """Sum of 1 / (constant + rank), ranks from 1 (Cormack et al. 2009, whose constant is 60)."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (tool, _) in enumerate(ranking, start=1):
            scores[tool] = scores.get(tool, 0.0) + 1 / (constant + rank)
    return scores


def score_sum(rankings: Sequence[Ranking], constant: float) -> dict[str, float]:
    """CombSUM (Fox & Shaw 1994) of scores brought to [0, 1] within each ranking; the constant is not used.

    The last of a ranking gets 0, as what it lacks does; where all scores are equal, each gets 1.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        values = [value for _, value in ranking]
        low, span = min(values, default=0.0), max(values, default=0.0) - min(values, default=0.0)
        for tool, value in ranking:
            scores[tool] = scores.get(tool, 0.0) + ((value - low) / span if span else 1.0)
    return scores


FUSIONS: Mapping[str, Fusion] = {"rrf": reciprocal_rank, "score_sum": score_sum}
"""Strategies of ``baselines.fusion``."""


def fuse(
    rankings: Sequence[Ranking], strategy: str, constant: float, position: Mapping[str, int], depth: int
) -> list[tuple[str, float]]:
    """The fused ranking of one query: at most ``depth`` tools, ties in catalogue order.

    Args:
        rankings: best first.
        strategy: a name in :data:`FUSIONS`.
        constant: of reciprocal ranks.
        position: catalogue position of each tool.
        depth: tools kept.
    """
    scores = FUSIONS[strategy](rankings, constant)
    return sorted(scores.items(), key=lambda item: (-item[1], position[item[0]]))[:depth]
