"""A real S3 server: moto's, in a process of its own on this machine."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NEEDED = ("s3fs", "moto", "flask", "flask_cors")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
SECRET = "not-to-be-printed"
START_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What has to be set to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def serving(port: int | None = None) -> Iterator[Server]:
    port = port or free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        _wait_for(port, process)
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, "moto's server does not start"
            time.sleep(0.1)
