"""The HTTP application: search, the catalogue's tools, health, metrics, and MCP at ``/mcp``."""

import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Route

from cohyde import __version__
from cohyde.catalog import tool_from_row, tool_to_row
from cohyde.config import ServeConfig
from cohyde.errors import NoAnswerError, UserError
from cohyde.retrieval.catalog import UnknownToolError
from cohyde.retrieval.live import LiveRetriever
from cohyde.retrieval.requests import RequestError
from cohyde.server.guard import Guard, error_body
from cohyde.server.mcp import make_mcp
from cohyde.server.metrics import CONTENT_TYPE, Metrics

DESCRIPTION = "From a request in everyday words to the API tools that fulfil it."
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MOST_LISTED = 1000
"""Tools in one page of the catalogue."""


class Strict(BaseModel):
    """A body whose values have to be of their type, and whose keys have to be known."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ParameterBody(Strict):
    """One parameter of an API."""

    name: str
    type: str = ""
    description: str = ""
    required: bool = False


class ToolBody(Strict):
    """One tool, as a line of a dataset's catalog.jsonl; only the id has to be there."""

    id: str = Field(min_length=1, max_length=1000)
    category: str = ""
    title: str = ""
    description: str = ""
    api_name: str = ""
    api_description: str = ""
    parameters: list[ParameterBody] = []
    schema_: str = Field("", alias="schema")


class ToolsBody(Strict):
    """Tools to add, or to put in the place of those with the same ids."""

    tools: list[ToolBody] = Field(min_length=1)


class RankedTool(BaseModel):
    """A tool that was found."""

    id: str
    score: float
    rank: int


class SearchAnswer(BaseModel):
    """As ``cohyde search --json`` prints it."""

    query: str
    description: str = Field(description="What the rewriter wrote; empty where it had no part in the answer.")
    rewritten: bool = Field(description="Whether the rewriter had a part in the answer, or the encoder was alone.")
    reason: str | None = Field(description="Why it had none.")
    tools: list[RankedTool]
    timings: dict[str, float] = Field(description="Seconds by step.")


class ChangeAnswer(BaseModel):
    """What a change of the catalogue came to, in tools."""

    added: int
    changed: int
    unchanged: int
    removed: int
    embedded: int
    tools: int = Field(description="Tools there are now.")


class Listing(BaseModel):
    """A page of the catalogue."""

    total: int
    tools: list[dict[str, Any]]


class Health(BaseModel):
    """That the server answers, and with what."""

    status: str
    run: str
    state: str
    tools: int
    rewriter: str = Field(description="ready; left alone (it has failed, and is tried again later); or none")


class Error(BaseModel):
    """What is wrong, and what would be right."""

    error: str
    remedy: str


def make_app(
    retriever: LiveRetriever,
    *,
    limits: ServeConfig | None = None,
    run: str = "",
    state: str = "",
    token: str = "",
    host: str = "127.0.0.1",
) -> Guard:
    """The application around a retriever, with its guard. The retriever stays its owner's to close.

    Args:
        retriever: answers.
        limits: how much is answered at once, and for how long; None for the defaults.
        run: the run's name, for people.
        state: the state of it that is searched with.
        token: what clients have to send; empty: nothing.
        host: where the server listens. Beyond this machine, and without a token, nobody may change the catalogue.
    """
    limits, metrics = limits or ServeConfig(), Metrics(retriever)
    closed = bool(token) or is_loopback(host)
    app = _unguarded(retriever, limits, metrics, run, state, changes=closed)
    # Without a token, names that others may have given this machine are not answered to: see Guard.
    hosts = {host, *LOOPBACK_NAMES} if closed and not token else None
    return Guard(app, limits=limits, token=token, hosts=hosts, metrics=metrics)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unguarded(
    retriever: LiveRetriever, limits: ServeConfig, metrics: Metrics, run: str, state: str, *, changes: bool
) -> FastAPI:
    mcp = make_mcp(retriever, run)
    mcp_app = mcp.streamable_http_app(
        streamable_http_path="/mcp",
        json_response=True,
        stateless_http=True,
        max_request_body_size=limits.max_body_bytes,
        host="",  # the guard looks at who is addressed
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with mcp.session_manager.run():
            yield

    # Pages of documentation that load their scripts from here, not from the internet.
    app = FastAPIOffline(
        title=f"cohyde: {run}" if run else "cohyde", version=__version__, description=DESCRIPTION, lifespan=lifespan
    )
    for route in mcp_app.routes:
        if isinstance(route, Route):
            route.methods = {"POST"}  # without sessions, a stream that a GET opens would never tell anything
        app.router.routes.append(route)
    _answer_errors(app)
    _offer_search(app, retriever, limits, metrics)
    _offer_tools(app, retriever, changes)
    _offer_watching(app, retriever, metrics, run, state)
    return app


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of errors."""
    return {status: {"model": Error} for status in (400, 401, 408, 413, 421, 422, 503, *statuses)}


def _offer_search(app: FastAPI, retriever: LiveRetriever, limits: ServeConfig, metrics: Metrics) -> None:
    """``POST /search``."""
    threads: list[anyio.CapacityLimiter] = []

    class SearchBody(Strict):
        """A request in everyday words."""

        query: str = Field(min_length=1, max_length=limits.max_query_characters, examples=["will I get wet today"])
        k: int = Field(5, ge=1, description="Tools at most; a smaller catalogue gives all that it has.")

    @app.post("/search", response_model=SearchAnswer, responses=_refusals(504), tags=["search"])
    async def search(body: SearchBody) -> Response:
        """Find the tools that fulfil a request, best first."""
        if not threads:  # it belongs to the event loop, which is there now
            threads.append(anyio.CapacityLimiter(limits.max_requests))
        [answer] = await anyio.to_thread.run_sync(
            retriever.search, [body.query], body.k, abandon_on_cancel=True, limiter=threads[0]
        )
        metrics.answers.labels(str(answer.rewritten).lower()).inc()
        return _json(answer.to_json())


def _offer_tools(app: FastAPI, retriever: LiveRetriever, changes: bool) -> None:
    """``/tools``: what there is, and changes of it."""

    def check_allowed() -> None:
        if not changes:
            raise HTTPException(
                403, "the catalogue is changed only with a token, which this server was started without"
            )

    @app.get("/tools", response_model=Listing, responses=_refusals(), tags=["catalogue"])
    async def list_tools(
        offset: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100
    ) -> Response:
        """A page of the catalogue, in catalogue order."""
        tools = retriever.catalog.current.tools
        return _json({"total": len(tools), "tools": [tool_to_row(tool) for tool in tools[offset : offset + limit]]})

    @app.put("/tools", response_model=ChangeAnswer, responses=_refusals(403), tags=["catalogue"])
    async def put_tools(body: ToolsBody) -> Response:
        """Add tools, or put them in the place of those with the same ids; only what is new is embedded."""
        check_allowed()
        try:
            put = [tool_from_row(tool.model_dump(by_alias=True)) for tool in body.tools]
        except ValueError as error:
            raise RequestError(str(error)) from None
        change = await anyio.to_thread.run_sync(retriever.change, put, abandon_on_cancel=True)
        return _json(vars(change))

    @app.delete("/tools", response_model=ChangeAnswer, responses=_refusals(403, 404), tags=["catalogue"])
    async def remove_tools(
        id: Annotated[list[str], Query(min_length=1, description="A tool; may be given several times.")],
    ) -> Response:
        """Remove tools: all that are named, or none."""
        check_allowed()
        change = await anyio.to_thread.run_sync(retriever.change, (), frozenset(id), abandon_on_cancel=True)
        return _json(vars(change))


def _offer_watching(app: FastAPI, retriever: LiveRetriever, metrics: Metrics, run: str, state: str) -> None:
    """``/healthz`` and ``/metrics``."""

    @app.get("/healthz", response_model=Health, tags=["watching"])
    async def healthz() -> Response:
        """Whether the server answers, and whether the rewriter has a part in it."""
        described = retriever.descriptions
        rewriter = "none" if described is None else "left alone" if described.breaker.is_open else "ready"
        tools = len(retriever.catalog.current.tools)
        return _json({"status": "ok", "run": run, "state": state, "tools": tools, "rewriter": rewriter})

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, tags=["watching"])
    async def prometheus() -> Response:
        """Counters in Prometheus's text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _answer_errors(app: FastAPI) -> None:
    """Every error as one object that says what is wrong and what would be right."""

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _refused(400, "the body is not JSON", 'send an object such as {"query": "will it rain", "k": 5}')
        where = ".".join(str(part) for part in first["loc"][1:])
        return _refused(422, f"{where or 'the body'}: {first['msg']}", "see /docs for what is expected")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        # Of 400 there is one kind: a body that is neither UTF-8 nor JSON that can be read.
        remedy = "send JSON as UTF-8" if error.status_code == 400 else "see /docs for what there is"
        response = _refused(error.status_code, str(error.detail), remedy)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(UserError)
    async def mendable(request: Request, error: UserError) -> Response:
        status = 404 if isinstance(error, UnknownToolError) else 422 if isinstance(error, RequestError) else 500
        return _refused(status, error.message, error.remedy)

    @app.exception_handler(NoAnswerError)
    async def away(request: Request, error: NoAnswerError) -> Response:
        return _refused(503, f"the server that embeds for this one: {error.why}", "try again in a moment")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return _refused(500, "something went wrong in the server", "its log says what")


def _json(content: Any) -> Response:
    return Response(json.dumps(content, ensure_ascii=False).encode(), media_type="application/json")


def _refused(status: int, message: str, remedy: str) -> Response:
    return Response(error_body(message, remedy), status, media_type="application/json")
