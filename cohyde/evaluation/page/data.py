"""What a page is made of: a summary, and sections of tables, figures, a time line, a graph, examples and notices.

Plain data, in the order in which it is shown. Numbers are in the unit in which they are shown, such as per cent.
"""

from dataclasses import dataclass, field
from typing import Literal

State = Literal["done", "running", "ready", "waiting", "failed", "blocked"]
Tone = Literal["good", "bad", "plain"]


@dataclass(frozen=True, kw_only=True)
class Stat:
    """One figure of the summary."""

    label: str
    value: str
    detail: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a reader in a hurry takes away."""

    headline: str
    sentences: tuple[str, ...] = ()
    stats: tuple[Stat, ...] = ()


# ---------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column; neighbours of the same ``group`` share a head above theirs."""

    head: str
    group: str = ""
    numeric: bool = True
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell. What is sorted and exported is ``value`` where there is one, else ``text``."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """The bounds of the 95% interval."""
    best: bool = False
    """The best of its column, or a difference that its interval tells from none."""
    note: str = ""
    """A few words below the number."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. Rows of the same ``group`` follow each other."""

    cells: tuple[Cell, ...]
    group: str = ""
    marked: bool = False
    """The one that the others are compared with, or that was selected."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table. The first column names the row."""

    key: str
    """Name of its files, and of its place on the page."""
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    folded: bool = False
    """Long, and for reference: closed until it is opened."""


# --------------------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line through points, with a band where ``low`` and ``high`` are given. Equal styles mean the same thing."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: int = 0
    faint: bool = False
    """One of many that a stronger curve sums up."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    curves: tuple[Curve, ...]
    x_label: str = ""
    y_range: tuple[float, float] | None = None
    whole_x: bool = False
    """x counts something, such as rounds: no ticks between whole numbers."""

    @property
    def legend(self) -> dict[int, str]:
        """Label by style, in order of appearance."""
        return {curve.style: curve.label for curve in self.curves if not curve.faint}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels that share one legend."""

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]

    @property
    def legend(self) -> dict[int, str]:
        """Label by style, where all panels agree on what a style means; else empty: each has its own then."""
        found: dict[int, str] = {}
        for panel in self.panels:
            for style, label in panel.legend.items():
                if found.setdefault(style, label) != label:
                    return {}
        return found


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Something that took time: seconds since the first one began."""

    label: str
    start: float
    end: float
    group: str
    """What bars of one colour have in common."""
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Bars under each other in one span of time."""

    key: str
    title: str
    caption: str
    bars: tuple[Bar, ...]
    groups: tuple[str, ...]
    """In the order of their colours."""
    neutral: str = ""
    """The group that has none."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of a graph. Nodes of one band stand in one row, each to the right of what it needs there."""

    name: str
    title: str
    state: State
    band: str
    needs: tuple[str, ...] = ()
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A directed graph without circles; nodes in topological order."""

    key: str
    title: str
    caption: str
    nodes: tuple[Node, ...]
    bands: tuple[str, ...]
    """From top to bottom."""


# -------------------------------------------------------------------------------------------------------- examples


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One ranked item."""

    title: str
    gold: bool


@dataclass(frozen=True, kw_only=True)
class Side:
    """How one system answered a query."""

    title: str
    score: str
    description: str
    """What the system wrote and searched with; empty where it wrote nothing."""
    ranked: tuple[Hit, ...]
    first_gold: str
    """Where the first right item stands, in words."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One query before and after."""

    query: str
    labels: tuple[str, ...]
    gold: tuple[str, ...]
    sides: tuple[Side, ...]
    change: str
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Queries side by side."""

    key: str
    title: str
    caption: str
    items: tuple[Example, ...]


# --------------------------------------------------------------------------------------------------------- the rest


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something a person should see."""

    source: str
    text: str
    severe: bool = False
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Notices:
    """Warnings and failures."""

    key: str
    title: str
    caption: str
    items: tuple[Notice, ...]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    value: str
    changed: bool = False
    """It departs from the default."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Names and values in columns."""

    key: str
    title: str
    caption: str
    items: tuple[Setting, ...]


Part = Table | Figure | Timeline | Graph | Examples | Notices | Settings


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, what it is about, and its parts."""

    key: str
    title: str
    lead: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PageData:
    """A page."""

    title: str
    kicker: str
    """One line above the title: what kind of thing this is."""
    summary: Summary
    sections: tuple[Section, ...]
    colophon: tuple[str, ...] = field(default=())
    """What stands at the foot."""

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Table)]
