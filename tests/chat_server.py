"""A real completions server on loopback that does as a test's script says, failures included."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[[BaseHTTPRequestHandler], None]
Script = Callable[[dict[str, Any], int], "Act | str"]
"""From a request's body, and how often its messages have been sent before, to what happens; a text is the reply."""
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
WHAT = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
"""The key of a request's body that holds what is asked."""


def said(text: str | None, finish_reason: str = "stop") -> Act:
    """A completion with this text."""
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}
    return body(json.dumps({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}))


def body(content: str, content_type: str = "application/json", status: int = 200, **headers: str) -> Act:
    """An answer of any body; headers' names are written with underscores."""

    def act(handler: BaseHTTPRequestHandler) -> None:
        payload = content.encode("utf-8")
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(payload)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(payload)

    return act


def status(code: int, message: str = "out of order", **headers: str) -> Act:
    """An error, in the form that such servers give it."""
    return body(json.dumps({"error": {"message": message, "type": "error", "code": None}}), status=code, **headers)


def hang(seconds: float) -> Act:
    """Nothing for a while, and then the connection's end."""

    def act(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        hang_up(handler)

    return act


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """The connection closes without an answer."""
    handler.close_connection = True


def hang_up_midway(handler: BaseHTTPRequestHandler) -> None:
    """The connection closes in the middle of the body."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


@dataclass
class ChatServer:
    """What has been asked so far, and where to ask."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0

    def questions(self) -> list[str]:
        """The last message of each request, in the order of arrival."""
        return [request["messages"][-1]["content"] for request in self.requests]


@contextmanager
def chat_server(script: Script, models: tuple[str, ...] = ("m",), route: str = CHAT) -> Iterator[ChatServer]:
    """Serve one route and ``/v1/models`` on a free port of 127.0.0.1."""
    record = ChatServer()
    lock = threading.Lock()
    under_way = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            nonlocal under_way
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                what = WHAT[route]
                before = sum(request[what] == asked[what] for request in record.requests)
                record.requests.append(asked)
                record.headers.append({name.lower(): value for name, value in self.headers.items()})
                under_way += 1
                record.most_at_once = max(record.most_at_once, under_way)
            try:
                if self.path != route:
                    status(404, f"no route {self.path}")(self)
                    return
                act = script(asked, before)
                (said(act) if isinstance(act, str) else act)(self)
            finally:
                with lock:
                    under_way -= 1

        def do_GET(self) -> None:
            body(json.dumps({"object": "list", "data": [{"id": name} for name in models]}))(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that leave early are part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    record.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield record
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
