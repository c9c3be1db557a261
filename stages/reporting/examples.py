"""Queries whose ranking changed most between the warm-up and the last round, side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cohyde.errors import UserError
from cohyde.evaluation.page.data import Example, Examples, Hit, Side
from cohyde.evaluation.results import SAMPLE
from stages.reporting.results import WARMED_UP
from stages.reporting.views import Arm, RunView

MOST = 4
"""Queries that improved, and as many that got worse."""
SHOWN = 5
"""Ranks."""
LONGEST = 420
"""Characters of a text."""


def examples(arm: Arm) -> Examples | None:
    """None where there are not two states to compare, or nothing changed."""
    run, stages = arm.first, arm.rounds
    if len(stages) < 2 or stages[0] != WARMED_UP:
        return None
    before, after = stages[0], stages[-1]
    picked = _picked(run, before, after, arm.search)
    if not picked:
        return None
    try:
        titles = _titles(run)
        sides = [_Ranked.of(run, stage, arm.search) for stage in (before, after)]
    except UserError as error:
        run.faults.append(error)
        return None
    return Examples(
        key="examples-changed",
        title="",
        caption=f"The queries that changed most from {before} to {after}, searched with: {arm.search}; first those "
        "that gained, then those that lost. They are picked by their change: they show what happened, not how often.",
        items=tuple(_example(change, key, sides, titles) for change, key in picked),
    )


Key = tuple[str, str]
"""Split and query id."""


def _picked(run: RunView, before: str, after: str, search: str) -> list[tuple[float, Key]]:
    changes = sorted(_changes(run, before, after, search), key=lambda item: (-item[0], item[1]))
    gained = [item for item in changes if item[0] > 0]
    lost = [item for item in reversed(changes) if item[0] < 0]
    return [*_spread(gained), *_spread(lost)]


def _spread(items: list[tuple[float, Key]]) -> list[tuple[float, Key]]:
    """The first ones, vague and standard in turn, each request in one wording only."""
    by_split = {split: [item for item in items if item[1][0] == split] for split in ("vague", "standard")}
    chosen: list[tuple[float, Key]] = []
    while len(chosen) < MOST and any(by_split.values()):
        for rest in by_split.values():
            while rest and rest[0][1][1] in {key[1] for _, key in chosen}:
                rest.pop(0)
            if rest and len(chosen) < MOST:
                chosen.append(rest.pop(0))
    return chosen


def _changes(run: RunView, before: str, after: str, search: str) -> Iterator[tuple[float, Key]]:
    one, two = run.evaluations[before], run.evaluations[after]
    for split, tier, mode in one.groups:
        if mode != search or split == "dev":
            continue
        left, right = (found.scored(split, tier, search, "ndcg@5", SAMPLE) for found in (one, two))
        if left and right and left.ids == right.ids:
            for identifier, low, high in zip(left.ids, left.values, right.values, strict=True):
                yield float(high - low), (split, identifier)


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """What a state answered."""

    stage: str
    rows: Mapping[Key, tuple[str, str, list[str], list[str], float]]
    """Text, tier, gold, ranking and NDCG@5."""
    wrote: Mapping[Key, str]

    @classmethod
    def of(cls, run: RunView, stage: str, search: str) -> "_Ranked":
        found = run.rankings(stage).select(search=search)
        rows = {
            (str(found.split[at]), str(found.id[at])): (
                str(found.text[at]),
                str(found.tier[at]),
                found.gold[at],
                found.ranked[at],
                float(found.values["ndcg@5"][at]),
            )
            for at in range(len(found))
        }
        return cls(stage=stage, rows=rows, wrote=run.descriptions(stage) if search != "query" else {})


def _example(change: float, key: Key, sides: list[_Ranked], titles: Mapping[str, str]) -> Example:
    text, tier, gold, _, _ = sides[-1].rows[key]
    return Example(
        query=_cut(text),
        labels=(key[0], tier),
        gold=tuple(titles.get(tool, tool) for tool in gold),
        sides=tuple(_side(side, key, gold, titles) for side in sides),
        change=f"{100 * change:+.0f} points".replace("-", "−"),
        tone="good" if change > 0 else "bad",
    )


def _side(side: _Ranked, key: Key, gold: list[str], titles: Mapping[str, str]) -> Side:
    _, _, _, ranked, value = side.rows[key]
    ranks = [rank for rank, tool in enumerate(ranked, start=1) if tool in gold]
    told = (
        f"Right tools stand at {', '.join(map(str, ranks))}." if ranks else f"None of the first {len(ranked)} is right."
    )
    return Side(
        title=side.stage,
        score=f"NDCG@5 {100 * value:.0f}",
        description=_cut(side.wrote.get(key, "")),
        ranked=tuple(Hit(title=titles.get(tool, tool), gold=tool in gold) for tool in ranked[:SHOWN]),
        first_gold=told,
    )


def _titles(run: RunView) -> dict[str, str]:
    """What people call each tool, by its id."""
    found: dict[str, str] = {}
    for row in run.rows_of("data", "catalog.jsonl"):
        names = (str(row.get(name, "")).strip() for name in ("title", "api_name"))
        found[row["id"]] = " · ".join(filter(None, names)) or row["id"]
    return found


def _cut(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= LONGEST else folded[:LONGEST].rsplit(" ", 1)[0] + " …"
