"""What stands before the application: who may come in, how many at once, with how much, and for how long."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from cohyde.config import ServeConfig

if TYPE_CHECKING:
    from cohyde.server.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/healthz"})
"""Answered without a token: a load balancer has none."""
UNCOUNTED = frozenset({"/healthz", "/metrics"})
"""Answered however many others are in work: what watches a busy server has to see it."""
UNHURRIED = frozenset({"/tools", "/mcp"})
"""Not cut off: a change of the whole catalogue takes as long as it takes."""
RETRY_SECONDS = 1
"""What a client is told to wait when the server is full."""


class Refusal(Exception):
    """A request that is answered here, by a status and a message."""

    def __init__(self, status: int, message: str, remedy: str = "", headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.remedy, self.headers = status, message, remedy, tuple(headers)


class Gone(Exception):
    """The client has left before its request was there."""


def error_body(message: str, remedy: str = "") -> bytes:
    """The body of every error. Only ASCII, so that whatever a client sent can be in it."""
    return json.dumps({"error": message, "remedy": remedy}).encode("ascii")


class Guard:
    """An ASGI application around another.

    The whole body of a request is read here first, so that what is too large, too slow or broken off never reaches
    the application.
    """

    def __init__(
        self,
        app: Application,
        *,
        limits: ServeConfig,
        metrics: "Metrics",
        token: str = "",
        hosts: Collection[str] | None = None,
    ) -> None:
        """Stand before an application.

        Args:
            app: what answers.
            limits: how many, how much, how long.
            metrics: what answers are counted in.
            token: which clients have to send as ``Authorization: Bearer …``; empty: nobody has to.
            hosts: names by which the server may be addressed; None: any. A page in a browser can make a name of its
                own point to this machine (DNS rebinding), but cannot send another name.
        """
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.token = token.encode()
        self.hosts = hosts
        self.in_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer, began = Answer(send), time.perf_counter()
        try:
            self._check(scope)
            if scope["path"] in UNCOUNTED:
                await self.app(scope, receive, answer)
            else:
                await self._counted(scope, receive, answer)
        except Refusal as refusal:
            await answer.refuse(refusal)
        except Gone:
            pass
        finally:
            if answer.status is not None:
                self.metrics.answered(scope["path"], answer.status, time.perf_counter() - began)

    async def _counted(self, scope: Scope, receive: Receive, answer: "Answer") -> None:
        if self.in_work >= self.limits.max_requests:
            raise Refusal(
                503, f"{self.in_work} requests are in work, as many as may be", "try again in a moment", [RETRY]
            )
        self.in_work += 1
        self.metrics.in_work.set(self.in_work)
        try:
            body = await self._whole_body(scope, receive)
            seconds = None if scope["path"] in UNHURRIED else self.limits.request_seconds
            try:
                async with asyncio.timeout(seconds):
                    await self.app(scope, replayed(body, receive), answer)
            except TimeoutError:
                raise Refusal(504, f"no answer in {seconds:g} s", "try again later", [RETRY]) from None
        finally:
            self.in_work -= 1
            self.metrics.in_work.set(self.in_work)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and without_port(host) not in self.hosts:
            raise Refusal(
                421, "the server is not addressed by this name", "call it 127.0.0.1 or localhost, or set a token"
            )
        if not self.token or scope["path"] in OPEN:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
            raise Refusal(
                401,
                "the token is missing or another",
                "send the header Authorization: Bearer TOKEN",
                [("www-authenticate", "Bearer")],
            )

    async def _whole_body(self, scope: Scope, receive: Receive) -> bytes:
        most = self.limits.max_body_bytes
        too_large = Refusal(
            413, f"the body is larger than {most:,} bytes", "send less; the limit is serve.max_body_bytes"
        )
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refusal(408, f"the request took longer than {self.limits.request_seconds:g} s to arrive") from None


RETRY = ("retry-after", str(RETRY_SECONDS))


class Answer:
    """The way back to the client, which knows whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        """Of the answer, once it has begun."""

    async def __call__(self, message: Message) -> None:
        """Send a message of the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Send an error in its place, where nothing was sent before; the connection ends with it."""
        if self.status is not None:
            return
        body = error_body(refusal.message, refusal.remedy)
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), *refusal.headers]
        if refusal.status in (408, 413):
            headers.append(("connection", "close"))  # the rest of the body is not read
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await self({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        await self({"type": "http.response.body", "body": body})


def replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives a body that was read already; after it, what is to come."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def without_port(host: str) -> str:
    """The name or address in a ``Host`` header."""
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
