"""A Ray session: started here or joined by its address, and always ended."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cohyde.dag.capacity import local_cpus
from cohyde.errors import UserError

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    # Two idle workers would be started for nothing: ours need an environment of their own.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEDUP_LOGS": "0",
}
OBJECT_STORE_BYTES = 128 * 1024**2
"""Only paths travel through Ray."""
ANSWER_SECONDS = 3.0
"""A cluster's port answers at once or not at all."""
JOIN_SECONDS = 11.0
"""Something answers, but not as Ray does: ``ray.init`` itself would wait for two minutes."""
AUTHENTICATION = (
    "a cluster with token authentication (Ray's default) wants RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
    "~/.ray/auth_token as on its head"
)
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); ray.shutdown()"


@contextmanager
def session(address: str | None) -> Iterator[Any]:
    """Yield the module ``ray``, connected; leave nothing running that was started here.

    Without an address a Ray of this machine is started. A session that the caller has opened already is used and left
    as it is.

    Raises:
        UserError: nobody answers at the address, or it does not let us in.
    """
    set_environment(address)
    if address is not None:
        check_address(address)
    import ray

    if ray.is_initialized():
        with interruptible():
            yield ray
        return
    try:
        with interruptible():
            _open(ray, address)
        with interruptible():  # once more: ray.init has put its own handler of SIGTERM in place
            yield ray
    finally:
        with undisturbed():
            ray.shutdown()


def _open(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            # "local", or it would join whatever else runs on this machine.
            ray.init(
                address="local",
                num_cpus=local_cpus(),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
    except SystemExit:  # Ray's own answer to SIGTERM
        raise KeyboardInterrupt from None
    except Exception as error:  # a bare one where the machine is too busy to start it in half a minute
        what = f"Ray at {address}" if address else "a Ray of this machine"
        raise UserError(f"{what} cannot be used: {_last_line(str(error))}", "`cohyde doctor` says more") from error
    # Ray prints what befalls workers to standard output, where --json goes; no option turns that off. Failed stages
    # are reported by us.
    ray._private.worker._worker_logs_enabled = False


def set_environment(address: str | None) -> None:
    """What Ray reads when it is imported: whoever imports any of it calls this first.

    A Ray that is started here keeps its token authentication, with a token that lives as long as this process.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address is None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


# ---------------------------------------------------------------------------------------------------- addresses


def check_address(address: str) -> None:
    """Find out within 15 seconds whether a Ray cluster answers.

    Raises:
        UserError: it does not; says what was tried and what would be right.
    """
    if address.startswith(("http://", "https://")):
        raise UserError(f"{address} is the address of Ray's dashboard", "give HOST:PORT of its head, often port 6379")
    if address not in ("auto", "local"):
        _check_port(address)
    try:
        answer = subprocess.run(
            [sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=JOIN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"something listens at {address}, but no Ray cluster answers", f"check host and port; {AUTHENTICATION}"
        ) from None
    if answer.returncode == 0:
        return
    if "uthentication" in answer.stderr:
        raise UserError(
            f"Ray at {address} wants authentication",
            AUTHENTICATION,
        )
    raise UserError(
        f"no Ray cluster answers at {address}: {_last_line(answer.stderr)}",
        "start one with `ray start --head`, or leave --address out",
    )


def _check_port(address: str) -> None:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise UserError(f"{address!r} is not the address of a Ray cluster", "give HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"nobody answers at {address}: {error}", "start a cluster with `ray start --head`, or leave --address out"
        ) from None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


# ------------------------------------------------------------------------------------------------------ signals


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: what is running is ended properly. Only the main thread can have it so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep us from cleaning up after the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
