"""MCP ``tools/list`` results of one server or many, in the ways in which people save them.

A result, the JSON-RPC response around it, a list of either (pages), the bare list of tools, an object of such by the
servers' names, or JSON Lines of messages: a session's log, whose other messages are passed over.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohyde.data.importers.documents import first_paragraph, mapping_of, plain_text, pointer
from cohyde.data.importers.format import Format, Options
from cohyde.data.importers.json_schema import Schemas
from cohyde.data.reading import Reading
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Findings, Row
from cohyde.errors import UserError

LINES = (".jsonl", ".ndjson")
"""Endings of files that hold one message a line."""
WANTED = 'expected {"tools": [...]}, as a server answers tools/list; of several servers: {"<server>": {"tools": [...]}}'
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
LIST = "tools/list"
QUOTED = 200
"""Characters of a server's error message that are quoted."""


@dataclass
class Server:
    """A server, and what was read of it so far.

    ``name`` is the key or the file that it stands under; unless it is ``named``, what it calls itself counts instead.
    """

    where: str
    name: str
    named: bool = False
    title: str = ""
    description: str = ""
    answered: bool = False
    more: str = ""
    asked: dict[str, str] = field(default_factory=dict)

    def learn(self, result: Mapping[str, Any]) -> None:
        """Take the name and the description from ``serverInfo`` or beside the tools, and from ``instructions``."""
        info = mapping_of(_field(result, "serverInfo") or mapping_of(result.get("_meta")).get(SERVER_INFO))
        info = info or mapping_of(result if "tools" in result else None)
        name = self.name if self.named else plain_text(info.get("name")) or self.name
        if name != self.name:
            self.name, self.title, self.description = name, "", ""
        self.title = plain_text(info.get("title")) or self.title
        said = plain_text(info.get("description")) or first_paragraph(plain_text(result.get("instructions")))
        self.description = said or self.description

    def finish(self, findings: Findings) -> None:
        """Say what is missing.

        Raises:
            UserError: a file has no answer to ``tools/list`` at all.
        """
        if not self.answered and self.named:
            findings.fault("server without a list of tools", self.where, WANTED)
        elif not self.answered:
            raise UserError(f"{self.where}: no tools/list result there", WANTED)
        if self.more:
            what = f"{self.name!r} has more pages than the file; ask for them with the nextCursor"
            findings.remark("incomplete list of tools", self.more, what)


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """A catalogue without queries: a server is a category, its tools are titled as they call themselves."""
    return DatasetRows(tools=_tools(sources, reading))


def _tools(sources: Sources, reading: Reading) -> Iterator[Row]:
    for path in sources.files(".json", *LINES):
        own = Server(str(path), path.stem)
        servers = []
        for where, message in _messages(path, reading):
            for server, saved in _named(where, message) or [(own, message)]:
                yield from _rows(server.where if server.named else where, saved, server, reading.findings)
                servers += [server] * server.named
        for server in servers or [own]:
            server.finish(reading.findings)


def _messages(path: Path, reading: Reading) -> Iterator[tuple[str, Any]]:
    if path.suffix in LINES:
        yield from reading.jsonl(path)
    else:
        yield f"{path}#", reading.json(path)


def _named(where: str, message: Any) -> list[tuple[Server, Any]]:
    """The servers that an object has by their names, with what was saved of each; none where it is anything else.

    Raises:
        UserError: it is a client's configuration.
    """
    if not isinstance(message, Mapping) or _is_message(message):
        return []
    inside = message.get("mcpServers")
    if isinstance(inside, Mapping):
        where, message = f"{where}/mcpServers", inside
    if not message or not all(isinstance(saved, (Mapping, list)) for saved in message.values()):
        return []
    for name, saved in message.items():
        if "tools" not in saved and ("command" in saved or "url" in saved):
            raise UserError(
                f"{where}{pointer(name)}: how to reach a server, not what tools it has",
                "save what each server answers to tools/list; a client's configuration doesn't hold it",
            )
    return [(Server(where + pointer(name), name, named=True), saved) for name, saved in message.items()]


def _is_message(value: Mapping[str, Any]) -> bool:
    """Whether an object is a result, a tool, or a JSON-RPC message."""
    marks = ("jsonrpc", "result", "error")
    return isinstance(value.get("tools"), list) or _is_tool(value) or any(mark in value for mark in marks)


def _is_tool(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("name"), str) and _field(value, "inputSchema") is not None


def _rows(where: str, saved: Any, server: Server, findings: Findings) -> Iterator[Row]:
    """The tools of one message, or of a list of messages or tools."""
    several = isinstance(saved, list)
    for position, message in enumerate(saved if several else [saved]):
        if isinstance(message, Mapping):
            yield from _of_message(f"{where}/{position}" if several else where, message, server, findings)


def _of_message(where: str, message: Mapping[str, Any], server: Server, findings: Findings) -> Iterator[Row]:
    identity = repr(message.get("id"))
    if "method" in message:
        server.asked[identity] = plain_text(message["method"])
        return
    if "error" in message:
        if server.asked.get(identity, LIST) == LIST:
            server.answered = True
            findings.fault("error instead of tools", f"{where}/error", _quoted(message["error"]))
        return
    result, where = (message["result"], f"{where}/result") if "result" in message else (message, where)
    if not isinstance(result, Mapping):
        return
    if _is_tool(result):
        server.answered = True
        yield from _row(where, result, server, findings)
        return
    server.learn(result)
    if isinstance(result.get("tools"), list):
        server.answered = True
        server.more = where if _field(result, "nextCursor") else ""
        for position, tool in enumerate(result["tools"]):
            yield from _row(f"{where}/tools/{position}", tool, server, findings)


def _row(where: str, tool: Any, server: Server, findings: Findings) -> Iterator[Row]:
    """The row of a tool, unless it has no name or a reference in its schemas leads nowhere."""
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        findings.fault("malformed tool", where, "expected an object with a 'name'")
        return
    taken, given = _field(tool, "inputSchema"), _field(tool, "outputSchema")
    arguments, results = Schemas(taken), Schemas(given)
    faults = findings.counts.total()
    hint = mapping_of(tool.get("annotations")).get("title")
    fields = {
        "id": f"{server.name}/{name}",
        "category": server.title or server.name,
        "title": plain_text(tool.get("title")) or plain_text(hint) or name,
        "description": server.description,
        "api_name": name,
        "api_description": plain_text(tool.get("description")),
        "parameters": arguments.parameters_of(taken),
        "schema": results.shape_of(given),
    }
    arguments.tell(f"{where}/inputSchema", findings)
    results.tell(f"{where}/outputSchema", findings)
    if findings.counts.total() == faults:
        yield Row(where, fields)


def _field(value: Mapping[str, Any], name: str) -> Any:
    """A field under its name in the protocol, or under the one that Python clients give it: ``input_schema``."""
    return value.get(name, value.get(re.sub("([A-Z])", r"_\1", name).lower()))


def _quoted(error: Any) -> str:
    code, message = plain_text(mapping_of(error).get("code")), mapping_of(error).get("message", error)
    return f"the server answered with error {code}: {plain_text(message)[:QUOTED]!r}".replace(" :", ":")


FORMAT = Format(
    name="mcp", title="MCP tools/list results, of one server or many", published="*.json, *.jsonl", read=read
)
