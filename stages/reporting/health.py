"""How the rounds went: ties, lengths and bad texts by round, training curves, and the time that a request takes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cohyde.dag.manifest import Manifest
from cohyde.evaluation.page.data import Cell, Column, Curve, Figure, Panel, Row, Table
from stages.folders import STEPS
from stages.reporting.results import MISSING
from stages.reporting.views import ROUND, Arm, RunView


@dataclass(frozen=True)
class Health:
    """A panel: what is drawn in it, each as (stage, metric, label)."""

    figure: str
    title: str
    lines: tuple[tuple[str, str, str], ...]
    percent: bool = False


def _written(metric: str) -> tuple[tuple[str, str, str], ...]:
    """Of all texts that a rewriter wrote."""
    return (("S4s", metric, "candidates"), ("S2", metric, "descriptions"), ("E", metric, "evaluation"))


PAIRS, TEXTS, TRAINED = "Candidates and pairs", "What the rewriter wrote", "What training reached"
HEALTH = (
    Health(PAIRS, "Queries whose candidates all tie, %", (("S4p", "tie_rate", "ties"),), True),
    Health(PAIRS, "Preference pairs kept", (("S4p", "pairs_kept", "pairs"),)),
    Health(
        PAIRS,
        "Reward of candidates, NDCG@5 in %",
        (("S4p", "best_of_n_reward", "best of each query"), ("S4p", "mean_reward", "mean")),
        True,
    ),
    Health(
        PAIRS,
        "Length of a pair's texts, tokens",
        (("S4p", "chosen_tokens", "chosen"), ("S4p", "rejected_tokens", "rejected")),
    ),
    Health(
        PAIRS,
        "Is longer better? Correlation",
        (("S4p", "length_reward_correlation", "with reward"), ("S4", "length_choice_correlation", "with choice")),
    ),
    Health(TEXTS, "Length, tokens", _written("mean_tokens")),
    Health(TEXTS, "Ended by themselves, %", _written("finished_share"), True),
    Health(TEXTS, "Go in circles, %", _written("repetitive_share"), True),
    Health(TEXTS, "Differ from each other, %", _written("distinct_share"), True),
    Health(TEXTS, "Share of the most common text, %", _written("most_common_share"), True),
    Health(
        TRAINED,
        "Encoder on dev, NDCG@5 in %",
        (("S3", "best_dev_ndcg@5", "after retraining"), ("S3", "start_dev_ndcg@5", "before")),
        True,
    ),
    Health(TRAINED, "Reward margin at the end of DPO", (("S4", "last_reward_margin", "chosen − rejected"),)),
    Health(TRAINED, "Pairs told apart at the end of DPO, %", (("S4", "last_reward_accuracy", "accuracy"),), True),
)
"""Every panel, in order. One is left out where no stage recorded its figures."""
CAPTIONS = {
    PAIRS: "Where all candidates of a query tie, there is nothing to prefer; where the longer text wins, length is "
    "what is learnt.",
    TEXTS: "Texts that never end, go in circles or are all the same say that the rewriter has collapsed, whatever "
    "its numbers.",
    TRAINED: "At the end of the trainings of each round.",
}
TRAININGS = (
    ("S1a", "Encoder warm-up"),
    ("S3", "Encoder retraining"),
    ("S1b", "Rewriter warm-up"),
    ("S1c", "Instruction tuning"),
    ("S4", "Preference alignment"),
)
CURVES: Mapping[str, str] = {
    "loss": "loss",
    "dev_ndcg@5": "dev NDCG@5",
    "score": "dev score",
    "reward_margin": "reward margin",
    "reward_accuracy": "reward accuracy",
    "logps_chosen": "log-probability of chosen",
}
"""What of a training is drawn → what it is called."""
STYLES = 6


def health_figures(arm: Arm) -> list[Figure]:
    """What the stages recorded, by round."""
    seeds = " The mean over seeds; faint lines are single seeds." if len(arm.runs) > 1 else ""
    figures = []
    for number, (title, caption) in enumerate(CAPTIONS.items()):
        panels = [panel for health in HEALTH if health.figure == title and (panel := _panel(arm, health)) is not None]
        if panels:
            figures.append(Figure(key=f"health-{number}", title=title, caption=caption + seeds, panels=tuple(panels)))
    return figures


def _panel(arm: Arm, health: Health) -> Panel | None:
    scale = 100 if health.percent else 1
    curves = []
    for style, (kind, metric, label) in enumerate(health.lines):
        by_round: dict[int, list[float]] = defaultdict(list)
        for run in arm.runs:
            known = [(at, _number(found, metric)) for at, found in run.by_round(kind)]
            points = [(at, scale * value) for at, value in known if value is not None]
            for at, value in points:
                by_round[at].append(value)
            if len(arm.runs) > 1 and points:
                curves.append(_curve(label, points, style, faint=True))
        if by_round:
            curves.append(_curve(label, [(at, fmean(values)) for at, values in sorted(by_round.items())], style))
    if not any(len(curve.x) for curve in curves):
        return None
    return Panel(title=health.title, curves=tuple(curves), x_label="round", whole_x=True, y_range=_from_zero(curves))


def _from_zero(curves: Sequence[Curve]) -> tuple[float, float] | None:
    """So that what hardly moves looks so; None where there is something below zero."""
    values = [value for curve in curves for value in curve.y]
    return (0.0, 1.08 * max(values) or 1.0) if min(values) >= 0 else None


def _number(found: Manifest, metric: str) -> float | None:
    value = found.metrics.get(metric)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _curve(label: str, points: Sequence[tuple[float, float]], style: int, faint: bool = False) -> Curve:
    return Curve(
        label=label, x=tuple(float(x) for x, _ in points), y=tuple(y for _, y in points), style=style, faint=faint
    )


def health_table(arm: Arm) -> Table | None:
    """Every number that the stages of a round recorded, a column a round; the mean over seeds."""
    found: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for run in arm.runs:
        for stage, record in run.manifests.items():
            at = ROUND.fullmatch(stage)
            for metric in record.metrics if at else ():
                value = _number(record, metric)
                if at and value is not None and "ndcg@5 (" not in metric:  # those are in the tables of results
                    by_round = found.setdefault((at["kind"], record.kind, metric), {})
                    by_round.setdefault(int(at["round"]), []).append(value)
    rounds = sorted({at for by_round in found.values() for at in by_round})
    if not rounds:
        return None
    order = list(dict.fromkeys((kind, title) for kind, title, _ in found))
    rows = [
        Row(
            cells=(
                Cell(text=metric.replace("_", " ")),
                *(Cell(text=f"{fmean(by_round[at]):.4g}", value=fmean(by_round[at])) if at in by_round else MISSING
                  for at in rounds),
            ),
            group=f"{kind} · {title}",
        )
        for kind, title in order
        for (own, own_title, metric), by_round in found.items()
        if (own, own_title) == (kind, title)
    ]  # fmt: skip
    return Table(
        key="health",
        title="Every figure by round",
        caption="As the stages recorded it; shares and metrics are fractions.",
        columns=(Column(head="Figure", numeric=False), *(Column(head=f"round {at}") for at in rounds)),
        rows=tuple(rows),
        folded=True,
    )


# ---------------------------------------------------------------------------------------------------------- training


def training_figures(arm: Arm) -> list[Figure]:
    """One figure a kind of training: its curves by step, a line a round."""
    figures = []
    for kind, title in TRAININGS:
        panels = [panel for name, label in CURVES.items() if (panel := _training_panel(arm, kind, name, label))]
        if panels:
            several = any(len(panel.curves) > 1 for panel in panels)
            figures.append(
                Figure(
                    key=f"training-{kind}",
                    title=f"{title} ({kind})",
                    caption="By optimiser step" + (", a line a round" if several else "")
                    + ("; faint: other seeds." if len(arm.runs) > 1 else "."),
                    panels=tuple(panels),
                )
            )  # fmt: skip
    return figures


def _training_panel(arm: Arm, kind: str, name: str, label: str) -> Panel | None:
    curves, seen = [], set()
    for run in arm.runs:
        for stage, at in _stages_of(run, kind):
            record = run.manifests[stage]
            if record.fingerprint in seen:  # seeds share it
                continue
            seen.add(record.fingerprint)
            points = [(row["step"], row[name]) for row in _steps(run, stage) if row.get(name) is not None]
            if len(points) > 1:
                curves.append(_curve(stage, points, at % STYLES, faint=run is not arm.first))
    return Panel(title=label, curves=tuple(curves), x_label="step", whole_x=True) if curves else None


def _stages_of(run: RunView, kind: str) -> list[tuple[str, int]]:
    """Ids of a kind that are done, and the number of the style they are drawn in."""
    if kind in run.manifests:
        return [(kind, 0)]
    return [(f"{kind}.{at}", at - 1) for at, _ in run.by_round(kind)]


def _steps(run: RunView, stage: str) -> list[dict[str, float]]:
    return run.rows_of(stage, STEPS)


# ----------------------------------------------------------------------------------------------------------- latency


def latency_table(arm: Arm) -> Table | None:
    """Seconds a request, by what it went through."""
    run = arm.first
    rows = []
    for stage, record in run.manifests.items():
        count = _requests(run, stage, record)
        if count:
            each = 1000 * record.seconds / count
            cells = (
                Cell(text=stage),
                Cell(text=record.kind),
                Cell(text=f"{count:,}".replace(",", "\u202f"), value=count),
                Cell(text=f"{record.seconds:.1f}", value=record.seconds),
                Cell(text=f"{each:.0f}" if each >= 10 else f"{each:.1f}", value=each),
            )
            rows.append(Row(cells=cells, group=_component(stage)))
    if not rows:
        return None
    rows.sort(key=lambda row: list(COMPONENTS.values()).index(row.group))
    heads = (("Stage", False), ("What", False), ("Texts", True), ("Seconds", True), ("ms a text", True))
    return Table(
        key="latency",
        title="Time by component",
        caption="Seconds of the stages that answer requests, over the texts that went through them: in batches, with "
        "the loading of models in it. For the time of a single request ask cohyde search.",
        columns=tuple(Column(head=head, numeric=numeric) for head, numeric in heads),
        rows=tuple(rows),
        folded=len(rows) > 12,
    )


COMPONENTS = {
    "S2": "The rewriter writes, one description a request",
    "S4s": "The rewriter writes, several candidates a request",
    "S4p": "The encoder embeds and ranks candidates",
    "E": "Rewriter and encoder answer",
    "": "Baselines",
}


def _component(stage: str) -> str:
    found = ROUND.fullmatch(stage)
    return COMPONENTS.get(found["kind"] if found else "", COMPONENTS[""])


def _requests(run: RunView, stage: str, record: Manifest) -> int:
    """How many texts went through a stage; 0 where that is not known, or it answers nothing."""
    if stage in run.evaluations:
        rows = run.evaluations[stage].rows
        return len(set(zip(rows.split, rows.id, strict=True)))
    texts, queries = record.metrics.get("descriptions"), record.metrics.get("queries")
    found = texts if isinstance(texts, int) else queries if isinstance(queries, int) and stage.startswith("S4p") else 0
    return int(found or 0)
