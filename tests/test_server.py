"""The HTTP and MCP server, on a loopback port: what it answers, what it refuses, and that it lives on afterwards."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chat_server import COMPLETIONS, EMBEDDINGS, Act, body, chat_server, hang, hang_up, hang_up_midway, status

from cohyde.catalog import Tool, tool_to_row
from cohyde.config import (
    EmbeddingConfig,
    EncoderEndpointConfig,
    EndpointConfig,
    RewriterConfig,
    SamplingConfig,
    SearchConfig,
    ServeConfig,
)
from cohyde.encoder.model import embed, load_encoder
from cohyde.errors import UserError
from cohyde.retrieval.live import LiveRetriever
from cohyde.retrieval.rewriters import GeneratorRewriter, hurried
from cohyde.rewriter.prompts import load_prompt
from cohyde.server.app import is_loopback, make_app
from cohyde.server.http import listen, make_server, serve_http

RAIN = Tool(
    id="weather/rain?", title="Weather", api_name="forecast", api_description="Returns the forecast for a city."
)
EURO = Tool(id="euro", title="Money", api_name="rate", api_description="Returns an exchange rate.")
WAKE = Tool(id="wake", title="Clock", api_name="alarm", api_description="Sets an alarm.")
TOKEN = "a-secret-of-our-own"


def make_retriever(encoder: Path, mode: str = "query", **arguments: Any) -> LiveRetriever:
    search, embedding = SearchConfig(mode=mode), EmbeddingConfig(max_length=64)
    return LiveRetriever(encoder, (RAIN, EURO, WAKE), embedding=embedding, search=search, **arguments)


def completion(text: str) -> Act:
    """What an endpoint writes."""
    choice = {"index": 0, "text": text, "finish_reason": "stop"}
    return body(json.dumps({"object": "text_completion", "choices": [choice]}))


class Held:
    """A rewriter that answers when the test says so."""

    batches_at_once = 1

    def __init__(self) -> None:
        self.asked, self.going = threading.Event(), threading.Event()

    def describe(self, texts):
        self.asked.set()
        self.going.wait(60)
        return [f"about {text}" for text in texts]

    def close(self) -> None:
        pass


@dataclass
class Site:
    """A server that runs."""

    port: int
    stop: Callable[[], None]

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers, and what the body says; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, {"Content-Type": "application/json", **sent})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, told, json.loads(text) if "json" in told.get("content-type", "") else text

    def search(self, query: Any, **fields: Any) -> tuple[int, Any]:
        status, _, told = self.call("POST", "/search", {"query": query, **fields})
        return status, told

    def lives(self) -> bool:
        return self.search("will it rain")[0] == 200

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def serving(retriever: LiveRetriever, limits: ServeConfig | None = None, **arguments: Any) -> Iterator[Site]:
    """The server in a thread of this process, on a free port."""
    limits = limits or ServeConfig()
    own, started = listen("127.0.0.1", 0), threading.Event()
    server = make_server(make_app(retriever, limits=limits, **arguments), limits, started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)

    def stop() -> None:
        server.should_exit = True

    port = own.getsockname()[1]
    thread.start()
    assert started.wait(60)
    try:
        yield Site(port, stop)
    finally:
        stop()
        thread.join(60)
        retriever.close(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def site(tiny_encoder_path: Path) -> Iterator[Site]:
    """A server that tests may not change."""
    with serving(make_retriever(tiny_encoder_path), run="tiny", state="E.0") as site:
        yield site


# --------------------------------------------------------------------------------------------------------- search


def test_a_search_answers_as_the_command_prints(site: Site) -> None:
    status, answer = site.search("will it rain", k=2)
    assert status == 200
    assert set(answer) == {"query", "description", "rewritten", "reason", "tools", "timings"}
    assert (answer["query"], answer["rewritten"], answer["reason"]) == ("will it rain", False, "search.mode is query")
    assert [tool["rank"] for tool in answer["tools"]] == [1, 2]
    assert all(set(tool) == {"id", "score", "rank"} for tool in answer["tools"])


def test_more_tools_than_there_are_gives_all(site: Site) -> None:
    assert len(site.search("anything", k=10**18)[1]["tools"]) == 3
    assert len(site.search("anything")[1]["tools"]) == 3  # 5 where nothing is said


LONG = "a " * 500_000
BAD: list[tuple[str, Any, int, str]] = [
    ("empty", {"query": ""}, 422, "query: String should have at least 1 character"),
    ("white space", {"query": " \t\n"}, 422, "nothing but white space or invisible characters"),
    ("zero width", {"query": "\u200b\ufeff"}, 422, "nothing but white space or invisible characters"),
    ("1 MB", {"query": LONG}, 422, "query: String should have at most 10000 characters"),
    ("half a surrogate pair", b'{"query": "\\ud800 rain"}', 422, "query: "),
    ("NUL", {"query": "rain\0"}, 422, "NUL character at position 5"),
    ("not UTF-8", b'{"query": "\xff\xfe"}', 400, "error parsing the body"),
    ("k of 0", {"query": "rain", "k": 0}, 422, "k: Input should be greater than or equal to 1"),
    ("k negative", {"query": "rain", "k": -3}, 422, "k: Input should be greater than or equal to 1"),
    ("k no number", {"query": "rain", "k": "five"}, 422, "k: Input should be a valid integer"),
    ("k NaN", b'{"query": "rain", "k": NaN}', 422, "k: Input should be a valid integer"),
    ("k of 5,000 digits", b'{"query": "rain", "k": ' + b"9" * 5000 + b"}", 400, "error parsing the body"),
    ("no query", {"k": 3}, 422, "query: Field required"),
    ("another key", {"query": "rain", "limit": 3}, 422, "limit: Extra inputs are not permitted"),
    ("a key of half a pair", {"query": "rain", "\ud800": 3}, 422, "unable to parse raw data as a unicode string"),
    ("no object", [1, 2], 422, "the body: "),
    ("malformed", b'{"query": "rai', 400, "the body is not JSON"),
    ("nothing", b"", 422, "the body: Field required"),
    ("nested", b"[" * 200_000, 400, ""),
]


@pytest.mark.parametrize(("body", "status", "told"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input_gets_a_status_and_a_message_and_the_server_lives_on(
    site: Site, body: Any, status: int, told: str
) -> None:
    found, _, answer = site.call("POST", "/search", body)
    assert found == status
    assert set(answer) == {"error", "remedy"} and told in answer["error"] and answer["remedy"]
    assert site.lives()


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/search", 405), ("GET", "/mcp", 405)]
)
def test_what_is_not_there_is_told(site: Site, method: str, path: str, status: int) -> None:
    found, _, _ = site.call(method, path)
    assert found == status


def test_bytes_that_are_no_http_are_refused(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")
    assert site.lives()


def test_the_surroundings_are_there(site: Site) -> None:
    status, _, health = site.call("GET", "/healthz")
    assert (status, health) == (
        200,
        {"status": "ok", "run": "tiny", "state": "E.0", "tools": 3, "rewriter": "none"},
    )
    document = site.call("GET", "/openapi.json")[2]
    assert set(document["paths"]) == {"/search", "/tools", "/healthz", "/metrics"}
    page = site.call("GET", "/docs")[2]
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert "swagger" in page and len(loaded) >= 2
    for asset in loaded:  # from this server, without a network
        with urllib.request.urlopen(f"http://127.0.0.1:{site.port}{asset}", timeout=60) as answer:
            assert asset.startswith("/") and answer.status == 200 and answer.read()
    metrics = site.call("GET", "/metrics")[2]
    assert 'cohyde_requests_total{path="/healthz",status="200"}' in metrics
    assert "cohyde_tools 3.0" in metrics
    assert 'cohyde_batches_total{model="encoder"}' in metrics


# ------------------------------------------------------------------------------------------------------- catalogue


def test_tools_are_added_changed_and_removed_while_it_runs(tiny_encoder_path: Path) -> None:
    with serving(make_retriever(tiny_encoder_path)) as site:
        snow = {"id": "snow", "title": "Snow", "api_description": "Depth of snow.", "parameters": [{"name": "place"}]}
        status, _, change = site.call("PUT", "/tools", {"tools": [snow, {**tool_to_row(EURO), "title": "Cash"}]})
        counts = {"added": 1, "changed": 1, "unchanged": 0, "removed": 0, "embedded": 2, "tools": 4}
        assert (status, change) == (200, counts)
        assert site.search("Snow. Depth of snow. Parameters: place", k=1)[1]["tools"][0]["id"] == "snow"
        status, _, change = site.call("DELETE", "/tools?id=weather/rain%3F&id=wake")
        assert (status, change["removed"], change["tools"]) == (200, 2, 2)
        assert {tool["id"] for tool in site.search("rain")[1]["tools"]} == {"euro", "snow"}
        page = site.call("GET", "/tools?offset=1&limit=1")[2]
        assert (page["total"], page["tools"][0]["id"], page["tools"][0]["parameters"][0]["name"]) == (
            2,
            "snow",
            "place",
        )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("DELETE", "/tools?id=nope", None, 404, "'nope': not in the catalogue"),
        ("DELETE", "/tools", None, 422, "id: Field required"),
        ("DELETE", "/tools?id=euro&id=wake&id=weather/rain%3F", None, 422, "no tool would be left"),
        ("PUT", "/tools", {"tools": []}, 422, "tools: List should have at least 1 item"),
        ("PUT", "/tools", {"tools": [{"title": "x"}]}, 422, "tools.0.id: Field required"),
        ("PUT", "/tools", {"tools": [{"id": " "}]}, 422, "field 'id' is missing or empty"),
        ("PUT", "/tools", {"tools": [{"id": "a"}, {"id": "a"}]}, 422, "given twice"),
        ("PUT", "/tools", {"tools": [{"id": "a", "title": 3}]}, 422, "tools.0.title: Input should be a valid string"),
        ("PUT", "/tools", {"tools": [{"id": "a", "nope": 3}]}, 422, "tools.0.nope: Extra inputs are not permitted"),
        ("GET", "/tools?limit=0", None, 422, "limit: "),
    ],
)
def test_a_change_that_cannot_be_made_is_told_and_changes_nothing(
    site: Site, method: str, path: str, body: Any, status: int, told: str
) -> None:
    found, _, answer = site.call(method, path, body)
    assert (found, told in answer["error"]) == (status, True), answer
    assert site.call("GET", "/tools")[2]["total"] == 3


# ---------------------------------------------------------------------------------------------------- who may come in


def test_with_a_token_set_nobody_comes_in_without_it(tiny_encoder_path: Path) -> None:
    with serving(make_retriever(tiny_encoder_path), token=TOKEN) as site:
        for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": TOKEN}, {"Authorization": "Bearer"}):
            for method, path in (("POST", "/search"), ("PUT", "/tools"), ("GET", "/metrics"), ("POST", "/mcp")):
                status, headers, answer = site.call(method, path, {"query": "rain"}, **given)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert TOKEN not in json.dumps(answer)
        assert site.call("GET", "/healthz")[0] == 200
        assert site.call("POST", "/search", {"query": "rain"}, Authorization=f"Bearer {TOKEN}")[0] == 200
        metrics = site.call("GET", "/metrics", Authorization=f"bearer {TOKEN}")[2]
        assert 'cohyde_requests_total{path="/search",status="401"} 4.0' in metrics and TOKEN not in metrics


def test_beyond_this_machine_the_catalogue_is_changed_only_with_a_token(tiny_encoder_path: Path) -> None:
    with serving(make_retriever(tiny_encoder_path), host="0.0.0.0") as site:
        assert site.call("DELETE", "/tools?id=euro")[0] == 403
        assert site.call("PUT", "/tools", {"tools": [{"id": "a"}]})[0] == 403
        assert site.call("POST", "/search", {"query": "rain"}, Host="tools.example:8080")[0] == 200
    with serving(make_retriever(tiny_encoder_path), host="0.0.0.0", token=TOKEN) as site:
        assert site.call("DELETE", "/tools?id=euro", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_name_that_others_gave_this_machine_is_not_answered_to(site: Site) -> None:
    assert site.call("POST", "/search", {"query": "rain"}, Host="rebound.example")[0] == 421
    assert site.call("POST", "/search", {"query": "rain"}, Host="localhost:80")[0] == 200
    assert site.call("POST", "/search", {"query": "rain"}, Host="[::1]:80")[0] == 200


def test_loopback_addresses_are_known() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "tools.example")] == [False] * 4


# ---------------------------------------------------------------------------------------- how much, how many, how long


def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(tiny_encoder_path: Path) -> None:
    with serving(make_retriever(tiny_encoder_path), ServeConfig(max_body_bytes=2048)) as site:
        status, _, answer = site.call("POST", "/search", {"query": "a" * 3000})
        assert (status, answer["error"]) == (413, "the body is larger than 2,048 bytes")
        with site.connect() as connection:
            connection.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.sendall(b"bb8\r\n" + b"a" * 3000 + b"\r\n")  # 0xbb8 = 3000
            assert connection.recv(4096).startswith(b"HTTP/1.1 413")
        assert site.lives()


def test_one_request_too_many_is_told_to_come_again(tiny_encoder_path: Path) -> None:
    held = Held()
    limits = ServeConfig(max_requests=1)
    with serving(make_retriever(tiny_encoder_path, mode="description", rewriter=held, limits=limits), limits) as site:
        answers: list[tuple[int, Any]] = []
        first = threading.Thread(target=lambda: answers.append(site.search("will it rain")))
        first.start()
        assert held.asked.wait(60)
        status, headers, answer = site.call("POST", "/search", {"query": "rain"})
        assert (status, headers["retry-after"]) == (503, "1")
        assert answer["error"] == "1 requests are in work, as many as may be"
        assert (
            site.call("GET", "/healthz")[0] == 200 and "cohyde_requests_in_work 1.0" in site.call("GET", "/metrics")[2]
        )
        held.going.set()
        first.join(60)
        assert answers[0][0] == 200 and answers[0][1]["description"] == "about will it rain"
        assert site.lives()


def test_an_answer_that_takes_too_long_is_given_up(tiny_encoder_path: Path) -> None:
    held = Held()
    retriever = make_retriever(tiny_encoder_path, mode="description", rewriter=held)
    with serving(retriever, ServeConfig(request_seconds=0.2)) as site:
        status, answer = site.search("will it rain")
        assert (status, answer["error"]) == (504, "no answer in 0.2 s")
        held.going.set()
        assert site.call("GET", "/healthz")[0] == 200


def test_a_rewriter_that_misses_its_deadline_leaves_the_answer_to_the_encoder(tiny_encoder_path: Path) -> None:
    held = Held()
    limits = ServeConfig(rewriter_failures=1)
    retriever = make_retriever(
        tiny_encoder_path, mode="description", rewriter=held, limits=limits, deadline_seconds=0.01
    )
    with serving(retriever, limits) as site:
        status, answer = site.search("will it rain")
        assert (status, answer["rewritten"], len(answer["tools"])) == (200, False, 3)
        assert answer["reason"] == "the rewriter did not answer in 0.01 s"
        assert "is left alone for a while" in site.search("wake me")[1]["reason"]
        assert site.call("GET", "/healthz")[2]["rewriter"] == "left alone"
        assert 'cohyde_answers_total{rewritten="false"} 2.0' in site.call("GET", "/metrics")[2]
        held.going.set()


ENDPOINT_FAULTS: list[tuple[str, Act, float, str]] = [
    ("hangs", hang(3), 0.2, "the rewriter did not answer in 0.2 s"),
    ("HTML", body("<html><body>Bad gateway</body></html>", "text/html"), 60, "the answer is not JSON"),
    ("closes", hang_up, 60, "no connection"),
    ("closes midway", hang_up_midway, 60, "no connection"),
    ("fails", status(500), 60, "status 500"),
    ("only reasons", completion("<think>The user wants to know"), 60, "nothing was left of what the rewriter wrote"),
]


@pytest.mark.parametrize(
    ("fault", "deadline", "told"), [row[1:] for row in ENDPOINT_FAULTS], ids=[row[0] for row in ENDPOINT_FAULTS]
)
def test_an_endpoint_at_fault_leaves_the_answer_to_the_encoder(
    tiny_encoder_path: Path, tiny_rewriter_path: Path, fault: Act, deadline: float, told: str
) -> None:
    acts = [fault]

    def script(asked: dict[str, Any], before: int) -> Act:
        return acts.pop() if acts else completion("Weather forecast. The forecast for a city.")

    with chat_server(script, route=COMPLETIONS) as at:
        config = RewriterConfig(backend="openai", openai=EndpointConfig(url=at.url, model="m"))
        rewriter = GeneratorRewriter(
            tiny_rewriter_path,
            rewriter=hurried(config, deadline),
            sampling=SamplingConfig(max_new_tokens=8),
            prompt=load_prompt("hyde"),
        )
        retriever = make_retriever(tiny_encoder_path, mode="description", rewriter=rewriter, deadline_seconds=deadline)
        with serving(retriever) as site:
            status, answer = site.search("will it rain")
            assert (status, answer["rewritten"], len(answer["tools"])) == (200, False, 3)
            assert told in answer["reason"]
            status, answer = site.search("will it be dry")
            assert status == 200 and (
                answer["rewritten"] or deadline < 1
            )  # a busy machine may miss so short a deadline
            assert len(at.requests) <= 2  # nothing is asked again


def test_what_does_not_arrive_in_time_is_not_waited_for(tiny_encoder_path: Path) -> None:
    with serving(make_retriever(tiny_encoder_path), ServeConfig(request_seconds=0.3)) as site:
        with site.connect() as slow, site.connect() as half, site.connect() as silent:
            slow.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            half.sendall(b"POST /search HTTP/1.1\r\nHo")
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
            assert ended(half) and ended(silent)
        assert site.call("GET", "/healthz")[0] == 200


def ended(connection: socket.socket) -> bool:
    """Whether the other side closes the connection without a word."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_a_flood_of_connections_is_bounded_and_survived(tiny_encoder_path: Path) -> None:
    with serving(make_retriever(tiny_encoder_path), ServeConfig(max_connections=10)) as site:
        flood = [site.connect() for _ in range(60)]
        assert sum(map(ended, flood[10:])) == 50  # 10 stay
        for connection in flood:
            connection.close()
        assert site.lives()


def test_clients_that_leave_early_are_survived(site: Site) -> None:
    for sent in (b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", b"POST /sea", b""):
        connection = site.connect()
        connection.sendall(sent)
        connection.close()
    body = json.dumps({"query": "will it rain"}).encode()
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection = site.connect()
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    connection.close()
    assert site.lives()


# ---------------------------------------------------------------------------------------------- beginning and ending


def test_what_is_in_work_is_answered_before_it_ends(tiny_encoder_path: Path) -> None:
    held = Held()
    with serving(make_retriever(tiny_encoder_path, mode="description", rewriter=held)) as site:
        answers: list[tuple[int, Any]] = []
        asking = threading.Thread(target=lambda: answers.append(site.search("will it rain")))
        asking.start()
        assert held.asked.wait(60)
        site.stop()
        held.going.set()
        asking.join(60)
    assert answers[0][0] == 200 and answers[0][1]["rewritten"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_is_reported(tiny_encoder_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    with make_retriever(tiny_encoder_path) as retriever:
        own = listen("127.0.0.1", 0)
        ended_by = serve_http(make_app(retriever), own, ServeConfig(), lambda: os.kill(os.getpid(), number))
    assert ended_by == number
    assert signal.getsignal(number) is before


def test_a_port_that_is_taken_is_told() -> None:
    with listen("127.0.0.1", 0) as own:
        port = own.getsockname()[1]
        with pytest.raises(UserError, match=rf"127.0.0.1:{port} is taken by another program\n  give another --port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])  # an address of documentation's, and no name
def test_an_address_that_is_not_ours_is_told(host: str) -> None:
    with pytest.raises(UserError, match="give an address of this machine"):
        listen(host, 0)


# ------------------------------------------------------------------------------------------------------------- MCP


def test_an_agent_finds_tools_through_mcp(site: Site) -> None:
    from mcp import Client

    async def talk() -> tuple[Any, ...]:
        async with Client(f"http://127.0.0.1:{site.port}/mcp") as client:
            [tool] = (await client.list_tools()).tools
            good = await client.call_tool("search_tools", {"query": "will it rain", "k": 2})
            blank = await client.call_tool("search_tools", {"query": "\u200b"})
            none = await client.call_tool("search_tools", {"query": "rain", "k": 0})
            other = await client.call_tool("search_tools", {"query": "rain"})
            return tool, good, blank, none, other

    tool, good, blank, none, other = asyncio.run(talk())
    assert (tool.name, tool.input_schema["required"]) == ("search_tools", ["query"])
    assert not good.is_error and not other.is_error
    found = good.structured_content["tools"]
    assert len(found) == 2 and set(found[0]) == {"id", "name", "description", "parameters", "score"}
    assert blank.is_error and "invisible characters" in blank.content[0].text
    assert none.is_error and "greater than or equal to 1" in none.content[0].text
    assert len(other.structured_content["tools"]) == 3


def test_requests_are_told_when_the_server_that_embeds_is_away_and_answered_when_it_is_back(
    tiny_encoder_path: Path,
) -> None:
    model, away = load_encoder(tiny_encoder_path, EmbeddingConfig(max_length=64), "cpu"), threading.Event()

    def answer(asked: dict[str, Any], before: int) -> Act:
        if away.is_set():
            return status(500, "out of memory")
        vectors = embed(model, asked["input"], 8).tolist()
        return body(json.dumps({"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}))

    with chat_server(answer, route=EMBEDDINGS) as at:
        endpoint = EncoderEndpointConfig(url=at.url, model="m", retries=0)
        embedding = EmbeddingConfig(max_length=64, embedder="endpoint", endpoint=endpoint)
        with serving(
            LiveRetriever(tiny_encoder_path, (RAIN, EURO), embedding=embedding, search=SearchConfig(mode="query"))
        ) as site:
            assert site.lives()
            away.set()
            code, told = site.search("will it rain tomorrow")
            assert (code, told["error"]) == (503, "the server that embeds for this one: status 500: 'out of memory'")
            assert at.url not in json.dumps(told)
            away.clear()
            assert site.lives()
