"""InfoNCE against a float64 reference, against sentence-transformers, and by hand."""

import math

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesSymmetricRankingLoss

from cohyde.encoder.infonce import NEGATIVES, infonce


def unit_rows(count: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dimensions))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def reference(anchors: np.ndarray, positives: np.ndarray, temperature: float, negatives: np.ndarray) -> float:
    """The formula of the docstring, term by term."""
    count, total = len(anchors), 0.0
    similarity = [[math.exp(float(a @ p) / temperature) for p in positives] for a in anchors]
    for i in range(count):
        others = [j for j in range(count) if j != i]
        row = sum(similarity[i][j] for j in others if negatives[i, j])
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


def test_gradient_equals_finite_differences() -> None:
    anchors = torch.from_numpy(unit_rows(5, 4, 5)).requires_grad_()
    positives = torch.from_numpy(unit_rows(5, 4, 6)).requires_grad_()
    negatives = torch.from_numpy(np.random.default_rng(7).random((5, 5)) < 0.6)
    assert torch.autograd.gradcheck(lambda a, p: infonce(a, p, 0.1), (anchors, positives))
    assert torch.autograd.gradcheck(lambda a, p: infonce(a, p, 0.1, negatives), (anchors, positives))


def test_loss_and_gradient_equal_those_of_sentence_transformers() -> None:
    class NoModel(torch.nn.Module):
        """The loss asks its model for nothing when it is given embeddings."""

    peer = MultipleNegativesSymmetricRankingLoss(NoModel(), scale=1 / 0.05)
    gradients, losses = [], []
    for ours in (True, False):
        anchors = torch.from_numpy(unit_rows(16, 8, 8)).requires_grad_()
        positives = torch.from_numpy(unit_rows(16, 8, 9)).requires_grad_()
        loss = (
            infonce(torch.nn.functional.normalize(anchors), torch.nn.functional.normalize(positives), 0.05)
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
    assert NEGATIVES["all"](["a", "b"], [{"a"}, {"b"}]) is None


def test_gold_aware_goes_by_tool_id_and_by_the_other_golds_of_the_query() -> None:
    # Two renderings of tool a (pairs 0 and 1, of different queries); the query of pair 2 has golds b and c.
    tools = ["a", "a", "b", "c"]
    golds = [{"a"}, {"a"}, {"b", "c"}, {"c"}]
    expected = [
        [False, False, True, True],
        [False, False, True, True],
        [True, True, False, False],
        [True, True, True, False],
    ]
    assert NEGATIVES["gold_aware"](tools, golds).tolist() == expected


def test_a_batch_without_any_negative_has_no_loss_and_no_gradient() -> None:
    vectors = torch.from_numpy(unit_rows(2, 3, 10)).requires_grad_()
    loss = infonce(vectors, vectors.detach(), 0.05, torch.from_numpy(NEGATIVES["gold_aware"](["a", "a"], [["a"]] * 2)))
    loss.backward()
    assert loss.item() == 0.0
    assert vectors.grad.abs().max().item() == 0.0
