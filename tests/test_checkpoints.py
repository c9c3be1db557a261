"""Checkpoints are whole or absent, damage is noticed, and saving never costs the work."""

import errno
import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cohyde.checkpoints import Checkpoints
from cohyde.errors import Interrupted
from cohyde.progress import Silent
from cohyde.training_state import read_state, write_state, write_tensors


class Told(Silent):
    def __init__(self, seconds: float = 0.0) -> None:
        self.checkpoint_seconds = seconds
        self.warnings, self.lines = list[str](), list[str]()

    def log(self, message: str) -> None:
        self.lines.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def state(step: int) -> Callable[[Path], None]:
    """Writes two files, one of them in a folder."""

    def write(folder: Path) -> None:
        (folder / "state.json").write_text(json.dumps({"step": step}), encoding="utf-8")
        (folder / "best").mkdir()
        (folder / "best" / "weights").write_bytes(bytes(range(step, step + 100)))

    return write


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, Told())
    for step in steps:
        checkpoints.save(step, state(step))
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------------- what is kept


def test_the_newest_two_are_kept_and_the_newest_is_gone_on_from(tmp_path: Path) -> None:
    told = Told()
    saved(tmp_path / "kept", 8, 9, 10, 11)
    assert names(tmp_path / "kept") == ["step-10", "step-11"]
    found = Checkpoints(tmp_path / "kept", told).newest()
    assert found is not None and found[0] == 11
    assert json.loads((found[1] / "state.json").read_text("utf-8")) == {"step": 11}
    assert told.lines == ["going on from the checkpoint of step 11"] and told.warnings == []


def test_without_a_folder_nothing_is_kept() -> None:
    checkpoints = Checkpoints(None, Told())
    checkpoints.after(1, state(1))
    assert checkpoints.newest() is None


def test_before_the_first_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", Told()).newest() is None


# --------------------------------------------------------------------------------------------------- damage


def truncate(folder: Path) -> None:
    (folder / "best" / "weights").write_bytes(bytes(50))


def flip_one_bit(folder: Path) -> None:
    data = bytearray((folder / "best" / "weights").read_bytes())
    data[7] ^= 1
    (folder / "best" / "weights").write_bytes(data)


def lose_a_file(folder: Path) -> None:
    (folder / "state.json").unlink()


def lose_the_record(folder: Path) -> None:
    (folder / "checkpoint.json").unlink()


def empty_the_record(folder: Path) -> None:
    (folder / "checkpoint.json").write_text("", encoding="utf-8")


def garble_the_record(folder: Path) -> None:
    (folder / "checkpoint.json").write_text('["step", "format", "files"]', encoding="utf-8")


def write_another_format(folder: Path) -> None:
    record = json.loads((folder / "checkpoint.json").read_text("utf-8"))
    (folder / "checkpoint.json").write_text(json.dumps(record | {"format": 99}), encoding="utf-8")


DAMAGES = (
    truncate,
    flip_one_bit,
    lose_a_file,
    lose_the_record,
    empty_the_record,
    garble_the_record,
    write_another_format,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_warned_of_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    saved(tmp_path, 3, 4)
    damage(tmp_path / "step-4")
    told = Told()
    assert Checkpoints(tmp_path, told).newest() == (3, tmp_path / "step-3")
    assert len(told.warnings) == 1 and "the checkpoint of step 4 is not used" in told.warnings[0]
    assert names(tmp_path) == ["step-3"]


def test_where_both_are_damaged_there_is_none(tmp_path: Path) -> None:
    saved(tmp_path, 3, 4)
    truncate(tmp_path / "step-3")
    lose_a_file(tmp_path / "step-4")
    told = Told()
    assert Checkpoints(tmp_path, told).newest() is None
    assert ["step 4" in told.warnings[0], "step 3" in told.warnings[1]] == [True, True]


def test_the_warning_names_the_file(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    truncate(tmp_path / "step-4")
    told = Told()
    Checkpoints(tmp_path, told).newest()
    assert "(best/weights is not as it was written)" in told.warnings[0]


def test_what_a_kill_left_of_a_save_is_cleared_away(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    (tmp_path / ".step-abc").mkdir()
    (tmp_path / ".step-abc" / "state.json").write_text("{", encoding="utf-8")
    assert Checkpoints(tmp_path, Told()).newest() == (3, tmp_path / "step-3")
    assert names(tmp_path) == ["step-3"]


# ---------------------------------------------------------------------------------------- failing to save


def full_disk(folder: Path) -> None:
    (folder / "state.json").write_text("half", encoding="utf-8")
    raise OSError(errno.ENOSPC, "No space left on device")


def no_room_for_tensors(folder: Path) -> None:
    """The real thing, as safetensors tells of it."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        write_tensors(folder / "weights.safetensors", {"weight": torch.zeros(1 << 16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize(
    ("failing", "words"), [(full_disk, "no space left"), (no_room_for_tensors, "File too large (os error 27)")]
)
def test_a_full_disk_is_warned_of_once_and_costs_neither_work_nor_older_checkpoints(
    tmp_path: Path, failing: Callable[[Path], None], words: str
) -> None:
    told = Told()
    checkpoints = Checkpoints(tmp_path, told)
    checkpoints.after(1, state(1))
    for step in (2, 3):
        checkpoints.after(step, failing)
    assert names(tmp_path) == ["step-1"]
    assert len(told.warnings) == 1
    assert "the state after step 2 was not saved" in told.warnings[0] and words in told.warnings[0]
    checkpoints.after(4, state(4))
    assert names(tmp_path) == ["step-1", "step-4"]


def test_an_error_of_the_work_itself_is_no_matter_of_the_disk(tmp_path: Path) -> None:
    def mistaken(folder: Path) -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError):
        Checkpoints(tmp_path, Told()).save(1, mistaken)
    assert names(tmp_path) == []


def test_a_step_that_is_saved_already_stays_as_it_is(tmp_path: Path) -> None:
    saved(tmp_path, 5, 5)
    assert names(tmp_path) == ["step-5"]
    assert Checkpoints(tmp_path, Told()).newest() is not None


# ------------------------------------------------------------------------------------------------ cadence


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only element."""
    now = [0.0]
    monkeypatch.setattr("cohyde.checkpoints.time.monotonic", lambda: now[0])
    return now


def steps_saved(folder: Path, clock: list[float], seconds: float, cost: float, steps: int) -> list[int]:
    """The steps saved of work that takes a second a step, where a checkpoint takes ``cost`` seconds."""
    checkpoints, kept = Checkpoints(folder, Told(seconds)), list[int]()

    for step in range(1, steps + 1):

        def write(target: Path, step: int = step) -> None:
            kept.append(step)
            clock[0] += cost

        clock[0] += 1
        checkpoints.after(step, write)
    return kept


def test_a_checkpoint_comes_when_it_is_time(tmp_path: Path, clock: list[float]) -> None:
    assert steps_saved(tmp_path, clock, seconds=4, cost=0, steps=10) == [4, 8]
    assert steps_saved(tmp_path, clock, seconds=300, cost=0, steps=10) == []


def test_nought_seconds_are_after_every_step_whatever_it_costs(tmp_path: Path, clock: list[float]) -> None:
    assert steps_saved(tmp_path, clock, seconds=0, cost=5, steps=3) == [1, 2, 3]


def test_what_takes_long_to_save_is_saved_less_often(tmp_path: Path, clock: list[float]) -> None:
    # 3 seconds are at most 3 % of the time: the second one comes 3 / 0.03 = 100 seconds after the first.
    assert steps_saved(tmp_path, clock, seconds=10, cost=3, steps=120) == [10, 110]


def test_work_that_is_asked_to_stop_saves_at_once(tmp_path: Path) -> None:
    told = Told(300)
    checkpoints = Checkpoints(tmp_path, told)
    checkpoints.after(1, state(1))
    told.stopping = True
    with pytest.raises(Interrupted, match="after step 2"):
        checkpoints.after(2, state(2))
    assert names(tmp_path) == ["step-2"]


# ------------------------------------------------------------------------------------------ state of training


def trained(model: torch.nn.Module, optimizer: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.dropout(model(torch.randn(8, 5)), 0.5).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def a_training() -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def test_training_goes_on_from_a_state_as_if_nothing_had_been(tmp_path: Path) -> None:
    model, optimizer = a_training()
    trained(model, optimizer, 3)
    write_state(tmp_path, dict(model.named_parameters()), optimizer, {"history": [0.1, float("-inf")]})
    expected = trained(model, optimizer, 4)
    other, fresh = a_training()
    torch.manual_seed(99)
    weights, notes = read_state(tmp_path, fresh)
    other.load_state_dict(weights)
    assert trained(other, fresh, 4) == expected
    assert notes == {"history": [0.1, float("-inf")]}


def test_a_state_of_an_optimizer_that_has_not_stepped(tmp_path: Path) -> None:
    model, optimizer = a_training()
    write_state(tmp_path, dict(model.named_parameters()), optimizer, {})
    read_state(tmp_path, optimizer)
    assert optimizer.state_dict()["state"] == {}
