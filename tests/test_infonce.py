"""InfoNCE against a float64 reference, against sentence-transformers, and by hand."""

import math

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesSymmetricRankingLoss

from cohyde.catalog import Query, Tool
from cohyde.encoder.infonce import NEGATIVES, infonce
from cohyde.encoder.pairs import Pair, pairs_of, right_tools, same_texts


def unit_rows(count: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dimensions))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


NONE = np.zeros((0, 1))


def reference(
    anchors: np.ndarray,
    positives: np.ndarray,
    temperature: float,
    negatives: np.ndarray,
    hard: np.ndarray = NONE,
    hard_negatives: np.ndarray = NONE,
) -> float:
    """The formula of the docstring, term by term."""
    count, total = len(anchors), 0.0
    similarity = [[math.exp(float(a @ p) / temperature) for p in positives] for a in anchors]
    for i in range(count):
        others = [j for j in range(count) if j != i]
        row = sum(similarity[i][j] for j in others if negatives[i, j])
        row += sum(math.exp(float(anchors[i] @ h) / temperature) for k, h in enumerate(hard) if hard_negatives[i, k])
        column = sum(similarity[j][i] for j in others if negatives[j, i])
        total -= math.log(similarity[i][i] / (similarity[i][i] + row))
        total -= math.log(similarity[i][i] / (similarity[i][i] + column))
    return total / (2 * count)


def test_two_orthogonal_pairs_by_hand() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    expected = -math.log(math.exp(1 / 0.5) / (math.exp(1 / 0.5) + math.exp(0)))
    assert infonce(eye, eye, 0.5).item() == pytest.approx(expected)


def test_equal_vectors_lose_the_log_of_the_batch() -> None:
    same = torch.ones(8, 1)
    assert infonce(same, same, 0.05).item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_loss_equals_the_float64_reference(temperature: float) -> None:
    anchors, positives = unit_rows(9, 6, 0), unit_rows(9, 6, 1)
    expected = reference(anchors, positives, temperature, np.ones((9, 9), dtype=bool))
    loss = infonce(torch.from_numpy(anchors).float(), torch.from_numpy(positives).float(), temperature)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_masked_loss_equals_the_float64_reference() -> None:
    anchors, positives = unit_rows(9, 6, 2), unit_rows(9, 6, 3)
    negatives = np.random.default_rng(4).random((9, 9)) < 0.6
    loss = infonce(torch.from_numpy(anchors), torch.from_numpy(positives), 0.2, torch.from_numpy(negatives))
    assert loss.item() == pytest.approx(reference(anchors, positives, 0.2, negatives), rel=1e-12)


def test_loss_with_hard_negatives_equals_the_float64_reference() -> None:
    anchors, positives, hard = unit_rows(7, 6, 2), unit_rows(7, 6, 3), unit_rows(4, 6, 4)
    negatives, counts = (np.random.default_rng(5).random(shape) < 0.6 for shape in ((7, 7), (7, 4)))
    loss = infonce(
        *(torch.from_numpy(rows) for rows in (anchors, positives)),
        0.2,
        *(torch.from_numpy(rows) for rows in (negatives, hard, counts)),
    )
    expected = reference(anchors, positives, 0.2, negatives, hard, counts)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert expected > reference(anchors, positives, 0.2, negatives)


def test_gradient_equals_finite_differences() -> None:
    anchors = torch.from_numpy(unit_rows(5, 4, 5)).requires_grad_()
    positives = torch.from_numpy(unit_rows(5, 4, 6)).requires_grad_()
    negatives = torch.from_numpy(np.random.default_rng(7).random((5, 5)) < 0.6)
    assert torch.autograd.gradcheck(lambda a, p: infonce(a, p, 0.1), (anchors, positives))
    assert torch.autograd.gradcheck(lambda a, p: infonce(a, p, 0.1, negatives), (anchors, positives))
    hard = torch.from_numpy(unit_rows(2, 4, 8)).requires_grad_()
    counts = torch.tensor([[True, False]] * 3 + [[False, False]] * 2)
    assert torch.autograd.gradcheck(
        lambda a, p, h: infonce(a, p, 0.1, negatives, h, counts), (anchors, positives, hard)
    )


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_loss_and_gradient_equal_those_of_sentence_transformers_where_nothing_is_masked(negatives: str) -> None:
    class NoModel(torch.nn.Module):
        """The loss asks its model for nothing when it is given embeddings."""

    names = [str(number) for number in range(16)]
    mask = NEGATIVES[negatives](names, names, [{name} for name in names])
    mask_BB = None if mask is None else torch.from_numpy(mask)
    peer = MultipleNegativesSymmetricRankingLoss(NoModel(), scale=1 / 0.05)
    gradients, losses = [], []
    for ours in (True, False):
        anchors = torch.from_numpy(unit_rows(16, 8, 8)).requires_grad_()
        positives = torch.from_numpy(unit_rows(16, 8, 9)).requires_grad_()
        loss = (
            infonce(torch.nn.functional.normalize(anchors), torch.nn.functional.normalize(positives), 0.05, mask_BB)
            if ours
            else peer.compute_loss_from_embeddings([anchors, positives], None)
        )
        loss.backward()
        losses.append(loss.item())
        gradients.append((anchors.grad, positives.grad))
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_paper_s_negatives_come_first_and_are_all() -> None:
    assert next(iter(NEGATIVES)) == "all"
    assert NEGATIVES["all"](["a", "b"], ["A", "B"], [{"a"}, {"b"}]) is None


def test_gold_aware_goes_by_tool_id_and_by_the_other_golds_of_the_query() -> None:
    # Two renderings of tool a (pairs 0 and 1, of different queries); the query of pairs 2 and 3 has golds b and c.
    tools, texts = ["a", "a", "b", "c"], ["A", "A in full", "B", "C"]
    right = [{"a"}, {"a"}, {"b", "c"}, {"b", "c"}]
    expected = [
        [False, False, True, True],
        [False, False, True, True],
        [True, True, False, False],
        [True, True, False, False],
    ]
    assert NEGATIVES["gold_aware"](tools, texts, right).tolist() == expected


def test_gold_aware_spares_a_tool_that_reads_as_a_right_one_does_in_this_batch() -> None:
    # Tools a and b are both rendered as their provider's title here; c is another gold of the query of pair 0.
    tools, texts, right = (
        ["a", "b", "c", "d"],
        ["Weather", "Weather", "Maps", "Maps"],
        [{"a", "c"}, {"b"}, {"c"}, {"d"}],
    )
    expected = [
        [False, False, False, False],
        [False, False, True, True],
        [True, True, False, False],
        [True, True, False, False],
    ]
    assert NEGATIVES["gold_aware"](tools, texts, right).tolist() == expected


def test_what_is_right_for_an_anchor_is_the_golds_of_all_its_pairs_and_what_the_index_holds_of_equal_text() -> None:
    tools = [Tool(id="a", title="Weather"), Tool(id="b", title="Weather"), Tool(id="c", title="Maps")]
    alike = same_texts(tools, 5)
    assert alike == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"c"}}
    pairs = [Pair(anchor="x", tool="a"), Pair(anchor="x", tool="c"), Pair(anchor="y", tool="c")]
    assert right_tools(pairs, alike) == {"x": {"a", "b", "c"}, "y": {"c"}}


def test_tools_of_other_gold_sets_of_a_query_are_right_as_well() -> None:
    tools = [Tool(id=name, title=name) for name in "abcd"]
    query = Query(id="q", text="x", tools=("a",), gold_sets=(("b",), ("a", "c")))
    pairs = pairs_of("a description", query)
    assert [(pair.anchor, pair.tool) for pair in pairs] == [("a description", "a")]
    assert right_tools(pairs, same_texts(tools, 5)) == {"a description": {"a", "b", "c"}}


def test_a_masked_tool_is_no_negative_in_either_direction() -> None:
    anchors, positives = (torch.from_numpy(unit_rows(3, 4, seed)).requires_grad_() for seed in (11, 12))
    mask = torch.tensor([[True, False, True], [True, True, True], [True, True, True]])
    changed = positives.detach().clone()
    changed[1] = -changed[1]
    row, column = (
        torch.autograd.grad(infonce(anchors, p, 0.1, mask), anchors)[0] for p in (positives, changed.requires_grad_())
    )
    assert torch.equal(row[0], column[0])  # anchor 0 is neither pushed from positive 1 nor is that one from anchor 0


def test_a_batch_without_any_negative_has_no_loss_and_no_gradient() -> None:
    vectors = torch.from_numpy(unit_rows(2, 3, 10)).requires_grad_()
    loss = infonce(
        vectors, vectors.detach(), 0.05, torch.from_numpy(NEGATIVES["gold_aware"](["a", "a"], ["A"] * 2, [["a"]] * 2))
    )
    loss.backward()
    assert loss.item() == 0.0
    assert vectors.grad.abs().max().item() == 0.0
