"""What a person sees: tables that fit 80 columns, numbers that line up, errors without a traceback."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cohyde.evaluation.report import TABLE_SPLITS, Line, Report, percent
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE

if TYPE_CHECKING:
    from cohyde.dag.attempts import Attempt, Failure
    from cohyde.dag.runner import RunResult
    from cohyde.dag.state import StageState
    from cohyde.dag.store import Store
    from cohyde.doctor import Check
    from cohyde.retrieval.answer import Answer

STATE_STYLES = {
    "done": "green",
    "running": "cyan",
    "ready": "blue",
    "waiting": "dim",
    "failed": "bold red",
    "blocked": "yellow",
}
OVER = ("done", "failed", "blocked")
"""States that don't change by themselves."""
NARROWEST = 80


class Terminal(Console):
    """A console whose reader may leave early (``cohyde plan | head -1``): that is no error."""

    def on_broken_pipe(self) -> NoReturn:
        """Nobody reads any more."""
        leave_quietly()


def leave_quietly() -> NoReturn:
    """End without a word, also at the interpreter's last flush."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(0)


def out() -> Console:
    """Standard output: results. Where it is no terminal, lines are as long as they have to be."""
    console = Terminal(highlight=False)
    return console if console.is_terminal else Terminal(highlight=False, width=max(100, console.width))


def err() -> Console:
    """Standard error: progress, warnings, errors."""
    return Terminal(stderr=True, highlight=False)


def print_json(content: Any) -> None:
    """One JSON object on one line of standard output."""
    try:
        print(json.dumps(content, ensure_ascii=False), flush=True)
    except BrokenPipeError:
        leave_quietly()


def plain_table(*columns: tuple[str, str]) -> Table:
    """A table without a frame; ``columns`` are (head, justification)."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for head, justify in columns:
        table.add_column(head, justify="right" if justify == "right" else "left", no_wrap=True)
    return table


def duration(seconds: float | None) -> str:
    """Seconds as ``8.2 s``, ``45 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    if seconds is None:
        return ""
    if round(seconds) < 60:
        return f"{seconds:.0f} s" if round(seconds, 1) >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def states_table(states: Sequence["StageState"], kinds: dict[str, str], store: "Store") -> Table:
    """One line a stage: state, time, and the one number by which it is judged, or how far it is, or why it failed."""
    from cohyde.dag.attempts import latest_attempt
    from cohyde.dag.plan import artifact_name

    table = plain_table(("stage", "left"), ("what", "left"), ("state", "left"), ("time", "right"))
    table.add_column("", overflow="ellipsis")  # the one that gives way in a narrow terminal
    culprits = blockers(states)
    for state in states:
        seconds, detail = state.seconds, key_metric(state.metrics)
        tried = state.state in ("running", "failed")
        attempt = latest_attempt(store, artifact_name(state.id, state.fingerprint)) if tried else None
        if attempt and state.state == "running":
            seconds, detail = _elapsed(attempt), how_far(attempt)
        elif attempt and (failure := attempt.failure()):
            detail = failure.error
        elif state.state == "blocked":
            detail = "by " + ", ".join(culprits[state.id])
        # Text's own no_wrap: it shall be cut, and the column made narrower all the same.
        text = Text(" ".join(detail.split()), no_wrap=True, overflow="ellipsis")
        table.add_row(state.id, kinds.get(state.id, ""), _styled(state), duration(seconds), text)
    return table


def plan_table(states: Sequence["StageState"], kinds: dict[str, str], console: Console) -> Table:
    """One line a stage: what it needs, its state and its time. Needs are left out where they don't fit."""
    heads = (("stage", "left"), ("what", "left"), ("needs", "left"), ("state", "left"), ("time", "right"))
    rows = [
        (
            state.id,
            kinds.get(state.id, ""),
            compact(list(state.inputs.values())),
            _styled(state),
            duration(state.seconds),
        )
        for state in states
    ]
    whole = plain_table(*heads)
    short = plain_table(*heads[:2], *heads[3:])
    for row in rows:
        whole.add_row(*row)
        short.add_row(*row[:2], *row[3:])
    wanted = console.measure(whole, options=console.options.update_width(1000)).maximum
    return whole if wanted <= console.width else short


def compact(ids: Sequence[str]) -> str:
    """Stage ids in short: rounds that follow each other become ``E.0–E.3``."""
    parts: list[list[str]] = []
    for stage_id in dict.fromkeys(ids):
        if parts and _follows(stage_id, parts[-1][-1]):
            parts[-1].append(stage_id)
        else:
            parts.append([stage_id])
    short = [f"{part[0]}–{part[-1]}" if len(part) > 2 else ", ".join(part) for part in parts]
    return ", ".join(short)


def _follows(stage_id: str, before: str) -> bool:
    one, two = re.fullmatch(r"(.+\.)(\d+)", before), re.fullmatch(r"(.+\.)(\d+)", stage_id)
    return bool(one and two and one[1] == two[1] and int(one[2]) + 1 == int(two[2]))


def _styled(state: "StageState") -> Text:
    return Text(state.state, style=STATE_STYLES[state.state])


def _elapsed(attempt: "Attempt") -> float | None:
    owner = attempt.owner()
    return (
        max(0.0, (datetime.now().astimezone() - datetime.fromisoformat(owner.started)).total_seconds())
        if owner
        else None
    )


def how_far(attempt: "Attempt") -> str:
    """Step, rate and time left, as the store has them: no clock but the worker's own is asked."""
    progress = attempt.progress()
    if not progress.get("total"):
        return ""
    done, total = progress["done"], progress["total"]
    parts = [f"{done:.0f} of {total:.0f} {progress['what']}"]
    made, seconds = done - progress.get("first", done), progress.get("seconds", 0.0)
    if made > 0 and seconds > 0:
        parts += [rate(made / seconds), f"{duration((total - done) * seconds / made)} left"]
    return "  ".join(parts)


def rate(a_second: float) -> str:
    """As ``1.5/s``, or ``4.5/min`` where that says more."""
    return f"{a_second:.1f}/s" if a_second >= 0.5 else f"{60 * a_second:.1f}/min"


def blockers(states: Sequence["StageState"]) -> dict[str, list[str]]:
    """For each stage, the failed ones above it. ``states`` are in topological order."""
    found: dict[str, list[str]] = {}
    failed = {state.id for state in states if state.state == "failed"}
    for state in states:
        above = [culprit for source in state.inputs.values() for culprit in (found[source], [source])[source in failed]]
        found[state.id] = list(dict.fromkeys(above))
    return found


def summary(states: Sequence["StageState"]) -> str:
    """``24 stages: 12 done, 1 running, 11 to run``."""
    counts = {name: sum(state.state == name for state in states) for name in STATE_STYLES}
    if counts["done"] == len(states):
        return f"all {len(states)} stages are done"
    parts = [f"{counts['done']} done"] + [f"{counts[name]} {name}" for name in ("running",) if counts[name]]
    parts.append(f"{len(states) - counts['done'] - counts['running']} to run")
    failed = [state.id for state in states if state.state == "failed"]
    return f"{len(states)} stages: {', '.join(parts)}" + (f"; {', '.join(failed)} failed last time" if failed else "")


KEY_METRICS = (
    ("best_dev_ndcg@5", "dev NDCG@5 {:.3f}"),
    ("pairs_kept", "{:.0f} pairs"),
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
    if metrics.get("first_loss") is not None and metrics.get("last_loss") is not None:
        return f"loss {metrics['first_loss']:.3f} → {metrics['last_loss']:.3f}"
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
        table.add_column(Text(head), justify="right", no_wrap=True)  # a tier may be called anything, also "[G1]"
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


NOT_SCORED = ("no gold", "not sampled")
"""Why an evaluation leaves a query out."""


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
        console.print(f"\n[dim]* selected by dev NDCG@5 (mean over tiers), searched with: {report.search}[/dim]")


def scored(metrics: Mapping[str, Any]) -> str:
    """How many queries of each split an evaluation scored, and how many not, and why; empty where it does not say."""
    splits = [name.removesuffix("_scored") for name in metrics if name.endswith("_scored")]
    told = []
    for split in splits:
        counts = [(metrics.get(f"{split}_skipped: {why}"), why) for why in NOT_SCORED]
        skipped = ", ".join(f"{count} {why}" for count, why in counts if count)
        told.append(f"{split} {metrics[f'{split}_scored']}" + (f" (left out: {skipped})" if skipped else ""))
    return ", ".join(told)


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
    asked = Table.grid(padding=(0, 2, 0, 0))
    asked.add_row(Text("request", style="dim"), Text(answer.query))
    asked.add_row(
        Text("description", style="dim"),
        Text(answer.description or f"(none: {answer.reason}; searched with the request)"),
    )
    console.print(asked)
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("tool", overflow="fold")
    for rank, (tool, score) in enumerate(answer.tools, start=1):
        title = " · ".join(part for part in (tool.title.strip(), tool.api_name.strip()) if part)
        name = Text(f"{title}  " if title else "", style="bold") + Text(tool.id, style="dim")
        about = tool.api_description.strip() or tool.description.strip()
        table.add_row(str(rank), f"{score:.3f}", name + Text(f"\n{about}" if about else ""))
    console.print(table)
    timings = ", ".join(f"{name} {duration(seconds)}" for name, seconds in answer.timings.items())
    console.print(f"\n[dim]{timings}[/dim]")


def watch_states(
    look: Callable[[], list["StageState"]], kinds: dict[str, str], store: "Store", every: float = 2.0
) -> None:
    """Show the states again and again, until everything is done or Ctrl-C."""

    def draw(console: Console) -> tuple[Table, bool]:
        found = look()
        over = all(state.state in OVER for state in found)
        return states_table(found if over else _fitting(found, console), kinds, store), over

    watch(draw, every)


def watch(draw: Callable[[Console], tuple[Table, bool]], every: float = 2.0) -> None:
    """Draw a table again and again, in the same place, until ``draw`` says that it is over, or Ctrl-C."""
    from rich.live import Live as RichLive

    console = out()
    with RichLive(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            shown, over = draw(console)
            live.update(shown, refresh=True)
            if over:
                return
            time.sleep(every)


def _fitting(states: list["StageState"], console: Console) -> list["StageState"]:
    """What a terminal has room for: stages that are done leave first, the oldest before the others."""
    surplus = len(states) - (console.height - 2) if console.is_terminal else 0
    done = [state for state in states if state.state == "done"][: max(0, surplus)]
    kept = [state for state in states if state not in done]
    return kept[: max(1, len(states) - max(0, surplus))]


def print_warning(message: str) -> None:
    """Something that does not stop us."""
    err().print(Text("warning: ", style="yellow") + Text(message), soft_wrap=True)


SHOWN_DIFFERENCES = 4


def print_differences(run: str, lines: Sequence[str]) -> None:
    """How the settings differ from those with which the run's name was used before."""
    if not lines:
        return
    more = f"; and {len(lines) - SHOWN_DIFFERENCES} more" if len(lines) > SHOWN_DIFFERENCES else ""
    shown = "; ".join(lines[:SHOWN_DIFFERENCES])
    console = err()
    console.print(Text(f"{run} had other settings before: {shown}{more}", style="yellow"), soft_wrap=True)
    if any(not line.startswith("rounds: ") for line in lines):
        console.print(
            Text("  what was finished with those stays in the store; --name NAME keeps two runs apart", style="dim"),
            soft_wrap=True,
        )


def print_failures(result: "RunResult", resume: str) -> None:
    """The last lines of a run that failed: which stage, why, where its log is, what was held up, how to go on."""
    blocked = [state.id for state in result.states if state.state == "blocked"]
    print_failures_of(result.failures, [compact(blocked)] if blocked else [], resume)


def print_failed(states: Sequence["StageState"], store: "Store", resume: str) -> None:
    """The same, of a run that failed some time ago."""
    from cohyde.dag.attempts import latest_attempt
    from cohyde.dag.plan import artifact_name

    names = [artifact_name(state.id, state.fingerprint) for state in states if state.state == "failed"]
    attempts = [attempt for name in names if (attempt := latest_attempt(store, name))]
    failures = [failure for attempt in attempts if (failure := attempt.failure())]
    if failures:
        blocked = [state.id for state in states if state.state == "blocked"]
        print_failures_of(failures, [compact(blocked)] if blocked else [], resume)


def print_failures_of(failures: Sequence["Failure"], blocked: Sequence[str], resume: str) -> None:
    """The same; ``blocked`` are lines."""
    console = err()
    console.print()
    for failure in failures:
        console.print(Text(f"{failure.id} failed: ", style="bold red") + Text(failure.error), soft_wrap=True)
        if failure.remedy:
            console.print(Text(f"  {failure.remedy}"), soft_wrap=True)
        console.print(Text(f"  log:     {failure.log}"), soft_wrap=True)
    for line in blocked:
        console.print(Text(f"  blocked: {line}"), soft_wrap=True)
    console.print(Text("  resume:  ") + Text(resume, style="bold"), soft_wrap=True)


def print_interrupted(run: str, resume: str, why: str = "interrupted") -> None:
    """What Ctrl-C, or the loss of the cluster, leaves, and how to go on."""
    console = err()
    console.print(Text(f"{run}: {why}; what is finished stays", style="yellow"), soft_wrap=True)
    console.print(Text("  resume:  ") + Text(resume, style="bold"), soft_wrap=True)
