"""The page over some runs: what comes first, what follows, and the sentences on top that say whether it worked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohyde.evaluation.metrics import MEAN_OVER_TIERS
from cohyde.evaluation.page.data import PageData, Part, Section, Stat, Summary, Table, Tone
from cohyde.evaluation.page.timeline import span
from cohyde.evaluation.results import EVERY_QUERY, SAMPLE
from cohyde.evaluation.seeds import SeedTable
from stages.reporting import execution, results
from stages.reporting.examples import examples
from stages.reporting.health import health_figures, health_table, latency_table, training_figures
from stages.reporting.measured import Value
from stages.reporting.results import DESCRIPTION, DEV, RAW_QUERY, UNTRAINED, WARMED_UP, Results, named, signed
from stages.reporting.views import Arm, shareable


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One arm as the page tells of it."""

    arm: Arm
    selected: str | None
    """The evaluation that its dev selects."""
    seeds: SeedTable | None = None
    """Where it has several seeds, what they come to."""


def page_of(
    title: str, subjects: Sequence[Subject], kinds: Mapping[str, str], studies: Sequence[Sequence[Results]] = ()
) -> PageData:
    """The page.

    Args:
        title: name of the run or the sweep, or of all runs.
        subjects: the first one is what the page is about; the others are compared with it.
        kinds: short titles of stages by id, for those that are not done.
        studies: main runs with their ablations; each has a table of its own.
    """
    arms = [subject.arm for subject in subjects]
    found = [Results(arm=subject.arm, selected=subject.selected) for subject in subjects]
    sections = [
        _results(subjects, found, studies),
        _rounds(found[0]),
        _health(arms[0]),
        _training(arms[0]),
        _examples(arms[0]),
        _execution(arms, kinds),
        _settings(arms),
    ]
    seen = [*arms, *(row.arm for study in studies for row in study)]
    notices = execution.notices(seen)  # last: what could not be read is known now
    if notices is not None:
        sections.insert(5, Section(key="warnings", title="Warnings", parts=(notices,)))
    return PageData(
        title=title,
        kicker=_kicker(arms),
        summary=_summary(found[0], arms),
        sections=tuple(section for section in sections if section is not None),
        colophon=_colophon(arms),
    )


def _present(*parts: Part | None) -> tuple[Part, ...]:
    return tuple(part for part in parts if part is not None)


def _section(key: str, title: str, lead: str, *parts: Part | None) -> Section | None:
    there = _present(*parts)
    return Section(key=key, title=title, lead=lead, parts=there) if there else None


# --------------------------------------------------------------------------------------------------------- sections


def _results(
    subjects: Sequence[Subject], found: Sequence[Results], studies: Sequence[Sequence[Results]]
) -> Section | None:
    main = found[0]
    whole = results.main_table(main, EVERY_QUERY) if main.arm.scores_all() else None
    return _section(
        "results",
        "Results",
        "",
        results.main_table(main, SAMPLE),
        results.difference_table(main),
        results.certainty_table(main),
        whole,
        results.runs_table(found),
        *(results.ablation_table(study, number) for number, study in enumerate(studies)),
        *_seeds(subjects),
        results.metrics_table(main),
    )


def _seeds(subjects: Sequence[Subject]) -> list[Table]:
    several = len(subjects) > 1
    return [
        results.seeds_table(f"Over seeds: {one.arm.title}" if several else "Over seeds", f"seeds-{number}", one.seeds)
        for number, one in enumerate(subjects)
        if one.seeds is not None
    ]


def _rounds(main: Results) -> Section | None:
    configured = "" if main.arm.search in (RAW_QUERY, DESCRIPTION) else f", or as configured ({main.arm.search})"
    lead = f"Searched with the request itself (query), with what the rewriter makes of it (description){configured}."
    return _section("by-rounds", "Rounds", lead, results.rounds_figure(main), results.rounds_table(main))


def _health(arm: Arm) -> Section | None:
    return _section("health-section", "Health", "", *health_figures(arm), health_table(arm))


def _training(arm: Arm) -> Section | None:
    return _section("training", "Training", "", *training_figures(arm))


def _examples(arm: Arm) -> Section | None:
    return _section("examples", "Examples", "", examples(arm))


def _execution(arms: Sequence[Arm], kinds: Mapping[str, str]) -> Section | None:
    return _section(
        "execution",
        "Execution",
        "",
        execution.graph(arms[0].first, kinds),
        execution.states_table(arms),
        execution.timeline(arms),
        execution.cost_table(arms),
        latency_table(arms[0]),
        execution.stages_table(arms),
    )


def _settings(arms: Sequence[Arm]) -> Section | None:
    return _section("settings", "Settings", "", execution.settings(arms[0].first), execution.versions(arms))


# ---------------------------------------------------------------------------------------------------------- summary


def _summary(main: Results, arms: Sequence[Arm]) -> Summary:
    runs = [run for arm in arms for run in arm.runs]
    states = [state for run in runs for state in run.states.values()]
    done = len({state.fingerprint for state in states if state.state == "done"})
    every = len({state.fingerprint for state in states})
    seconds = execution.wall_clock(arms)
    cost = execution.cost_table(arms)
    hours = cost.rows[-1].cells[-1].value if cost else 0.0
    stages = Stat(
        label="Stages done",
        value=f"{done} of {every}",
        detail=f"{span(seconds)} wall clock" + (f", {hours:.1f} GPU-hours" if hours else ", no GPU"),
        tone="plain" if done == every else "bad",
    )
    failed = list(dict.fromkeys(failure.id for run in runs for failure in run.failures))
    broken = f"{' and '.join(failed)} failed; the page shows what there is." if failed else ""
    if not failed and done < every:
        broken = "The run is not finished; the page shows what there is."
    if main.selected is None:
        headline = (
            "No round is selected: the dev split was not scored." if main.arm.systems else "Nothing is evaluated yet."
        )
        return Summary(headline=headline, sentences=tuple(filter(None, (broken,))), stats=(stages,))
    gains = {split: _gain(main, split) for split in main.arm.splits()}
    return Summary(
        headline=_headline(main, gains),
        sentences=tuple(filter(None, (broken, *_sentences(main)))),
        stats=(_selected(main), *_values(main, gains), stages),
    )


def _gain(main: Results, split: str, over: str | None = None) -> Value | None:
    """Of the selected state, over the warm-up searched in the same way or over another state."""
    other = over or named(WARMED_UP, main.arm.search)
    state = main.state or other
    return None if state == other else main.sample.difference(state, other, split, _over(main))


def _over(main: Results) -> str:
    tiers = main.arm.tiers()
    return MEAN_OVER_TIERS if len(tiers) > 1 else tiers[0]


def _headline(main: Results, gains: Mapping[str, Value | None]) -> str:
    if main.selected == WARMED_UP:
        return (
            "No round of co-training was better on dev than the warm-up: E.0 is selected."
            if len(main.arm.rounds) > 1
            else "Warmed up only: there is no round of co-training yet."
        )
    known = {split: gain for split, gain in gains.items() if gain is not None}
    if not known:
        return f"{main.selected} is selected on dev; it cannot be compared with the warm-up, which is not evaluated."
    better = [split for split, gain in known.items() if gain.is_beyond_chance and gain.mean > 0]
    worse = [split for split, gain in known.items() if gain.is_beyond_chance and gain.mean < 0]
    told = " and ".join(f"{_points(gain)} on {split} requests" for split, gain in known.items())
    if better and not worse:
        return f"Co-training helps on {' and '.join(better)} requests: {main.selected} gains {told} over the warm-up."
    if worse and not better:
        return f"Co-training hurts on {' and '.join(worse)} requests: {main.selected} is {told} off the warm-up."
    if better and worse:
        return f"Co-training helps on {better[0]} requests and hurts on {worse[0]} ones: {told}, against the warm-up."
    return f"{main.selected} is no more than chance apart from the warm-up: {told}."


def _points(value: Value) -> str:
    between = (
        ""
        if value.interval is None
        else (f" ({signed(100 * value.interval.low)} to {signed(100 * value.interval.high)})")
    )
    return f"{signed(100 * value.mean)} points{between}"


def _sentences(main: Results) -> list[str]:
    told = []
    untrained = named(UNTRAINED, RAW_QUERY)
    if untrained in main.sources and main.arm.splits():
        gains = {split: _gain(main, split, untrained) for split in main.arm.splits()}
        parts = [f"{_points(gain)} on {split}" for split, gain in gains.items() if gain is not None]
        if parts:
            told.append(f"Against the untrained encoder on raw requests: {' and '.join(parts)}.")
    best = _best(main)
    if best:
        told.append(best)
    seeds, counts = len(main.arm.runs), []
    for split in [*main.arm.splits(), DEV]:
        count = main.sample.queries(split, _over(main))
        counts += [f"{count} {split}"] if count else []
    sure = (
        "Points are percentage points of NDCG@5, the mean over tiers; in parentheses 95% intervals over "
        f"{', '.join(counts)} queries"
    )
    told.append(
        f"{sure} and {seeds} seeds." if seeds > 1 else f"{sure}, of one seed: how far seeds lie apart it cannot say."
    )
    missing = results.missing_note(main.arm)
    return [*told, missing] if missing else told


def _best(main: Results) -> str:
    """Which system is the best on the harder split, if it is not the selected state."""
    if not main.arm.splits():
        return ""
    split = main.arm.splits()[-1]
    values = {name: found.mean for name in main.sources if (found := main.sample.value(name, split, _over(main)))}
    if not values:
        return ""
    top = max(values, key=lambda name: values[name])
    own = values.get(main.state or "")
    if own is None or values[top] <= own:
        return ""
    stage, _, mode = top.partition(" · ")
    title = next((s.title for s in main.arm.systems if (s.stage, s.search) == (stage, mode)), stage)
    return (
        f"Best of all on {split} requests is {title} ({stage}, searched with: {mode}): "
        f"{100 * values[top]:.1f} against {100 * own:.1f}."
    )


def _selected(main: Results) -> Stat:
    dev = main.sample.value(main.state or "", DEV, _over(main))
    rounds = max(len(main.arm.rounds) - 1, 0)
    by = f", dev NDCG@5 {100 * dev.mean:.1f}" if dev else ""
    return Stat(label="Selected on dev", value=str(main.selected), detail=f"of {rounds} round{'s' * (rounds != 1)}{by}")


def _values(main: Results, gains: Mapping[str, Value | None]) -> list[Stat]:
    stats = []
    for split in main.arm.splits():
        value = main.sample.value(main.state or "", split, _over(main))
        if value is None:
            continue
        gain = gains[split]
        detail = f"{signed(100 * gain.mean)} over the warm-up" if gain else ""
        tone: Tone = "plain" if gain is None or not gain.is_beyond_chance else "good" if gain.mean > 0 else "bad"
        between = "" if value.interval is None else f"{100 * value.interval.low:.1f} to {100 * value.interval.high:.1f}"
        stats.append(
            Stat(
                label=f"NDCG@5, {split}",
                value=f"{100 * value.mean:.1f}",
                detail=", ".join(filter(None, (between, detail))),
                tone=tone,
            )
        )
    return stats


def _kicker(arms: Sequence[Arm]) -> str:
    first = arms[0].first
    seeds = len(arms[0].runs)
    parts = [
        "CoHyDE",
        f"preset {shareable(first.preset).removeprefix('…/')}",
        f"{first.settings.rounds} round{'s' * (first.settings.rounds != 1)}",
    ]
    parts += [f"{seeds} seeds" if seeds > 1 else f"seed {first.seed}"]
    parts += [f"compared with {', '.join(arm.title for arm in arms[1:])}"] if len(arms) > 1 else []
    return " · ".join(parts)


def _colophon(arms: Sequence[Arm]) -> tuple[str, ...]:
    records = [record for arm in arms for run in arm.runs for record in run.manifests.values()]
    if not records:
        return ()
    first, last = min(record.started for record in records)[:10], max(record.ended for record in records)[:10]
    made = f"Made by stages that ran {'on ' + first if first == last else f'from {first} to {last}'}."
    return (made, "Written by cohyde report from the store alone; the same runs give the same page, byte for byte.")
