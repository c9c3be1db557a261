"""What a person sees: tables that fit 80 columns, numbers that line up, errors without a traceback."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cohyde.evaluation.report import TABLE_SPLITS, Line, Report, percent
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE

if TYPE_CHECKING:
    from cohyde.dag.runner import RunResult
    from cohyde.dag.state import StageState
    from cohyde.doctor import Check
    from cohyde.encoder.retriever import Answer

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


def print_error(error: Exception) -> None:
    """What is wrong, where, and the remedy; no traceback."""
    console = err()
    console.print(Text("error: ", style="bold red") + Text(str(error)), soft_wrap=True)


CHECK_STYLES = {"ok": ("✓", "green"), "missing": ("✗", "bold red"), "note": ("·", "dim")}


def print_checks(checks: Sequence["Check"]) -> None:
    """One line a check; under what is missing, how to get it."""
    console = out()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        sign, style = CHECK_STYLES[check.state]
        table.add_row(Text(sign, style=style), check.name, Text(check.found))
        if check.remedy and check.state != "ok":
            table.add_row("", "", Text(f"→ {check.remedy}", style="yellow" if check.state == "missing" else "dim"))
    console.print(table)


def print_search(answer: "Answer") -> None:
    """The description that the rewriter wrote, and the ranked tools."""
    console = out()
    console.print(Text("request      ", style="dim") + Text(answer.query))
    console.print(Text("description  ", style="dim") + Text(answer.description or "(none: searched with the request)"))
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("tool", overflow="fold")
    for rank, (tool, score) in enumerate(answer.tools, start=1):
        name = Text(f"{tool.title} · {tool.api_name}", style="bold") + Text(f"  {tool.id}", style="dim")
        about = tool.api_description.strip() or tool.description.strip()
        table.add_row(str(rank), f"{score:.3f}", name + Text(f"\n{about}" if about else ""))
    console.print(table)
    timings = ", ".join(f"{name} {duration(seconds)}" for name, seconds in answer.timings.items())
    console.print(f"\n[dim]{timings}[/dim]")


def watch_states(look: Callable[[], list["StageState"]], kinds: dict[str, str], every: float = 2.0) -> None:
    """Show the states again and again, until everything is done or Ctrl-C."""
    from rich.live import Live as RichLive

    with RichLive(states_table(look(), kinds), console=out(), auto_refresh=False) as live:
        while True:
            found = look()
            live.update(states_table(found, kinds), refresh=True)
            if all(state.state in ("done", "failed", "blocked") for state in found):
                return
            time.sleep(every)


def print_failures(result: "RunResult", resume: str) -> None:
    """The last lines of a run that failed: which stage, why, where its log is, what was held up, how to go on."""
    console = err()
    console.print()
    for failure in result.failures:
        console.print(Text(f"{failure.id} failed: ", style="bold red") + Text(failure.error), soft_wrap=True)
        if failure.remedy:
            console.print(Text(f"  {failure.remedy}"), soft_wrap=True)
        console.print(Text(f"  log:     {failure.log}"), soft_wrap=True)
    blocked = [state.id for state in result.states if state.state == "blocked"]
    if blocked:
        console.print(Text(f"  blocked: {', '.join(blocked)}"), soft_wrap=True)
    console.print(Text("  resume:  ") + Text(resume, style="bold"), soft_wrap=True)
