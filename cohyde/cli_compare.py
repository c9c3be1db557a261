"""``cohyde eval compare`` and ``cohyde eval trec``: what any two systems' queries say, and the same for other tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohyde.cli_jobs import Job, job_of, report_of
from cohyde.cli_options import DEFAULT_STORE, AsJson, StoreFolder
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.evaluation.compare import Change
    from cohyde.evaluation.per_query import PerQuery

HELP = "RUN, RUN/STAGE, RUN/SYSTEM or one of these with :SEARCH"
HEAD = 5
"""Tools of each ranking that are shown."""

Split = Annotated[str | None, typer.Option("--split", metavar="NAME", help="standard, vague or dev.")]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One system: what a run's stage found under one search mode."""

    job: Job
    stage: str
    search: str
    artifact: Path
    results: "PerQuery"
    """Of every search mode."""

    @property
    def title(self) -> str:
        """By which it can be asked for again."""
        return f"{self.job.name}/{self.stage}:{self.search}"


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=HELP + ".", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another: what it scores more than A.", show_default=False)],
    metric: Annotated[str, typer.Option("--metric", "-m", metavar="NAME", help="hit, recall, ndcg or comp.")] = "ndcg",
    k: Annotated[int, typer.Option("-k", metavar="K", min=1, help="The metric's cutoff.")] = 5,
    split: Split = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=0, help="Queries that changed most.")] = 3,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Compare two systems query by query.

    Prints what B scores more than A by split and tier, with what a paired
    bootstrap says of it, then the queries that changed most, side by side.
    Without a stage it is the selected round; SYSTEM is a key of
    [bold]cohyde eval list[/bold].
    """
    from cohyde.evaluation.compare import changes, shared_rows
    from cohyde.evaluation.compare import compare as differences
    from cohyde.terminal import out, print_json
    from cohyde.terminal_compare import Shown, print_changes, print_differences

    sides = [side_of(reference, store) for reference in (a, b)]
    name = f"{metric}@{k}"
    asked = [_asked(side, split).select(search=side.search) for side in sides]
    left, right = shared_rows(asked[0], asked[1], names=(sides[0].title, sides[1].title))
    _check_metric(name, left, right)
    rows = differences(left, right, [name])
    changed = changes(left, right, name)
    told = [_descriptions(side) for side in sides]
    if as_json:
        print_json(
            {
                "a": sides[0].title,
                "b": sides[1].title,
                "rows": [row.to_json() for row in rows],
                "changed": [_as_json(one, left, right, told) for one in changed[:top]],
            }
        )
        return
    shown = [
        Shown(title=side.title, found=found, descriptions=texts)
        for side, found, texts in zip(sides, (left, right), told, strict=True)
    ]
    print_differences(out(), shown, rows, name)
    print_changes(out(), shown, changed, name, top, HEAD)


def trec(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help=HELP + ".", show_default=False)],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the files go.", show_default=False)],
    split: Split = None,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Write rankings and gold as TREC run and qrels files.

    One qrels file a split, and one run file a split and search mode. Blanks in
    ids are written as %20; scores that tie are lowered a little, so that every
    reader ranks as we do.
    """
    from cohyde.evaluation.trec import write_trec
    from cohyde.filesystem import writing_to
    from cohyde.terminal import out

    side = side_of(system, store)
    found = _asked(side, split)
    found = found.select(search=side.search) if ":" in system else found
    with writing_to(to, "--to DIR"):
        for path in write_trec(to, found, f"{side.job.name}/{side.stage}"):
            out().print(str(path), markup=False, highlight=False, soft_wrap=True)


def side_of(reference: str, store: str | Path) -> Side:
    """What a reference names.

    Raises:
        UserError: no such run, stage, system or search mode; or it is not done, or no evaluation.
    """
    from cohyde.evaluation.per_query import read_per_query
    from stages.folders import QUERIES

    label, _, mode = reference.partition(":")
    run_name, _, stage = label.partition("/")
    job = job_of(run_name, store)
    stage, search = _named(job, stage)
    node = job.seen.nodes[job.seen.named(stage)[0]]
    if not job.store.exists(node.id, node.fingerprint):
        raise UserError(f"run {job.name}: {stage} is not done yet", f"see how far it is: cohyde status {job.name}")
    artifact = job.store.usable(node.id, node.fingerprint, job.name)
    if not (artifact / QUERIES).is_file():
        raise UserError(f"{job.name}/{stage} scores no queries", f"evaluations are: {', '.join(_evaluations(job))}")
    results = read_per_query(artifact / QUERIES)
    modes = list(dict.fromkeys(results.search))
    search = mode or (search if search in modes else modes[0])
    if search not in modes:
        raise UserError(f"{job.name}/{stage} was not searched with {search!r}", f"but with: {', '.join(modes)}")
    return Side(job=job, stage=stage, search=search, artifact=artifact, results=results)


def _named(job: Job, name: str) -> tuple[str, str]:
    """The stage and the search mode of a system's key, or of a stage's id; without a name, of the selected round."""
    from stages.systems import systems_of

    configured = job.settings.search.mode
    if not name:
        return report_of(job).selected or f"E.{job.settings.rounds}", configured
    systems = {system.key: system for system in systems_of([node.id for node in job.seen.nodes.values()], configured)}
    return (systems[name].stage, systems[name].search) if name in systems else (name, configured)


def _evaluations(job: Job) -> list[str]:
    return [node.id for node in job.seen.nodes.values() if node.id.startswith(("E.", "B."))]


def _asked(side: Side, split: str | None) -> "PerQuery":
    there = list(dict.fromkeys(side.results.split))
    if split is not None and split not in there:
        raise UserError(f"{side.title} has no {split!r} split", f"there are: {', '.join(there)}")
    return side.results.select(split=split)


def _check_metric(name: str, left: "PerQuery", right: "PerQuery") -> None:
    both = [known for known in left.values if known in right.values]
    if name not in both:
        raise UserError(f"{name} was not measured", f"measured are: {', '.join(both)}")


def _descriptions(side: Side) -> dict[tuple[str, str], str]:
    """What was written for each query, by split and id; empty where the system writes nothing."""
    from cohyde.io import read_rows
    from stages.folders import DESCRIPTIONS

    path = side.artifact / DESCRIPTIONS
    if side.search == "query" or not path.is_file():
        return {}
    return {(row["split"], row["id"]): row["text"] for row in read_rows(path)}


def _as_json(
    change: "Change", left: "PerQuery", right: "PerQuery", told: list[dict[tuple[str, str], str]]
) -> dict[str, Any]:
    row = change.row
    place = (left.split[row], left.id[row])
    return {
        "id": left.id[row],
        "split": left.split[row],
        "tier": left.tier[row],
        "text": left.text[row],
        "gold": left.gold[row],
        "a": {"value": change.a, "ranked": left.ranked[row], "description": told[0].get(place)},
        "b": {"value": change.b, "ranked": right.ranked[row], "description": told[1].get(place)},
    }
