"""The HTTP server: an address of its own, connections that are bounded in number and time, and a quiet end."""

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cohyde.config import ServeConfig
from cohyde.errors import UserError
from cohyde.server.guard import Application

KEEP_ALIVE_SECONDS = 5
"""How long a connection stays open after an answer, for the next request."""
OWN_ADDRESS = "give an address of this machine, such as 127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """A socket that has the address, on which nobody is answered yet.

    Args:
        host: a name or an address.
        port: 0 takes a free one.

    Raises:
        UserError: the address is taken, is not this machine's, or may not be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UserError(
            f"--host {host}: {error.strerror}", "give an address of this machine, such as 127.0.0.1"
        ) from None
    own = socket.socket(family, socket.SOCK_STREAM)
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(address)
        own.listen(1024)
    except OSError as error:
        own.close()
        raise _cannot_listen(error, host, port) from None
    return own


def _cannot_listen(error: OSError, host: str, port: int) -> UserError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UserError(f"{where} is taken by another program", "give another --port, or 0 for any that is free")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UserError(f"{where} may not be used by you", "ports from 1024 on are free for all: give another --port")
    return UserError(f"{where}: {error.strerror}", OWN_ADDRESS)


def bounded(limits: ServeConfig) -> type[H11Protocol]:
    """A connection that is closed where there are too many, and where no request comes on it in time."""

    class Bounded(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                transport.abort()
                return
            self._be_patient()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._settle()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._be_patient()

        def connection_lost(self, exc: Exception | None) -> None:
            self._settle()
            super().connection_lost(exc)

        def _be_patient(self) -> None:
            """From now on a whole head of a request has to come within the time for a request."""
            self._settle()
            self._patience = self.loop.call_later(limits.request_seconds, self.transport.abort)

        def _settle(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    return Bounded


class Server(uvicorn.Server):
    """uvicorn's, which tells when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self._tell()


def make_server(app: Application, limits: ServeConfig, started: Callable[[], None] = lambda: None) -> Server:
    """A server that is ready to run on sockets of :func:`listen`; see :func:`serve_http`."""
    config = uvicorn.Config(
        app,
        http=bounded(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(limits.shutdown_seconds)),
    )
    return Server(config, started)


def serve_http(
    app: Application, own: socket.socket, limits: ServeConfig, started: Callable[[], None] = lambda: None
) -> int | None:
    """Answer on a socket until SIGTERM or Ctrl-C; requests in work are answered first.

    Args:
        app: what answers.
        own: from :func:`listen`; closed in the end.
        limits: of connections and time.
        started: called when it answers.

    Returns:
        The signal that ended it.
    """
    heard: list[int] = []

    def remember(number: int, frame: Any) -> None:
        heard.append(number)

    # uvicorn raises the signals that it was ended by once more, when it is done: they end here.
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        make_server(app, limits, started).run(sockets=[own])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        own.close()
    return heard[0] if heard else None
