"""What a person sees of a dataset: its figures, what is wrong or odd in it, what was made of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from cohyde.data.validation import SPLITS
from cohyde.terminal import out, plain_table

if TYPE_CHECKING:
    from cohyde.catalog import Dataset
    from cohyde.data.audit import Audit
    from cohyde.data.importers.format import Format
    from cohyde.data.overlap import Overlap
    from cohyde.data.stats import Catalogue, Queries, Statistics
    from cohyde.data.validation import Findings

LABEL_WIDTH = 29
NUMBER_WIDTH = 6
"""Wide enough for 99,999, and so narrow that four splits fit into 80 columns."""
MANY_GOLD_TOOLS = 5
SHOWN = 3
ODD = "yellow"
"""The style of a count that a person should think about where it is not 0."""
Cell = tuple[Text, Text]
"""A number, and its share of a whole."""


# -------------------------------------------------------------------------------------------------- statistics


def print_statistics(found: "Statistics") -> None:
    """The figures of a dataset: its queries, what they share with training, lengths, its tools."""
    console = out()
    console.print(Text(found.name, style="bold") + Text(f"  {_in_words(found.catalogue)}"))
    tables = (
        _queries_table(found.splits),
        _overlap_table(found.overlap),
        _lengths_table(found),
        _tools_table(found.catalogue),
        _largest_table(found),
    )
    for table in tables:
        if table.row_count:
            console.print()
            console.print(table)


def _in_words(catalogue: "Catalogue") -> str:
    of = f" of {_counted(catalogue.providers, 'provider')}" if catalogue.providers else ""
    return f"{_counted(catalogue.tools, 'tool')}{of} in {_counted(len(catalogue.categories), 'category', 'categories')}"


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def _table(heading: str) -> Table:
    """A table without a frame, whose first column is as wide in all of them, so that they line up."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(heading, width=LABEL_WIDTH, no_wrap=True)
    return table


def _counts_table(heading: str, columns: Iterable[str]) -> Table:
    """A table of counts with their shares."""
    table = _table(heading)
    for column in columns:
        table.add_column(column, justify="right", min_width=NUMBER_WIDTH, no_wrap=True)
        table.add_column("", justify="right", width=4, style="dim")
    return table


def _cut(text: str) -> Text:
    """A text that is cut where its column is too narrow."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _row(table: Table, label: str, cells: Iterable[Cell]) -> None:
    table.add_row(_cut(f"  {label}"), *(part for cell in cells for part in cell))


def _number(number: int | float, form: str = ",") -> Cell:
    return Text(format(number, form)), Text("")


def _share(count: int, of: int, style: str = "") -> Cell:
    """``389`` and ``51%``; a dash for none."""
    if not count:
        return Text("–", style="dim"), Text("")
    share = count / of
    percent = "<1%" if share < 0.01 else f"{share if count == of else min(share, 0.99):.0%}"
    return Text(f"{count:,}", style=style), Text(percent)


def _queries_table(splits: Mapping[str, "Queries"]) -> Table:
    table = _counts_table("Queries", splits)
    parts = list(splits.values())
    tiers = sorted({tier for part in parts for tier in part.tiers})
    for tier in tiers if len(tiers) > 1 else ():
        _row(table, tier, (_share(_of_tier(part, tier), part.queries) for part in parts))
    for label, cell in QUERY_ROWS.items():
        cells = [cell(part) for part in parts]
        if any(number.plain != "–" for number, _ in cells):
            _row(table, label, cells)
    return table


def _of_tier(part: "Queries", tier: str) -> int:
    return part.tiers[tier].queries if tier in part.tiers else 0


def _needing(count: int) -> Callable[["Queries"], Cell]:
    return lambda part: _share(part.gold_per_query.get(count, 0), part.queries)


def _needing_more(part: "Queries") -> Cell:
    more = sum(queries for count, queries in part.gold_per_query.items() if count > MANY_GOLD_TOOLS)
    return _share(more, part.queries)


QUERY_ROWS: Mapping[str, Callable[["Queries"], Cell]] = {
    "all": lambda part: _number(part.queries),
    "read as one before them": lambda part: _share(part.repeated_texts, part.queries, ODD),
    "contain a gold tool's title": lambda part: _share(part.naming, part.queries),
    "have an instruction": lambda part: _share(part.instructions, part.queries),
    "need one tool": _needing(1),
    **{f"need {count} tools": _needing(count) for count in range(2, MANY_GOLD_TOOLS + 1)},
    "need more": _needing_more,
    "need on average": lambda part: _number(part.pairs / part.queries, ".2f"),
    "different gold tools": lambda part: _number(part.gold_tools),
    "different sets of them": lambda part: _number(part.gold_sets),
    "queries a tool, median": lambda part: _number(part.queries_per_tool.p50),
    "queries a tool, most": lambda part: _number(part.queries_per_tool.most),
}
"""What is said of each split; a row that would hold nothing but dashes is left out."""


def _overlap_table(overlaps: Mapping[str, "Overlap"]) -> Table:
    table = _counts_table("Seen in training", overlaps)
    parts = list(overlaps.values())
    for label, cell in OVERLAP_ROWS.items() if parts else ():
        _row(table, label, map(cell, parts))
    return table


def _near(least: str) -> Callable[["Overlap"], Cell]:
    return lambda part: _share(part.near_copies[least], part.queries, ODD)


OVERLAP_ROWS: Mapping[str, Callable[["Overlap"], Cell]] = {
    "all gold tools of a query": lambda part: _share(part.gold_seen["all"], part.queries),
    "some of them": lambda part: _share(part.gold_seen["some"], part.queries),
    "none of them": lambda part: _share(part.gold_seen["none"], part.queries),
    "its very set of gold tools": lambda part: _share(part.gold_set_seen, part.queries),
    "… and 60% of the words": _near("0.6"),
    "… and 70% of the words": _near("0.7"),
    "… and 80% of the words": _near("0.8"),
    "… and 90% of the words": _near("0.9"),
    "its text": lambda part: _share(part.same_text, part.queries, "red"),
    "different gold tools": lambda part: _share(part.gold_tools_seen, part.gold_tools),
}


def _lengths_table(found: "Statistics") -> Table:
    table = _table("Lengths")
    for column in ("5%", "median", "95%", "most", "mean"):
        table.add_column(column, justify="right", min_width=8, no_wrap=True)
    texts = {"a tool": found.catalogue.lengths}
    texts |= {f"a query, {name}": part.lengths for name, part in found.splits.items()}
    for unit in ("words", "characters"):
        table.add_row(Text(f"  {unit}:", style="dim"))
        for label, lengths in texts.items():
            spread = getattr(lengths, unit)
            numbers = (spread.p5, spread.p50, spread.p95, spread.most)
            table.add_row(_cut(f"  {label}"), *(f"{number:,}" for number in numbers), f"{spread.mean:,.1f}")
    return table


def _tools_table(catalogue: "Catalogue") -> Table:
    table = _counts_table("Tools", ("",))
    table.add_column("", style="dim")
    for label, count in _tool_counts(catalogue).items():
        if count or label in ALWAYS_SAID:
            _row(table, label, [_share(count, catalogue.tools, ODD if label in ODD_TOOLS else "")])
    for what, label in ALIKE_LABELS.items():
        alike = catalogue.alike[what]
        if alike.tools or label in ALWAYS_SAID:
            groups = f"in {_counted(alike.groups, 'group')}" if alike.groups else ""
            table.add_row(_cut(f"  {label}"), *_share(alike.tools, catalogue.tools, ODD), groups)
    return table


def _tool_counts(catalogue: "Catalogue") -> dict[str, int]:
    return {
        "that no query needs": catalogue.never_gold,
        **{f"without {field}": count for field, count in catalogue.empty.items()},
        "described by name alone": catalogue.description_is_name,
    }


ALWAYS_SAID = {"that no query needs", "without any description", "with the text of another"}
ODD_TOOLS = {"without any description", "described by name alone"}
ALIKE_LABELS = {
    "text": "with the text of another",
    "all but category": "equal but for category",
    "all but category and title": "equal but for provider",
    "all but names": "equal but for all names",
}
"""What is compared, a key of the catalogue's ``alike``, in the words of the table."""


def _largest_table(found: "Statistics") -> Table:
    table = _table("Most")
    table.add_column(justify="right", min_width=NUMBER_WIDTH)
    table.add_column()
    for label, names in _largest(found).items():
        for name, count in names:
            table.add_row(_cut(f"  {label}"), f"{count:,}", _cut(" ".join(name.split()) or "(blank)"))
            label = ""
    return table


def _largest(found: "Statistics") -> dict[str, list[tuple[str, int]]]:
    """What there is most of: categories, and gold tools by split."""
    splits = {name: part for name, part in found.splits.items() if name != "vague"}
    return {"tools in a category": list(found.catalogue.categories.items())[:SHOWN]} | {
        f"queries of a tool, {name}": [(tool.name, tool.queries) for tool in part.top_tools[:SHOWN]]
        for name, part in splits.items()
    }


# ---------------------------------------------------------------------------------------------------- findings


def print_audit(folder: Path, found: "Audit") -> None:
    """What a dataset folder holds, what is wrong in it and what is odd; places are told from the folder on."""
    console = out()
    _print_counts(folder.name, found.counts)
    print_findings(found.findings, folder)
    total = found.findings.counts.total()
    if total:
        verdict = Text(f"✗ {_counted(total, 'row')} at fault", style="bold red")
        console.print(verdict + Text(": mend the files, or leave such rows out with data.drop_invalid=true"))
    else:
        console.print(Text("✓ no faults", style="green"))


def print_findings(findings: "Findings", folder: Path | None = None) -> None:
    """Faults, then remarks: one line a kind, with how many there are and where the first is.

    Args:
        findings: what a validation found.
        folder: places in it are told from there on.
    """
    table = plain_table(("", "right"), ("", "left"))
    table.show_header = False
    table.add_column(overflow="fold")
    for tally, style in ((findings.faults, "red"), (findings.remarks, ODD)):
        for kind, count in sorted(tally.counts.items(), key=lambda item: -item[1]):
            first = tally.first[kind].removeprefix(f"{folder}/")
            table.add_row(Text(f"  {count:,}", style=style), Text(kind, style=style), Text(first, style="dim"))
    if table.row_count:
        out().print(table)


# ------------------------------------------------------------------------------------------------ what was made


def print_made(folder: Path, dataset: "Dataset", findings: "Findings | None", notes: Sequence[str]) -> None:
    """A dataset that was written: where, how much of what, what was left out, what is odd."""
    from cohyde.data.dataset import counts_of

    _print_counts(str(folder), counts_of(dataset))
    for note in notes:
        out().print(Text(f"  {note}"), soft_wrap=True)
    if findings is not None:
        print_findings(findings)
        if findings.counts:
            out().print(Text("✗ what is red was left out", style="red"))


def _print_counts(name: str, counts: Mapping[str, int]) -> None:
    said = [_counted(counts["tools"], "tool")]
    splits = [f"{counts[split]:,} {split}" for split in SPLITS if counts[split]]
    said += [f"{', '.join(splits)} queries"] if splits else []
    said += [_counted(counts["vague"], "paraphrase")] if counts["vague"] else []
    out().print(Text(name, style="bold") + Text(f"  {'; '.join(said)}"), soft_wrap=True)


def print_outcome(folder: Path, counts: Mapping[str, int], reasons: Mapping[str, int]) -> None:
    """What a model wrote for a dataset: how much was asked for, kept and rejected, and why."""
    said = [f"{count:,} {what.replace('_', ' ')}" for what, count in counts.items() if count]
    out().print(Text(str(folder), style="bold") + Text(f"  {', '.join(said)}"), soft_wrap=True)
    table = plain_table(("", "right"), ("", "left"))
    table.show_header = False
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(Text(f"  {count:,}", style=ODD), Text(reason))
    if table.row_count:
        out().print(table)


def print_files(folder: Path, files: Sequence[str]) -> None:
    """Files that were written, below their folder."""
    console = out()
    console.print(Text(str(folder), style="bold"), soft_wrap=True)
    for file in files:
        console.print(Text(f"  {file}"), soft_wrap=True)


def print_formats(formats: Sequence["Format"]) -> None:
    """One line a format: its name, what it is, and the files that it looks for."""
    table = plain_table(("format", "left"))
    table.add_column("what", overflow="fold")
    table.add_column("files", overflow="fold", style="dim")
    for each in formats:
        table.add_row(Text(each.name, style="bold"), Text(each.title), Text(each.published))
    out().print(table)
