"""A Ray of several machines on one: `ray start` processes to kill, cut off and add, and drivers on them."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parent
STARTED_SECONDS = 90


class Machine:
    """One `ray start`."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the process)
        ray = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
            f"--dashboard-agent-listen-port={free_port()}",  # the usual one may be another cluster's
            *arguments,
        ]
        self.process = subprocess.Popen(
            ray, env=environment, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL
        )

    def wait(self) -> None:
        deadline = time.monotonic() + STARTED_SECONDS
        while "Ray runtime started" not in self.said():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def processes(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def has(self, pid: int) -> bool:
        return any(process.pid == pid for process in self.processes())

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def kill(self) -> None:
        """The power cut: every process of it at once."""
        self.signal(signal.SIGKILL)
        self.process.wait()


class Cluster:
    """A head without CPUs, so that stages run on the other machines, and token authentication."""

    def __init__(self, *head_arguments: str) -> None:
        # Not pytest's folder: paths of sockets may have 107 bytes.
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_prestart_worker_first_driver": "0",
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        }
        self.environment.pop("RAY_ADDRESS", None)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        common = ("--head", "--num-cpus=0", f"--temp-dir={self.folder}")
        self.head = Machine(
            self.environment, *common, f"--port={port}", *(head_arguments or ("--include-dashboard=false",))
        )
        self.machines: list[Machine] = []

    def add(self, *named: str) -> list[Machine]:
        """A machine of one CPU for each name, with a resource of that name."""
        self.head.wait()
        added = []
        for name in named:  # one after the other: two that start at once choose the same ports
            resources = f"--resources={json.dumps({name: 1})}"
            added.append(Machine(self.environment, f"--address={self.address}", "--num-cpus=1", resources))
            added[-1].wait()
        self.machines += added
        return added

    def of(self, pid: int) -> Machine:
        [machine] = [machine for machine in self.machines if machine.has(pid)]
        return machine

    def close(self) -> None:
        for machine in [self.head, *self.machines]:
            machine.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def cluster(*named: str, head: tuple[str, ...] = ()) -> Iterator[Cluster]:
    started = Cluster(*head)
    try:
        started.add(*named)
        yield started
    finally:
        started.close()


DRIVER = """
import json, sys
from trivial_stages.basic import Numbers
from trivial_stages.spread import Spread
from cohyde.config import ResourcesConfig, RunnerConfig
from cohyde.dag.runner import run
from cohyde.dag.spec import StageSpec
from cohyde.dag.store import Store

address, store, retries, stages = sys.argv[1:]
modules = {"basic": Numbers, "spread": Spread}
specs = [
    StageSpec(
        id=one["id"], version="1",
        entry=f"trivial_stages.{one.get('module', 'basic')}:{one.get('function', 'slow')}",
        inputs={f"in{place}": above for place, above in enumerate(one.get("inputs", []))},
        config=modules[one.get("module", "basic")](**one.get("config", {})),
        resources=ResourcesConfig(**one.get("resources", {})),
    )
    for one in json.loads(stages)
]

def tell(event):
    print(json.dumps({"event": type(event).__name__, **vars(event)}, default=str), flush=True)

result = run(
    specs, Store(store), run_name="r", address=address, how=RunnerConfig(retries=int(retries)), on_event=tell
)
sys.exit(0 if result.ok else 1)
"""


class Driver:
    """A run of trivial stages on a cluster, in a process of its own; what it tells is read line by line."""

    def __init__(self, on: Cluster, store: Path, *stages: dict[str, Any], retries: int = 0) -> None:
        command = [sys.executable, "-c", DRIVER, on.address, str(store), str(retries), json.dumps(stages)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=on.environment)
        self.heard: list[dict[str, Any]] = []

    def until(self, event: str, id_: str | None = None, seconds: float = 120) -> dict[str, Any]:
        """Listen until it tells this; a run that hangs is ended."""
        assert self.process.stdout is not None
        ending = threading.Timer(seconds, self.process.kill)
        ending.daemon = True
        ending.start()
        for line in self.process.stdout:
            if line.startswith("{"):
                self.heard.append(json.loads(line))
                if self.heard[-1]["event"] == event and id_ in (None, self.heard[-1]["id"]):
                    ending.cancel()
                    return self.heard[-1]
        assert self.process.stderr is not None
        raise AssertionError(f"it ended without {event} {id_}: {self.heard}\n{self.process.stderr.read()}")

    def end(self, seconds: float = 120) -> int:
        output, self.errors = self.process.communicate(timeout=seconds)
        self.heard += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return self.process.returncode

    def of(self, event: str, id_: str | None = None) -> list[dict[str, Any]]:
        return [one for one in self.heard if one["event"] == event and id_ in (None, one["id"])]
