"""Whether the Ray that a run is connected to is still there; Ray itself ends the process without a word to its user."""

import socket
import time
from collections.abc import Mapping
from typing import Any

from cohyde.errors import ClusterLostError

PULSE_SECONDS = 2.0
PATIENCE_SECONDS = 30.0
"""A head may be started again where it keeps its state elsewhere; Ray ends the driver after 60 seconds without one."""
ANSWER_SECONDS = 1.0


class Pulse:
    """Knocks at the ports of the cluster's head, and of the raylet through which this process is connected."""

    def __init__(self, ray: Any, address: str | None) -> None:
        """Of the session that is open now.

        Args:
            ray: the module.
            address: as the user gave it. A Ray client's (``ray://``) cannot reach these ports, and is not watched.
        """
        self.name = f"Ray at {address}" if address else "the Ray of this machine"
        self.head: tuple[str, int] | None = None
        self.raylet: tuple[str, int] | None = None
        self._knocked = self._answered = time.monotonic()
        self._answers = True
        if address is None or not address.startswith("ray://"):
            context = ray.get_runtime_context()
            host, _, port = context.gcs_address.rpartition(":")
            self.head = (host.strip("[]"), int(port))
            self.raylet = _raylet(ray.nodes(), context.get_node_id())

    def check(self, *, now: bool = False) -> bool:
        """Knock, if it is time to or asked for; whether the head answers, for whoever asks it something waits.

        Raises:
            ClusterLostError: the raylet is gone, which never comes back, or the head has been gone for long.
        """
        moment = time.monotonic()
        if not now and moment - self._knocked < PULSE_SECONDS:
            return self._answers
        self._knocked = moment
        if self.raylet and not _answers(self.raylet):
            raise ClusterLostError(f"{self.name} is gone: its process on this machine has ended")
        self._answers = not self.head or _answers(self.head)
        if self._answers:
            self._answered = time.monotonic()
        elif time.monotonic() - self._answered > PATIENCE_SECONDS:
            raise ClusterLostError(f"{self.name} is gone: its head has not answered for {PATIENCE_SECONDS:.0f} seconds")
        return self._answers


def _raylet(nodes: list[Mapping[str, Any]], own: str) -> tuple[str, int] | None:
    return next(
        ((node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes if node["NodeID"] == own), None
    )


def _answers(port: tuple[str, int]) -> bool:
    try:
        socket.create_connection(port, timeout=ANSWER_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except TimeoutError:  # the machine is gone or cut off
        return False
    except OSError:  # out of file descriptors: says nothing about Ray
        return True
    return True
