"""What a person sees of baselines and ablations: the main table, the ablation table, and what is still to run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from cohyde.evaluation.main_table import Cell, Place, Row, Table
from cohyde.evaluation.report import percent
from cohyde.evaluation.results import EVERY_QUERY
from cohyde.terminal import plain_table

LEGEND = "± half the 95% bootstrap interval over queries"


def print_main_table(console: Console, title: str, tables: Sequence[Table], search: str) -> None:
    """Systems × cells, NDCG@5 in %: a line of means and a dim one of intervals for each, the best in bold."""
    console.print(f"[bold]{escape(title)}[/bold]  NDCG@5 in %\n")
    for table in tables:
        _heading(console, table)
        shown = _frame(table, "system")
        group = ""
        for row in table.rows:
            if row.group != group:
                shown.add_section()
                group = row.group
            shown.add_row(Text(row.title), *_values(row, table), _dev(row.dev))
            shown.add_row("", *(_half(row.cells.get(place)) for place in table.places), "")
        console.print(shown)
        _remarks(console, table)
    told = f"[dim]{LEGEND}; what a rewriter wrote is searched with as search.mode says: {escape(search)}[/dim]"
    console.print(told, soft_wrap=True)


def print_ablation_table(console: Console, title: str, tables: Sequence[Table], reference: str) -> None:
    """Ablations × cells: a line of means and one of differences to the main run for each."""
    console.print(f"[bold]{escape(title)}[/bold]  NDCG@5 in %, and difference to the main run in points\n")
    for table in tables:
        _heading(console, table)
        shown = _frame(table, "run")
        for row in table.rows:
            shown.add_row(Text(row.title), *_values(row, table), _dev(row.dev))
            if row.key != reference:
                shown.add_row("", *(_difference(row.differences.get(place)) for place in table.places), "")
        console.print(shown)
        _remarks(console, table)
    told = (
        "[dim]* the 95% interval of the paired bootstrap over queries leaves 0 out; not corrected for many tests[/dim]"
    )
    console.print(told, soft_wrap=True)


def _heading(console: Console, table: Table) -> None:
    if table.scope == EVERY_QUERY:
        console.print("\n[bold]All evaluation queries[/bold]")


def _frame(table: Table, head: str) -> RichTable:
    shown = RichTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    shown.add_column(Text(f"\n{head}"), no_wrap=True, overflow="ellipsis")
    seen = set[str]()
    for split, tier in table.places:
        shown.add_column(Text(f"{'' if split in seen else split}\n{tier}"), justify="right", no_wrap=True)
        seen.add(split)
    shown.add_column(Text("\ndev"), justify="right", no_wrap=True)
    return shown


def _values(row: Row, table: Table) -> list[Text]:
    return [_value(row.cells.get(place), table.best(place)) for place in table.places]


def _value(cell: Cell | None, best: float | None) -> Text:
    if cell is None:
        return Text(percent(None))
    return Text(percent(cell.value), style="bold green" if cell.value == best and cell.value else "")


def _dev(value: float | None) -> Text:
    return Text(percent(value))


def _half(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    return Text("n=1" if cell.half is None else f"±{100 * cell.half:.1f}", style="dim")


def _difference(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    style = ("red" if cell.value < 0 else "green") if cell.is_certain else "dim"
    return Text(f"{100 * cell.value:+.1f}{'*' if cell.is_certain else ''}", style=style)


def _remarks(console: Console, table: Table) -> None:
    if table.without_vague:
        console.print("[dim]no vague paraphrases in this data: those columns are left out[/dim]", soft_wrap=True)
    if table.single:
        named = ", ".join(f"{split} {tier}" for split, tier in table.single)
        console.print(f"[dim]n=1: {escape(named)}: a single query has no interval[/dim]", soft_wrap=True)
    console.print(f"[dim]queries: {escape(_counts(table))}[/dim]", soft_wrap=True)


def _counts(table: Table) -> str:
    counts: dict[Place, int] = {}
    for row in table.rows:
        for place, cell in row.cells.items():
            counts[place] = max(cell.n, counts.get(place, 0))
    by_split: dict[str, list[str]] = {}
    for split, tier in table.places:
        by_split.setdefault(split, []).append(f"{tier} {counts[split, tier]}")
    return "; ".join(f"{split} {', '.join(tiers)}" for split, tiers in by_split.items())


@dataclass(frozen=True, kw_only=True)
class Share:
    """How much of a run is another's: numbers of stages."""

    run: str
    title: str
    shared: int
    own: int
    to_run: int
    same_as: str | None
    """The run that it is no other than."""


def print_shares(console: Console, shares: Sequence[Share], main: str) -> None:
    """One line a run: stages that are the main run's, own ones, and how many of them are not done."""
    table = plain_table(("run", "left"), ("", "left"), (f"as {main}", "right"), ("own", "right"), ("to run", "right"))
    for share in shares:
        if share.same_as:
            table.add_row(share.run, Text(share.title), Text(f"the same as {share.same_as}", style="dim"), "", "")
        else:
            table.add_row(share.run, Text(share.title), str(share.shared), str(share.own), str(share.to_run))
    console.print(table)


def print_list(console: Console, title: str, entries: Sequence[Mapping[str, str]]) -> None:
    """Key and one line each."""
    console.print(f"[bold]{escape(title)}[/bold]")
    table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries:
        table.add_row(Text(entry["key"]), Text(f"{entry['title']}: {entry['about']}"))
    console.print(table)
