"""A Ray of several machines: a run over all of them, the loss of one, of its head, and a token that is lacking."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import Cluster, Driver, cluster

from cohyde.dag.store import Store


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two machines of one CPU each beside the head."""
    with cluster("red", "green") as started:
        yield started


def attempts(store: Path) -> dict[str, int]:
    """Attempts that the artifacts took, by stage; all of them whole."""
    at = Store(store)
    records = [json.loads((path / "manifest.json").read_text()) for path in at.artifacts()]
    assert [at.verify(record["id"], record["fingerprint"]) for record in records] == [[]] * len(records)
    return {record["id"]: record["attempt"] for record in records}


@pytest.mark.slow
def test_a_run_uses_all_machines_and_the_loss_of_one_is_no_failure_of_its_stage(two: Cluster, tmp_path: Path) -> None:
    stages = [{"id": id_, "config": {"value": value, "seconds": 4}} for id_, value in (("a", 1), ("b", 2))]
    driver = Driver(two, tmp_path, *stages, {"id": "sum", "function": "number", "inputs": ["a", "b"]})
    pids = [driver.until("Started")["pid"] for _ in stages]
    lost, other = (two.of(pid) for pid in pids)
    assert lost is not other

    lost.kill()
    assert driver.end() == 0, driver.errors
    [failed] = driver.of("Failed")
    assert failed["id"] == driver.of("Started")[0]["id"]
    assert failed["retrying"] is True  # though `retries` is 0
    assert re.search(r"the machine it ran on \(.+\) was lost", failed["failure"])
    assert attempts(tmp_path) == {"a": 1, "b": 1, "sum": 1} | {failed["id"]: 2}
    assert next(tmp_path.glob("sum-*/number.txt")).read_text() == str(1 + (1 + 2))


@pytest.mark.slow
def test_a_stage_waits_for_a_machine_that_the_cluster_has_no_more(two: Cluster, tmp_path: Path) -> None:
    two.add("blue")
    on_blue = {"resources": {"custom": {"blue": 1}}}
    driver = Driver(two, tmp_path, {"id": "a", "config": {"seconds": 4}, **on_blue})
    two.of(driver.until("Started")["pid"]).kill()
    assert driver.until("Warned")["message"] == (
        "waits for a machine with 1 CPU, 0 GPUs, 1 blue: the cluster has lost those that it had"
    )
    two.add("blue")
    assert driver.end() == 0, driver.errors
    assert attempts(tmp_path) == {"a": 2}


@pytest.mark.slow
def test_a_machine_that_was_cut_off_and_comes_back_writes_nothing(two: Cluster, tmp_path: Path) -> None:
    driver = Driver(two, tmp_path, {"id": "a", "config": {"seconds": 8}})
    cut_off = two.of(driver.until("Started")["pid"])
    cut_off.signal(signal.SIGSTOP)
    if len(two.machines) == 1:
        two.add("green")
    driver.until("Failed")
    cut_off.signal(signal.SIGCONT)
    assert driver.end() == 0, driver.errors
    assert attempts(tmp_path) == {"a": 2}
    time.sleep(10)
    first = next(tmp_path.glob("logs/a-*/attempt-1"))
    assert attempts(tmp_path) == {"a": 2} and not any((tmp_path / ".scratch").glob("*/*")), (
        first / "log.txt"
    ).read_text()


def test_a_cluster_whose_token_is_lacking_is_told_in_a_sentence(two: Cluster, tmp_path: Path) -> None:
    bare = {name: value for name, value in two.environment.items() if not name.startswith("RAY_AUTH")}
    command = [sys.executable, "-m", "cohyde", "run", "-c", "tiny", "--store", str(tmp_path), "--address", two.address]
    done = subprocess.run(command, capture_output=True, text=True, env={**bare, "HOME": str(tmp_path)}, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    # On a busy machine Ray's own answer takes longer than we wait; the advice is the same.
    assert two.address in done.stderr and "wants RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN" in done.stderr.replace(
        "\n", " "
    )


def test_the_loss_of_the_head_is_told_with_the_command_that_resumes(two: Cluster, tmp_path: Path) -> None:
    """The last of this module: there is no cluster afterwards."""
    command = [sys.executable, "-m", "cohyde", "run", "-c", "tiny", "--store", str(tmp_path), "--address", two.address]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=two.environment)
    assert run.stderr is not None
    seen = []
    for line in run.stderr:
        seen.append(line)
        if "data started" in line:
            break
    two.head.kill()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1 and "Traceback" not in errors, "".join(seen) + errors
    assert (
        f"tiny: Ray at {two.address} is gone: its process on this machine has ended; what is finished stays" in errors
    )
    assert f"resume:  cohyde run -c tiny --store {tmp_path} --address {two.address}" in errors
