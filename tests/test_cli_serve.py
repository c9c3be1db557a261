"""``cohyde serve`` and the retriever for programs, on a run of tiny models."""

import http.client
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import EMBEDDINGS, Act, body, chat_server
from command_line import Call, caller
from finished_runs import record

from cohyde import Retriever
from cohyde.cli_serve import token_from
from cohyde.config import EmbeddingConfig
from cohyde.dag.store import Store
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.retriever import DenseRetriever
from cohyde.errors import UserError
from cohyde.server.http import listen


@pytest.fixture(scope="module")
def store(finished_store: Store) -> Store:
    return finished_store


@pytest.fixture
def cohyde(
    store: Store, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Call]:
    monkeypatch.setenv("COHYDE_STORE", str(store.root))
    monkeypatch.delenv("COHYDE_TOKEN", raising=False)
    return caller(capfd, monkeypatch)


def free_port() -> int:
    with listen("127.0.0.1", 0) as own:
        return int(own.getsockname()[1])


class Visitor(threading.Thread):
    """Asks the server that the main thread runs, then ends it by a signal."""

    def __init__(self, port: int, number: int, **headers: str) -> None:
        super().__init__(daemon=True)
        self.port, self.number, self.headers, self.answers = port, number, headers, []

    def ask(self, method: str, path: str, body: Any = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Content-Type": "application/json", **self.headers}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        self.answers.append((answer.status, json.loads(answer.read())))

    def run(self) -> None:
        try:
            while True:
                try:
                    self.ask("GET", "/healthz")
                    break
                except ConnectionRefusedError:
                    threading.Event().wait(0.05)
            self.ask("POST", "/search", {"query": "will it rain", "k": 2})
            self.ask("DELETE", f"/tools?id={self.answers[-1][1]['tools'][0]['id']}")
        finally:
            os.kill(os.getpid(), self.number)


def test_it_serves_keeps_changes_and_ends_on_ctrl_c(store: Store, cohyde: Call, tmp_path: Path) -> None:
    visitor, keep = Visitor(free_port(), signal.SIGINT), tmp_path / "live.jsonl"
    visitor.start()
    code, output, errors = cohyde("serve", "tiny", "--port", str(visitor.port), "--keep", str(keep))
    assert (code, output) == (130, "")
    assert "E.0 of tiny: 80 tools, searched with: concatenated, rewriter: transformers\n" in errors
    assert f"answering at http://127.0.0.1:{visitor.port} " in errors
    (_, health), (status, found), (_, change) = visitor.answers
    assert (health["state"], status, len(found["tools"]), change["tools"]) == ("E.0", 200, 2, 79)
    assert len(keep.read_text("utf-8").splitlines()) == 79
    code, output, _ = cohyde("search", "tiny", "will it rain", "-k", "2", "--json")
    same = json.loads(output)
    assert code == 0
    assert {key: same[key] for key in same if key != "timings"} == {
        key: found[key] for key in found if key != "timings"
    }
    assert set(same["timings"]) == {"load", *found["timings"]}


def test_beyond_loopback_it_warns_and_the_token_is_nowhere(cohyde: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    visitor = Visitor(port, signal.SIGTERM)
    visitor.start()
    code, _, errors = cohyde("serve", "tiny", "search.mode=query", "--host", "0.0.0.0", "--port", str(port))
    assert code == 0
    told = " ".join(errors.split())
    assert f"whoever reaches 0.0.0.0:{port} may search: set COHYDE_TOKEN" in told
    assert "searched with: query, rewriter: none" in told
    assert [status for status, _ in visitor.answers] == [200, 200, 403]
    monkeypatch.setenv("COHYDE_TOKEN", "a-secret-of-our-own")
    visitor = Visitor(port, signal.SIGTERM, Authorization="Bearer a-secret-of-our-own")
    visitor.start()
    code, output, errors = cohyde("serve", "tiny", "search.mode=query", "--host", "0.0.0.0", "--port", str(port))
    assert code == 0 and [status for status, _ in visitor.answers] == [200, 200, 200]
    assert "may search" not in errors and "a-secret-of-our-own" not in errors + output


def test_another_server_may_embed_for_it(store: Store, cohyde: Call) -> None:
    [encoder] = store.root.glob("S1a-*/encoder")
    model = load_encoder(encoder, EmbeddingConfig(max_length=64), "cpu")

    def answer(asked: dict[str, Any], before: int) -> Act:
        vectors = embed(model, asked["input"], 8).tolist()
        return body(json.dumps({"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}))

    visitor = Visitor(free_port(), signal.SIGINT)
    with chat_server(answer, route=EMBEDDINGS) as server:
        settings = {"search.mode": "query", "encoder.embedder": "endpoint", "encoder.endpoint.model": "m"}
        told = [f"{key}={value}" for key, value in {**settings, "encoder.endpoint.url": server.url}.items()]
        visitor.start()
        code, _, _ = cohyde("serve", "tiny", *told, "--port", str(visitor.port))
    (_, _), (status, found), _ = visitor.answers
    assert (code, status) == (130, 200)
    assert server.requests[-1]["input"] == ["will it rain"]
    retriever = DenseRetriever.load(encoder, next(store.root.glob("E.0-*/index")), EmbeddingConfig(max_length=64))
    [expected] = retriever.rank_texts(["will it rain"], 2)
    assert [tool["id"] for tool in found["tools"]] == [tool for tool, _ in expected]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["other"], "no run is called 'other'"),
        (["tiny", "--state", "E.3"], "no stage is called 'E.3'"),
        (["tiny", "serve.max_request=3"], "unknown key serve.max_request; did you mean serve.max_requests?"),
        (["tiny", "serve.max_requests=0"], "serve.max_requests has to be at least 1, got 0"),
        (["tiny", "data.tools=3"], "unknown key data"),
        (["tiny", "rewriter.prompt=expand"], "rewriter.prompt is what tiny was trained with"),
        (["tiny", "encoder.pooling=mean"], "encoder.pooling is what tiny was trained with"),
        (["tiny", "encoder.embedder=endpoint"], "there is no endpoint give the server's base URL"),
        (["tiny", "search.mode=magic"], "no search mode is called 'magic'"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_told(cohyde: Call, arguments: list[str], told: str) -> None:
    code, output, errors = cohyde("serve", *arguments, "--port", "0")
    assert (code, output) == (2, "")
    assert told in " ".join(errors.split())


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(cohyde: Call) -> None:
    with listen("127.0.0.1", 0) as own:
        port = own.getsockname()[1]
        code, _, errors = cohyde("serve", "tiny", "--port", str(port))
    assert code == 2 and f"127.0.0.1:{port} is taken by another program" in errors


def test_a_run_that_is_not_finished_is_told_with_what_is_missing(cohyde: Call, tmp_path: Path) -> None:
    record(tmp_path / "store", "tiny")
    code, _, errors = cohyde("serve", "tiny", "--port", "0", "--store", str(tmp_path / "store"))
    assert code == 2
    assert (
        "run tiny: E.0 is not done yet: missing data, S1a, S1b, E.0\n  see how far it is: cohyde status tiny" in errors
    )


@pytest.mark.parametrize("token", ["two words", "sch\u00f6n", "line\nbreak"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(UserError, match="COHYDE_TOKEN holds characters that no header can") as refused:
        token_from(token)
    assert token not in str(refused.value)
    assert token_from("  plain\n") == "plain"


def test_programs_load_a_run_by_name_or_path_and_ask_it(store: Store) -> None:
    with Retriever.from_run("tiny", store=store.root) as by_name, Retriever.from_run(store.runs / "tiny") as by_path:
        [one], [other] = by_name.search(["will it rain"], 3), by_path.search(["will it rain"], 3)
    assert one.tools == other.tools and one.description == other.description
    with pytest.raises(UserError, match="is no run"):
        Retriever.from_run(store.root)
    with pytest.raises(UserError, match="no run is called 'other'"):
        Retriever.from_run("other", store=store.root)


@pytest.mark.slow
def test_an_agent_reaches_it_over_standard_input_and_output(store: Store) -> None:
    import asyncio

    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    arguments = ["-m", "cohyde", "serve", "tiny", "search.mode=query", "--mcp", "--store", str(store.root)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))

    async def talk() -> tuple[Any, ...]:
        async with Client(server) as client:
            [tool] = (await client.list_tools()).tools
            return tool, await client.call_tool("search_tools", {"query": "will it rain", "k": 3})

    tool, answer = asyncio.run(talk())
    assert re.search("fulfil a request", tool.description) and len(answer.structured_content["tools"]) == 3
