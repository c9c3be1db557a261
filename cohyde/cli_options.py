"""Options that several groups of commands take, the headings of help, and the commands that messages advise."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

RUNNING, RESULTS, DATA, STORE, SURROUNDINGS = "Run", "Results", "Data", "Store", "Surroundings"
DEFAULT_STORE = "store"

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
    str,
    typer.Option(
        "--store", metavar="DIR|URL", envvar="COHYDE_STORE", help="Where artifacts lie; or s3://BUCKET/PREFIX."
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="ID", help="This stage and what it needs, for example S3.1.")
]
AblationKey = Annotated[
    str | None,
    typer.Option("--ablation", metavar="KEY", help="An ablation of this run; see [bold]cohyde eval list[/bold]."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")]
OptionalRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Name of a run or a sweep.", show_default="the latest")
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="ADDR", help="A Ray cluster; without it a local Ray is started.")
]
State = Annotated[
    str | None, typer.Option("--state", metavar="E.r", help="A state of the run.", show_default="the selected")
]
IndexFolder = Annotated[
    Path | None,
    typer.Option(
        "--index",
        metavar="DIR",
        help="Search in what [bold]cohyde index[/bold] wrote.",
        show_default="the run's own catalogue",
    ),
]
ProbedModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="Try vLLM's prefix caching with this model; that takes minutes."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for programs.")]


def prepare_for_models() -> None:
    """What has to be said to the libraries before they are imported, where a model runs in this very process."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait do not spin: others may be at work here
    # The libraries' own bars and advice are no part of the answer.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def store_option(location: str) -> list[str]:
    """The option that names a store; none for the usual one."""
    return [] if location == str(Path(DEFAULT_STORE).absolute()) else ["--store", location]


def run_command(name: str, preset: str, overrides: Sequence[str], location: str) -> str:
    """What goes on with a run."""
    return shlex.join(["cohyde", "run", "--config", preset, "--name", name, *store_option(location), *overrides])
