"""Scores of many queries at once, against the definition and against two independent implementations."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import pytrec_eval

from cohyde.evaluation import scoring
from cohyde.evaluation.lists import Lists
from cohyde.evaluation.metrics import CUTOFFS, score_query
from cohyde.evaluation.scoring import score_equivalents, score_lists

CATALOGUE = [f"tool {number}" for number in range(60)]
ADVERSARIAL: list[tuple[list[str], list[str]]] = [
    ([], ["tool 1"]),  # nothing was found
    (["tool 1"], ["tool 1"]),
    (["tool 1"], ["tool 2"]),
    (["tool 1", "tool 1", "tool 1", "tool 2"], ["tool 2"]),  # repeated: the second distinct id is gold
    (["tool 1"] * 30 + ["tool 2", "tool 3"], ["tool 3", "tool 2"]),  # the head of the list is one id
    (["tool 2", "tool 1", "tool 2"], ["tool 2", "tool 2", "tool 1"]),  # gold said twice
    (CATALOGUE, CATALOGUE),  # more gold than any cutoff
    (CATALOGUE[::-1], CATALOGUE[:3]),
    (CATALOGUE, ["not in the catalogue"]),
    (CATALOGUE, ["tool 19", "not in the catalogue"]),  # the last rank that counts
    (CATALOGUE, ["tool 20"]),  # the first that does not
    (CATALOGUE[:1], CATALOGUE),
]


def cases(seed: int, count: int) -> list[tuple[list[str], list[str]]]:
    """Random rankings, some short, some with repeated ids."""
    drawn = random.Random(seed)
    found = []
    for _ in range(count):
        ranking = drawn.sample(CATALOGUE, drawn.randint(0, 50))
        if drawn.random() < 0.3:
            ranking += drawn.choices(CATALOGUE, k=10)
            drawn.shuffle(ranking)
        found.append((ranking, drawn.sample(CATALOGUE, drawn.choice([1, 1, 2, 3, 7, 30]))))
    return found


def scored(pairs: Sequence[tuple[list[str], list[str]]]) -> dict[str, np.ndarray]:
    return score_lists(Lists.of(ranking for ranking, _ in pairs), Lists.of(gold for _, gold in pairs))


def check_equal_to_the_definition(pairs: Sequence[tuple[list[str], list[str]]]) -> None:
    columns = scored(pairs)
    for row, (ranking, gold) in enumerate(pairs):
        expected = score_query(ranking, gold)
        assert list(expected) == list(columns)
        for name, value in expected.items():
            assert columns[name][row] == pytest.approx(value, abs=1e-15), (name, ranking, gold)


def test_random_rankings_score_as_defined() -> None:
    check_equal_to_the_definition(cases(seed=1, count=500))


def test_adversarial_rankings_score_as_defined() -> None:
    check_equal_to_the_definition(ADVERSARIAL)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = cases(seed=2, count=50)
    whole = scored(pairs)
    monkeypatch.setattr(scoring, "BLOCK", 7)
    for name, column in scored(pairs).items():
        assert (column == whole[name]).all()


def test_a_perfect_ranking_is_exactly_one() -> None:
    pairs = [(CATALOGUE, CATALOGUE[:size]) for size in range(1, 40)]
    for k in CUTOFFS:
        assert set(scored(pairs)[f"ndcg@{k}"]) == {1.0}


def test_of_several_gold_sets_each_metric_takes_its_own_best() -> None:
    # {b} is found at once, {a, c} is found whole by rank 3: recall@1 is best for {b}, comp@5 is 1 for both, and the
    # second query has one set alone.
    ranked = Lists.of([["b", "a", "c"], ["a", "b"]])
    sets = Lists.of([["a", "c"], ["b", "d"], ["b"]])
    columns = score_equivalents(ranked, sets, np.array([0, 0, 1]))
    assert columns["hit@1"].tolist() == [max(0, 1), 0]
    assert columns["recall@1"].tolist() == [max(0, 1 / 2), 0]
    assert columns["recall@5"].tolist() == [max(2 / 2, 1 / 2), 1]
    assert columns["comp@5"].tolist() == [max(1, 0), 1]
    ideal = 1 + 1 / np.log2(3)
    assert columns["ndcg@5"][0] == pytest.approx(max((1 / np.log2(3) + 1 / np.log2(4)) / ideal, 1 / ideal))


def test_a_query_without_any_gold_set_is_refused() -> None:
    ranked = Lists.of([["a"], ["b"]])
    with pytest.raises(ValueError, match="at least one for each"):
        score_equivalents(ranked, Lists.of([["a"]]), np.array([0]))
    with pytest.raises(ValueError, match="without gold"):
        score_lists(ranked, Lists.of([["a"], []]))
    with pytest.raises(ValueError, match="2 rankings but 1 gold sets"):
        score_lists(ranked, Lists.of([["a"]]))


def test_no_query_has_no_scores() -> None:
    assert {len(column) for column in scored([]).values()} == {0}


def distinct(ranking: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(ranking))


def test_scores_equal_those_of_pytrec_eval() -> None:
    """Where it defines them: COMP it has not, and a ranking is a mapping there, so repeated ids cannot be given."""
    pairs = [(distinct(ranking), gold) for ranking, gold in [*cases(seed=3, count=500), *ADVERSARIAL]]
    theirs = {"hit": "success", "recall": "recall", "ndcg": "ndcg_cut"}
    qrels = {f"q{row}": dict.fromkeys(gold, 1) for row, (_, gold) in enumerate(pairs)}
    run = {
        f"q{row}": {tool: float(-rank) for rank, tool in enumerate(ranking)} for row, (ranking, _) in enumerate(pairs)
    }
    wanted = {f"{name}.{','.join(map(str, CUTOFFS))}" for name in theirs.values()}
    found = pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run)
    columns = scored(pairs)
    for row, (ranking, _) in enumerate(pairs):
        if not ranking:  # such a query it leaves out; ours scores 0 and stays in the mean
            assert f"q{row}" not in found or not any(found[f"q{row}"].values())
            continue
        for ours, name in theirs.items():
            for k in CUTOFFS:
                assert columns[f"{ours}@{k}"][row] == pytest.approx(found[f"q{row}"][f"{name}_{k}"], abs=1e-9)


def test_scores_equal_those_of_ranx() -> None:
    ranx = pytest.importorskip("ranx", reason="ranx is not among the pinned packages: its numba is not vLLM's")
    pairs = [(distinct(ranking), gold) for ranking, gold in [*cases(seed=4, count=300), *ADVERSARIAL] if ranking]
    qrels = ranx.Qrels({f"{row:04}": dict.fromkeys(gold, 1) for row, (_, gold) in enumerate(pairs)})
    run = ranx.Run(
        {f"{row:04}": {t: float(-rank) for rank, t in enumerate(ranking)} for row, (ranking, _) in enumerate(pairs)}
    )
    theirs = {"hit": "hit_rate", "recall": "recall", "ndcg": "ndcg"}
    names = [f"{name}@{k}" for name in theirs.values() for k in CUTOFFS]
    found = ranx.evaluate(qrels, run, names, return_mean=False)
    columns = scored(pairs)
    for ours, name in theirs.items():
        for k in CUTOFFS:
            assert columns[f"{ours}@{k}"] == pytest.approx(found[f"{name}@{k}"], abs=1e-9)
