"""The tables of a page as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable, Mapping
from itertools import groupby

from cohyde.evaluation.page.data import Cell, PageData, Row, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "Δ": r"$\Delta$",
    "θ": r"$\theta$",
    "ψ": r"$\psi$",
    "φ": r"$\varphi$",
    "…": r"\dots{}",
}
_SUBSCRIPTS = {chr(ord("₀") + digit): f"$_{digit}$" for digit in range(10)}


def to_markdown(data: PageData) -> str:
    """The summary and all tables, as one Markdown document."""
    text = [f"# {_plain(data.title)}", "", f"**{_plain(data.summary.headline)}**", ""]
    text += [f"{_plain(sentence)}\n" for sentence in data.summary.sentences]
    for table in data.tables:
        text += [f"## {_plain(table.title)}", "", _plain(table.caption), "", markdown_table(table)]
        text += [f"{_plain(note)}\n" for note in table.notes]
    return "\n".join(text).rstrip() + "\n"


def markdown_table(table: Table) -> str:
    """One table; the best are bold, intervals stand in brackets."""
    heads = [" ".join(filter(None, (column.group, column.head))) for column in table.columns]
    lines = [_markdown_row([_plain(head) for head in heads])]
    lines.append(_markdown_row(["---:" if column.numeric else "---" for column in table.columns]))
    lines += [_markdown_row([_markdown_cell(cell) for cell in row.cells]) for row in table.rows]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    shown = _plain(cell.text)
    parts = [f"**{shown}**" if cell.best and shown else shown, interval_text(cell), _plain(cell.note)]
    return " ".join(part for part in parts if part)


def _plain(text: str) -> str:
    """Text that Markdown and the HTML inside it leave alone."""
    folded = " ".join(text.split())
    for character in ("\\", "|", "*", "_", "`", "["):
        folded = folded.replace(character, f"\\{character}")
    return folded.replace("&", "&amp;").replace("<", "&lt;")


def interval_text(cell: Cell) -> str:
    """``[65.1, 77.0]`` with the decimals of the number; empty where there is no interval."""
    if cell.low is None or cell.high is None:
        return ""
    sign = "+" if cell.text.startswith(("+", "−")) else ""
    decimals = len(cell.text.partition(".")[2])
    shown = [f"{bound:{sign}.{decimals}f}" for bound in (cell.low, cell.high)]
    return "[" + ", ".join(text.replace("-", "−") if text.strip("+-0.") else text.lstrip("+-") for text in shown) + "]"


def to_csv(table: Table) -> str:
    """One table with all decimals; a column with intervals is followed by those of its bounds."""
    bounded = [any(row.cells[position].low is not None for row in table.rows) for position in range(len(table.columns))]
    heads = []
    for column, has_bounds in zip(table.columns, bounded, strict=True):
        head = " ".join(filter(None, (column.group, column.head)))
        heads += [head, f"{head} low", f"{head} high"] if has_bounds else [head]
    grouped = any(row.group for row in table.rows)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*(["group"] if grouped else []), *heads])
    for row in table.rows:
        cells: list[str | float] = [row.group] if grouped else []
        for column, cell, has_bounds in zip(table.columns, row.cells, bounded, strict=True):
            numbers = [cell.value, cell.low, cell.high] if has_bounds else [cell.value]
            cells += ["" if number is None else number for number in numbers] if column.numeric else [cell.text]
        writer.writerow(cells)
    return file.getvalue()


def to_latex(table: Table) -> str:
    """One ``table`` environment in the style of booktabs, a package that the document has to use."""
    kinds = "".join("r" if column.numeric else "l" for column in table.columns)
    text = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(table.caption)}}}",
        rf"\label{{tab:{table.key}}}",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        *_latex_groups(table),
        _latex_row([latex_text(column.head) for column in table.columns]),
        r"\midrule",
    ]
    before = None
    for row in table.rows:
        if before is not None and row.group != before:
            text.append(r"\midrule")
        before = row.group
        text.append(_latex_row([_latex_cell(cell) for cell in row.cells]))
    text += [r"\bottomrule", r"\end{tabular}"]
    text += [rf"\par\smallskip{{\footnotesize {latex_text(note)}}}" for note in table.notes]
    return "\n".join([*text, r"\end{table}"]) + "\n"


def _latex_groups(table: Table) -> list[str]:
    """The heads above the heads, each with a rule of its width."""
    if not any(column.group for column in table.columns):
        return []
    heads, rules, start = [], [], 1
    for group, width in spans(table):
        heads.append(rf"\multicolumn{{{width}}}{{c}}{{{latex_text(group)}}}" if group else " & ".join([""] * width))
        if group:
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_row(heads), " ".join(rules)]


def spans(table: Table) -> list[tuple[str, int]]:
    """Neighbouring columns by group: its name, and how many they are."""
    found: list[tuple[str, int]] = []
    for column in table.columns:
        if found and found[-1][0] == column.group:
            found[-1] = (column.group, found[-1][1] + 1)
        else:
            found.append((column.group, 1))
    return found


def row_groups(table: Table) -> list[tuple[str, list[Row]]]:
    """Rows that follow each other under the name of their group."""
    return [(name, list(rows)) for name, rows in groupby(table.rows, key=lambda row: row.group)]


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    shown = latex_text(cell.text)
    parts = [rf"\textbf{{{shown}}}" if cell.best and shown else shown]
    parts += [rf"{{\scriptsize {latex_text(more)}}}" for more in (interval_text(cell), cell.note) if more]
    return " ".join(part for part in parts if part)


def latex_text(text: str) -> str:
    """Text in which nothing means anything to TeX."""
    folded = " ".join(text.split())
    return "".join(_LATEX.get(character) or _SUBSCRIPTS.get(character, character) for character in folded)


FORMATS: Mapping[str, tuple[str, Callable[[Table], str]]] = {"csv": ("csv", to_csv), "latex": ("tex", to_latex)}
"""By name: the ending of the files, one a table, and what writes them."""
