"""Audit: all that is wrong or odd in a dataset folder, told without holding its catalogue."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.data.dataset import CATALOG, dataset_rows
from cohyde.data.validation import (
    Findings,
    Tally,
    check_any_tools,
    checked_tools,
    remarked_tools,
    validated_queries,
)
from cohyde.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What the validation of a dataset folder found, faults and remarks; faults do not raise here."""

    findings: Findings
    counts: Mapping[str, int]
    """How many tools and how many queries of each split there are, without those at fault."""

    def to_json(self) -> dict[str, Any]:
        """Counts, faults and remarks, these with how many there are of a kind and the first of it."""
        found = {"faults": self.findings.faults, "remarks": self.findings.remarks}
        return {"counts": dict(self.counts)} | {name: _kinds(tally) for name, tally in found.items()}


def audit(folder: Path, *, progress: Progress | None = None) -> Audit:
    """Validate a dataset folder as :func:`cohyde.data.dataset.read_dataset` does, but to its end, and as a stream.

    Of the catalogue only ids, places and hashes are held, so that a million tools take about half a GB.

    Args:
        folder: holds ``catalog.jsonl`` and ``queries.jsonl``, and ``vague.jsonl`` where there are paraphrases.
        progress: is told how far it is.

    Raises:
        UserError: a file is missing, or the catalogue is empty.
    """
    findings = Findings()
    rows = dataset_rows(folder, findings, progress)
    known = {tool.id for _, tool in remarked_tools(checked_tools(rows.tools, findings), findings)}
    if not findings.counts:
        check_any_tools(str(folder / CATALOG), len(known), findings)
    splits = validated_queries(rows, known, findings)
    return Audit(
        findings=findings, counts={"tools": len(known)} | {name: len(queries) for name, queries in splits.items()}
    )


def _kinds(tally: Tally) -> list[dict[str, Any]]:
    return [{"kind": kind, "count": count, "first": tally.first[kind]} for kind, count in sorted(tally.counts.items())]
