"""``cohyde sweep``, and what ``status`` and ``report`` show of one."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohyde.cli_jobs import (
    Job,
    check_data,
    check_engine,
    evaluations_of,
    fetch_models,
    job_of,
    record,
    run_live,
    unfinished,
)
from cohyde.cli_options import DEFAULT_STORE, Address, AsJson, ConfigName, Rounds, StoreFolder, store_option
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.dag.state import State
    from cohyde.dag.store import Store
    from cohyde.dag.sweep import Member, SweepRecord, Union
    from cohyde.evaluation.seeds import ByQuery, SeedRun, SeedTable

FREE = ("rounds", "resources", "runner")
"""Sections that may change under one name: they leave the stages that are there as they are."""

Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="S,S,…", help="Seeds of the loop, one run each.", show_default="the preset's"),
]
SweepName = Annotated[
    str | None,
    typer.Option("--name", "-n", metavar="NAME", help="Name of the sweep.", show_default="the preset's, with -sweep"),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=V1,V2", help="Settings; one with several values is swept over.", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep as a command works on it: its record, and the job of every run."""

    record: "SweepRecord"
    store: "Store"
    jobs: Mapping[str, Job]
    """By run name."""

    @property
    def name(self) -> str:
        """The sweep's."""
        return self.record.name

    @cached_property
    def union(self) -> "Union":
        """All runs as one plan."""
        from cohyde.dag.sweep import Union

        return Union(name=self.name, plans={name: job.seen for name, job in self.jobs.items()})

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Short titles by stage id."""
        longest = max(self.jobs.values(), key=lambda job: job.settings.rounds)
        return longest.kinds

    @property
    def command(self) -> str:
        """What goes on with this sweep."""
        where = store_option(self.store.location)
        seeds = ["--seeds", ",".join(map(str, self.record.seeds))]
        named = ["--config", self.record.preset, "--name", self.name]
        return shlex.join(["cohyde", "sweep", *seeds, *named, *where, *self.record.overrides])


# -------------------------------------------------------------------------------------------------------- commands


def sweep(
    overrides: Settings = None,
    seeds: Seeds = None,
    config: ConfigName = "demo",
    rounds: Rounds = None,
    name: SweepName = None,
    store: StoreFolder = DEFAULT_STORE,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is to run; run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run every combination of seeds and settings.

    What runs share, such as the warm-up, is done once; one that fails does not
    hold up the others. Ends with mean, deviation and 95% interval over seeds.
    """
    from cohyde.live import SweepLive
    from cohyde.terminal_sweep import print_sweep_failures

    job = planned(config, seeds, rounds, overrides or [], name, store)
    _check_names(job)
    if dry_run:
        (print_json_of if as_json else print_states_of)(job)
        return
    check_engine(job.jobs.values(), address)
    _save(job)
    resume = shlex.join(["cohyde", *sys.argv[1:]])
    first = next(iter(job.jobs.values()))
    result = run_live(SweepLive(job.union, job.kinds), job.union.plan, first, address, resume)
    if as_json:
        print_json_of(job, {"arms": [arm.to_json() for arm in arms(job)]})
    else:
        print_tables(job)
    if not result.ok:
        by_name = dict(zip(job.union.plan.nodes, (state.state for state in result.states), strict=True))
        print_sweep_failures(job.union, by_name, result.failures, resume)
        raise typer.Exit(1)


def find_sweep(name: str | None, store: str | Path) -> Sweep | None:
    """The sweep of this name, or without a name the latest, if no run was started after it; else None.

    Raises:
        UserError: its record, or that of one of its runs, is damaged or gone.
    """
    from cohyde.dag.remote import open_store
    from cohyde.dag.sweep import latest_sweep, load_sweep, sweep_names

    at = open_store(store)
    chosen = latest_sweep(at) if name is None else name if name in sweep_names(at) else None
    if chosen is None:
        return None
    found = load_sweep(at, chosen)
    return Sweep(record=found, store=at, jobs={member.name: job_of(member.name, store) for member in found.members})


def sweep_status(job: Sweep, watching: bool, as_json: bool) -> None:
    """What ``cohyde status`` does with a sweep: read from the store alone."""
    from rich.console import Console
    from rich.table import Table

    from cohyde.dag.state import states_by_name
    from cohyde.terminal import watch
    from cohyde.terminal_sweep import failures_of, is_over, print_sweep_failures, sweep_table

    def draw(console: Console) -> tuple[Table, bool]:
        found = states_by_name(job.union.plan, job.store)
        height = console.height if console.is_terminal and not is_over(found) else None
        return sweep_table(job.union, found, job.store, height), is_over(found)

    if as_json:
        print_json_of(job)
        return
    if watching:
        watch(draw)
    found = print_states_of(job, table=not watching)
    failures = failures_of(job.union, found, job.store)
    if failures:
        print_sweep_failures(job.union, found, failures, job.command)


def sweep_report(job: Sweep, as_json: bool) -> None:
    """What ``cohyde report`` does with a sweep."""
    from cohyde.terminal import print_json

    if as_json:
        found = [arm.to_json() for arm in arms(job)]
        print_json({"run": job.name, "runs": list(job.jobs), "store": job.store.location, "arms": found})
    elif not print_tables(job):
        raise UserError(f"sweep {job.name}: no run is done yet", f"see how far they are: cohyde status {job.name}")


def print_states_of(job: Sweep, table: bool = True) -> "Mapping[str, State]":
    """Show how far each run is, and how far all are; returns the states by node name."""
    from cohyde.dag.state import states_by_name
    from cohyde.terminal import err, out
    from cohyde.terminal_sweep import sweep_summary, sweep_table

    found = states_by_name(job.union.plan, job.store)
    if table:
        out().print(sweep_table(job.union, found, job.store))
    err().print(f"{job.name}: {sweep_summary(job.union, found)}", style="dim", markup=False)
    return found


def print_json_of(job: Sweep, more: Mapping[str, Any] | None = None) -> None:
    """The object of ``plan --json``, of all runs: a row for every run and stage, with ids ``RUN/STAGE``."""
    from cohyde.dag.state import states
    from cohyde.terminal import print_json

    rows = [state.to_json() for state in job.union.rows(states(job.union.plan, job.store))]
    found = {"run": job.name, "runs": list(job.jobs), "store": job.store.location, "stages": rows}
    print_json(found | dict(more or {}))


# -------------------------------------------------------------------------------------------------------- planning


def planned(
    config: str, seeds: str | None, rounds: int | None, overrides: Sequence[str], name: str | None, store: str | Path
) -> Sweep:
    """The sweep that arguments describe.

    Raises:
        UserError: the configuration, a seed, a value or the name is wrong, or two runs would be the same.
    """
    from cohyde.config import load_config, load_configs, plain
    from cohyde.dag.remote import open_store
    from cohyde.dag.runs import check_name
    from cohyde.dag.sweep import Member, SweepRecord
    from cohyde.grid import first_of, grid, parse_seeds
    from stages.pipeline import Surroundings

    title = check_name(name or f"{Path(config).stem}-sweep")
    given = [*overrides, *([f"rounds={rounds}"] if rounds is not None else [])]
    base = load_config(config, first_of(given))
    points = grid(title, parse_seeds(seeds) if seeds is not None else [base.seeds.loop], given)
    at, found = open_store(store), Surroundings()
    jobs = {
        point.name: Job(
            name=point.name, settings=settings, store=at, preset=config, overrides=point.overrides, found=found
        )
        for point, settings in zip(points, load_configs(config, [point.overrides for point in points]), strict=True)
    }
    fetch_models(jobs.values())
    _check_different(jobs)
    members = [Member(name=point.name, seed=point.seed, settings=point.settings) for point in points]
    known = SweepRecord(name=title, config=plain(base), preset=config, overrides=tuple(given), members=tuple(members))
    return Sweep(record=known, store=at, jobs=jobs)


def _check_different(jobs: Mapping[str, Job]) -> None:
    seen: dict[frozenset[str], str] = {}
    for name, job in jobs.items():
        stages = frozenset(job.plan.nodes)
        if stages in seen:
            raise UserError(
                f"runs {seen[stages]} and {name} would be the very same: what differs between them changes no result",
                "sweep over seeds (with a round at least), or over settings that a stage depends on",
            )
        seen[stages] = name


def _check_names(job: Sweep) -> None:
    """Refuse to mix, under one name, runs whose settings differ otherwise than the sweep says; tell what is added.

    Raises:
        UserError: the name is a run's, or a sweep of this name had other settings, or a run had.
    """
    from cohyde.dag.sweep import check_sweep_name, load_sweep, sweep_names
    from cohyde.terminal import err, print_warning

    check_sweep_name(job.store, job.name)
    before = None
    if job.name in sweep_names(job.store):
        try:
            before = load_sweep(job.store, job.name)
        except UserError as error:
            print_warning(error.message)
    if before is not None:
        grown, other = _changes(before.config, job.record.config, job.record.swept)
        old, new = ", ".join(before.swept), ", ".join(job.record.swept)
        other += [f"swept over: {old or 'seeds alone'} → {new or 'seeds alone'}"] if old != new else []
        _refuse(f"sweep {job.name}", other)
        was, now = ", ".join(map(str, before.seeds)), ", ".join(map(str, job.record.seeds))
        grown += [f"seeds: {was} → {now}"] if was != now else []
        if grown:
            err().print(f"{job.name} changes: {'; '.join(grown)}", style="yellow", markup=False, soft_wrap=True)
    _check_run_names(job, {member.name for member in before.members} if before else set())


def _check_run_names(job: Sweep, known: set[str]) -> None:
    """Runs of a sweep's names that were started by themselves."""
    from cohyde.config import plain
    from cohyde.dag.runs import load_run, run_names

    for name in set(run_names(job.store)) & set(job.jobs) - known:
        _, other = _changes(load_run(job.store, name).config, plain(job.jobs[name].settings))
        _refuse(f"run {name}", other)


def _changes(
    before: Mapping[str, Any], now: Mapping[str, Any], swept: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """How settings differ, where they may under one name, and where they may not; ``swept`` are no difference.

    Settings that were added to cohyde in between have their defaults.
    """
    from cohyde.config import Config, build, plain
    from cohyde.dag.fingerprint import differences

    with suppress(UserError):  # of a setting that there is no more
        before, now = (plain(build(Config, [("", config)])) for config in (before, now))
    lines = {line.partition(":")[0]: line for line in differences(before, now)}
    kept = {key: line for key, line in lines.items() if not any(f"{key}.".startswith(f"{one}.") for one in swept)}
    free = [line for key, line in kept.items() if key.partition(".")[0] in FREE]
    return free, [line for line in kept.values() if line not in free]


def _refuse(what: str, lines: Sequence[str]) -> None:
    if lines:
        more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
        raise UserError(
            f"{what} had other settings before: {'; '.join(lines[:4])}{more}",
            "give this one another --name: what both share is done once all the same",
        )


def _save(job: Sweep) -> None:
    """Look at the data, then write the records of the runs and of the sweep."""
    from cohyde.dag.sweep import save_sweep

    looked = set()
    for one in job.jobs.values():
        data = (one.settings.data.path, one.settings.data.drop_invalid)
        if data not in looked:
            looked.add(data)
            check_data(one, unfinished(one))
    job.store.prepare()
    for one in job.jobs.values():
        record(one)
    save_sweep(job.store, job.record)


# ---------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The runs of one combination of settings, which differ in their seeds alone."""

    settings: Mapping[str, str]
    runs: tuple[str, ...]
    """Those that are in the table: all their evaluations are done."""
    left_out: tuple[str, ...]
    table: "SeedTable | None"
    """None as long as no run is done."""

    def title(self, sweep_name: str) -> str:
        """For people."""
        return "  ".join([sweep_name, *(f"{key}={value}" for key, value in self.settings.items())])

    def to_json(self) -> dict[str, Any]:
        """As in the output of ``--json``."""
        return {
            "settings": dict(self.settings),
            "runs": list(self.runs),
            "left_out": list(self.left_out),
            "table": self.table.to_json() if self.table else None,
        }


def arms(job: Sweep) -> Iterator[Arm]:
    """The table over seeds of each combination of settings, over the runs whose evaluations are all done."""
    from cohyde.evaluation.seeds import build_seed_table
    from stages.report import read_query_scores

    read = cache(read_query_scores)  # seeds share the baseline's
    for settings, members in job.record.arms():
        whole = [member for member in members if _is_measured(job.jobs[member.name])]
        search = job.jobs[members[0].name].settings.search.mode
        yield Arm(
            settings=settings,
            runs=tuple(member.name for member in whole),
            left_out=tuple(member.name for member in members if member not in whole),
            table=build_seed_table([_seed_run(job, member, read) for member in whole], search) if whole else None,
        )


def print_tables(job: Sweep) -> bool:
    """Show the tables there are; says whether there is any."""
    from cohyde.terminal import err, out
    from cohyde.terminal_sweep import print_seed_table

    console, any_shown = out(), False
    for arm in arms(job):
        if arm.table is not None:
            if any_shown:
                console.print()
            print_seed_table(console, arm.title(job.name), arm.table)
            any_shown = True
        if arm.left_out:
            err().print(f"not done, and not in the table: {', '.join(arm.left_out)}", style="yellow", soft_wrap=True)
    return any_shown


def _is_measured(job: Job) -> bool:
    """Whether every state of the run is evaluated; the untrained baseline is no state of it."""
    nodes = [node for node in job.seen.nodes.values() if node.id.startswith("E.") and "rewriter" in node.inputs]
    return all(job.store.exists(node.id, node.fingerprint) for node in nodes)


def _seed_run(job: Sweep, member: "Member", read: "Callable[[Path, str], ByQuery]") -> "SeedRun":
    from cohyde.evaluation.seeds import SeedRun

    run = job.jobs[member.name]

    def by_query(stage: str, search: str) -> "ByQuery":
        node = run.seen.nodes[run.seen.named(stage)[0]]
        return read(run.store.usable(node.id, node.fingerprint, run.name), search)

    return SeedRun(seed=member.seed, evaluations=evaluations_of(run), by_query=by_query)
