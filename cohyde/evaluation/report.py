"""The main table of a run, and the round that dev selects; rendered to Markdown here, to a terminal in the CLI."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohyde.evaluation.metrics import ALL, MEAN_OVER_TIERS
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE, MetricRow, value_of

TABLE_SPLITS = ("standard", "vague")
RAW_QUERY = "query"
"""The search mode that needs no rewriter."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the main table: NDCG@5 by (split, tier); ``dev`` is the mean over tiers on the dev split."""

    stage: str
    search: str
    scope: str
    values: Mapping[tuple[str, str], float | None]
    dev: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run comes to.

    ``selected`` is the evaluation stage of the best dev NDCG@5 (mean over tiers) in the configured search mode, the
    earliest of equals; None where dev was not scored. Never is the evaluation split looked at for it. What was only
    searched with raw queries is a baseline, no state of the run, and is not selected.
    """

    search: str
    tiers: tuple[str, ...]
    lines: tuple[Line, ...]
    selected: str | None
    rows: tuple[dict[str, Any], ...]


def build_report(evaluations: Mapping[str, Sequence[MetricRow]], search: str) -> Report:
    """Gather the rows of every evaluation (by stage id, in order) into one report.

    Args:
        evaluations: what each evaluation stage measured; those that only know raw queries have one search mode.
        search: the configured search mode, which decides selection.
    """
    tiers = tiers_of(row for rows in evaluations.values() for row in rows)
    lines = [
        _line(stage, rows, mode, scope, tiers)
        for scope in (SAMPLE, EVERY_QUERY)
        for stage, rows in evaluations.items()
        for mode in _modes(rows, search)
        if any(row.scope == scope and row.search == mode for row in rows)
    ]
    baselines = {stage for stage, rows in evaluations.items() if {row.search for row in rows} == {RAW_QUERY}}
    candidates = [
        line
        for line in lines
        if line.stage not in baselines and line.scope == SAMPLE and line.search == search and line.dev is not None
    ]
    best = max((line.dev or 0.0 for line in candidates), default=0.0)
    selected = next((line.stage for line in candidates if line.dev == best), None)
    flat = tuple(row for stage, rows in evaluations.items() for row in _flat(stage, rows, search))
    return Report(search=search, tiers=tiers, lines=tuple(lines), selected=selected, rows=flat)


def tiers_of(rows: Iterable[MetricRow]) -> tuple[str, ...]:
    """The tiers that a table has columns for, sorted; all queries alike where there are none."""
    return tuple(sorted({row.tier for row in rows} - {ALL, MEAN_OVER_TIERS})) or (ALL,)


def _modes(rows: Sequence[MetricRow], search: str) -> list[str]:
    """Raw query, description, and what is configured: in this order, each once."""
    measured = {row.search for row in rows}
    return [mode for mode in dict.fromkeys((RAW_QUERY, "description", search)) if mode in measured]


def _line(stage: str, rows: Sequence[MetricRow], mode: str, scope: str, tiers: Sequence[str]) -> Line:
    """A split that has no rows of all its queries beside those of the sample was scored whole as the sample."""
    whole = _scored_beyond_sample(rows)

    def value(split: str, tier: str) -> float | None:
        own_scope = scope if split in whole else SAMPLE
        return value_of(rows, split=split, tier=tier, search=mode, scope=own_scope)

    values = {(split, tier): value(split, tier) for split in TABLE_SPLITS for tier in tiers}
    return Line(stage=stage, search=mode, scope=scope, values=values, dev=value("dev", MEAN_OVER_TIERS))


def _flat(stage: str, rows: Sequence[MetricRow], search: str) -> Iterator[dict[str, Any]]:
    """Rows for programs. The bare stage id is the configured search over the widest scope of that split."""
    own_mode = search if any(row.search == search for row in rows) else RAW_QUERY
    whole = _scored_beyond_sample(rows)
    for row in rows:
        label = stage if row.search == own_mode else f"{stage}:{row.search}"
        is_widest = row.scope == (EVERY_QUERY if row.split in whole else SAMPLE)
        yield {"stage": label if is_widest else f"{label}:{row.scope}", **row.to_row()}


def _scored_beyond_sample(rows: Sequence[MetricRow]) -> set[str]:
    """The splits of which more than the sample was scored."""
    return {row.split for row in rows if row.scope == EVERY_QUERY}


def percent(value: float | None) -> str:
    """A fraction as per cent with one decimal; a dash where it was not measured."""
    return "–" if value is None else f"{100 * value:.1f}"


def to_markdown(report: Report) -> str:
    """The main table (NDCG@5 in %) and the selected round, as Markdown."""
    heads = [f"{split} {tier}" for split in TABLE_SPLITS for tier in report.tiers]
    text = ["# Report", "", "NDCG@5 in %, by tier; dev is the mean over tiers.", ""]
    for scope, title in ((SAMPLE, "Rounds compared"), (EVERY_QUERY, "All evaluation queries")):
        lines = [line for line in report.lines if line.scope == scope]
        if not lines:
            continue
        text += [f"## {title}", "", "| stage | searched with | " + " | ".join([*heads, "dev"]) + " |"]
        text.append("| --- | --- |" + " ---: |" * (len(heads) + 1))
        text += [_markdown_line(line, report.tiers) for line in lines] + [""]
    text.append(_selection(report))
    return "\n".join(text) + "\n"


def _markdown_line(line: Line, tiers: Sequence[str]) -> str:
    values = [percent(line.values[split, tier]) for split in TABLE_SPLITS for tier in tiers]
    return "| " + " | ".join([line.stage, line.search, *values, percent(line.dev)]) + " |"


def _selection(report: Report) -> str:
    if report.selected is None:
        return "No round is selected: the dev split was not scored."
    return f"Selected on dev NDCG@5 (searched with: {report.search}): **{report.selected}**."
