"""A run as commands work on it: from arguments, or from a run's record, to its stages, and to their execution."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cohyde.cli_options import run_command
from cohyde.errors import ClusterLostError, UserError

if TYPE_CHECKING:
    from cohyde.config import Config
    from cohyde.dag.plan import Node, Plan
    from cohyde.dag.runner import RunResult
    from cohyde.dag.spec import StageSpec
    from cohyde.dag.state import StageState
    from cohyde.dag.store import Store
    from cohyde.evaluation.report import Report
    from cohyde.evaluation.results import MetricRow
    from cohyde.live import Live
    from stages.pipeline import Surroundings


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run as a command works on it: its settings, the stages they come to, and where their artifacts lie."""

    name: str
    settings: "Config"
    store: "Store"
    preset: str
    overrides: tuple[str, ...]
    recorded: "Plan | None" = None
    """The stages as the run's record has them: they stay what they were when prompts, data or code change."""
    found: "Surroundings | None" = None
    """What was found outside the graph, shared by the jobs of a sweep."""

    @cached_property
    def specs(self) -> "list[StageSpec]":
        """The stages."""
        from stages.pipelines import specs_of

        return specs_of(self.settings, self.found)

    @cached_property
    def plan(self) -> "Plan":
        """The stages with their fingerprints."""
        from cohyde.dag.plan import make_plan

        return make_plan(self.specs)

    @property
    def seen(self) -> "Plan":
        """The stages to look at."""
        return self.recorded or self.plan

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Short titles by stage id; none where the run's data or models are gone."""
        try:
            return {spec.id: spec.kind for spec in self.specs}
        except UserError:
            return {}

    @property
    def command(self) -> str:
        """What goes on with this run."""
        return run_command(self.name, self.preset, self.overrides, self.store.location)


def make_job(
    config: str,
    rounds: int | None,
    seed: int | None,
    overrides: list[str] | None,
    name: str | None,
    store: str | Path,
    ablation: str | None = None,
) -> Job:
    """The job that arguments describe.

    Raises:
        UserError: the configuration, the ablation or the name is wrong.
    """
    from cohyde.config import load_config, preset_chain
    from cohyde.dag.remote import open_store
    from cohyde.dag.sweep import check_run_name

    given = list(overrides or [])
    given += [f"rounds={rounds}"] if rounds is not None else []
    given += [f"seeds.loop={seed}"] if seed is not None else []
    usual = Path(config).stem
    if ablation is not None:
        from stages.ablations import load_ablation

        given += load_ablation(ablation).overrides(preset_chain(config))
        usual = f"{usual}-ablations-{ablation}"
    settings = load_config(config, given)
    run_name, at = name or usual, open_store(store)
    check_run_name(at, run_name)
    return Job(name=run_name, settings=settings, store=at, preset=config, overrides=tuple(given))


def job_of(run_name: str | None, store: str | Path) -> Job:
    """The job that a run's record describes; without a name, the latest.

    Raises:
        UserError: there is no such run, or its record is damaged.
    """
    from cohyde.config import Config, build
    from cohyde.dag.remote import open_store
    from cohyde.dag.runs import latest_run
    from cohyde.dag.sweep import load_single_run

    at = open_store(store)
    known = load_single_run(at, run_name or latest_run(at))
    settings = build(Config, [(f"run {known.name}", known.config)])
    return Job(
        name=known.name,
        settings=settings,
        store=at,
        preset=known.preset,
        overrides=known.overrides,
        recorded=known.plan,
    )


def fetch_models(jobs: Iterable[Job]) -> None:
    """Models from the hub are fetched before anything is fingerprinted: their commit is their identity."""
    from cohyde.models.reference import is_cached, is_hub, resolve
    from cohyde.terminal import err

    named = [model for job in jobs for model in (job.settings.encoder.model, job.settings.rewriter.model)]
    for reference in dict.fromkeys(named):
        if is_hub(reference) and not is_cached(reference):
            err().print(f"fetching {reference} …")
            resolve(reference)


def check_engine(jobs: Iterable[Job], address: str | None) -> None:
    """What generates is looked for before hours of training, if it is this machine that will be asked.

    Raises:
        UserError: vLLM shall generate here, and is not installed.
    """
    from cohyde.rewriter.generate import check_backend_is_here, chosen

    if address is None:
        for job in jobs:
            check_backend_is_here(chosen(job.settings.rewriter, job.settings.resources.generation.gpus))


def tell_differences(job: Job) -> None:
    """Where the run's name was used before with other settings, say which."""
    from cohyde.config import plain
    from cohyde.dag.fingerprint import differences
    from cohyde.dag.runs import load_run, run_names
    from cohyde.terminal import print_differences, print_warning

    if job.name not in run_names(job.store):
        return
    try:
        before = load_run(job.store, job.name)
    except UserError as error:
        print_warning(error.message)
        return
    print_differences(job.name, differences(before.config, plain(job.settings)))


def unfinished(job: Job) -> "list[Node]":
    """The stages that have no artifact."""
    finished = job.store.finished(job.plan.nodes.values())
    return [node for name, node in job.plan.nodes.items() if name not in finished]


def check_data(job: Job, todo: "Iterable[Node]") -> None:
    """Find faults of the data here, before Ray is started; the data stage would find the same.

    Raises:
        UserError: as :func:`cohyde.data.dataset.read_dataset`.
    """
    from cohyde.data.dataset import dataset_folder, read_dataset

    if any(node.id == "data" for node in todo):
        read_dataset(dataset_folder(job.settings.data.path), drop_invalid=job.settings.data.drop_invalid)


def record(job: Job) -> None:
    """Write the run's record, by which other commands find its stages."""
    from cohyde.config import plain
    from cohyde.dag.runs import RunRecord, save_run

    save_run(
        job.store,
        RunRecord(
            name=job.name,
            config=plain(job.settings),
            preset=job.preset,
            overrides=job.overrides,
            plan=job.plan,
        ),
    )


def execute(job: Job, address: str | None, until: str | None, resume: str) -> "RunResult":
    """Run what is missing; where a stage fails, say which, why, where its log is and how to resume."""
    return execute_part(job, job.plan.until(until) if until else job.plan, address, resume)


def execute_part(job: Job, part: "Plan", address: str | None, resume: str) -> "RunResult":
    """The same with a part of the run's stages; the run's record has all of them."""
    from cohyde.live import Live
    from cohyde.terminal import print_failures

    check_data(job, unfinished(job))
    job.store.prepare()
    record(job)
    result = run_live(Live(job.name, part, job.kinds), part, job, address, resume)
    if not result.ok:
        print_failures(result, resume)
    return result


def run_live(live: "Live", part: "Plan", job: Job, address: str | None, resume: str) -> "RunResult":
    """Run what is missing of a plan, shown as it goes, with the runner's settings of a job.

    Raises:
        typer.Exit: interrupted, or Ray has ended under it; how to resume has been said.
        UserError: what the settings track with is not installed.
    """
    from cohyde.dag.runner import run
    from cohyde.terminal import print_interrupted
    from cohyde.trackers import check_tracking

    check_tracking(job.settings.tracking)
    try:
        with live:
            result = run(
                part,
                job.store,
                run_name=live.run,
                address=address,
                how=job.settings.runner,
                tracking=job.settings.tracking,
                on_event=live,
            )
            live.end(result)
    except KeyboardInterrupt:
        print_interrupted(live.run, resume)
        raise typer.Exit(130) from None
    except ClusterLostError as lost:
        print_interrupted(live.run, resume, why=str(lost))
        raise typer.Exit(1) from None
    return result


def print_states_json(job: Job, found: "Sequence[StageState]") -> None:
    """What ``plan --json`` and ``status --json`` print."""
    from cohyde.terminal import print_json

    print_json({"run": job.name, "store": job.store.location, "stages": [state.to_json() for state in found]})


def report_of(job: Job) -> "Report":
    """The report over whatever evaluations are done."""
    from cohyde.evaluation.report import build_report

    return build_report(evaluations_of(job), job.settings.search.mode)


def evaluations_of(job: Job) -> "dict[str, list[MetricRow]]":
    """What the evaluations that are done have measured, by stage id, in order."""
    from stages.folders import METRICS
    from stages.report import read_metrics

    done = {}
    for node in job.seen.nodes.values():
        if node.id.startswith("E.") and job.store.exists(node.id, node.fingerprint):
            path = job.store.usable(node.id, node.fingerprint, job.name)
            if (path / METRICS).is_file():
                done[node.id] = read_metrics(path)
    return done


def print_report_of(job: Job) -> None:
    """Show the tables, and where the report's file is.

    Raises:
        UserError: no evaluation is done yet.
    """
    from cohyde.terminal import out, print_report, scored

    found = report_of(job)
    if not found.lines:
        raise UserError(f"run {job.name}: no evaluation is done yet", f"see how far it is: cohyde status {job.name}")
    print_report(out(), found, job.name)
    done = [node for node in job.seen.nodes.values() if node.id in {line.stage for line in found.lines}]
    if told := scored(job.store.manifest(done[-1].id, done[-1].fingerprint, job.name).metrics):
        out().print(f"[dim]{done[-1].id} scored {told}[/dim]", soft_wrap=True)
    node = next(node for node in job.seen.nodes.values() if node.id == "report")
    if job.store.exists(node.id, node.fingerprint):
        out().print(f"[dim]{job.store.usable(node.id, node.fingerprint, job.name) / 'report.md'}[/dim]", soft_wrap=True)
