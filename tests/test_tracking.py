"""Step metrics: the file that every training leaves."""

from pathlib import Path

from cohyde.tracking import curves, read_steps, write_steps


def test_rows_of_a_step_become_one_and_axes_come_first(tmp_path: Path) -> None:
    history = [
        {"step": 0, "dev": 0.25},
        {"step": 2, "score": 0.5},
        {"step": 1, "lr": 0.1, "loss": 2.0, "epoch": 0.5},
        {"step": 2, "loss": 1.0, "epoch": 1.0},
    ]
    write_steps(tmp_path / "steps.jsonl", history)
    assert (tmp_path / "steps.jsonl").read_text(encoding="utf-8").splitlines() == [
        '{"step": 0, "dev": 0.25}',
        '{"step": 1, "epoch": 0.5, "loss": 2.0, "lr": 0.1}',
        '{"step": 2, "epoch": 1.0, "loss": 1.0, "score": 0.5}',
    ]


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    write_steps(tmp_path / "steps.jsonl", [{"step": 1, "loss": 0.5, "score": float("-inf"), "entropy": float("nan")}])
    assert read_steps(tmp_path / "steps.jsonl") == [{"step": 1, "loss": 0.5}]


def test_curves_are_points_by_name(tmp_path: Path) -> None:
    write_steps(tmp_path / "steps.jsonl", [{"step": 0, "dev": 0.1}, {"step": 1, "epoch": 0.5, "loss": 3.0, "dev": 0.2}])
    assert curves(read_steps(tmp_path / "steps.jsonl")) == {"dev": [(0, 0.1), (1, 0.2)], "loss": [(1, 3.0)]}
