"""A catalogue that may change while it is searched: readers have a snapshot, and a change makes the next one."""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cohyde.catalog import Tool, render, tool_from_row, tool_to_row
from cohyde.errors import UserError
from cohyde.filesystem import writing_to
from cohyde.io import read_jsonl, write_jsonl
from cohyde.retrieval.requests import RequestError

if TYPE_CHECKING:
    from cohyde.encoder.index_kinds import Index

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts to (n, d) unit rows."""


class UnknownToolError(RequestError):
    """Tools are named that the catalogue does not have."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The catalogue as it is at one time. It never changes, so whoever searches in it needs no lock."""

    tools: tuple[Tool, ...]
    """In catalogue order, which breaks ties."""
    renderings: tuple[str, ...]
    """What was embedded for each."""
    index: "Index"
    version: int = 0
    """Changes made since the start."""

    @cached_property
    def position_of(self) -> dict[str, int]:
        """Place of each tool by id."""
        return {tool.id: position for position, tool in enumerate(self.tools)}

    def rank(self, vectors: np.ndarray, k: int) -> list[list[tuple[Tool, float]]]:
        """The ``k`` best tools for each of (n, d) unit rows, best first, ties in catalogue order."""
        scores, positions = self.index.search(vectors, k)
        return [
            [(self.tools[position], score) for position, score in zip(row_positions, row_scores, strict=True)]
            for row_positions, row_scores in zip(positions.tolist(), scores.tolist(), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a change came to, in tools."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    embedded: int = 0
    """Renderings that the encoder had to read: those that the catalogue had nowhere."""
    tools: int = 0
    """Tools there are now."""


class LiveCatalog:
    """The snapshot that is searched now, and the one way to another.

    After any changes the ranking is that of a catalogue that was built so from the start: a changed tool keeps its
    place, a new one comes last, and equal renderings have equal vectors. (Scores may differ by rounding, since an
    encoder's last digits depend on the batch.)
    """

    def __init__(self, snapshot: Snapshot, embed: Embed, form: int, keep: Path | None = None) -> None:
        """Begin with a snapshot.

        Args:
            snapshot: the catalogue so far.
            embed: the encoder that its vectors are from.
            form: the rendering φ that is indexed.
            keep: a JSON Lines file that holds the catalogue after each change. Where it exists already, its tools
                take the place of the snapshot's; only those that the snapshot does not have are embedded.

        Raises:
            UserError: the file is damaged, or cannot be written.
        """
        self._current = snapshot
        self._embed = embed
        self._form = form
        self._keep = keep
        self._changing = threading.Lock()
        if keep is not None and keep.exists():
            self._current = self._made(read_tools(keep), 0)[0]

    @property
    def current(self) -> Snapshot:
        """What is searched now."""
        return self._current

    def change(self, put: Sequence[Tool] = (), remove: Collection[str] = ()) -> Change:
        """Add or replace tools, and remove others: all of it or nothing. Searches go on meanwhile.

        Raises:
            RequestError: an id is given twice, or no tool would be left.
            UnknownToolError: a tool that is to be removed is not there.
            UserError: the file that keeps the catalogue cannot be written.
        """
        given, gone = {tool.id: tool for tool in put}, frozenset(remove)
        if len(given) < len(put) or given.keys() & gone:
            raise RequestError("a tool is given twice, or both given and removed", "name each tool once")
        with self._changing:
            before = self._current
            if unknown := sorted(gone - before.position_of.keys()):
                raise UnknownToolError(
                    f"{_some(unknown)}: not in the catalogue", "nothing was changed; GET /tools lists what there is"
                )
            staying = [tool for tool in before.tools if tool.id not in gone]
            kept = [given.get(tool.id, tool) for tool in staying]
            added = [tool for tool in put if tool.id not in before.position_of]
            changed = sum(new != old for new, old in zip(kept, staying, strict=True))
            if not kept and not added:
                raise RequestError("no tool would be left", "a catalogue has at least one")
            after, embedded = before, 0
            if added or changed or gone:
                after, embedded = self._made([*kept, *added], before.version + 1)
                self._write(after.tools)
                self._current = after
        return Change(
            added=len(added),
            changed=changed,
            unchanged=len(put) - len(added) - changed,
            removed=len(gone),
            embedded=embedded,
            tools=len(after.tools),
        )

    def _made(self, tools: Sequence[Tool], version: int) -> tuple[Snapshot, int]:
        """The snapshot of these tools, and how many renderings were embedded for it: those that are new."""
        before = self._current
        renderings = [render(tool, self._form) for tool in tools]
        known = {text: place for place, text in reversed(list(enumerate(before.renderings)))}
        new = [text for text in dict.fromkeys(renderings) if text not in known]
        known.update(zip(new, range(len(before.renderings), len(before.renderings) + len(new)), strict=True))
        # Of equal renderings each keeps its own place, so that an index to which tools are added only grows.
        own = dict(enumerate(before.renderings))
        places = [place if own.get(place) == text else known[text] for place, text in enumerate(renderings)]
        vectors = self._embed(new) if new else np.empty((0, before.index.dimensions), dtype=np.float32)
        index = before.index.with_rows(np.array(places), vectors)
        return Snapshot(tools=tuple(tools), renderings=tuple(renderings), index=index, version=version), len(new)

    def _write(self, tools: Sequence[Tool]) -> None:
        if self._keep is not None:
            with writing_to(self._keep, "--keep FILE"):
                write_jsonl(self._keep, map(tool_to_row, tools))


def read_tools(path: Path) -> list[Tool]:
    """The tools of a JSON Lines file, as ``catalog.jsonl`` of a dataset has them.

    Raises:
        UserError: a line is wrong, an id comes twice, or there is none; names file and line.
    """
    tools: dict[str, Tool] = {}
    for number, row in read_jsonl(path):
        try:
            tool = tool_from_row(row)
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}", "mend the line, or give another file") from None
        if tool.id in tools:
            raise UserError(f"{path}:{number}: tool {tool.id!r} is there twice", "leave one of them")
        tools[tool.id] = tool
    if not tools:
        raise UserError(f"{path}: holds no tool", "a catalogue has at least one")
    return list(tools.values())


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
