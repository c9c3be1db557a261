"""A command as a job of a Ray cluster: sent through the cluster's dashboard, and its log followed."""

import asyncio
import logging
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cohyde.dag.session import ANSWER_SECONDS as KNOCK_SECONDS
from cohyde.dag.session import AUTHENTICATION
from cohyde.dag.upload import Upload, pack
from cohyde.errors import UserError

ANSWER_SECONDS = 10.0
"""A dashboard answers at once; together with the time for its port to open this stays below 15 seconds."""
POLL_SECONDS = 1.0
READY_SECONDS = 30.0
NOT_READY = "No available agent"
"""What a head says that was started a moment ago."""
RECONNECTS = 10
"""Times in a row that the log's connection is opened again before it is given up."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a job ended."""

    status: str
    """``SUCCEEDED``, ``FAILED`` or ``STOPPED``."""
    message: str
    exit_status: int
    """Of the command: 0 where it succeeded, else what it left with, or 1."""

    @property
    def reason(self) -> str:
        """The first line of Ray's message; the lines below it repeat the log."""
        return self.message.partition("\n")[0].rstrip(", ")


class JobServer:
    """The dashboard of a Ray cluster."""

    def __init__(self, address: str) -> None:
        """Connect.

        Raises:
            UserError: nobody answers at the address, something else does, or it does not let us in; within 15 seconds.
        """
        self.address = address.rstrip("/")
        _check_dashboard(self.address)
        from ray.job_submission import JobSubmissionClient

        for talkative in ("dashboard_sdk", "job.sdk"):
            logging.getLogger(f"ray.dashboard.modules.{talkative}").setLevel(logging.WARNING)
        try:
            with _refusals_told(self.address):
                self._client = JobSubmissionClient(self.address)
        except (ConnectionError, RuntimeError) as error:
            raise _no_dashboard(self.address, error) from None

    def submit(self, upload: Upload, command: str, name: str) -> None:
        """Upload, where the cluster has not the same files already, and start the command in their folder.

        Args:
            upload: the files.
            command: a shell command line.
            name: the job's, new on this cluster.

        Raises:
            UserError: the cluster refuses.
        """
        with tempfile.TemporaryDirectory(prefix="cohyde-submit-") as folder, _refusals_told(self.address):
            archive = Path(folder) / "project.zip"
            pack(upload, archive)
            environment = {"working_dir": str(archive), "env_vars": {"PYTHONUNBUFFERED": "1"}}
            deadline = time.monotonic() + READY_SECONDS
            while True:
                try:
                    self._client.submit_job(entrypoint=command, submission_id=name, runtime_env=environment)
                    return
                except (RuntimeError, ValueError) as error:
                    if NOT_READY not in str(error) or time.monotonic() > deadline:
                        raise UserError(f"Ray at {self.address} refuses the job: {error}") from None
                    time.sleep(POLL_SECONDS)

    def follow(self, name: str, on_text: Callable[[str], None]) -> Ending:
        """Pass the job's output on until it ends.

        Raises:
            UserError: the cluster cannot be reached any more; the job may go on.
        """
        import aiohttp

        written = 0
        for _ in range(RECONNECTS):
            try:
                # Each connection gets the log from its beginning.
                written = asyncio.run(self._tail(name, written, on_text))
                return self._ending(name)
            except (RuntimeError, OSError, aiohttp.ClientError) as error:
                reason = str(error)
                time.sleep(POLL_SECONDS)
        raise UserError(f"the connection to {self.address} is lost: {reason}", f"the job may go on; {name} is its name")

    async def _tail(self, name: str, written: int, on_text: Callable[[str], None]) -> int:
        seen = 0
        async for text in self._client.tail_job_logs(name):
            seen += len(text)
            if seen > written:
                on_text(text[max(0, len(text) - (seen - written)) :])
                written = seen
        return written

    def _ending(self, name: str) -> Ending:
        while True:
            found = self._client.get_job_info(name)
            if found.status.is_terminal():
                succeeded = found.status.value == "SUCCEEDED"
                code = 0 if succeeded else found.driver_exit_code or 1
                return Ending(status=found.status.value, message=found.message or "", exit_status=code)
            time.sleep(POLL_SECONDS)


@contextmanager
def _refusals_told(address: str) -> Iterator[None]:
    """Errors of authentication are the user's to mend."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError:
        raise UserError(f"Ray at {address} wants authentication", AUTHENTICATION) from None


def _check_dashboard(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{address!r} is not the address of a Ray dashboard", "give http://HOST:PORT of the head, often port 8265"
        )
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise UserError(f"{address!r} names no port", "ports are numbers up to 65535, often 8265") from None
    try:
        socket.create_connection((parts.hostname, port), timeout=KNOCK_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"nobody answers at {address}: {error}",
            "start a cluster with `ray start --head`, or name another's dashboard: --address http://HOST:8265",
        ) from None
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError as answer:
        with suppress(OSError):
            answer.close()
        if answer.code not in (401, 403):  # these are answered below, with the token
            raise _no_dashboard(address, answer) from None
    except (OSError, ValueError) as error:
        raise _no_dashboard(address, error) from None


def _no_dashboard(address: str, error: Exception) -> UserError:
    return UserError(
        f"something listens at {address}, but it is no Ray dashboard: {error}",
        "give http://HOST:PORT of the head, often port 8265; the head needs `pip install 'ray[default]'`",
    )
