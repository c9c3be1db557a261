"""What a person sees of two systems that are compared: the differences, and the queries that changed most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cohyde.evaluation.bootstrap import CERTAIN, RESAMPLES
from cohyde.evaluation.compare import Change, Difference
from cohyde.evaluation.per_query import PerQuery
from cohyde.evaluation.report import percent

LONGEST = 300
"""Characters of a text that are shown."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One of the two systems."""

    title: str
    found: PerQuery
    """Its rows, paired with the other's."""
    descriptions: Mapping[tuple[str, str], str]
    """What it wrote, by split and query id."""


def print_differences(console: Console, sides: Sequence[Shown], rows: Sequence[Difference], metric: str) -> None:
    """One line a split and tier; what is below 5% after correction is bold."""
    for sign, side in zip("AB", sides, strict=True):
        console.print(Text(f"{sign}  ", style="bold") + Text(side.title), soft_wrap=True)
    console.print(f"\n[bold]{metric.replace('ndcg', 'NDCG')}[/bold] in %, and B − A in points\n")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for head, justify in (("", "left"), ("tier", "left"), ("A", "right"), ("B", "right"), ("B − A", "right")):
        table.add_column(head, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for head in ("95%", "flips", "p", "Holm", "n"):
        table.add_column(head, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        table.add_row(*_cells(row, before))
        before = row.split
    console.print(table)
    console.print(
        f"\n[dim]95%: paired bootstrap over queries, {RESAMPLES:,} resamples. flips: % of resamples without this "
        "sign. p: two-sided. Holm: p corrected for all rows of this table. Bold: below 0.05 after that.[/dim]"
    )


def _cells(row: Difference, before: str) -> list[Text]:
    certain = row.p_holm is not None and row.p_holm < CERTAIN
    style = ("bold green" if row.difference > 0 else "bold red") if certain else ""
    between = "n=1" if row.low is None or row.high is None else f"{100 * row.low:+.1f} … {100 * row.high:+.1f}"
    return [
        Text(row.split if row.split != before else ""),
        Text(row.tier),
        Text(percent(row.a)),
        Text(percent(row.b)),
        Text(f"{100 * row.difference:+.1f}", style=style),
        Text(between),
        Text(percent(row.flips)),
        Text(_p(row.p)),
        Text(_p(row.p_holm), style="bold" if certain else ""),
        Text(str(row.n)),
    ]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def print_changes(
    console: Console, sides: Sequence[Shown], changed: Sequence[Change], metric: str, top: int, head: int
) -> None:
    """The queries that changed most: request, gold, and both sides beside each other."""
    up = sum(change.b > change.a for change in changed)
    queries = len(sides[0].found)
    console.print(
        f"\n[bold]{len(changed)} of {queries} queries changed[/bold]: {up} for the better, {len(changed) - up} for the "
        f"worse{'; most of all:' if changed and top else ''}",
        highlight=False,
    )
    for change in changed[:top]:
        console.print()
        console.print(_change(sides, change, metric, head))


def _change(sides: Sequence[Shown], change: Change, metric: str, head: int) -> Group:
    found, row = sides[0].found, change.row
    title = Text(f"{found.id[row]}", style="bold") + Text(f"  {found.split[row]} {found.tier[row]}  ", style="dim")
    title += Text(
        f"{metric} {percent(change.a)} → {percent(change.b)}", style="green" if change.b > change.a else "red"
    )
    asked = Table.grid(padding=(0, 1, 0, 0))
    asked.add_row(Text("request", style="dim"), Text(_cut(found.text[row])))
    asked.add_row(Text("gold", style="dim"), Text("\n".join(found.gold[row])))
    beside = Table.grid(padding=(0, 2, 0, 0), expand=True)
    beside.add_column(ratio=1, overflow="fold")
    beside.add_column(ratio=1, overflow="fold")
    beside.add_row(*(_side(sign, side, row, head) for sign, side in zip("AB", sides, strict=True)))
    return Group(title, asked, beside)


def _side(sign: str, side: Shown, row: int, head: int) -> Text:
    """What one of them found, gold in green; below it what it searched with."""
    gold, ranked = set(side.found.gold[row]), side.found.ranked[row]
    lines = [Text(sign, style="bold")]
    for rank, tool in enumerate(ranked[:head], start=1):
        lines.append(Text(f"{rank} {tool}{' ✓' if tool in gold else ''}", style="green" if tool in gold else ""))
    below = [f"{tool} ({ranked.index(tool) + 1})" for tool in gold.intersection(ranked[head:])]
    if below:
        lines.append(Text(f"further down: {', '.join(sorted(below))}", style="dim"))
    written = side.descriptions.get((side.found.split[row], side.found.id[row]))
    lines.append(
        Text(_cut(written) if written else "(searched with the request)", style="italic" if written else "dim")
    )
    return Text("\n").join(lines)


def _cut(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= LONGEST else f"{folded[: LONGEST - 1]}…"
