"""The same search for agents: an MCP server with one tool, over standard input and output or over HTTP."""

from typing import Annotated

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from cohyde import __version__
from cohyde.catalog import Tool, fold
from cohyde.retrieval.live import LiveRetriever
from cohyde.retrieval.requests import RequestError

INSTRUCTIONS = (
    "Search a catalogue of API tools. Say in everyday words what is to be done; the tools that may do it come back, "
    "best first, with what they do and the parameters they take."
)


class FoundParameter(BaseModel):
    """A parameter of a tool."""

    name: str
    type: str
    description: str
    required: bool


class FoundTool(BaseModel):
    """A tool as an agent reads it."""

    id: str
    name: str
    description: str
    parameters: list[FoundParameter]
    score: float


class Found(BaseModel):
    """What a search has found."""

    tools: list[FoundTool]
    rewritten: bool = Field(description="Whether the rewriter had a part in it, or the encoder was alone.")


def make_mcp(retriever: LiveRetriever, name: str) -> MCPServer:
    """An MCP server that searches with a retriever.

    Args:
        retriever: answers; it stays its owner's to close.
        name: the run's name, which the instructions end with.
    """
    server: MCPServer = MCPServer(
        "cohyde",
        title="Tool search",
        version=__version__,
        instructions=f"{INSTRUCTIONS} (Trained run: {name})" if name else INSTRUCTIONS,
        subscriptions=False,
        log_level="WARNING",
    )

    @server.tool(
        title="Search tools",
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )
    async def search_tools(
        query: Annotated[str, Field(description="What is to be done, in a sentence of everyday words.")],
        k: Annotated[int, Field(ge=1, description="How many tools at most.")] = 5,
    ) -> Found:
        """Find the tools of the catalogue that fulfil a request, best first."""
        try:
            [answer] = await anyio.to_thread.run_sync(retriever.search, [query], k, abandon_on_cancel=True)
        except RequestError as error:
            raise ToolError(f"{error.message}: {error.remedy}" if error.remedy else error.message) from None
        return Found(tools=[found(tool, score) for tool, score in answer.tools], rewritten=answer.rewritten)

    return server


def found(tool: Tool, score: float) -> FoundTool:
    """A tool with what an agent needs to choose it."""
    return FoundTool(
        id=tool.id,
        name=fold(f"{tool.title} {tool.api_name}"),
        description=fold(tool.api_description) or fold(tool.description),
        parameters=[
            FoundParameter(name=p.name, type=p.type, description=p.description, required=p.required)
            for p in tool.parameters
        ],
        score=score,
    )


def serve_stdio(retriever: LiveRetriever, name: str) -> None:
    """Answer over standard input and output until the client closes it."""
    make_mcp(retriever, name).run("stdio")
