"""report: gather every evaluation into one table, as Markdown and JSON, and select the round on dev."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.evaluation.per_query import read_per_query
from cohyde.evaluation.report import build_report, to_markdown
from cohyde.evaluation.results import MetricRow, row_from
from cohyde.io import read_rows, write_json, write_text
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import METRICS, QUERIES


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The slice of the report."""

    search: str
    """The search mode whose dev NDCG@5 selects the round."""


def run(inputs: Mapping[str, Path], config: ReportConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Write ``report.md`` and ``report.json`` over the evaluations in ``inputs`` (by stage id)."""
    report = build_report({stage: read_metrics(path) for stage, path in inputs.items()}, config.search)
    write_text(out_dir / "report.md", to_markdown(report))
    write_json(out_dir / "report.json", {"selected": report.selected, "rows": list(report.rows)})
    return {"selected": report.selected}


def read_metrics(artifact: Path) -> list[MetricRow]:
    """The rows that an evaluation stage wrote."""
    return [row_from(row) for row in read_rows(artifact / METRICS)]


def read_query_scores(artifact: Path, search: str) -> dict[tuple[str, str], dict[str, float]]:
    """NDCG@5 of the queries that all rounds share, searched in one mode: by split and tier, and by query id."""
    rows = read_per_query(artifact / QUERIES, rankings=False).select(search=search, in_sample=True)
    found: dict[tuple[str, str], dict[str, float]] = {}
    for split, tier, identifier, value in zip(
        rows.split, rows.tier, rows.id, rows.values["ndcg@5"].tolist(), strict=True
    ):
        found.setdefault((split, tier), {})[identifier] = value
    return found


STAGE = Stage(
    kind="report",
    entry="stages.report:run",
    version="2",
    needs=(),
    reserves="light",
)
