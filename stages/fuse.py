"""B.fused-*: two rankings that other stages have written for each query, fused to one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.data.dataset import read_dataset
from cohyde.evaluation.fusion import fuse
from cohyde.evaluation.per_query import read_per_query
from cohyde.evaluation.results import Ranking
from cohyde.progress import Progress
from stages.declaration import Stage
from stages.folders import QUERIES
from stages.scoring import ScoredConfig, Split, by_split, headline, splits_of, write_results

FUSED = "fused rankings"
"""What the index was searched with, as far as a table has to say: more than one thing."""


@dataclass(frozen=True, kw_only=True)
class FuseConfig(ScoredConfig):
    """The slice of B.fused-*."""

    strategy: str
    """Name of a fusion."""
    constant: float
    """k of reciprocal rank fusion."""
    first: str
    """The search mode that the first input's rankings are read under."""
    second: str
    """The same for the second, which may be the same artifact."""


def run(inputs: Mapping[str, Path], config: FuseConfig, out_dir: Path, progress: Progress) -> dict[str, Any]:
    """Write metrics and rankings by query. Nothing is embedded or generated again."""
    dataset, _ = read_dataset(inputs["data"])
    splits, position = splits_of(dataset, config), dataset.position_of()
    first = rankings_of(inputs["first"], config.first, splits)
    second = rankings_of(inputs["second"], config.second, splits)
    fused = [
        fuse(both, config.strategy, config.constant, position, config.depth) for both in zip(first, second, strict=True)
    ]
    return headline(write_results(out_dir, dataset, splits, {FUSED: fused}))


def rankings_of(artifact: Path, search: str, splits: Sequence[Split]) -> list[Ranking]:
    """What an evaluation found for each query under a search mode, in the order of :func:`stages.scoring.by_split`.

    Raises:
        RuntimeError: it has no ranking for one of them.
    """
    found = read_per_query(artifact / QUERIES).select(search=search)
    row_of = {key: row for row, key in enumerate(zip(found.split, found.id, strict=True))}
    wanted = [(split.name, query.id) for split, query in by_split(splits)]
    missing = [key for key in wanted if key not in row_of]
    if missing:
        raise RuntimeError(f"{len(missing)} of {len(wanted)} queries have no ranking, the first: {missing[0]}")
    return [_ranking(found, row_of[key]) for key in wanted]


def _ranking(found: Any, row: int) -> Ranking:
    tools, start = found.ranked[row], int(found.ranked.offsets[row])
    return list(zip(tools, found.scores[start : start + len(tools)].tolist(), strict=True))


STAGE = Stage(
    kind="fused rankings",
    entry="stages.fuse:run",
    version="1",
    needs=("data", "first", "second"),
    reserves="light",
)
