"""``cohyde eval``: what is planned, in this process; the runs themselves are slow tests."""

import json
from pathlib import Path

import pytest
from command_line import Call, caller


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capfd, monkeypatch)


def test_the_list_names_every_key_that_only_takes(call: Call, tmp_path: Path) -> None:
    _, listed, _ = call("eval", "list", "--json")
    keys = {kind: [row["key"] for row in rows] for kind, rows in json.loads(listed).items()}
    assert {"bm25", "hyde", "refine"} <= set(keys["systems"]) and "no-warm-up" in keys["ablations"]
    status, shown, _ = call("eval", "list")
    assert status == 0 and all(key in shown for key in (*keys["systems"], *keys["ablations"]))


def test_a_dry_run_of_baselines_shows_what_they_need_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    where = ("-c", "tiny", "--store", str(tmp_path / "store"), "--dry-run")
    status, shown, told = call("eval", "baselines", *where, "--only", "bm25,hyde")
    assert status == 0 and "tiny-baselines: 5 stages: 0 done, 5 to run" in told
    assert [line.split()[0] for line in shown.splitlines()[1:]] == [
        *("data", "B.bm25", "B.rewriter", "B.hyde.texts", "B.hyde"),
    ]
    assert not (tmp_path / "store").exists()


def test_a_dry_run_of_ablations_shows_how_much_is_shared(call: Call, tmp_path: Path) -> None:
    where = ("-c", "tiny", "--store", str(tmp_path / "store"), "--dry-run", "--rounds", "2")
    status, shown, _ = call("eval", "ablations", *where, "--only", "untrained-encoder,search-description,rounds-2")
    lines = {line.split()[0]: line for line in shown.splitlines()[1:]}
    assert status == 0 and list(lines) == ["main", "rounds-2", "search-description", "untrained-encoder"]
    # data, S1a, S1b, two rounds of five stages, and the last evaluation
    assert lines["main"].split()[-3:] == ["0", "14", "14"]
    assert lines["untrained-encoder"].split()[-3:] == ["14", "1", "1"]
    assert all("the same as main" in lines[key] for key in ("rounds-2", "search-description"))
    assert not (tmp_path / "store").exists() and max(map(len, shown.splitlines())) <= 80
    _, shown, _ = call("eval", "ablations", *where, "--json", "--only", "untrained-encoder")
    runs = {row["run"]: row for row in json.loads(shown)["runs"]}
    assert (runs["untrained-encoder"]["shared"], runs["untrained-encoder"]["own"]) == (14, 1)


@pytest.mark.parametrize("command", ["baselines", "ablations"])
@pytest.mark.parametrize(("only", "says"), [("bm26", "'bm26' is no"), (",", "names no")])
def test_a_key_that_does_not_exist_is_answered_with_those_that_do(
    command: str, only: str, says: str, call: Call, tmp_path: Path
) -> None:
    status, _, told = call("eval", command, "-c", "tiny", "--store", str(tmp_path), "--only", only, "--dry-run")
    assert status == 2 and says in told and ("bm25" if command == "baselines" else "no-warm-up") in told


def test_an_endpoint_that_is_not_set_up_is_no_system_of_a_run(call: Call, tmp_path: Path) -> None:
    status, _, told = call("eval", "baselines", "-c", "tiny", "--store", str(tmp_path), "--only", "endpoint")
    assert status == 2 and "'endpoint' is no system here" in told


def test_the_plan_of_an_ablation_says_how_much_it_shares(call: Call, tmp_path: Path) -> None:
    where = ("-c", "tiny", "--rounds", "1", "--store", str(tmp_path))
    status, shown, told = call("plan", *where, "--ablation", "untrained-rewriter")
    assert status == 0 and "A.untrained-rewriter" in shown
    # The main run: data, two warm-ups, five stages of a round, three evaluations, and the report.
    assert "tiny-ablations-untrained-rewriter: 15 stages" in told and "12 of its 15 stages are those of tiny" in told
    status, _, told = call("plan", *where, "--ablation", "untrained")
    assert status == 2 and "no ablation is called 'untrained'" in told
