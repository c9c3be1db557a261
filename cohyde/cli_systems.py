"""``cohyde eval baselines`` and ``cohyde eval ablations``: what the paper compares, run and put into one table each."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohyde.cli_jobs import (
    Job,
    check_data,
    execute_part,
    fetch_models,
    job_of,
    make_job,
    print_states_json,
    record,
    run_live,
    tell_differences,
    unfinished,
)
from cohyde.cli_options import (
    DEFAULT_STORE,
    Address,
    AsJson,
    ConfigName,
    Overrides,
    Rounds,
    Seed,
    StoreFolder,
)
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.dag.plan import Plan
    from cohyde.dag.sweep import Union
    from cohyde.evaluation.main_table import Measured, Table
    from cohyde.evaluation.per_query import PerQuery
    from stages.systems import System

MAIN = "main"
"""Key of the run that ablations are compared with."""

Only = Annotated[
    str | None,
    typer.Option("--only", metavar="KEY,KEY,…", help="These alone; the keys are those of cohyde eval list."),
]
TableName = Annotated[
    str | None, typer.Option("--name", "-n", metavar="NAME", help="Name of the run.", show_default="by the preset")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what is to run; run nothing.")]


# -------------------------------------------------------------------------------------------------------- commands


def baselines(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    only: Only = None,
    rounds: Rounds = None,
    seed: Seed = None,
    name: TableName = None,
    store: StoreFolder = DEFAULT_STORE,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run CoHyDE and all that it is compared with; print the main table.

    What a run of the same settings has done already is not done again.
    """
    from cohyde.dag.state import states
    from cohyde.terminal import err, out, plan_table, summary

    given = [*(overrides or []), "pipeline=baselines"]
    job = make_job(config, rounds, seed, given, name or f"{Path(config).stem}-baselines", store)
    fetch_models([job])
    systems = chosen_systems(job, only)
    part = job.plan.until(*[system.stage for system in systems]) if only else job.plan
    if dry_run:
        found = states(part, job.store, run=job.name)
        if as_json:
            print_states_json(job, found)
            return
        out().print(plan_table(found, job.kinds, out()))
        err().print(f"{job.name}: {summary(found)}", style="dim", markup=False)
        return
    tell_differences(job)
    result = execute_part(job, part, address, resume=shlex.join(["cohyde", *sys.argv[1:]]))
    print_main(job, systems, as_json)
    if not result.ok:
        raise typer.Exit(1)


def ablations(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    only: Only = None,
    rounds: Rounds = None,
    seed: Seed = None,
    name: TableName = None,
    store: StoreFolder = DEFAULT_STORE,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run the main run and its ablations; print what each costs or gains.

    Each is a run of its own, planned together: what it shares with the main
    run is done once. One that fails does not hold up the others.
    """
    from cohyde.live import SweepLive
    from cohyde.terminal import out, print_json
    from cohyde.terminal_sweep import print_sweep_failures
    from cohyde.terminal_systems import print_shares

    study = planned(config, only, rounds, seed, overrides, name, store)
    if dry_run:
        shares = list(study.shares())
        if as_json:
            print_json({"run": study.name, "runs": [asdict(share) for share in shares]})
        else:
            print_shares(out(), shares, MAIN)
        return
    study.save()
    resume = shlex.join(["cohyde", *sys.argv[1:]])
    union = study.union
    result = run_live(SweepLive(union, study.kinds), union.plan, study.main, address, resume)
    study.print(as_json)
    if not result.ok:
        by_name = dict(zip(union.plan.nodes, (state.state for state in result.states), strict=True))
        print_sweep_failures(union, by_name, result.failures, resume)
        raise typer.Exit(1)


def list_all(as_json: AsJson = False) -> None:
    """List the baselines and ablations there are, with a line on each."""
    from cohyde.terminal import out, print_json
    from cohyde.terminal_systems import print_list
    from stages.ablations import ablations
    from stages.systems import SYSTEMS

    rows = {
        "systems": [{"key": one.key, "title": one.title, "about": one.about} for one in SYSTEMS],
        "ablations": [{"key": one.key, "title": one.title, "about": one.about} for one in ablations()],
    }
    if as_json:
        print_json(rows)
        return
    console = out()
    print_list(console, "cohyde eval baselines", rows["systems"])
    console.print("[dim]and r0, r1, …: CoHyDE after its warm-up and after each round[/dim]\n")
    print_list(console, "cohyde eval ablations", rows["ablations"])


# ------------------------------------------------------------------------------------------------------- main table


def chosen_systems(job: Job, only: str | None) -> "list[System]":
    """The systems of a run, or those that ``--only`` names, in the order of the main table.

    Raises:
        UserError: a key is no system of this run.
    """
    from stages.systems import systems_of

    found = systems_of([spec.id for spec in job.specs], job.settings.search.mode)
    keys = _keys(only, [system.key for system in found], "system")
    return [system for system in found if system.key in keys]


def _keys(only: str | None, known: Sequence[str], what: str) -> list[str]:
    if only is None:
        return list(known)
    keys = [key.strip() for key in only.split(",") if key.strip()]
    wrong = [key for key in keys if key not in known]
    if wrong or not keys:
        raise UserError(
            f"--only {only}: {wrong[0]!r} is no {what} here" if wrong else f"--only names no {what}",
            f"there are: {', '.join(known)}",
        )
    return keys


def print_main(job: Job, systems: "Sequence[System]", as_json: bool) -> None:
    """The main table over those of the systems that are measured, and which are not."""
    from cohyde.evaluation.main_table import tables
    from cohyde.terminal import err, out, print_json
    from cohyde.terminal_systems import print_main_table

    found, missing = measured_systems(job, systems)
    made = tables(found)
    if as_json:
        print_json(_as_json(job.name, job.store.location, made, missing))
        return
    if found:
        print_main_table(out(), job.name, made, job.settings.search.mode)
    if missing:
        err().print(f"not done, and not in the table: {'; '.join(missing)}", style="yellow", soft_wrap=True)


def measured_systems(job: Job, systems: "Sequence[System]") -> "tuple[list[Measured], list[str]]":
    """What is measured of these systems, and the titles of those that are not done."""
    from cohyde.evaluation.main_table import Measured

    read = cache(lambda stage: read_results(job, stage))
    found, missing = [], []
    for system in systems:
        results = read(system.stage)
        if results is None:
            missing.append(system.title)
            continue
        found.append(
            Measured(
                key=system.key,
                title=system.title,
                group=system.group,
                run=job.name,
                stage=system.stage,
                search=system.search,
                results=results.select(search=system.search),
            )
        )
    return found, missing


def read_results(job: Job, stage_id: str) -> "PerQuery | None":
    """The per-query results of a stage of a run; None where it is not done."""
    from cohyde.evaluation.per_query import read_per_query
    from stages.folders import QUERIES

    node = job.seen.nodes[job.seen.named(stage_id)[0]]
    if not job.store.exists(node.id, node.fingerprint):
        return None
    return read_per_query(job.store.usable(node.id, node.fingerprint, job.name) / QUERIES, rankings=False)


def _as_json(run: str, store: str, made: "Sequence[Table]", missing: Sequence[str]) -> dict[str, Any]:
    return {"run": run, "store": store, "tables": [table.to_json() for table in made], "not_done": list(missing)}


# -------------------------------------------------------------------------------------------------------- ablations


@dataclass(frozen=True, kw_only=True)
class Study:
    """The main run and its ablations, as a command works on them."""

    name: str
    main: Job
    jobs: Mapping[str, Job]
    """Of the ablations, by key."""
    titles: Mapping[str, str]
    """The same."""

    def measured_by(self, job: Job) -> str:
        """The stage that a run is measured by."""
        from stages.ablations import measured_by

        return measured_by(job.settings, [node.id for node in job.seen.nodes.values()])

    def part(self, job: Job) -> "Plan":
        """What of a run its row needs: not the evaluations of the rounds before the last."""
        return job.seen.until(self.measured_by(job))

    @cached_property
    def same(self) -> dict[str, str]:
        """Ablations that change nothing under this preset, by key: the run that each is the same as."""
        found: dict[str, str] = {}
        seen = {self._row(self.main): MAIN}
        for key, job in self.jobs.items():
            row = self._row(job)
            if row in seen:
                found[key] = seen[row]
            seen.setdefault(row, key)
        return found

    def _row(self, job: Job) -> tuple[str, str]:
        """What a row is read from: an artifact and a search mode."""
        return job.seen.named(self.measured_by(job))[0], job.settings.search.mode

    @cached_property
    def union(self) -> "Union":
        """All runs as one plan."""
        from cohyde.dag.sweep import Union

        return Union(name=self.name, plans={job.name: self.part(job) for job in self._runs()})

    def _runs(self) -> Iterator[Job]:
        yield self.main
        yield from (job for key, job in self.jobs.items() if key not in self.same)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Short titles by stage id."""
        return {stage: kind for job in self._runs() for stage, kind in job.kinds.items()}

    def shares(self) -> "Iterator[Any]":
        """How much of each run is the main run's."""
        from cohyde.terminal_systems import Share

        plans = {MAIN: self.part(self.main)} | {key: self.part(job) for key, job in self.jobs.items()}
        for key, plan in plans.items():
            own = [name for name in plan.nodes if key == MAIN or name not in plans[MAIN].nodes]
            finished = self.main.store.finished([plan.nodes[name] for name in own])
            yield Share(
                run=key,
                title=self.titles.get(key, ""),
                shared=len(plan.nodes) - len(own),
                own=len(own),
                to_run=len(own) - len(finished),
                same_as=self.same.get(key),
            )

    def save(self) -> None:
        """Look at the data, then write the record of each run."""
        check_data(self.main, unfinished(self.main))
        self.main.store.prepare()
        for job in self._runs():
            record(job)

    def print(self, as_json: bool) -> None:
        """The ablation table over those runs that are measured."""
        from cohyde.evaluation.main_table import tables
        from cohyde.terminal import err, out, print_json
        from cohyde.terminal_systems import print_ablation_table

        found, missing = self.measured()
        reference = MAIN if any(one.key == MAIN for one in found) else None
        made = tables(found, reference)
        if as_json:
            more = {"same": dict(self.same)}
            print_json(_as_json(self.name, self.main.store.location, made, missing) | more)
            return
        if found:
            print_ablation_table(out(), self.name, made, MAIN)
        for key, other in self.same.items():
            err().print(f"{key}: changes nothing of {other} under this preset", style="dim", markup=False)
        if missing:
            err().print(f"not done, and not in the table: {'; '.join(missing)}", style="yellow", soft_wrap=True)

    def rows(self) -> Iterator[tuple[str, str, Job]]:
        """Key, title and run of each row of the table, the main run's first."""
        yield MAIN, f"CoHyDE, r = {self.main.settings.rounds}", self.main
        yield from ((key, self.titles[key], job) for key, job in self.jobs.items() if key not in self.same)

    def measured(self) -> "tuple[list[Measured], list[str]]":
        """What is measured, and the keys of the runs that are not done."""
        from cohyde.evaluation.main_table import Measured

        found, missing = [], []
        for key, title, job in self.rows():
            stage, search = self.measured_by(job), job.settings.search.mode
            results = read_results(job, stage)
            if results is None:
                missing.append(key)
                continue
            found.append(
                Measured(
                    key=key,
                    title=title,
                    group="ablation" if key != MAIN else "cohyde",
                    run=job.name,
                    stage=stage,
                    search=search,
                    results=results.select(search=search),
                )
            )
        return found, missing


def planned(
    config: str,
    only: str | None,
    rounds: int | None,
    seed: int | None,
    overrides: Sequence[str] | None,
    name: str | None,
    store: str | Path,
) -> Study:
    """The main run and its ablations that arguments describe.

    Raises:
        UserError: the configuration, a key or the name is wrong.
    """
    from cohyde.config import load_configs, preset_chain
    from stages.ablations import ablations
    from stages.pipeline import Surroundings

    title = name or f"{Path(config).stem}-ablations"
    main = make_job(config, rounds, seed, list(overrides or []), f"{title}-{MAIN}", store)
    main = replace(main, found=Surroundings())
    known = {one.key: one for one in ablations()}
    kept = {key: one for key, one in known.items() if key in _keys(only, list(known), "ablation")}
    chain = preset_chain(config)
    given = {key: (*main.overrides, *one.overrides(chain)) for key, one in kept.items()}
    settings = load_configs(config, list(given.values()))
    jobs = {
        key: replace(main, name=f"{title}-{key}", settings=own, overrides=given[key])
        for key, own in zip(kept, settings, strict=True)
    }
    fetch_models([main, *jobs.values()])
    titles = {key: one.title_under(chain) for key, one in kept.items()}
    return Study(name=title, main=main, jobs=jobs, titles=titles)


def find_study(name: str | None, store: str | Path) -> Study | None:
    """The main run and the ablations that were recorded under this name; None where there are none.

    Raises:
        UserError: the record of one of its runs is damaged.
    """
    from cohyde.config import preset_chain
    from cohyde.dag.remote import open_store
    from cohyde.dag.runs import run_names
    from stages.ablations import ablations

    if name is None:  # the latest run
        return None
    there = run_names(open_store(store))
    if name in there or f"{name}-{MAIN}" not in there:
        return None
    main = job_of(f"{name}-{MAIN}", store)
    try:
        chain = preset_chain(main.preset)
    except UserError:  # a file that is gone
        chain = []
    kept = [one for one in ablations() if f"{name}-{one.key}" in there]
    return Study(
        name=name,
        main=main,
        jobs={one.key: job_of(f"{name}-{one.key}", store) for one in kept},
        titles={one.key: one.title_under(chain) for one in kept},
    )
