"""The command line. Heavy libraries are imported inside the commands that need them, so that ``--help`` is instant."""

import shlex
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cohyde import __version__
from cohyde.cli_data import app as data_app
from cohyde.cli_eval import app as eval_app
from cohyde.cli_export import export
from cohyde.cli_index import app as index_app
from cohyde.cli_jobs import (
    check_data,
    check_engine,
    execute,
    fetch_models,
    job_of,
    make_job,
    print_report_of,
    print_states_json,
    tell_differences,
    unfinished,
)
from cohyde.cli_options import (
    DATA,
    DEFAULT_STORE,
    RESULTS,
    RUNNING,
    STORE,
    SURROUNDINGS,
    AblationKey,
    Address,
    AsJson,
    ConfigName,
    IndexFolder,
    OptionalRun,
    Overrides,
    ProbedModel,
    Rounds,
    Run,
    RunName,
    Seed,
    State,
    StoreFolder,
    Until,
    prepare_for_models,
)
from cohyde.cli_report import report
from cohyde.cli_serve import EXAMPLE as SERVE_EXAMPLE
from cohyde.cli_serve import serve
from cohyde.cli_store import gc, verify
from cohyde.cli_submit import submit
from cohyde.cli_sweep import find_sweep, sweep, sweep_status
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.dag.state import StageState

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
    ablation: AblationKey = None,
    as_json: AsJson = False,
) -> None:
    """Run every stage that is not done yet.

    Running the same command again is how one resumes it; what is finished is never run twice.
    """
    job = make_job(config, rounds, seed, overrides, name, store, ablation)
    fetch_models([job])
    check_engine([job], address)
    tell_differences(job)
    result = execute(job, address, until, resume=shlex.join(["cohyde", *sys.argv[1:]]))
    if as_json:
        print_states_json(job, result.states)
    elif result.ok and until is None:
        print_report_of(job)
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
    ablation: AblationKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages of a run and which of them are done; run nothing.

    Takes the arguments of [bold]run[/bold], and shows what that would do.
    """
    from cohyde.dag.state import states
    from cohyde.terminal import err, out, plan_table, summary

    job = make_job(config, rounds, seed, overrides, name, store, ablation)
    found = states(job.plan.until(until) if until else job.plan, job.store, run=job.name)
    tell_differences(job)
    if as_json:
        print_states_json(job, found)
    else:
        console = out()
        console.print(plan_table(found, job.kinds, console))
    err().print(f"{job.name}: {summary(found)}", style="dim", markup=False)
    if ablation is not None:
        main = make_job(config, rounds, seed, overrides, None, store)
        shared = sum(name in main.plan.nodes for name in job.plan.nodes)
        err().print(f"{shared} of its {len(job.plan.nodes)} stages are those of {main.name}", style="dim")


app.command(rich_help_panel=RUNNING, epilog="Example: cohyde sweep --seeds 0,123,7 dpo.beta=0.1,0.2")(sweep)


@app.command(rich_help_panel=RUNNING, epilog="Example: cohyde status demo --watch")
def status(
    run_name: OptionalRun = None,
    store: StoreFolder = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every two seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far a run or a sweep is."""
    from cohyde.dag.state import states
    from cohyde.terminal import err, out, print_failed, states_table, summary, watch_states

    if (swept := find_sweep(run_name, store)) is not None:
        sweep_status(swept, watch, as_json)
        return
    job = job_of(run_name, store)

    def look() -> "list[StageState]":
        return states(job.seen, job.store, run=job.name)

    if as_json:
        print_states_json(job, look())
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

    job = job_of(run_name, store)
    job = replace(job, recorded=None)  # the stages as they are today
    below = job.plan.below(stage)
    todo = [*below, *unfinished(job)]
    check_data(job, todo)
    check_inputs(job.plan, todo, job.store, job.name)
    if address is not None:
        check_address(address)
    gone = [node.id for node in below if job.store.discard(node.id, node.fingerprint)]
    err().print(f"{job.name}: discarded {', '.join(gone) or 'nothing: none of them was done'}", style="dim")
    result = execute(job, address, None, resume=job.command)
    if not result.ok:
        raise typer.Exit(1)
    print_report_of(job)


# ---------------------------------------------------------------------------------------------------- results


app.command(rich_help_panel=RESULTS, epilog="Example: cohyde report demo demo-without-sft --to tables")(report)


@app.command(rich_help_panel=RESULTS, epilog='Example: cohyde search demo "will I get wet on my way home" -k 3')
def search(
    run_name: Run,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A request in everyday words.")],
    k: Annotated[int, typer.Option("-k", metavar="K", min=1, max=1000, help="How many tools.")] = 5,
    state: State = None,
    index: IndexFolder = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find the tools for a request with a trained run.

    The rewriter describes what would fulfil it, the encoder retrieves.
    """
    from cohyde.dag.remote import open_store
    from cohyde.retrieval.live import LiveRetriever
    from cohyde.retrieval.requests import check_query
    from cohyde.terminal import err, print_json, print_search
    from stages.search import find_trained

    check_query(text, max(1, len(text)))  # how long it may be, the run says
    started = time.perf_counter()
    trained = find_trained(open_store(store), run_name, state)
    prepare_for_models()
    searching = err().status(f"searching with {trained.state} of {trained.name} …")
    with searching, LiveRetriever.open(trained, index=index) as retriever:
        loaded = time.perf_counter()
        [answer] = retriever.search([text], k)
    answer = replace(answer, timings={"load": round(loaded - started, 4), **answer.timings})
    if as_json:
        print_json(answer.to_json())
    else:
        print_search(answer)


app.command(rich_help_panel=RESULTS, epilog=SERVE_EXAMPLE)(serve)
app.command(rich_help_panel=RESULTS, epilog="Example: cohyde export demo --to demo-models")(export)


@app.command(rich_help_panel=SURROUNDINGS, epilog="Example: cohyde doctor --config toolbench-h200 data.path=toolbench")
def doctor(
    overrides: Overrides = None,
    config: ConfigName = "demo",
    store: StoreFolder = DEFAULT_STORE,
    model: ProbedModel = None,
    as_json: AsJson = False,
) -> None:
    """Check versions, GPUs, models, data and the store.

    Says what a run of this configuration lacks, and how to get it. With [bold]--model[/bold] it tries, too, whether
    vLLM writes the same with prefix caching, which is off for models with linear attention until that was found.
    """
    from cohyde.config import load_config
    from cohyde.doctor import check_prefix_caching, examine
    from cohyde.terminal import print_checks, print_json

    loaded = load_config(config, overrides or [])
    checks = examine(loaded, store)
    if model is not None:
        checks.append(check_prefix_caching(model, loaded))
    if as_json:
        print_json({"checks": [check.to_json() for check in checks]})
    else:
        print_checks(checks)
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


app.command(
    rich_help_panel=RUNNING,
    epilog="Example: cohyde submit --address http://head:8265 -- run --config toolbench-h200 --store /shared/store",
)(submit)
app.command(rich_help_panel=STORE, epilog="Example: cohyde verify --discard")(verify)
app.command(rich_help_panel=STORE, epilog="Example: cohyde gc --yes")(gc)
app.add_typer(eval_app, name="eval", rich_help_panel=RESULTS)
app.add_typer(index_app, name="index", rich_help_panel=RESULTS)
app.add_typer(data_app, name="data", rich_help_panel=DATA)
