"""Hard negatives: high in the ranking, not right, and not so close to the gold that they may be right unlabelled."""

from pathlib import Path

import pytest
from test_encoder_train import CONFIG, TOOLS

from cohyde.config import MiningConfig
from cohyde.encoder.embedder import open_embedder
from cohyde.encoder.mining import hard_negatives, mine
from cohyde.encoder.retriever import DenseRetriever
from cohyde.progress import Silent

RANKED = [("a", 0.9), ("b", 0.8), ("gold", 0.75), ("c", 0.7), ("d", 0.6), ("e", 0.5)]


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [
        (1.0, 2, ["c", "d"]),  # 0.75 at most
        (0.8, 2, ["d", "e"]),  # 0.6 at most: d stands exactly there
        (0.8, 1, ["d"]),
        (0.5, 2, []),
    ],
)
def test_the_highest_below_a_share_of_the_positive_are_kept(share: float, count: int, expected: list[str]) -> None:
    assert [tool for tool, _ in hard_negatives(RANKED, {"gold"}, 0.75, count, share)] == expected


def test_golds_and_what_reads_like_them_are_no_negatives() -> None:
    assert hard_negatives(RANKED, {"gold", "c"}, 0.75, 2, 1.0) == [("d", 0.6), ("e", 0.5)]


def test_a_positive_that_scores_nothing_has_no_hard_negatives() -> None:
    assert hard_negatives([("a", -0.5)], {"gold"}, -0.1, 2, 0.9) == []


def test_mined_tools_are_the_encoder_s_own_confusions(tiny_encoder_path: Path) -> None:
    right = {"please tell me about music": {"music"}, "the news of the day": {"news", "stock"}}
    mining = MiningConfig(per_anchor=3, depth=8, max_score_share=1.0)
    embedder = open_embedder(tiny_encoder_path, CONFIG)
    found = dict(mine(embedder, right, TOOLS, CONFIG.index_form, mining, Silent()))
    assert list(found) == list(right)
    retriever = DenseRetriever.build(tiny_encoder_path, TOOLS, CONFIG.embedding())
    for anchor, ranked in zip(right, retriever.rank_texts(list(right), len(TOOLS)), strict=True):
        best = max(score for tool, score in ranked if tool in right[anchor])
        below = [(tool, score) for tool, score in ranked[:8] if tool not in right[anchor] and score <= best]
        assert found[anchor] == below[:3]
    assert any(found.values())
