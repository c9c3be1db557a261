"""The command line. Heavy libraries are imported inside the commands that need them, so that ``--help`` is instant."""

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohyde import __version__
from cohyde.cli_data import app as data_app
from cohyde.cli_options import AsJson
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.config import Config
    from cohyde.dag.plan import Node, Plan
    from cohyde.dag.runner import RunResult
    from cohyde.dag.spec import StageSpec
    from cohyde.dag.state import StageState
    from cohyde.dag.store import Store
    from cohyde.evaluation.report import Report

app = typer.Typer(
    name="cohyde",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Co-train a dense encoder and an LLM rewriter, so that an agent finds the right tools from a vague request.",
    epilog="Start with [bold]cohyde run[/bold]: three rounds on the embedded sample. Each command has its own --help.",
)
RUNNING, RESULTS, DATA, SURROUNDINGS = "Run", "Results", "Data", "Surroundings"
DEFAULT_STORE = Path("store")

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Settings, for example [bold]encoder.train.lr=1e-5[/bold].", show_default=False
    ),
]
ConfigName = Annotated[str, typer.Option("--config", "-c", metavar="NAME|FILE", help="A preset, or a YAML file.")]
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", "-r", metavar="R", help="Rounds of co-training.", show_default="the preset's"),
]
Seed = Annotated[
    int | None, typer.Option("--seed", "-s", metavar="S", help="The loop's seed; the warm-up keeps its own.")
]
RunName = Annotated[
    str | None, typer.Option("--name", "-n", metavar="RUN", help="Name of the run.", show_default="the preset's")
]
StoreFolder = Annotated[
    Path, typer.Option("--store", metavar="DIR", envvar="COHYDE_STORE", help="Where artifacts and runs lie.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="ID", help="This stage and what it needs, for example S3.1.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")]
OptionalRun = Annotated[str | None, typer.Argument(metavar="RUN", help="Name of a run.", show_default="the latest")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="ADDR", help="A Ray cluster; without it a local Ray is started.")
]


def main() -> None:
    """Entry point: what the user can mend is said without a traceback, with exit status 2."""
    try:
        app(prog_name="cohyde")
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


@app.command(rich_help_panel=RUNNING, epilog="Example: cohyde run --config demo --rounds 3 dpo.beta=0.2")
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
    """Run every stage that is not done yet.

    Running the same command again is how one resumes it; what is finished is never run twice.
    """
    job = _job(config, rounds, seed, overrides, name, store)
    _fetch_models(job)
    _tell_differences(job)
    result = _execute(job, address, until, resume=shlex.join(["cohyde", *sys.argv[1:]]))
    if as_json:
        _print_json(job, result.states)
    elif result.ok and until is None:
        _print_report(job)
    if not result.ok:
        raise typer.Exit(1)


@app.command(rich_help_panel=RUNNING, epilog="Example: cohyde plan --rounds 10 --json")
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
    """Show the stages of a run and which of them are done; run nothing.

    Takes the arguments of [bold]run[/bold], and shows what that would do.
    """
    from cohyde.dag.state import states
    from cohyde.terminal import err, out, plan_table, summary

    job = _job(config, rounds, seed, overrides, name, store)
    found = states(job.plan.until(until) if until else job.plan, job.store, run=job.name)
    _tell_differences(job)
    if as_json:
        _print_json(job, found)
    else:
        console = out()
        console.print(plan_table(found, job.kinds, console))
    err().print(f"{job.name}: {summary(found)}", style="dim", markup=False)


@app.command(rich_help_panel=RUNNING, epilog="Example: cohyde status demo --watch")
def status(
    run_name: OptionalRun = None,
    store: StoreFolder = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every two seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far a run is."""
    from cohyde.dag.state import states
    from cohyde.terminal import err, out, print_failed, states_table, summary, watch_states

    job = _job_of(run_name, store)

    def look() -> "list[StageState]":
        return states(job.seen, job.store, run=job.name)

    if as_json:
        _print_json(job, look())
        return
    if watch:
        watch_states(look, job.kinds, job.store)
    found = look()
    if not watch:
        out().print(states_table(found, job.kinds, job.store))
    err().print(f"{job.name}: {summary(found)}", style="dim", markup=False)
    print_failed(found, job.store, resume=job.command)


@app.command(rich_help_panel=RUNNING, epilog="Example: cohyde rerun demo S4.1")
def rerun(
    run_name: Run,
    stage: Annotated[str, typer.Argument(metavar="ID", help="A stage, for example S3.1.")],
    store: StoreFolder = DEFAULT_STORE,
    address: Address = None,
) -> None:
    """Run a stage and all below it again.

    Their artifacts are discarded first; all others stay.
    """
    from cohyde.dag.runner import check_inputs
    from cohyde.dag.session import check_address
    from cohyde.terminal import err

    job = _job_of(run_name, store)
    job = replace(job, recorded=None)  # the stages as they are today
    below = job.plan.below(stage)
    todo = [*below, *_missing(job)]
    _check_data(job, todo)
    check_inputs(job.plan, todo, job.store, job.name)
    if address is not None:
        check_address(address)
    gone = [node.id for node in below if job.store.discard(node.id, node.fingerprint)]
    err().print(f"{job.name}: discarded {', '.join(gone) or 'nothing: none of them was done'}", style="dim")
    result = _execute(job, address, None, resume=job.command)
    if not result.ok:
        raise typer.Exit(1)
    _print_report(job)


# ---------------------------------------------------------------------------------------------------- results


@app.command(rich_help_panel=RESULTS, epilog="Example: cohyde report demo --json")
def report(run_name: OptionalRun = None, store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show the tables of a run: each round, by split and tier.

    Of a run that is under way it shows what there is.
    """
    from cohyde.terminal import print_json

    job = _job_of(run_name, store)
    if as_json:
        found = _report(job)
        print_json({"run": job.name, "selected": found.selected, "rows": list(found.rows)})
    else:
        _print_report(job)


@app.command(rich_help_panel=RESULTS, epilog='Example: cohyde search demo "will I get wet on my way home" -k 3')
def search(
    run_name: Run,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A request in everyday words.")],
    k: Annotated[int, typer.Option("-k", metavar="K", min=1, max=1000, help="How many tools.")] = 5,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="E.r", help="A state of the run.", show_default="the selected"),
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find the tools for a request with a trained run.

    The rewriter describes what would fulfil it, the encoder retrieves.
    """
    from cohyde.terminal import err, print_json, print_search
    from stages.search import search_artifacts

    if not text.strip():
        raise UserError("the request is empty", "say in a sentence what the tools are for")
    job = _job_of(run_name, store)
    chosen = state or _report(job).selected or f"E.{job.settings.rounds}"
    evaluation, inputs = _searchable(job, chosen)
    # The libraries' own bars and advice are no part of the answer.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with err().status(f"searching with {chosen} of {job.name} …"):
        answer = search_artifacts(inputs, evaluation, job.settings, text, k)
    if as_json:
        print_json(answer.to_json())
    else:
        print_search(answer)


@app.command(rich_help_panel=SURROUNDINGS, epilog="Example: cohyde doctor --config toolbench-h200 data.path=toolbench")
def doctor(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Check versions, GPUs, models, data and the store.

    Says what a run of this configuration lacks, and how to get it.
    """
    from cohyde.config import load_config
    from cohyde.doctor import examine
    from cohyde.terminal import print_checks, print_json

    checks = examine(load_config(config, overrides or []), store)
    if as_json:
        print_json({"checks": [check.to_json() for check in checks]})
    else:
        print_checks(checks)
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


app.add_typer(data_app, name="data", rich_help_panel=DATA)


# ------------------------------------------------------------------------------------------------------ helpers


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
        where = [] if self.store.root == DEFAULT_STORE.absolute() else ["--store", str(self.store.root)]
        return shlex.join(["cohyde", "run", "--config", self.preset, "--name", self.name, *where, *self.overrides])


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
    return Job(
        name=record.name,
        settings=settings,
        store=at,
        preset=record.preset,
        overrides=record.overrides,
        recorded=record.plan,
    )


def _fetch_models(job: Job) -> None:
    """Models from the hub are fetched before anything is fingerprinted: their commit is their identity."""
    from cohyde.models.reference import is_cached, is_hub, resolve
    from cohyde.terminal import err

    for reference in dict.fromkeys((job.settings.encoder.model, job.settings.rewriter.model)):
        if is_hub(reference) and not is_cached(reference):
            err().print(f"fetching {reference} …")
            resolve(reference)


def _tell_differences(job: Job) -> None:
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


def _missing(job: Job) -> "list[Node]":
    return [node for node in job.plan.nodes.values() if not job.store.exists(node.id, node.fingerprint)]


def _check_data(job: Job, todo: "Iterable[Node]") -> None:
    """Faults of the data are found here, before Ray is started; the data stage would find the same."""
    from cohyde.data.dataset import dataset_folder, read_dataset

    if any(node.id == "data" for node in todo):
        read_dataset(dataset_folder(job.settings.data.path), drop_invalid=job.settings.data.drop_invalid)


def _execute(job: Job, address: str | None, until: str | None, resume: str) -> "RunResult":
    """Run what is missing; where a stage fails, say which, why, where its log is and how to resume."""
    from cohyde.config import plain
    from cohyde.dag.runner import run as run_plan
    from cohyde.dag.runs import RunRecord, save_run
    from cohyde.live import Live
    from cohyde.terminal import print_failures, print_interrupted

    part = job.plan.until(until) if until else job.plan
    _check_data(job, _missing(job))
    record = RunRecord(
        name=job.name,
        config=plain(job.settings),
        preset=job.preset,
        overrides=job.overrides,
        plan=job.plan,
    )
    job.store.prepare()
    save_run(job.store, record)
    how = job.settings.runner
    try:
        with Live(job.name, part, job.kinds) as live:
            result = run_plan(part, job.store, run_name=job.name, address=address, how=how, on_event=live)
            live.end(result)
    except KeyboardInterrupt:
        print_interrupted(job.name, resume)
        raise typer.Exit(130) from None
    if not result.ok:
        print_failures(result, resume)
    return result


def _print_json(job: Job, found: "Sequence[StageState]") -> None:
    from cohyde.terminal import print_json

    print_json({"run": job.name, "store": str(job.store.root), "stages": [state.to_json() for state in found]})


def _report(job: Job) -> "Report":
    """The report over whatever evaluations are done."""
    from cohyde.evaluation.report import build_report
    from stages.folders import METRICS
    from stages.report import read_metrics

    done = {}
    for node in job.seen.nodes.values():
        if node.id.startswith("E.") and job.store.exists(node.id, node.fingerprint):
            path = job.store.usable(node.id, node.fingerprint, job.name)
            if (path / METRICS).is_file():
                done[node.id] = read_metrics(path)
    return build_report(done, job.settings.search.mode)


def _print_report(job: Job) -> None:
    from cohyde.terminal import out, print_report

    found = _report(job)
    if not found.lines:
        raise UserError(f"run {job.name}: no evaluation is done yet", f"see how far it is: cohyde status {job.name}")
    print_report(out(), found, job.name)
    node = next(node for node in job.seen.nodes.values() if node.id == "report")
    if job.store.exists(node.id, node.fingerprint):
        out().print(f"[dim]{job.store.artifact_path(node.id, node.fingerprint) / 'report.md'}[/dim]", soft_wrap=True)


def _searchable(job: Job, stage_id: str) -> "tuple[Path, dict[str, Path]]":
    """The folder of a finished evaluation, and those of what it evaluated."""
    node = job.seen.nodes[job.seen.named(stage_id)[0]]
    if not {"data", "encoder", "rewriter"} <= set(node.inputs) or not node.id.startswith("E."):
        states = [one.id for one in job.seen.nodes.values() if one.id.startswith("E.") and "rewriter" in one.inputs]
        raise UserError(f"{stage_id} is no state that can be searched with", f"states are: {', '.join(states)}")
    if not job.store.exists(node.id, node.fingerprint):
        raise UserError(f"run {job.name}: {stage_id} is not done yet", f"see how far it is: cohyde status {job.name}")
    _check_prompts(job.store.manifest(node.id, node.fingerprint, job.name).prompts, job.name)
    sources = {name: job.seen.nodes[source] for name, source in node.inputs.items()}
    inputs = {name: job.store.usable(at.id, at.fingerprint, job.name) for name, at in sources.items()}
    return job.store.usable(node.id, node.fingerprint, job.name), inputs


def _check_prompts(prompts: Mapping[str, str], run_name: str) -> None:
    """The rewriter was trained and scored with a prompt's text; asked with another it would describe otherwise."""
    from cohyde.rewriter.prompts import prompt_hash

    for name, sha256 in prompts.items():
        if prompt_hash(name) != sha256:
            raise UserError(
                f"prompts/{name}.yaml has changed since run {run_name} was trained with it",
                "put its text back, or train with the new one: cohyde run",
            )
