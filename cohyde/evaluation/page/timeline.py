"""Where the bars of a time line lie: in per cent of its width, with the time in which nothing ran cut out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohyde.evaluation.page.data import Bar, Timeline

LONGEST_GAP = 0.04
"""Of the time in which something ran: whatever is idle for longer is cut to this, and marked."""
NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400)
"""Seconds between marks that people count in."""
MOST_MARKS = 8


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A bar, and where it lies."""

    bar: Bar
    left: float
    width: float
    series: int | None
    """Number of its group's colour."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something on the axis: a time, or (``cut``) a pause that was taken out."""

    left: float
    text: str
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A time line, placed."""

    bars: tuple[Placed, ...]
    marks: tuple[Mark, ...]
    groups: Mapping[str, int | None]
    """Those that there are, with their colours."""


def lay_out(line: Timeline) -> Layout:
    """Place the bars; the axis counts the time that is shown."""
    bars = line.bars
    spans = _busy(bars)
    busy = sum(end - start for start, end in spans) or 1.0
    longest = LONGEST_GAP * busy
    offsets, cuts, cut = [], [], 0.0
    for number, (start, _) in enumerate(spans):
        idle = start - spans[number - 1][1] if number else start
        if number == 0 or idle > longest:
            shown = longest if number else 0.0
            cut += idle - shown
            if number:
                cuts.append((start - cut - shown / 2, idle))
        offsets.append((start, cut))
    whole = max((end for _, end in spans), default=1.0) - cut or 1.0

    def at(moment: float) -> float:
        return moment - max((gone for start, gone in offsets if start <= moment), default=0.0)

    there = {bar.group for bar in bars}
    series = {name: None if name == line.neutral else at for at, name in enumerate(line.groups) if name in there}
    placed = [
        Placed(
            bar=bar,
            left=100 * at(bar.start) / whole,
            width=100 * (bar.end - bar.start) / whole,
            series=series[bar.group],
        )
        for bar in bars
    ]
    step = next((step for step in NICE if whole / step <= MOST_MARKS), NICE[-1])
    marks = [Mark(left=100 * tick * step / whole, text=span(tick * step)) for tick in range(int(whole / step) + 1)]
    marks += [Mark(left=100 * moment / whole, text=f"{span(idle)} idle", cut=True) for moment, idle in cuts]
    return Layout(bars=tuple(placed), marks=tuple(marks), groups=series)


def _busy(bars: Sequence[Bar]) -> list[tuple[float, float]]:
    """Spans in which something ran, in order, without overlaps."""
    found: list[tuple[float, float]] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        if found and bar.start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], bar.end))
        else:
            found.append((bar.start, bar.end))
    return found


def span(seconds: float) -> str:
    """Seconds as ``0``, ``45 s``, ``12 min``, ``2 h 30``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole else "0"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes}:{rest:02d} min" if rest and minutes < 10 else f"{round(whole / 60)} min"
    hours, rest = divmod(round(whole / 60), 60)
    if hours < 48:
        return f"{hours} h {rest:02d}" if rest else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"
