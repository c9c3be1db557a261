"""How runs were executed: when, for how long, on what, what is done, and what a person should have seen."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from cohyde.config import Config, plain
from cohyde.dag.manifest import Manifest
from cohyde.dag.plan import artifact_name
from cohyde.evaluation.page.data import (
    Bar,
    Cell,
    Column,
    Graph,
    Node,
    Notice,
    Notices,
    Row,
    Setting,
    Settings,
    State,
    Table,
    Timeline,
)
from cohyde.evaluation.page.timeline import span
from stages.reporting.results import UNTRAINED
from stages.reporting.views import ROUND, Arm, RunView, shareable

WORK: Mapping[str, str] = {
    "S1a": "Encoder training",
    "S3": "Encoder training",
    "S1b": "Rewriter training",
    "S1c": "Rewriter training",
    "S4": "Rewriter training",
    "S2": "Generation",
    "S4s": "Generation",
    "S4p": "Scoring of candidates",
    "E": "Evaluation",
    "B": "Baselines",
}
"""What kind of work a stage is, by the head of its id; all else is data and report."""
RESERVES: Mapping[str, str] = {
    "Encoder training": "encoder",
    "Rewriter training": "training",
    "Generation": "generation",
    "Scoring of candidates": "encoder",
    "Evaluation": "generation",
    "Baselines": "generation",
}
"""Kind of work → the section of ``resources`` that says what it reserves."""
OTHER, REPORT = "Data and report", "report"
SIGN = {
    "done": "✓",
    "running": "running",
    "ready": "ready",
    "waiting": "waiting",
    "failed": "failed",
    "blocked": "blocked",
}


def _work(stage: str) -> str:
    return WORK.get(stage.partition(".")[0], OTHER)


def _finished(arms: Sequence[Arm]) -> Iterator[tuple[RunView, str, Manifest]]:
    """Every artifact once, with the first run that has it, in the order in which they were made."""
    found: dict[str, tuple[RunView, str, Manifest]] = {}
    for arm in arms:
        for run in arm.runs:
            for stage, record in run.manifests.items():
                found.setdefault(artifact_name(stage, record.fingerprint), (run, stage, record))
    yield from sorted(found.values(), key=lambda item: (item[2].started, item[1]))


def gpus(settings: Config, stage: str) -> float:
    """Reserved for a stage."""
    kind = "encoder" if stage == UNTRAINED else RESERVES.get(_work(stage), "light")
    section = getattr(settings.resources, kind)
    return float(section.gpus)


def timeline(arms: Sequence[Arm]) -> Timeline | None:
    """When every stage ran."""
    finished = list(_finished(arms))
    if not finished:
        return None
    times = [
        (datetime.fromisoformat(record.started), datetime.fromisoformat(record.ended)) for _, _, record in finished
    ]
    first = min(start for start, _ in times)
    several = len({run.name for run, _, _ in finished}) > 1
    bars = [
        Bar(
            label=f"{stage}  {run.name}" if several and run is not arms[0].first else stage,
            start=(end - first).total_seconds() - record.seconds,
            end=(end - first).total_seconds(),
            group=_work(stage),
            about=f"{stage}, {record.kind}: {span(record.seconds)}",
        )
        for (run, stage, record), (_, end) in zip(finished, times, strict=True)
    ]  # fmt: skip
    offset = min(bar.start for bar in bars)
    bars = [Bar(label=b.label, start=b.start - offset, end=b.end - offset, group=b.group, about=b.about) for b in bars]
    return Timeline(
        key="gantt",
        title="When each stage ran",
        caption="Wall clock; bars beside each other ran at the same time. Pauses in which nothing ran are cut out "
        "where the axis has a dotted line. Of a stage that was resumed or tried again, the last attempt is shown.",
        bars=tuple(bars),
        groups=(*dict.fromkeys(WORK.values()), OTHER),
        neutral=OTHER,
    )


def stages_table(arms: Sequence[Arm]) -> Table | None:
    """Time and GPU-hours of every kind of work, and of every stage."""
    finished = list(_finished(arms))
    if not finished:
        return None
    rows = []
    for run, stage, record in finished:
        hours = record.seconds / 3600 * gpus(run.settings, stage)
        cells = (
            Cell(text=stage),
            Cell(text=record.kind),
            Cell(text=run.name),
            Cell(text=span(record.seconds), value=record.seconds),
            Cell(text=f"{hours:.2f}", value=hours),
            Cell(text=str(record.attempt), value=record.attempt),
        )
        rows.append(Row(cells=cells, group=_work(stage)))
    order = [*dict.fromkeys(WORK.values()), OTHER]
    rows.sort(key=lambda row: order.index(row.group))
    heads = (("Stage", False), ("What", False), ("Run", False), ("Time", True), ("GPU-hours", True), ("Attempt", True))
    return Table(
        key="stages",
        title="Every stage",
        caption="Wall-clock time of the attempt that succeeded; GPU-hours are that time for as many GPUs as the stage "
        "reserved. What runs share is counted once.",
        columns=tuple(Column(head=head, numeric=numeric) for head, numeric in heads),
        rows=tuple(rows),
        folded=True,
    )


def cost_table(arms: Sequence[Arm]) -> Table | None:
    """Time and GPU-hours by kind of work."""
    finished = list(_finished(arms))
    if not finished:
        return None
    rows = []
    for work in [*dict.fromkeys(WORK.values()), OTHER]:
        own = [(run, stage, record) for run, stage, record in finished if _work(stage) == work]
        if own:
            rows.append(_cost_row(work, own))
    rows.append(_cost_row("All", finished, marked=True))
    heads = (("Work", False), ("Stages", True), ("Time", True), ("GPU-hours", True))
    return Table(
        key="cost",
        title="What it cost",
        caption="Sums over stages; stages that ran beside each other count each.",
        columns=tuple(Column(head=head, numeric=numeric) for head, numeric in heads),
        rows=tuple(rows),
    )


def _cost_row(title: str, own: Sequence[tuple[RunView, str, Manifest]], marked: bool = False) -> Row:
    seconds = sum(record.seconds for _, _, record in own)
    hours = sum(record.seconds / 3600 * gpus(run.settings, stage) for run, stage, record in own)
    return Row(
        cells=(
            Cell(text=title),
            Cell(text=str(len(own)), value=len(own)),
            Cell(text=span(seconds), value=seconds),
            Cell(text=f"{hours:.2f}", value=hours),
        ),
        marked=marked,
    )


def wall_clock(arms: Sequence[Arm]) -> float:
    """Seconds in which something ran."""
    found = timeline(arms)
    if found is None:
        return 0.0
    total, last = 0.0, 0.0
    for bar in sorted(found.bars, key=lambda bar: bar.start):
        total += max(0.0, bar.end - max(bar.start, last))
        last = max(last, bar.end)
    return total


# ------------------------------------------------------------------------------------------------------------ states


def graph(run: RunView, kinds: Mapping[str, str]) -> Graph:
    """The stages of a run with their states."""
    nodes = []
    for stage, state in run.states.items():
        if stage == REPORT:
            continue
        record = run.manifests.get(stage)
        about = f"{span(record.seconds)}" if record else ""
        nodes.append(
            Node(
                name=stage,
                title=(record.kind if record else kinds.get(stage, "")),
                state=state.state,
                band=_band(stage),
                needs=tuple(dict.fromkeys(state.inputs.values())),
                about=about,
            )
        )
    return Graph(
        key="dag",
        title=f"The stages of {run.name}",
        caption="An arrow is a dependency; those that others imply are left out, and so is the report, which "
        "needs every evaluation.",
        nodes=tuple(nodes),
        bands=tuple(sorted({node.band for node in nodes}, key=_band_order)),
    )


def _band(stage: str) -> str:
    if stage.startswith("B."):
        return "baselines"
    found = ROUND.fullmatch(stage)
    if found and found["round"] != "0":
        return f"round {found['round']}"
    return "warm-up" if stage != REPORT else REPORT


def _band_order(band: str) -> tuple[int, int]:
    if band.startswith("round "):
        return (1, int(band.removeprefix("round ")))
    return ({"warm-up": 0, "baselines": 2, REPORT: 3}[band], 0)


def states_table(arms: Sequence[Arm]) -> Table | None:
    """A row a stage, a column a run: for several runs."""
    runs = [run for arm in arms for run in arm.runs]
    if len(runs) < 2:
        return None
    stages = list(dict.fromkeys(stage for run in runs for stage in run.states))
    stages.sort(key=lambda stage: _band_order(_band(stage)))

    def cell(state: State | None) -> Cell:
        return Cell(text="–" if state is None else SIGN[state], note="")

    rows = [
        Row(cells=(Cell(text=stage), *(cell(run.states[stage].state if stage in run.states else None) for run in runs)))
        for stage in stages
    ]
    return Table(
        key="states",
        title="Every stage of every run",
        caption="✓: done. What runs share is done once.",
        columns=(Column(head="Stage", numeric=False), *(Column(head=run.name, numeric=False) for run in runs)),
        rows=tuple(rows),
        folded=True,
    )


# ----------------------------------------------------------------------------------------------------------- notices


def notices(arms: Sequence[Arm]) -> Notices | None:
    """What stages warned of, why stages failed, and what could not be read."""
    found: dict[tuple[str, str], Notice] = {}
    several = len([run for arm in arms for run in arm.runs]) > 1
    for arm in arms:
        for run in arm.runs:
            prefix = f"{run.name} / " if several else ""
            for failure in run.failures:
                text = f"failed: {shareable(failure.error)}"
                notice = Notice(
                    source=f"{prefix}{failure.id}", text=text, severe=True, remedy=shareable(failure.remedy)
                )
                found[failure.name, text] = notice
            for error in run.faults:
                text = shareable(error.message)
                found[run.name, text] = Notice(source=run.name, text=text, severe=True, remedy=shareable(error.remedy))
            for stage, record in run.manifests.items():
                for text in record.warnings:
                    key = (artifact_name(stage, record.fingerprint), text)
                    found.setdefault(key, Notice(source=f"{prefix}{stage}", text=shareable(text)))
    if not found:
        return None
    return Notices(
        key="notices",
        title="",
        caption="As the stages raised them, failures first.",
        items=tuple(sorted(found.values(), key=lambda notice: not notice.severe)),
    )


# ---------------------------------------------------------------------------------------------------------- settings


def settings(run: RunView) -> Settings:
    """The configuration, departures from the defaults set off."""
    own, default = dict(_flat(plain(run.settings))), dict(_flat(plain(Config())))
    return Settings(
        key="configuration",
        title=f"Configuration of {run.name}",
        caption="Bold where it departs from the default. Of paths only the last part is shown.",
        items=tuple(
            Setting(name=name, value=shareable(value), changed=default.get(name) != value)
            for name, value in own.items()
        ),
    )


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        else:
            yield name, "–" if value is None or value == {} else str(value)


def versions(arms: Sequence[Arm]) -> Settings | None:
    """What the stages were made with; several values where stages differ."""
    records = [record for _, _, record in _finished(arms)]
    if not records:
        return None
    found: dict[str, list[str]] = {}
    for record in records:
        for name, value in record.versions.items():
            found.setdefault(name, [])
            if value not in found[name]:
                found[name].append(value)
    revisions = list(dict.fromkeys(_short(record.git) for record in records if record.git))
    hosts = {record.host for record in records}
    items = [Setting(name=name, value=", ".join(values)) for name, values in sorted(found.items())]
    items += [Setting(name="source revision", value=", ".join(revisions))] if revisions else []
    items.append(Setting(name="machines", value=str(len(hosts))))
    return Settings(
        key="versions",
        title="Versions",
        caption="As recorded with every stage.",
        items=tuple(items),
    )


def _short(revision: str) -> str:
    commit, dirty, _ = revision.partition("-dirty")
    return commit[:12] + (", changed" if dirty else "")
