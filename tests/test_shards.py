"""Finished shards are never done again, and a damaged one is, alone; the rows are the same whatever was there."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cohyde.errors import Interrupted
from cohyde.executor import AtHand, Row
from cohyde.progress import Progress, Silent
from cohyde.shards import in_shards

NUMBERS = range(10)


class Told(Silent):
    def __init__(self, checkpoints: Path | None, stop_after: float = -1) -> None:
        self.checkpoints, self.stop_after = checkpoints, stop_after
        self.warnings, self.lines, self.updates = list[str](), list[str](), list[tuple[float, float, str]]()

    def update(self, done: float, total: float, what: str = "") -> None:
        self.updates.append((done, total, what))
        self.stopping = done == self.stop_after

    def log(self, message: str) -> None:
        self.lines.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class Squares:
    """Squares numbers, and remembers which."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, part: Sequence[int], progress: Progress) -> list[Row]:
        self.asked.append(list(part))
        progress.update(1, len(part), "numbers")
        return [{"square": number**2, "share": number / 3, "text": f"{number}\u2028\n"} for number in part]


def squares(told: Told, numbers: Sequence[int] = NUMBERS, size: int = 4, key: Any = "a") -> tuple[list[Row], Squares]:
    work = Squares()
    return in_shards(numbers, size, AtHand(work), key, told, "numbers"), work


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("shards-*/*"))


def test_items_are_worked_on_in_shards_and_rows_are_in_their_order() -> None:
    rows, work = squares(Told(None))
    assert work.asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [row["square"] for row in rows] == [number**2 for number in NUMBERS]


def test_what_is_there_is_not_done_again_and_gives_the_same_rows(tmp_path: Path) -> None:
    first, _ = squares(Told(tmp_path))
    again, work = squares(Told(tmp_path))
    assert work.asked == []
    assert first == again == squares(Told(None))[0]


def test_a_missing_shard_is_done_alone(tmp_path: Path) -> None:
    squares(Told(tmp_path))
    assert [path.name for path in files(tmp_path)] == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]
    files(tmp_path)[1].unlink()
    rows, work = squares(Told(tmp_path))
    assert work.asked == [[4, 5, 6, 7]] and rows == squares(Told(None))[0]


def cut_short(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip_one_bit(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def lose_a_row(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def no_text(data: bytes) -> bytes:
    return b"\xff\x00" * 40


def nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut_short, flip_one_bit, lose_a_row, no_text, nothing])
def test_a_damaged_shard_is_warned_of_and_done_again_alone(tmp_path: Path, damage: Any) -> None:
    squares(Told(tmp_path))
    file = files(tmp_path)[1]
    file.write_bytes(damage(file.read_bytes()))
    told = Told(tmp_path)
    rows, work = squares(told)
    assert work.asked == [[4, 5, 6, 7]] and rows == squares(Told(None))[0]
    assert told.warnings == ["000001.jsonl of the work done so far is damaged; that part is done again"]
    assert squares(Told(tmp_path))[1].asked == []


@pytest.mark.parametrize("other", [{"key": "b"}, {"size": 5}, {"numbers": range(11)}])
def test_other_work_takes_nothing_from_these_shards(tmp_path: Path, other: Any) -> None:
    squares(Told(tmp_path))
    _, work = squares(Told(tmp_path), **other)
    assert sum(map(len, work.asked)) == len(other.get("numbers", NUMBERS))


def test_progress_is_of_the_whole(tmp_path: Path) -> None:
    told = Told(tmp_path)
    squares(told)
    assert [done for done, _, _ in told.updates] == [1, 4, 4 + 1, 8, 8 + 1, 10]
    assert {(total, what) for _, total, what in told.updates} == {(10, "numbers")}


def test_work_that_is_asked_to_stop_does_so_after_a_shard_and_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="after 4 of 10 numbers"):
        squares(Told(tmp_path, stop_after=4))
    assert squares(Told(tmp_path))[1].asked == [[4, 5, 6, 7], [8, 9]]


def test_where_shards_cannot_be_kept_the_work_goes_on_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    told = Told(tmp_path / "file")
    rows, _ = squares(told)
    assert rows == squares(Told(None))[0]
    assert len(told.warnings) == 1 and "finished work was not saved" in told.warnings[0]


def test_work_that_forgets_an_item_is_an_error() -> None:
    with pytest.raises(ValueError, match="shard 0: 1 rows for 4 numbers"):
        in_shards(NUMBERS, 4, AtHand(lambda part, progress: [{}]), "a", Told(None), "numbers")


class Backwards:
    """An executor that does the last part first, and keeps each in a thread of its own."""

    def run(self, work: Any, parts: Any, keep: Any, progress_of: Any) -> None:
        with work.open() as do:
            for number in reversed(parts):
                rows = do(parts[number], progress_of(number))
                thread = threading.Thread(target=keep, args=(number, rows))
                thread.start()
                thread.join()


def test_rows_are_in_order_whoever_does_the_shards_and_when(tmp_path: Path) -> None:
    told, work = Told(tmp_path), Squares()
    rows = in_shards(NUMBERS, 4, AtHand(work), "a", told, "numbers", Backwards())
    assert work.asked == [[8, 9], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert rows == squares(Told(None))[0]
    assert [done for done, _, _ in told.updates] == [1, 2, 2 + 1, 6, 6 + 1, 10]
    assert squares(Told(tmp_path))[1].asked == []


def test_an_executor_is_given_what_is_missing_alone(tmp_path: Path) -> None:
    squares(Told(tmp_path))
    files(tmp_path)[1].unlink()
    work = Squares()
    in_shards(NUMBERS, 4, AtHand(work), "a", Told(tmp_path), "numbers", Backwards())
    assert work.asked == [[4, 5, 6, 7]]


def test_no_items_are_no_shards(tmp_path: Path) -> None:
    assert squares(Told(tmp_path), numbers=())[0] == [] and files(tmp_path) == []
