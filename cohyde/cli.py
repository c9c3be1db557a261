"""The command line. Heavy libraries are imported inside the commands that need them, so that ``--help`` is instant."""

import json
import shlex
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohyde import __version__
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.config import Config
    from cohyde.dag.plan import Plan
    from cohyde.dag.spec import StageSpec
    from cohyde.dag.store import Store
    from cohyde.evaluation.report import Report

app = typer.Typer(
    name="cohyde",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Co-train a dense encoder and an LLM rewriter, so that an agent finds the right tools from a vague request.",
    epilog="Start with [bold]cohyde run[/bold]: three rounds on the embedded sample. Docs: README.md",
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]…", help="Settings, for example [bold]encoder.train.lr=1e-5[/bold].", show_default=False
    ),
]
ConfigName = Annotated[str, typer.Option("--config", "-c", metavar="NAME|FILE", help="A preset, or a YAML file.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-r", metavar="R", help="Rounds of co-training.")]
Seed = Annotated[
    int | None, typer.Option("--seed", "-s", metavar="S", help="The loop's seed; the warm-up keeps its own.")
]
RunName = Annotated[
    str | None, typer.Option("--name", "-n", metavar="RUN", help="Name of the run [default: the preset's].")
]
StoreFolder = Annotated[
    Path, typer.Option("--store", metavar="DIR", envvar="COHYDE_STORE", help="Where artifacts and runs lie.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for programs.")]
Until = Annotated[
    str | None, typer.Option("--until", metavar="ID", help="Stop when this stage is done, for example S3.1.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")]
OptionalRun = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Name of a run [default: the latest].")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="ADDR", help="A Ray cluster; without it a local Ray is started.")
]
DEFAULT_STORE = Path("store")


def main() -> None:
    """Entry point: what the user can mend is said without a traceback, with exit status 2."""
    try:
        app()
    except UserError as error:
        from cohyde.terminal import print_error

        print_error(error)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Options before the command."""
    if version:
        typer.echo(f"cohyde {__version__}")
        raise typer.Exit


# ----------------------------------------------------------------------------------------------------- running


@app.command(epilog="Example: cohyde run --config demo --rounds 3 dpo.beta=0.2")
def run(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    rounds: Rounds = None,
    seed: Seed = None,
    name: RunName = None,
    store: StoreFolder = DEFAULT_STORE,
    address: Address = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Run every stage that is not done yet. Running a command again is how one resumes it."""
    job = _job(config, rounds, seed, overrides, name, store)
    _fetch_models(job)
    _execute(job, address, until)
    if as_json:
        _print_states(job, until, as_json=True)
    elif until is None:
        _print_report(job)


@app.command(epilog="Example: cohyde plan --rounds 10 --json")
def plan(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    rounds: Rounds = None,
    seed: Seed = None,
    name: RunName = None,
    store: StoreFolder = DEFAULT_STORE,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages of a run and which of them are done, without running anything."""
    _print_states(_job(config, rounds, seed, overrides, name, store), until, as_json)


@app.command(epilog="Example: cohyde status demo --watch")
def status(
    run_name: OptionalRun = None,
    store: StoreFolder = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every two seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far a run is."""
    from cohyde.dag.state import states
    from cohyde.terminal import watch_states

    job = _job_of(run_name, store)
    if watch and not as_json:
        watch_states(lambda: states(job.plan, job.store, run=job.name), _kinds(job))
    else:
        _print_states(job, None, as_json)


@app.command(epilog="Example: cohyde rerun demo S4.1")
def rerun(
    run_name: Run,
    stage: Annotated[str, typer.Argument(metavar="ID", help="A stage, for example S3.1.")],
    store: StoreFolder = DEFAULT_STORE,
    address: Address = None,
) -> None:
    """Discard the artifacts of a stage and of all below it, and run them again."""
    job = _job_of(run_name, store)
    for node in job.plan.below(stage):
        job.store.discard(node.id, node.fingerprint)
    _execute(job, address, None)
    _print_report(job)


# ---------------------------------------------------------------------------------------------------- results


@app.command(epilog="Example: cohyde report demo --json")
def report(run_name: OptionalRun = None, store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show the tables of a run: every round, standard and vague, by tier; of a run under way, what there is."""
    job = _job_of(run_name, store)
    if as_json:
        found = _report(job)
        content = {"run": job.name, "selected": found.selected, "rows": list(found.rows)}
        typer.echo(json.dumps(content, ensure_ascii=False))
    else:
        _print_report(job)


@app.command(epilog='Example: cohyde search demo "will I get wet on my way home" -k 3')
def search(
    run_name: Run,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A request in everyday words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many tools.")] = 5,
    state: Annotated[
        str | None, typer.Option("--state", metavar="E.r", help="A state of the run [default: the selected].")
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find the tools for a request with a trained run: the rewriter describes, the encoder retrieves."""
    from cohyde.terminal import print_search
    from stages.search import search_artifacts

    if not text.strip():
        raise UserError("the request is empty", "say in a sentence what the tools are for")
    job = _job_of(run_name, store)
    chosen = state or _report(job).selected or f"E.{job.settings.rounds}"
    evaluation, inputs = _artifacts(job, chosen)
    answer = search_artifacts(inputs, evaluation, job.settings, text, k)
    if as_json:
        typer.echo(json.dumps(answer.to_json(), ensure_ascii=False))
    else:
        print_search(answer)


@app.command(epilog="Example: cohyde doctor --config toolbench-h200 data.path=toolbench")
def doctor(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Check versions, GPUs, Ray, models and the store: what is missing, and how to get it."""
    from cohyde.config import load_config
    from cohyde.doctor import examine
    from cohyde.terminal import print_checks

    checks = examine(load_config(config, overrides or []), store)
    if as_json:
        typer.echo(json.dumps({"checks": [check.to_json() for check in checks]}, ensure_ascii=False))
    else:
        print_checks(checks)
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------------------ helpers


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run as a command works on it: its settings, the stages they come to, and where their artifacts lie."""

    name: str
    settings: "Config"
    store: "Store"
    preset: str
    overrides: tuple[str, ...]

    @cached_property
    def specs(self) -> "list[StageSpec]":
        """The stages."""
        from stages.pipeline import PIPELINES

        return PIPELINES["cohyde"](self.settings)

    @cached_property
    def plan(self) -> "Plan":
        """The stages with their fingerprints."""
        from cohyde.dag.plan import make_plan

        return make_plan(self.specs)


def _job(
    config: str, rounds: int | None, seed: int | None, overrides: list[str] | None, name: str | None, store: Path
) -> Job:
    from cohyde.config import load_config
    from cohyde.dag.runs import check_name
    from cohyde.dag.store import Store

    given = list(overrides or [])
    given += [f"rounds={rounds}"] if rounds is not None else []
    given += [f"seeds.loop={seed}"] if seed is not None else []
    settings = load_config(config, given)
    run_name = check_name(name or Path(config).stem)
    return Job(name=run_name, settings=settings, store=Store(store), preset=config, overrides=tuple(given))


def _job_of(run_name: str | None, store: Path) -> Job:
    """The job that a run's record describes; without a name, the latest."""
    from cohyde.config import Config, build
    from cohyde.dag.runs import latest_run, load_run
    from cohyde.dag.store import Store

    at = Store(store)
    record = load_run(at, run_name or latest_run(at))
    settings = build(Config, [(f"run {record.name}", record.config)])
    return Job(name=record.name, settings=settings, store=at, preset=record.preset, overrides=record.overrides)


def _fetch_models(job: Job) -> None:
    """Models from the hub are fetched before anything is fingerprinted: their commit is their identity."""
    from cohyde.models.reference import is_hub, resolve
    from cohyde.terminal import err

    for reference in dict.fromkeys((job.settings.encoder.model, job.settings.rewriter.model)):
        if is_hub(reference):
            err().print(f"fetching {reference} …")
            resolve(reference)


def _check_data(job: Job) -> None:
    """Faults of the data are found here, before Ray is started; the data stage would find the same."""
    from cohyde.data.dataset import dataset_folder, read_dataset

    node = next(node for node in job.plan.nodes.values() if node.id == "data")
    if not job.store.exists(node.id, node.fingerprint):
        read_dataset(dataset_folder(job.settings.data.path), drop_invalid=job.settings.data.drop_invalid)


def _execute(job: Job, address: str | None, until: str | None) -> None:
    """Run what is missing; where a stage fails, say which, why, where its log is and how to resume, and leave."""
    from cohyde.config import plain
    from cohyde.dag.runner import run as run_plan
    from cohyde.dag.runs import RunRecord, save_run
    from cohyde.live import Live
    from cohyde.terminal import print_failures

    part = job.plan.until(until) if until else job.plan
    _check_data(job)
    record = RunRecord(
        name=job.name,
        config=plain(job.settings),
        preset=job.preset,
        overrides=job.overrides,
        plan=job.plan,
    )
    job.store.prepare()
    save_run(job.store, record)
    with Live(job.name, part, _kinds(job)) as live:
        result = run_plan(
            part, job.store, run_name=job.name, address=address, retries=job.settings.runner.retries, on_event=live
        )
    if not result.ok:
        print_failures(result, resume=shlex.join(["cohyde", *sys.argv[1:]]))
        raise typer.Exit(1)


def _kinds(job: Job) -> dict[str, str]:
    return {spec.id: spec.kind for spec in job.specs}


def _print_states(job: Job, until: str | None, as_json: bool) -> None:
    from cohyde.dag.state import states
    from cohyde.terminal import out, states_table

    found = states(job.plan.until(until) if until else job.plan, job.store, run=job.name)
    if as_json:
        content = {"run": job.name, "store": str(job.store.root), "stages": [state.to_json() for state in found]}
        typer.echo(json.dumps(content, ensure_ascii=False))
    else:
        out().print(states_table(found, _kinds(job)))


def _report(job: Job) -> "Report":
    """The report over whatever evaluations are done."""
    from cohyde.evaluation.report import build_report
    from stages.folders import METRICS
    from stages.report import read_metrics

    done = {}
    for node in job.plan.nodes.values():
        path = job.store.artifact_path(node.id, node.fingerprint)
        if node.id.startswith("E.") and job.store.exists(node.id, node.fingerprint) and (path / METRICS).is_file():
            done[node.id] = read_metrics(path)
    return build_report(done, job.settings.search.mode)


def _print_report(job: Job) -> None:
    from cohyde.terminal import out, print_report

    found = _report(job)
    if not found.lines:
        raise UserError(f"run {job.name}: no evaluation is done yet", f"see how far it is: cohyde status {job.name}")
    print_report(out(), found, job.name)
    node = next(node for node in job.plan.nodes.values() if node.id == "report")
    if job.store.exists(node.id, node.fingerprint):
        out().print(f"[dim]{job.store.artifact_path(node.id, node.fingerprint) / 'report.md'}[/dim]", soft_wrap=True)


def _artifacts(job: Job, stage_id: str) -> "tuple[Path, dict[str, Path]]":
    """The folder of a finished stage, and those of its inputs."""
    node = job.plan.nodes[job.plan.named(stage_id)[0]]
    if not job.store.exists(node.id, node.fingerprint):
        raise UserError(f"run {job.name}: {stage_id} is not done yet", f"see how far it is: cohyde status {job.name}")
    sources = {name: job.plan.nodes[source] for name, source in node.inputs.items()}
    inputs = {name: job.store.usable(at.id, at.fingerprint, job.name) for name, at in sources.items()}
    return job.store.usable(node.id, node.fingerprint, job.name), inputs
