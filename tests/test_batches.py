"""Batches: every pair once an epoch, the same by seed and epoch, of similar length where that is asked for."""

import pytest

from cohyde.encoder.batches import batches_of


def positions(batches: list[list[int]]) -> list[int]:
    return sorted(position for batch in batches for position in batch)


def test_a_batch_covers_each_pair_once_and_a_single_one_left_over_changes_by_epoch() -> None:
    assert positions(batches_of(10, 4, 0, 0)) == list(range(10))
    assert [len(batch) for batch in batches_of(10, 4, 0, 0)] == [4, 4, 2]
    assert batches_of(10, 4, 0, 0) != batches_of(10, 4, 0, 1)
    left_over = [set(range(9)) - set(positions(batches_of(9, 4, 0, epoch))) for epoch in range(20)]
    assert {len(left) for left in left_over} == {1}
    assert len(set.union(*left_over)) > 3


def test_a_single_pair_makes_no_batch() -> None:
    assert batches_of(1, 4, 0, 0) == []


@pytest.mark.parametrize("count", [8, 9, 10, 100])
def test_windows_cover_each_pair_once_in_batches_of_the_same_sizes(count: int) -> None:
    lengths = [number * 37 % 101 for number in range(count)]
    grouped = batches_of(count, 4, 0, 0, lengths, window=3)
    assert sorted(map(len, grouped)) == sorted(map(len, batches_of(count, 4, 0, 0)))
    assert len(set(positions(grouped))) == len(positions(grouped)) == count - (count % 4 == 1)
    assert grouped == batches_of(count, 4, 0, 0, lengths, window=3)


def test_windows_are_others_in_another_epoch() -> None:
    lengths = [number * 37 % 101 for number in range(100)]
    assert batches_of(100, 4, 0, 0, lengths, window=3) != batches_of(100, 4, 0, 1, lengths, window=3)


def test_a_window_over_everything_sorts_by_length_and_shuffles_the_batches() -> None:
    lengths = [number * 37 % 100 for number in range(100)]  # 0 … 99, each once
    grouped = batches_of(100, 10, 0, 0, lengths, window=10)
    assert sorted(sorted(lengths[place] for place in batch) for batch in grouped) == [
        list(range(start, start + 10)) for start in range(0, 100, 10)
    ]
    assert [min(lengths[place] for place in batch) for batch in grouped] != list(range(0, 100, 10))


def test_pairs_of_equal_length_stay_as_the_shuffle_left_them() -> None:
    shuffled = positions_in_order(batches_of(12, 4, 5, 2))
    grouped = batches_of(12, 4, 5, 2, [7] * 12, window=3)
    assert sorted(map(tuple, grouped)) == sorted(tuple(shuffled[start : start + 4]) for start in (0, 4, 8))


def positions_in_order(batches: list[list[int]]) -> list[int]:
    return [position for batch in batches for position in batch]
