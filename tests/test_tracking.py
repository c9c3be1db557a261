"""Step metrics: the file that every training leaves, and where they go beside it."""

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from finished_runs import SMALLEST, finish
from object_store import free_port

from cohyde import trackers
from cohyde.config import TrackingConfig, identity_of, load_config
from cohyde.dag.runs import load_run
from cohyde.errors import UserError
from cohyde.trackers import Origin, Row, Tracking, check_tracking
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


# ------------------------------------------------------------------------------------- beside the store, as it comes


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the libraries' imports alone may take long."""
    for wait in ("GRACE_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(trackers, wait, 600.0)


def origin(store: Path, artifact: str = "S1a-0123456789abcdef") -> Origin:
    return Origin(run="demo", stage="S1a", artifact=artifact, store=store)


def track(config: TrackingConfig, where: Origin, rows: Sequence[Row], *, done: bool = True) -> list[str]:
    """What an attempt that tracks these rows is warned of."""
    warnings: list[str] = []
    tracking = Tracking(config, where, warnings.append)
    for row in rows:
        tracking.track(row)
    tracking.close(done)
    tracking.close(False)
    return warnings


def row(step: int, **measured: float) -> Row:
    return {"step": step, "epoch": step / 4, **measured}


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """What TensorBoard itself reads of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_tensorboard_reads_what_was_tracked(tmp_path: Path) -> None:
    rows = [row(0, dev=0.5), row(1, loss=2.0), row(2, loss=1.0, dev=0.75)]
    assert track(TrackingConfig(to="tensorboard"), origin(tmp_path), rows) == []
    folder = tmp_path / "runs" / "demo" / "tensorboard" / "S1a-0123456789abcdef"
    assert scalars(folder, "loss") == [(1, 2.0), (2, 1.0)]
    assert scalars(folder, "dev") == [(0, 0.5), (2, 0.75)]
    assert scalars(folder, "epoch") == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_steps_that_are_trained_again_after_a_kill_are_shown_once(tmp_path: Path) -> None:
    config = TrackingConfig(to="tensorboard", folder=str(tmp_path / "logs"))
    track(config, origin(tmp_path), [row(step, loss=4.0 - step) for step in (1, 2, 3)], done=False)
    track(config, origin(tmp_path), [row(step, loss=4.0 - step) for step in (2, 3, 4)])
    folder = tmp_path / "logs" / "tensorboard" / "S1a-0123456789abcdef"
    assert scalars(folder, "loss") == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.0)]


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with MLflow's own database in it, whose tables are made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield tmp_path_factory.mktemp("mlflow")


def mlflow_runs(store: Path, artifact: str) -> list[tuple[str, dict[str, list[tuple[int, float]]]]]:
    """Status and metrics of each MLflow run of an artifact."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cohyde")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`cohyde.artifact` = '{artifact}'")
    return [
        (
            run.info.status,
            {
                name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics
            },
        )
        for run in found
    ]


def test_mlflow_reads_what_was_tracked_by_an_attempt_and_the_next(mlflow_store: Path) -> None:
    config, where = TrackingConfig(to="mlflow"), origin(mlflow_store, "S1a-1")
    assert track(config, where, [row(1, loss=3.0), row(2, loss=2.0, **{"dev_ndcg@5": 0.5})], done=False) == []
    [(status, metrics)] = mlflow_runs(mlflow_store, "S1a-1")
    assert status == "KILLED"
    assert track(config, where, [row(2, loss=2.0), row(3, loss=1.0)]) == []
    [(status, metrics)] = mlflow_runs(mlflow_store, "S1a-1")
    assert status == "FINISHED"
    assert metrics["loss"] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert metrics["dev_ndcg_at_5"] == [(2, 0.5)]


def test_a_stage_that_is_made_anew_has_an_mlflow_run_anew(mlflow_store: Path) -> None:
    config, where = TrackingConfig(to="mlflow"), origin(mlflow_store, "S1a-2")
    for _ in range(2):
        assert track(config, where, [row(1, loss=3.0)]) == []
    assert [metrics["loss"] for _, metrics in mlflow_runs(mlflow_store, "S1a-2")] == [[(1, 3.0)], [(1, 3.0)]]


def test_a_server_that_is_down_is_one_warning_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    [warning] = track(TrackingConfig(to="mlflow"), origin(tmp_path), [row(step, loss=1.0) for step in range(300)])
    assert warning.startswith("tracking with mlflow has ended: ")
    assert warning.endswith("; steps.jsonl has every step still")
    assert "secret" not in warning


def test_a_place_that_cannot_be_written_to_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = TrackingConfig(to="tensorboard", folder=str(tmp_path / "file"))
    [warning] = track(config, origin(tmp_path), [row(1, loss=1.0), row(2, loss=1.0)])
    assert warning.startswith("tracking with tensorboard has ended: ")


def test_without_a_tracker_nothing_is_started(tmp_path: Path) -> None:
    before = threading.active_count()
    tracking = Tracking(TrackingConfig(), origin(tmp_path), print)
    tracking.track(row(1, loss=1.0))
    assert threading.active_count() == before
    tracking.close(True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "alembic" else real(name))
    with pytest.raises(UserError, match="tracking=mlflow: not installed: alembic") as missing:
        check_tracking(TrackingConfig(to="mlflow"))
    assert missing.value.remedy == 'pip install "cohyde[mlflow]"'
    check_tracking(TrackingConfig(to="tensorboard"))
    check_tracking(TrackingConfig())


def test_an_unknown_tracker_is_told() -> None:
    with pytest.raises(UserError, match=r"'wandb', which does not exist\n  choose one of: none, tensorboard, mlflow"):
        check_tracking(TrackingConfig(to="wandb"))


@pytest.mark.parametrize("given", [["tracking=mlflow"], ["tracking.to=mlflow"]])
def test_the_short_form_names_the_tracker(given: list[str]) -> None:
    config = load_config("tiny", [*given, "tracking.experiment=mine"])
    assert (config.tracking.to, config.tracking.experiment) == ("mlflow", "mine")
    assert identity_of(config) == identity_of(load_config("tiny"))


def test_only_a_section_with_a_short_form_may_be_a_text() -> None:
    with pytest.raises(UserError, match="encoder has to be a section with keys"):
        load_config("tiny", ["encoder=large"])


def test_credentials_in_the_uri_are_refused() -> None:
    with pytest.raises(UserError, match="uri holds credentials, and would be written down") as refused:
        load_config("tiny", ["tracking.uri=https://me:secret@example.org/a"])
    assert "secret" not in str(refused.value)


def test_a_stage_tracks_what_its_file_holds(tmp_path: Path, cohyde_cache: Path) -> None:
    settings = (*SMALLEST, "tracking=tensorboard")
    store = finish(tmp_path / "store", "tracked", settings, until="S1a")
    node = next(node for node in load_run(store, "tracked").plan.nodes.values() if node.id == "S1a")
    artifact = store.artifact_path(node.id, node.fingerprint)
    expected = curves(read_steps(artifact / "steps.jsonl"))
    assert set(expected) >= {"loss", "lr", "grad_norm", "dev_ndcg@5"}
    folder = store.root / "runs" / "tracked" / "tensorboard" / artifact.name
    for name, points in expected.items():
        assert scalars(folder, name) == [(step, pytest.approx(value)) for step, value in points]
    assert not [text for text in store.manifest(node.id, node.fingerprint).warnings if "tracking" in text]
