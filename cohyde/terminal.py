"""What a person sees: tables that fit 80 columns, numbers that line up, errors without a traceback."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cohyde.evaluation.report import TABLE_SPLITS, Line, Report, percent
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE

if TYPE_CHECKING:
    from cohyde.dag.state import StageState

STATE_STYLES = {
    "done": "green",
    "running": "cyan",
    "ready": "blue",
    "waiting": "dim",
    "failed": "bold red",
    "blocked": "yellow",
}
NARROWEST = 80


def out() -> Console:
    """Standard output: results. Where it is no terminal, lines are as long as they have to be."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(100, console.width))


def err() -> Console:
    """Standard error: progress, warnings, errors."""
    return Console(stderr=True, highlight=False)


def plain_table(*columns: tuple[str, str]) -> Table:
    """A table without a frame; ``columns`` are (head, justification)."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for head, justify in columns:
        table.add_column(head, justify="right" if justify == "right" else "left", no_wrap=True)
    return table


def duration(seconds: float | None) -> str:
    """Seconds as ``8 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def states_table(states: Sequence["StageState"], kinds: dict[str, str]) -> Table:
    """One line a stage: state, time, and the one number by which it is judged."""
    table = plain_table(("stage", "left"), ("what", "left"), ("state", "left"), ("time", "right"), ("", "left"))
    for state in states:
        table.add_row(
            state.id,
            kinds.get(state.id, ""),
            Text(state.state, style=STATE_STYLES[state.state]),
            duration(state.seconds),
            escape(key_metric(state.metrics or {})),
        )
    return table


KEY_METRICS = (
    ("best_dev_ndcg@5", "dev NDCG@5 {:.3f}"),
    ("pairs", "{:.0f} pairs"),
    ("descriptions", "{:.0f} descriptions"),
    ("tools", "{:.0f} tools"),
    ("selected", "selected {}"),
)
EVALUATED = "dev_ndcg@5 "


def key_metric(metrics: dict[str, Any]) -> str:
    """The one number of a stage that a person wants in a status line."""
    evaluated = {name: value for name, value in metrics.items() if name.startswith(EVALUATED)}
    if evaluated:
        name, value = max(evaluated.items(), key=lambda item: item[1])
        return f"dev NDCG@5 {value:.3f} {name.removeprefix(EVALUATED)}"
    if metrics.get("unchanged"):
        return "unchanged"
    for name, form in KEY_METRICS:
        if metrics.get(name) is not None:
            return form.format(metrics[name])
    if "final_loss" in metrics:
        return f"loss {metrics['final_loss']:.3f}"
    return ""


def report_table(report: Report, scope: str) -> Table:
    """NDCG@5 in %, one line an evaluation and search mode; the best of each column is bold."""
    lines = [line for line in report.lines if line.scope == scope]
    columns = [(split, tier) for split in TABLE_SPLITS for tier in report.tiers]
    columns = [column for column in columns if any(line.values[column] is not None for line in lines)]
    best = {column: max((line.values[column] or 0.0 for line in lines), default=0.0) for column in columns}
    best_dev = max((line.dev or 0.0 for line in lines), default=0.0)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("searched with", no_wrap=True)
    for split, tier in columns:
        head = f"{split}\n{tier}" if tier == report.tiers[0] else f"\n{tier}"
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("\ndev", justify="right", no_wrap=True)
    previous = ""
    for line in lines:
        cells = [_number(line.values[column], line.values[column] == best[column]) for column in columns]
        stage = "" if line.stage == previous else _stage(line, report)
        table.add_row(stage, line.search, *cells, _number(line.dev, line.dev == best_dev))
        previous = line.stage
    return table


def _stage(line: Line, report: Report) -> Text:
    selected = line.stage == report.selected
    return Text(f"{line.stage} *" if selected else line.stage, style="bold" if selected else "")


def _number(value: float | None, best: bool) -> Text:
    return Text(percent(value), style="bold green" if best and value else "")


def print_report(console: Console, report: Report, title: str) -> None:
    """The tables of a report, and what the signs in them mean."""
    console.print(f"[bold]{escape(title)}[/bold]  NDCG@5 in %")
    console.print()
    for scope, heading in ((SAMPLE, None), (EVERY_QUERY, "All evaluation queries")):
        if any(line.scope == scope for line in report.lines):
            if heading:
                console.print(f"\n[bold]{heading}[/bold]")
            console.print(report_table(report, scope))
    if report.selected:
        console.print(f"\n[dim]* selected by dev NDCG@5 (mean over tiers), searching with the {report.search}[/dim]")
