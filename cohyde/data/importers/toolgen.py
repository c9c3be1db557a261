"""ToolGen's retrieval data: one conversation for each request and API, whose answer is the API's name.

As published with the ToolGen paper (Wang et al., 2025; dataset repository ``reasonwang/ToolGen-Datasets``; the form of
the records is shown in the README of the code, ``Reason-Wang/ToolGen``)::

    {"conversations": [{"role": "user", "content": "REQUEST", "loss": false},
                       {"role": "assistant", "content": "<<Medium&&/search/topics>>", "loss": true}]}

- ``toolgen_atomic_retrieval_G123.json`` has 489,702 of them, all for training. It says no tier, and a request stands
  in it once for each of its gold tools.
- ``toolgen_atomic_memorization.json`` (49,936) has the APIs' documentation in place of the request: names, and what
  provider and API do; no category, no parameters. Some names stand for several documents: ToolBench has APIs that
  differ in their category alone, or were copied.
- Names in answers are those of the catalogue, but for some punctuation and for accents, which they lack.

The catalogue is the one to join with, where there is one, and else the memorisation file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cohyde.data.importers.api_names import Name, NameIndex, tier_named
from cohyde.data.importers.format import Format, Options
from cohyde.data.importers.given_catalog import API, given_tools, identified, name_of
from cohyde.data.importers.toolgen_conversations import Turn, memorised, turns
from cohyde.data.reading import Reading
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Findings, Row
from cohyde.errors import UserError

MEMORISED, RETRIEVAL = "**/*memorization*.json", "**/*retrieval*.json"
HELD_OUT = {"test", "eval"}
"""The words that say in a file's name that its requests are for evaluation."""


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """The catalogue, and each request with all the tools that are an answer to it."""
    files, catalog = _files(sources, options)
    known: list[tuple[Name, str]] = []

    def tools() -> Iterator[Row]:
        for name, row in _catalogue(catalog, reading):
            known.append((name, str(row.fields.get("id"))))
            yield row

    def queries() -> Iterator[Row]:
        index = NameIndex(known)
        for path in files:
            yield from _queries(path, index, reading, options)

    return DatasetRows(tools=tools(), queries=queries())


def _files(sources: Sources, options: Options) -> tuple[list[Path], Path]:
    """The files of requests, and the catalogue."""
    documentation = sources.named(MEMORISED)
    named = [path for path in sources.paths if path.is_file()]
    found = dict.fromkeys([*named, *sources.named(RETRIEVAL)])
    files = [path for path in found if path not in documentation]
    if not files:
        raise UserError(f"{sources}: no file of requests there", f"published are: {FORMAT.published}")
    if options.catalog is None and not documentation:
        remedy = "give toolgen_atomic_memorization.json besides, or a catalogue to join with: --catalog PATH"
        raise UserError(f"{sources}: no catalogue there", remedy)
    return files, options.catalog or documentation[0]


def _catalogue(path: Path, reading: Reading) -> list[tuple[Name, Row]]:
    """Each tool, and the name by which answers call it."""
    if path.is_dir() or path.suffix == ".tsv":
        return [(name_of(row.fields, API[1:]), row) for row in given_tools(path, reading)]
    documents = ((one.api, Row(one.where, one.fields)) for one in memorised(path, reading))
    return identified(documents, reading.findings)


# ------------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True)
class _Request:
    """A request: where its first conversation is, and the tools that all its conversations name."""

    where: str
    position: int
    tools: dict[str, None] = field(default_factory=dict)


def _queries(path: Path, index: NameIndex[str], reading: Reading, options: Options) -> Iterator[Row]:
    requests: dict[str, _Request] = {}
    for turn in turns(path, reading):
        request = requests.setdefault(turn.text, _Request(turn.where, turn.position))
        for tool in _tools_of(turn, index, reading.findings):
            if tool in request.tools:
                reading.findings.remark("repeated answer", turn.where, f"{tool!r} is an answer to this request before")
            request.tools[tool] = None
    held_out = not HELD_OUT.isdisjoint(path.stem.split("_"))
    said = {"tier": tier_named(path.stem) or "all", "split": options.split or ("eval" if held_out else "train")}
    for text, request in requests.items():
        row = {"id": f"{path.stem}/{request.position}", "text": text, "tools": list(request.tools)}
        yield Row(request.where, row | said)


def _tools_of(turn: Turn, index: NameIndex[str], findings: Findings) -> Iterator[str]:
    """The tools that an answer names; a name of several is all of them."""
    for name in turn.apis:
        token = f"<<{'&&'.join(name)}>>"
        found, exactly = index.find(name)
        if not found:
            findings.fault("unknown tool", turn.where, f"{token} is not in the catalogue")
            continue
        if not exactly:
            findings.remark("matched by normalised name", turn.where, f"{token} is taken for {found[0]!r}")
        if len(found) > 1:
            findings.remark("name of several tools", turn.where, f"{token} is {len(found)} tools of the catalogue")
        yield from found


FORMAT = Format(
    name="toolgen",
    title="ToolGen's retrieval conversations, joined with a catalogue",
    published="toolgen_atomic_retrieval_G123.json, toolgen_atomic_memorization.json",
    read=read,
    joins=True,
)
