"""Relevance judgements, one row a pair: which tools are gold for which query."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cohyde.data.validation import Findings


@dataclass(frozen=True)
class Gold:
    """A query's gold tools, distinct and in the order of the rows, and where it is judged first."""

    where: str
    tools: dict[str, None] = field(default_factory=dict)


def gold_of(
    rows: Iterable[tuple[str, Mapping[str, str]]], query: str, tool: str, score: str, findings: Findings
) -> dict[str, Gold]:
    """Gold by query, from the rows of one file and the names of its three columns.

    A score of zero or less makes no gold, and neither does a repetition: both are remarked on. A score that is no
    number is a fault.
    """
    gold: dict[str, Gold] = {}
    for where, row in rows:
        try:
            relevant = _number(row[score]) > 0
        except ValueError as error:
            findings.fault("malformed score", where, str(error))
            continue
        if not relevant:
            findings.remark("judged not relevant", where, f"{row[tool]!r} scores {row[score]} for {row[query]!r}")
            continue
        tools = gold.setdefault(row[query], Gold(where)).tools
        if row[tool] in tools:
            findings.remark("repeated judgement", where, f"{row[query]!r} and {row[tool]!r} are judged before")
        tools[row[tool]] = None
    return gold


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"the score {text!r} is no number")
    return value


def check_queries_known(judged: Mapping[str, str], known: Collection[str], file: str, findings: Findings) -> None:
    """Judgements of queries that are not there are faults.

    Args:
        judged: the place of each judged query.
        known: the queries there are.
        file: where these were read.
        findings: is told.
    """
    for query, where in judged.items():
        if query not in known:
            findings.fault("unknown query", where, f"{query!r} is judged, but not in {file}")
