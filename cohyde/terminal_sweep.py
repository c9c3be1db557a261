"""What a person sees of a sweep: how far its runs are, why some failed, and the table over seeds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cohyde.evaluation.bootstrap import RESAMPLES
from cohyde.evaluation.report import percent
from cohyde.evaluation.seeds import Column, SeedTable
from cohyde.terminal import OVER, STATE_STYLES, compact, how_far, plain_table, print_failures_of

if TYPE_CHECKING:
    from cohyde.dag.attempts import Failure
    from cohyde.dag.state import State
    from cohyde.dag.store import Store
    from cohyde.dag.sweep import Union

ALL_RUNS = "all runs"
RANKED: tuple["State", ...] = ("failed", "running", "blocked", "ready", "waiting", "done")
"""A run as a whole is the first of these that one of its stages is."""
LEAVING: tuple["State", ...] = ("done", "waiting", "ready", "blocked", "failed", "running")
"""What a low terminal shows no more, in this order."""
FURNITURE = 3
"""Lines of a terminal that are not the table's: its head, what was left out, and the cursor's."""
NAMED_RUNS = 3
"""Runs whose blocked stages are named; of more they are counted."""
MOST_LINES = 40
"""Lines of seeds and rounds that are still read; of more, the selected round alone is shown."""

# --------------------------------------------------------------------------------------------------------- states


@dataclass(frozen=True, kw_only=True)
class Group:
    """The stages that all runs share, or what else a run has."""

    run: str
    """Its short name; :data:`ALL_RUNS` for the first."""
    names: tuple[str, ...]
    """Of nodes."""

    def state(self, states: Mapping[str, "State"]) -> "State":
        """That of the group as a whole."""
        found = {states[name] for name in self.names}
        return next(state for state in RANKED if state in found)


def groups(union: "Union") -> list[Group]:
    """One for all runs, and one for each."""
    common = [name for name in union.plan.nodes if union.is_common(name)]
    members = {ALL_RUNS: common}
    for run, plan in union.plans.items():
        members[union.short(run)] = [name for name in plan.nodes if not union.is_common(name)]
    return [Group(run=run, names=tuple(names)) for run, names in members.items() if names]


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One line of the table; only the first of a group has its label."""

    label: str
    done: str
    state: "State"
    detail: str


def sweep_table(union: "Union", states: Mapping[str, "State"], store: "Store", height: int | None = None) -> Table:
    """One line a run: stages done, its state, and what is running (step, rate, time left) or has failed.

    Args:
        union: the runs.
        states: by node name.
        store: where attempts say how far they are.
        height: lines there are; what is running and what has failed is left out last. None: as many as it takes.
    """
    lines = [line for group in groups(union) for line in _lines(group, union, states, store)]
    kept = lines if height is None else _that_fit(lines, height - FURNITURE)
    table = plain_table(("run", "left"), ("stages", "right"), ("state", "left"))
    table.add_column("", overflow="ellipsis")
    for line in kept:
        shown = Text(line.state if line.label else "", style=STATE_STYLES[line.state])
        detail = Text(" ".join(line.detail.split("\n")), no_wrap=True, overflow="ellipsis")
        table.add_row(Text(line.label), line.done, shown, detail)
    left_out = Counter(line.state for line in lines if line not in kept and line.label)
    if left_out:
        table.add_row("…", "", "", Text(", ".join(f"{n} more {state}" for state, n in left_out.items()), style="dim"))
    return table


def _lines(group: Group, union: "Union", states: Mapping[str, "State"], store: "Store") -> list[_Line]:
    done = f"{sum(states[name] == 'done' for name in group.names)}/{len(group.names)}"
    state = group.state(states)
    telling = [name for name in group.names if states[name] in ("running", "failed")]
    first, *more = [_detail(name, group, union, states, store) for name in telling] or [""]
    return [
        _Line(label=group.run, done=done, state=state, detail=first),
        *(_Line(label="", done="", state=state, detail=detail) for detail in more),
    ]


def _detail(name: str, group: Group, union: "Union", states: Mapping[str, "State"], store: "Store") -> str:
    """What only some runs share is told of the first of them."""
    from cohyde.dag.attempts import latest_attempt

    stage_id, first = union.plan.nodes[name].id, union.short(union.runs_of[name][0])
    if group.run not in (ALL_RUNS, first):
        return f"{stage_id}  as {first}"
    attempt = latest_attempt(store, name)
    failure = attempt.failure() if attempt and states[name] == "failed" else None
    what = failure.error if failure else how_far(attempt) if attempt and states[name] == "running" else ""
    return f"{stage_id}  {what}"


def _that_fit(lines: Sequence[_Line], room: int) -> list[_Line]:
    kept = list(lines)
    for state in LEAVING:
        surplus = len(kept) - max(1, room)
        if surplus <= 0:
            break
        leaving = [position for position, line in enumerate(kept) if line.state == state][-surplus:]
        kept = [line for position, line in enumerate(kept) if position not in leaving]
    return kept


def is_over(states: Mapping[str, "State"]) -> bool:
    """Whether nothing more happens by itself."""
    return all(state in OVER for state in states.values())


def sweep_summary(union: "Union", states: Mapping[str, "State"]) -> str:
    """``3 runs, 1 done; 29 stages: 12 done, 2 running, 15 to run``; a shared stage counts once."""
    whole = sum(all(states[name] == "done" for name in plan.nodes) for plan in union.plans.values())
    counts = Counter(states.values())
    runs = f"{len(union.plans)} run{'s' if len(union.plans) > 1 else ''}"
    if counts["done"] == len(states):
        return f"{runs}: all {len(states)} stages are done"
    running = f", {counts['running']} running" if counts["running"] else ""
    left = len(states) - counts["done"] - counts["running"]
    return f"{runs}, {whole} done; {len(states)} stages: {counts['done']} done{running}, {left} to run"


# ------------------------------------------------------------------------------------------------------- failures


def print_sweep_failures(
    union: "Union", states: Mapping[str, "State"], failures: Sequence["Failure"], resume: str
) -> None:
    """Which stages failed, why, where their logs are, what that held up, and how to go on."""
    named = [replace(failure, id=union.labels[failure.name]) for failure in failures]
    print_failures_of(named, _blocked(union, states), resume)


def failures_of(union: "Union", states: Mapping[str, "State"], store: "Store") -> list["Failure"]:
    """Why stages failed some time ago."""
    from cohyde.dag.attempts import latest_attempt

    attempts = [latest_attempt(store, name) for name in union.plan.nodes if states[name] == "failed"]
    return [failure for attempt in attempts if attempt and (failure := attempt.failure())]


def _blocked(union: "Union", states: Mapping[str, "State"]) -> list[str]:
    by_run = {
        union.short(run): [plan.nodes[name].id for name in plan.nodes if states[name] == "blocked"]
        for run, plan in union.plans.items()
    }
    held = {run: ids for run, ids in by_run.items() if ids}
    if len(held) > NAMED_RUNS:
        return [f"{sum(state == 'blocked' for state in states.values())} stages of {len(held)} runs"]
    return [f"{run}: {compact(ids)}" for run, ids in held.items()]


# ---------------------------------------------------------------------------------------------------------- seeds


def print_seed_table(console: Console, title: str, table: SeedTable) -> None:
    """Every seed at every round, below it what the selected round comes to, and what the signs mean."""
    console.print(f"[bold]{escape(title)}[/bold]  NDCG@5 in %, searched with: {escape(table.search)}")
    console.print()
    console.print(seed_table(table))
    console.print()
    for note in _notes(table):
        console.print(Text(note, style="dim"), soft_wrap=True)


def _notes(table: SeedTable) -> list[str]:
    how = "selected by dev NDCG@5, the mean over seeds" if table.by_dev else "the last round: dev was not scored"
    notes = [f"* {how}"]
    if len(table.seeds) > 1 and table.selected in _common(table):
        notes.append(f"{table.selected} is the same for every seed: it has no spread over seeds")
    if any(cell.interval_seeds or cell.interval_seeds_queries for cell in table.cells):
        notes.append(f"95%: of the gain, paired bootstrap, {RESAMPLES:,} resamples")
    return notes


def seed_table(table: SeedTable) -> Table:
    """The table itself, at most 80 columns wide for three tiers."""
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    shown.add_column("\nseed", no_wrap=True)
    shown.add_column("", no_wrap=True)
    previous = ""
    for split, tier in table.columns:
        head = "\ndev" if split == "dev" else f"{'' if split == previous else split}\n{tier}"
        shown.add_column(Text(head), justify="right", no_wrap=True)  # a tier may be called anything, also "[G1]"
        previous = split
    for label, stage, values in _seed_lines(table):
        shown.add_row(label, stage, *(percent(values[column]) for column in table.columns))
    shown.add_row()
    for label, what, numbers in _summary(table):
        if numbers:
            style = "bold" if label == "gain" else ""
            shown.add_row(label, what, *(numbers.get(column, "–") for column in table.columns), style=style)
    return shown


def _seed_lines(table: SeedTable) -> list[tuple[str, str, Mapping[Column, float | None]]]:
    """Seed, stage, values. The rounds before the seeds part are shown once."""
    common, first = _common(table), table.seeds[0]
    own = [stage for stage in table.stages if stage not in common]
    if len(own) * len(table.seeds) > MOST_LINES:
        own = [stage for stage in own if stage == table.selected]
    lines = [("all", stage, first) for stage in common]
    lines += [(str(seed), stage, seed) for seed in table.seeds for stage in own][:MOST_LINES]
    found, previous = [], ""
    for label, stage, seed in lines:
        mark = f"{stage} *" if stage == table.selected else stage
        found.append(("" if label == previous else label, mark, table.lines[seed, stage]))
        previous = label
    return found


def _common(table: SeedTable) -> list[str]:
    """The rounds before the seeds part: every seed has the same values there, as after a shared warm-up."""
    first, *others = table.seeds
    same = [all(table.lines[seed, stage] == table.lines[first, stage] for seed in others) for stage in table.stages]
    return [stage for at, stage in enumerate(table.stages) if others and all(same[: at + 1])]


def _summary(table: SeedTable) -> list[tuple[str, str, dict[Column, str]]]:
    """Lines of what the selected round comes to; one without numbers has nothing to say."""

    def numbers(form: str, field: str, end: str | None = None) -> dict[Column, str]:
        found = {(cell.split, cell.tier): getattr(cell, field) for cell in table.cells}
        known = {column: value for column, value in found.items() if value is not None}
        return {column: form.format(100 * (getattr(value, end) if end else value)) for column, value in known.items()}

    rows = [("mean", f"{table.selected} *", numbers("{:.1f}", "mean")), ("sd", "", numbers("{:.1f}", "sd"))]
    if table.baseline is not None:
        raw = "" if table.baseline.search == table.search else f", {table.baseline.search}"
        rows += [
            ("mean", f"{table.baseline.stage}{raw}", numbers("{:.1f}", "baseline")),
            ("gain", f"on {table.baseline.stage}", numbers("{:+.1f}", "difference")),
            ("95%", "over seeds, from", numbers("{:+.1f}", "interval_seeds", "low")),
            ("", "to", numbers("{:+.1f}", "interval_seeds", "high")),
            ("95%", "seeds and queries, from", numbers("{:+.1f}", "interval_seeds_queries", "low")),
            ("", "to", numbers("{:+.1f}", "interval_seeds_queries", "high")),
        ]
    return rows
