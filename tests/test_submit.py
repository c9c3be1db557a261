"""``cohyde submit``: what is refused at once, what would be uploaded, and a job on a real cluster."""

import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Call, caller
from ray_cluster import Cluster, cluster, free_port

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.delenv("COHYDE_STORE", raising=False)
    return caller(capfd, monkeypatch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project, in which the command is typed."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "mine.yaml").write_text("extends: tiny\n")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "library.py").write_text("no source")
    monkeypatch.chdir(folder)
    return folder


STORE = ("--store", "/shared/store")


def test_a_dry_run_lists_what_would_be_uploaded_and_asks_nobody(cohyde: Call, project: Path) -> None:
    code, out, err = cohyde("submit", "--dry-run", "--", "run", "--config", "mine.yaml", *STORE, "dpo.beta=0.2")
    assert code == 0
    assert out == "          14  mine.yaml\n"
    assert "would upload: 1 file, 0.0 MB" in err.replace("\n", " ")
    assert "python -m cohyde run --config mine.yaml --store /shared/store dpo.beta=0.2 --address auto" in err


def test_a_dry_run_as_json_is_for_programs(cohyde: Call, project: Path) -> None:
    code, out, _ = cohyde("submit", "--dry-run", "--json", "--", "plan", "--rounds", "1", *STORE)
    assert code == 0
    assert json.loads(out) == {
        # `plan` joins no cluster
        "command": "python -m cohyde plan --rounds 1 --store /shared/store",
        "files": 1,
        "bytes": 14,
        "upload": {"mine.yaml": 14},
    }


def test_the_store_of_the_environment_goes_along(cohyde: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHYDE_STORE", "/shared/mine")
    _, out, _ = cohyde("submit", "--dry-run", "--json", "--", "run", "--address", "head:6379")
    assert json.loads(out)["command"] == "python -m cohyde run --address head:6379 --store /shared/mine"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fly"], "'fly' cannot be submitted"),
        (["search", "demo", "text"], "'search' cannot be submitted"),
        (["run"], "the store is 'store': below the job's own folder"),
        (["run", "--store", "here"], "the store is 'here'"),
        (["run", *STORE, "--config", "lost.yaml"], "lost.yaml: no such configuration file"),
        (["run", *STORE, "--rounds", "many"], "Invalid value for '--rounds'"),
        (["run", *STORE, "--adress", "x"], "No such option: --adress"),
        (["run", *STORE, "dpo.beat=1"], "unknown key dpo.beat; did you mean dpo.beta?"),
    ],
)
def test_what_the_job_would_refuse_is_refused_here(
    cohyde: Call, project: Path, arguments: list[str], expected: str
) -> None:
    code, out, err = cohyde("submit", "--", *arguments)
    assert (code, out) == (2, "") and expected in re.sub(r"[│\s]+", " ", err) and "Traceback" not in err


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("sample", None),
        ("/shared/toolbench", None),
        ("data", "data.path is 'data': it has to be among the files that are uploaded"),
        ("elsewhere", "data.path is 'elsewhere', which is not here: name a folder of the cluster's shared file system"),
    ],
)
def test_data_that_the_cluster_may_not_see_is_warned_of(
    cohyde: Call, project: Path, path: str, expected: str | None
) -> None:
    code, _, err = cohyde("submit", "--dry-run", "--", "run", *STORE, f"data.path={path}")
    assert code == 0
    assert (expected in err) if expected else ("data.path is" not in err)


def test_too_much_is_refused_before_anybody_is_asked(cohyde: Call, project: Path) -> None:
    (project / "weights.bin").write_bytes(b"0" * 1_500_000)
    code, _, err = cohyde("submit", "--max-mb", "1", "--", "run", *STORE)
    assert code == 2 and "1.5 MB  weights.bin" in err and "--max-mb raises the limit" in err


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("head:6379", "'head:6379' is not the address of a Ray dashboard"),
        ("http://127.0.0.1:99999", "names no port"),
        ("http://127.0.0.1:{free}", "nobody answers at http://127.0.0.1:"),
    ],
)
def test_an_address_that_is_none_is_told_soon(cohyde: Call, project: Path, address: str, expected: str) -> None:
    code, out, err = cohyde("submit", "--address", address.format(free=free_port()), "--", "run", *STORE)
    assert (code, out) == (2, "") and expected in err


@contextmanager
def other_server() -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_another_web_server_is_told_as_such(cohyde: Call, project: Path) -> None:
    with other_server() as address:
        code, _, err = cohyde("submit", "--address", address, "--", "run", *STORE)
    assert code == 2 and f"something listens at {address}, but it is no Ray dashboard" in err


def test_a_port_that_never_answers_is_told_within_15_seconds(
    cohyde: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohyde.dag import submit

    assert submit.KNOCK_SECONDS + submit.ANSWER_SECONDS < 15
    monkeypatch.setattr(submit, "ANSWER_SECONDS", 1.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        code, _, err = cohyde("submit", "--address", address, "--", "run", *STORE)
    assert code == 2 and "it is no Ray dashboard: timed out" in err


# -------------------------------------------------------------------------------------------- a real cluster


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[Cluster, str]]:
    """A head that has the CPUs as well, its dashboard on loopback, and token authentication."""
    port = free_port()
    arguments = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}", "--num-cpus=2")
    with cluster(head=arguments) as started:
        started.head.wait()
        yield started, f"http://127.0.0.1:{port}"


def submit_from(folder: Path, on: Cluster, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cohyde", "submit", *arguments]
    bare = {name: value for name, value in on.environment.items() if name != "COHYDE_STORE"}
    return subprocess.run(command, cwd=folder, env=bare | environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a user has: the package, the stages, the presets; and a store and an environment in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("cohyde", "stages", "prompts", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "store" / ".scratch").mkdir(parents=True)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "python").write_text("")
    (folder / "cohyde" / "__init__.py").open("a").write("\nCAME_FROM_THE_UPLOAD = True\n")
    return folder


def test_a_submitted_plan_runs_on_the_cluster_and_its_output_comes_back(
    head: tuple[Cluster, str], checkout: Path, tmp_path: Path
) -> None:
    on, address = head
    line = ("plan", "-c", "tiny", "--rounds", "1", "--store", str(tmp_path), "--json")
    done = submit_from(checkout, on, "--address", address, "--follow", "--json", "--", *line)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["exit_status"], answer["address"]) == ("SUCCEEDED", 0, address)
    assert re.fullmatch(r"cohyde-tiny-[0-9a-f]{8}", answer["job"])
    [planned] = [json.loads(text) for text in done.stderr.splitlines() if text.startswith("{")]
    assert planned["store"] == str(tmp_path) and planned["stages"][0]["id"] == "data"
    assert f"ray job logs {answer['job']} --follow --address {address}" in done.stderr


@pytest.mark.slow
def test_a_job_that_fails_leaves_with_its_own_exit_status(
    head: tuple[Cluster, str], checkout: Path, tmp_path: Path
) -> None:
    on, address = head
    line = ("run", "-c", "tiny", "--store", str(tmp_path), "resources.training.gpus=64", "--until", "S1b")
    done = submit_from(checkout, on, "--address", address, "--follow", "--", *line)
    assert done.returncode == 2, done.stderr
    assert "lower resources.training.gpus" in done.stdout and "there is: 2 CPUs, 0 GPUs" in done.stdout


def test_a_cluster_whose_token_is_lacking_is_told_in_a_sentence(
    head: tuple[Cluster, str], checkout: Path, tmp_path: Path
) -> None:
    on, address = head
    wrong = {"RAY_AUTH_TOKEN": "0" * 64}
    done = submit_from(checkout, on, "--address", address, "--", "run", "--store", str(tmp_path), **wrong)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: Ray at {address} wants authentication" in done.stderr and "RAY_AUTH_MODE=token" in done.stderr


@pytest.mark.slow
def test_a_submitted_run_trains_on_the_cluster(head: tuple[Cluster, str], checkout: Path, tmp_path: Path) -> None:
    on, address = head
    line = ("run", "-c", "tiny", "--rounds", "1", "--store", str(tmp_path / "store"), "--until", "S1a")
    done = submit_from(checkout, on, "--address", address, "--follow", "--", *line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "S1a" in done.stdout and list((tmp_path / "store").glob("S1a-*/manifest.json"))
    assert not (checkout / "store" / "runs").exists()
