"""What was measured, as tables and curves: systems side by side, rounds, differences, seeds, ablations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from cohyde.dag.fingerprint import differences
from cohyde.evaluation.bootstrap import CERTAIN, Interval, holm, two_sided
from cohyde.evaluation.metrics import CUTOFFS, MEAN_OVER_TIERS, METRICS
from cohyde.evaluation.page.data import Cell, Column, Curve, Figure, Panel, Row, Table
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE
from cohyde.evaluation.seeds import SeedTable
from stages.reporting.measured import Measured, Source, Value
from stages.reporting.views import Arm, shareable

DEV = "dev"
RAW_QUERY, DESCRIPTION = "query", "description"
UNTRAINED, WARMED_UP = "E.untrained", "E.0"
GROUPS = {
    "baseline": "Baselines",
    "prior method": "Prior methods",
    "cohyde": "CoHyDE, by round",
    "fusion": "Rankings fused",
}
"""Groups of systems → what stands above them."""
MISSING = Cell(text="–")
NAMES = {"hit": "hit", "recall": "recall", "ndcg": "NDCG", "comp": "COMP"}
INTERVALS = "In brackets the 95% interval (bootstrap over queries, 10,000 resamples)"
Place = tuple[str, str]
"""Split and tier."""


def named(stage: str, search: str) -> str:
    """Name of a state under a search mode."""
    return f"{stage} · {search}"


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the runs of an arm have measured."""

    arm: Arm
    selected: str | None
    """The evaluation that dev selects; None where dev was not scored, or nothing is done."""

    @property
    def state(self) -> str | None:
        """Name of the selected evaluation as it is searched."""
        return None if self.selected is None else named(self.selected, self.arm.search)

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Every system, and every round under every search mode that tables show."""
        pairs = [(system.stage, system.search) for system in self.arm.systems]
        modes = dict.fromkeys((RAW_QUERY, DESCRIPTION, self.arm.search))
        pairs += [(stage, mode) for stage in self.arm.rounds for mode in modes]
        runs = self.arm.runs
        return {named(stage, mode): Source(runs=runs, stage=stage, search=mode) for stage, mode in pairs}

    @cached_property
    def sample(self) -> Measured:
        """NDCG@5 over the queries that all rounds share."""
        return measured(self.arm, self.sources, SAMPLE)

    @cached_property
    def whole(self) -> Measured:
        """NDCG@5 over every query, for what scored them all."""
        return measured(self.arm, self.sources, EVERY_QUERY)

    @cached_property
    def places(self) -> list[Place]:
        """The columns of tables."""
        return places_of(self.arm, self.sample)


def measured(arm: Arm, sources: dict[str, Source], scope: str) -> Measured:
    """NDCG@5 on all splits of an arm."""
    return Measured(sources=sources, splits=(*arm.splits(), DEV), tiers=tuple(arm.tiers()), scope=scope)


def places_of(arm: Arm, found: Measured) -> list[Place]:
    """Standard and vague by tier and over tiers, and dev over tiers; without what nothing was measured for."""
    tiers = arm.tiers()
    over = [MEAN_OVER_TIERS] if len(tiers) > 1 else []
    dev = [(DEV, over[0] if over else tier) for tier in tiers[:1]]
    wanted = [(split, tier) for split in arm.splits() for tier in [*tiers, *over]] + dev
    return [place for place in wanted if found.queries(*place)]


# ------------------------------------------------------------------------------------------------------------ cells


def percent_cell(found: Value | None) -> Cell:
    """A fraction as per cent with its interval."""
    return MISSING if found is None else _cell(found, f"{100 * found.mean:.1f}")


def points_cell(found: Value | None) -> Cell:
    """A difference in percentage points with its interval; set off where the interval leaves out zero."""
    if found is None:
        return MISSING
    if found.is_nothing:
        return Cell(text="0.0", value=0.0)
    return replace(_cell(found, signed(100 * found.mean)), best=found.is_beyond_chance)


def signed(value: float, decimals: int = 1) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    shown = f"{value:+.{decimals}f}".replace("-", "−")
    return shown if float(f"{value:.{decimals}f}") else shown[1:]


def _cell(found: Value, text: str) -> Cell:
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    return Cell(
        text=text,
        value=100 * found.mean,
        low=None if low is None else 100 * low,
        high=None if high is None else 100 * high,
        note="" if found.interval else "n=1",
    )


def with_best(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The best of each column set off, and all that are equal to it."""
    columns = list(zip(*(row.cells for row in rows), strict=True))
    best = [max((cell.value for cell in cells if cell.value is not None), default=None) for cells in columns]

    def marked(cell: Cell, top: float | None) -> Cell:
        return replace(cell, best=True) if top and cell.value == top else cell

    return tuple(
        replace(row, cells=tuple(marked(cell, top) for cell, top in zip(row.cells, best, strict=True))) for row in rows
    )


def columns_of(places: Iterable[Place], counted: Measured | None = None) -> list[Column]:
    """Heads of places; with the number of queries where there is something to count them in."""
    return [
        Column(
            head="mean" if tier == MEAN_OVER_TIERS else tier,
            group=split,
            about="" if counted is None else f"{counted.queries(split, tier)} queries",
        )
        for split, tier in places
    ]


def counts_note(found: Measured, places: Sequence[Place]) -> str:
    """How many queries each column is over; ``n=1`` where an interval could not be had."""
    told = [f"{split} {tier} {found.queries(split, tier)}" for split, tier in places if tier != MEAN_OVER_TIERS]
    told += [f"dev {found.queries(split, tier)}" for split, tier in places if split == DEV and tier == MEAN_OVER_TIERS]
    single = any(found.queries(*place) == 1 for place in places)
    return f"Queries: {', '.join(told)}." + (" One query gives no interval: such cells say n=1." if single else "")


def missing_note(arm: Arm) -> str:
    """What to say of a split that is not there."""
    if "vague" in arm.splits():
        return ""
    return "The dataset has no vague paraphrases, so there are no vague columns (cohyde data vague makes them)."


def _notes(results: Results, found: Measured, places: Sequence[Place]) -> tuple[str, ...]:
    seeds = len(results.arm.runs)
    over = f"Means over {seeds} seeds; intervals over seeds and queries." if seeds > 1 else ""
    mean = "mean: of the tiers, each of equal weight." if len(results.arm.tiers()) > 1 else ""
    return tuple(filter(None, (counts_note(found, places), mean, over, missing_note(results.arm))))


# ----------------------------------------------------------------------------------------------------------- tables


def main_table(results: Results, scope: str) -> Table | None:
    """Every system; None where nothing was measured in this scope."""
    found = results.sample if scope == SAMPLE else results.whole
    places = [place for place in results.places if place[0] != DEV or scope == SAMPLE]
    rows = []
    for system in results.arm.systems:
        name = named(system.stage, system.search)
        cells = [percent_cell(found.value(name, *place)) for place in places]
        if any(cell.value is not None for cell in cells):
            label = Cell(text=system.title, note=f"{system.stage}, searched with: {system.search}")
            rows.append(
                Row(
                    cells=(label, *cells),
                    group=GROUPS.get(system.group, system.group),
                    marked=name == results.state,
                )
            )
    if not rows:
        return None
    every = scope == EVERY_QUERY
    return Table(
        key="main-all" if every else "main",
        title="Every evaluation query" if every else "Systems compared",
        caption=f"NDCG@5 in %. {INTERVALS}; the best of each column is bold, the selected round shaded."
        + (" The rounds that scored their sample alone are left out." if every else ""),
        columns=(Column(head="System", numeric=False), *columns_of(places, found)),
        rows=with_best(rows),
        notes=_notes(results, found, places),
    )


def rounds_table(results: Results) -> Table | None:
    """Every round under every search mode."""
    rows = []
    for stage in results.arm.rounds:
        for mode in dict.fromkeys((RAW_QUERY, DESCRIPTION, results.arm.search)):
            cells = [percent_cell(results.sample.value(named(stage, mode), *place)) for place in results.places]
            marked = named(stage, mode) == results.state
            rows.append(Row(cells=(Cell(text=stage), Cell(text=mode), *cells), marked=marked))
    if not rows:
        return None
    head = (Column(head="State", numeric=False), Column(head="Searched with", numeric=False))
    return Table(
        key="rounds",
        title="Every round, searched in every way",
        caption=f"NDCG@5 in %. E.0 is the state after the warm-up. {INTERVALS}.",
        columns=(*head, *columns_of(results.places, results.sample)),
        rows=with_best(rows),
        notes=_notes(results, results.sample, results.places),
        folded=True,
    )


def difference_table(results: Results) -> Table | None:
    """The selected round minus every other system."""
    if results.state is None:
        return None
    rows = []
    for label, group, name in _others(results):
        cells = [points_cell(results.sample.difference(results.state, name, *place)) for place in results.places]
        rows.append(Row(cells=(label, *cells), group=group))
    if not rows:
        return None
    return Table(
        key="differences",
        title=f"What {results.selected} gains",
        caption=f"NDCG@5 of {results.state.replace(' · ', ', searched with: ')}, minus that of each system, in "
        "percentage points, over the same queries (paired bootstrap, 95%). Bold: the interval leaves out zero. 0.0 "
        "without an interval: equal for every query. Intervals are not corrected for being many; the table below is.",
        columns=(Column(head="Gain", numeric=False), *columns_of(results.places, results.sample)),
        rows=tuple(rows),
    )


def certainty_table(results: Results) -> Table | None:
    """How sure the gains over tiers are, for all systems together."""
    if results.state is None:
        return None
    tiers = results.arm.tiers()
    over = MEAN_OVER_TIERS if len(tiers) > 1 else tiers[0]
    splits = [split for split in results.arm.splits() if (split, over) in results.places]
    others = list(_others(results))
    gains = [[results.sample.difference(results.state, name, split, over) for split in splits] for _, _, name in others]
    if not others or not splits:
        return None
    return Table(
        key="certainty",
        title="How sure that is",
        caption=f"Flips: % of the resamples in which the gain{' over tiers' if len(tiers) > 1 else ''} loses its sign. "
        f"Holm: its p, two-sided, corrected for all {len(others) * len(splits)} comparisons here; bold below 0.05.",
        columns=(
            Column(head="Gain", numeric=False),
            *(Column(head=head, group=split) for split in splits for head in ("flips", "Holm")),
        ),
        rows=tuple(
            Row(cells=(label, *sure), group=group)
            for (label, group, _), sure in zip(others, sure_cells(gains), strict=True)
        ),
    )


def _others(results: Results) -> Iterator[tuple[Cell, str, str]]:
    """Label, group and name of every system that the selected round can be compared with."""
    for system in results.arm.systems:
        name = named(system.stage, system.search)
        known = (results.sample.difference(results.state or "", name, *place) for place in results.places)
        if name != results.state and any(known):
            yield Cell(text=f"over {system.title}"), GROUPS.get(system.group, system.group), name


def sure_cells(rows: Sequence[Sequence[Value | None]]) -> list[list[Cell]]:
    """By row and comparison: the share of resamples that flip its sign, and its p, corrected for all of these."""
    known = [value.flips for row in rows for value in row if value is not None and value.flips is not None]
    corrected = iter(holm([two_sided(flips) for flips in known]))

    def both(value: Value | None) -> tuple[Cell, Cell]:
        if value is None or value.flips is None:
            return MISSING, MISSING
        p = next(corrected)
        flips = Cell(text=f"{100 * value.flips:.1f}", value=100 * value.flips)
        return flips, Cell(text="< 0.001" if p < 0.001 else f"{p:.3f}", value=p, best=p < CERTAIN)

    return [[cell for value in row for cell in both(value)] for row in rows]


def metrics_table(results: Results) -> Table | None:
    """All metrics at all cutoffs, the means over tiers."""
    names = [f"{metric}@{k}" for metric in METRICS for k in CUTOFFS]
    mean = cache(lambda name, split, metric: _mean(results, name, split, metric))
    pairs = dict.fromkeys([(system.title, named(system.stage, system.search)) for system in results.arm.systems])
    rows = []
    for split in [*results.arm.splits(), DEV]:
        for title, name in pairs:
            values = [mean(name, split, metric) for metric in names]
            if any(value is not None for value in values):
                cells = [MISSING if v is None else Cell(text=f"{100 * v:.1f}", value=100 * v) for v in values]
                rows.append(Row(cells=(Cell(text=title), *cells), group=split, marked=name == results.state))
    if not rows:
        return None
    columns = [Column(head=f"@{k}", group=NAMES[metric]) for metric in METRICS for k in CUTOFFS]
    return Table(
        key="metrics",
        title="Every metric",
        caption="In %, the mean over tiers, on the queries that all rounds share. COMP: every right tool is found.",
        columns=(Column(head="System", numeric=False), *columns),
        rows=tuple(rows),
        folded=True,
    )


def _mean(results: Results, name: str, split: str, metric: str) -> float | None:
    """Over tiers, and over seeds."""
    source, tiers = results.sources[name], results.arm.tiers()
    found = [
        scored.values.mean()
        for run in source.runs
        for tier in tiers
        if (scored := run.evaluations[source.stage].scored(split, tier, source.search, metric, SAMPLE))
    ]
    return float(np.mean(found)) if found else None


# ----------------------------------------------------------------------------------------------------------- curves


def rounds_figure(results: Results) -> Figure | None:
    """NDCG@5 by round: a panel a split and tier."""
    stages = results.arm.rounds
    places = [(split, tier) for split in results.arm.splits() for tier in results.arm.tiers()]
    if len(stages) < 2 or not places:
        return None
    panels = [Panel(title=" ".join(place), curves=_curves(results, place), x_label="round", whole_x=True)
              for place in places]  # fmt: skip
    spans = {split: _span([p for p, place in zip(panels, places, strict=True) if place[0] == split])
             for split, _ in places}  # fmt: skip
    seeds = len(results.arm.runs)
    return Figure(
        key="by-round",
        title="NDCG@5 by round",
        caption="In %, on the queries that all rounds share; round 0 is the state after the warm-up. Band: 95%, "
        + ("over seeds and queries; faint lines: single seeds. " if seeds > 1 else "over queries. ")
        + "Panels of one split have one scale.",
        panels=tuple(replace(p, y_range=spans[place[0]]) for p, place in zip(panels, places, strict=True)),
    )


def _curves(results: Results, place: Place) -> tuple[Curve, ...]:
    curves, stages = [], results.arm.rounds
    rounds = [float(stage.removeprefix("E.")) for stage in stages]
    modes = list(dict.fromkeys((results.arm.search, RAW_QUERY, DESCRIPTION)))
    for style, mode in enumerate(modes):
        found = [
            (at, results.sample.value(named(stage, mode), *place)) for at, stage in zip(rounds, stages, strict=True)
        ]
        known = [(at, value) for at, value in found if value is not None]
        if known:
            curves.append(_band(f"searched with: {mode}", known, style))
    if len(results.arm.runs) > 1:
        curves += [_of_seed(results, run, place, rounds) for run in range(len(results.arm.runs))]
    base = results.sample.value(named(UNTRAINED, RAW_QUERY), *place)
    if base is not None:
        ends = (rounds[0], rounds[-1])
        level = (100 * base.mean,) * 2
        curves.append(Curve(label="untrained encoder, raw query", x=ends, y=level, style=3))
    return tuple(curves)


def _band(label: str, known: Sequence[tuple[float, Value]], style: int) -> Curve:
    if style:
        return Curve(label=label, x=tuple(at for at, _ in known), y=tuple(100 * v.mean for _, v in known), style=style)
    bounds = [(value.interval.low, value.interval.high) if value.interval else (value.mean,) * 2 for _, value in known]
    return Curve(
        label=label,
        x=tuple(at for at, _ in known),
        y=tuple(100 * value.mean for _, value in known),
        low=tuple(100 * low for low, _ in bounds),
        high=tuple(100 * high for _, high in bounds),
        style=style,
    )


def _of_seed(results: Results, number: int, place: Place, rounds: Sequence[float]) -> Curve:
    run, found = results.arm.runs[number], []
    for at, stage in zip(rounds, results.arm.rounds, strict=True):
        scored = run.evaluations[stage].scored(*place, results.arm.search, "ndcg@5", SAMPLE)
        if scored is not None:
            found.append((at, 100 * float(scored.values.mean())))
    return Curve(label=f"seed {run.seed}", x=tuple(x for x, _ in found), y=tuple(y for _, y in found), faint=True)


def _span(panels: Sequence[Panel]) -> tuple[float, float]:
    """The range that holds all curves and bands, with a little room, within 0 to 100."""
    values = [v for panel in panels for curve in panel.curves for v in (*curve.y, *curve.low, *curve.high)]
    if not values:
        return (0.0, 100.0)
    room = max(1.0, 0.06 * (max(values) - min(values)))
    return (max(0.0, min(values) - room), min(100.0, max(values) + room))


# ------------------------------------------------------------------------------------------------ seeds and ablations


def seeds_table(title: str, key: str, found: SeedTable) -> Table:
    """Every seed at the selected round, and what they come to."""
    cells = found.cells
    columns = columns_of((cell.split, cell.tier) for cell in cells)

    def row(label: str, values: Sequence[float | None], show: Callable[[float], str], group: str) -> Row:
        shown = [MISSING if v is None else Cell(text=show(100 * v), value=100 * v) for v in values]
        return Row(cells=(Cell(text=label), *shown), group=group)

    def plain(value: float) -> str:
        return f"{value:.1f}"

    rows = [row(f"seed {seed}", [cell.values.get(seed) for cell in cells], plain, "Seeds") for seed in found.seeds]
    rows.append(row("mean", [cell.mean for cell in cells], plain, "Over seeds"))
    rows.append(row("standard deviation", [cell.sd for cell in cells], lambda v: f"{v:.2f}", "Over seeds"))
    if found.baseline is not None:
        gain = f"Gain over {found.baseline.stage}, searched with: {found.baseline.search}"
        over_seeds = [_gain(cell.difference, cell.interval_seeds) for cell in cells]
        over_both = [_gain(cell.difference, cell.interval_seeds_queries) for cell in cells]
        rows.append(Row(cells=(Cell(text="95% over seeds"), *over_seeds), group=gain))
        rows.append(Row(cells=(Cell(text="95% over seeds and queries"), *over_both), group=gain))
    return Table(
        key=key,
        title=title,
        caption=f"NDCG@5 in % at {found.selected}, "
        + ("selected by dev in the mean over seeds" if found.by_dev else "the last one (dev was not scored)")
        + f", searched with: {found.search}. Gains in percentage points; bold: the interval leaves out zero.",
        columns=(Column(head="", numeric=False), *columns),
        rows=tuple(rows),
    )


def _gain(difference: float | None, interval: Interval | None) -> Cell:
    return MISSING if difference is None or interval is None else points_cell(Value(difference, interval, n=0))


def runs_table(all_results: Sequence[Results]) -> Table | None:
    """The selected state of each run or arm, and what it gains or loses against the first."""
    return _against_first(all_results, "runs", "Runs compared", "at the state that each run's dev selects")


def ablation_table(study: Sequence[Results], number: int) -> Table | None:
    """Ablations against their main run, which comes first; each at the stage that it is measured by."""
    key = f"ablations-{number}" if number else "ablations"
    return _against_first(study, key, "Ablations", "after the last round, or of the pair of models that is named")


def _against_first(all_results: Sequence[Results], key: str, title: str, at: str) -> Table | None:
    known = [results for results in all_results if results.selected is not None]
    if len(known) < 2:
        return None
    main = known[0]
    sources = {
        results.arm.title: Source(runs=results.arm.runs, stage=results.selected or "", search=results.arm.search)
        for results in known
    }
    tiers = tuple(dict.fromkeys(tier for results in known for tier in results.arm.tiers()))
    found = replace(main.sample, sources=sources, tiers=tiers)
    places = main.places
    rows = []
    for results in known:
        name = results.arm.title
        cells = [percent_cell(found.value(name, *place)) for place in places]
        if results is not main:
            gains = [found.difference(name, main.arm.title, *place) for place in places]
            cells = [
                replace(cell, low=None, high=None, note=_against(gain)) for cell, gain in zip(cells, gains, strict=True)
            ]
        about = "" if results is main else _departures(main.arm, results.arm)
        label = Cell(text=name, note="; ".join(filter(None, (f"{results.selected}, {results.arm.search}", about))))
        rows.append(Row(cells=(label, *cells), marked=results is main))
    return Table(
        key=key,
        title=title,
        caption=f"NDCG@5 in % {at}. Below the others, the difference from {main.arm.title} in percentage points "
        "(paired bootstrap over the same queries, 95%), where both answered the same queries.",
        columns=(Column(head="Run", numeric=False), *columns_of(places, found)),
        rows=with_best(rows),
        notes=(counts_note(found, places),),
    )


def _against(gain: Value | None) -> str:
    if gain is None:
        return ""
    low, high = (gain.interval.low, gain.interval.high) if gain.interval else (None, None)
    bounds = "" if low is None or high is None else f"\n[{signed(100 * low)}, {signed(100 * high)}]"
    return f"{signed(100 * gain.mean)}{bounds}"


def _departures(main: Arm, other: Arm, most: int = 3) -> str:
    """How the settings of a run depart from those of the main one."""
    from cohyde.config import plain

    lines = differences(plain(main.first.settings), plain(other.first.settings))
    more = "pipeline: 'baselines' → 'cohyde'"  # the same method, without what it is compared with
    lines = [line for line in lines if line != more and not line.startswith(("seeds.", "resources.", "runner."))]
    return "; ".join(map(shareable, lines[:most])) + (f"; and {len(lines) - most} more" if len(lines) > most else "")
