"""``cohyde submit``: a command as a job of a Ray cluster, with what it uploads listed first."""

import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohyde.cli_options import DEFAULT_STORE, AsJson
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.dag.submit import JobServer
    from cohyde.dag.upload import Upload

ON_CLUSTER = ("run", "rerun", "sweep", "plan")
"""Commands that can be submitted."""
JOINING = ("run", "rerun", "sweep")
"""Those that join the cluster they run on."""
RAYS_OWN_LIMIT_MB = 500
"""Ray keeps uploads in its head's memory, 512 MiB at most."""

Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND…", help=f"One of {', '.join(ON_CLUSTER)}, and its arguments, after --.")
]


def submit(
    command: Command,
    address: Annotated[
        str,
        typer.Option("--address", metavar="URL", envvar="RAY_API_SERVER_ADDRESS", help="The cluster's dashboard."),
    ] = "http://127.0.0.1:8265",
    working_dir: Annotated[
        Path,
        typer.Option(
            "--working-dir", metavar="DIR", help="What is uploaded, and where the command runs.", show_default="here"
        ),
    ] = Path("."),
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="The cluster's interpreter that has what cohyde needs.")
    ] = "python",
    max_mb: Annotated[
        int, typer.Option("--max-mb", metavar="MB", min=1, max=RAYS_OWN_LIMIT_MB, help="Refuse to upload more.")
    ] = 100,
    follow: Annotated[
        bool | None,
        typer.Option("--follow/--no-follow", help="Show the job's output until it ends.", show_default="in a terminal"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be uploaded; submit nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a command as a job of a Ray cluster.

    Uploads the working folder: what Git tracks or would, without stores, checkpoints and environments. The store and
    the data have to lie where every machine of the cluster sees them.
    """
    from cohyde.dag.upload import MEGABYTE, collect, listing
    from cohyde.terminal import print_json, print_warning

    line, name, notes = job_line(command, os.environ, working_dir, python)
    upload = collect(working_dir, max_mb * MEGABYTE)
    for note in notes:
        print_warning(note)
    content: dict[str, Any] = {"command": line, "files": len(upload.files), "bytes": upload.size}
    if dry_run:
        if as_json:
            print_json({**content, "upload": upload.files})
        else:
            print(listing(list(upload.files.items())))
        _say(upload, line, None)
        return
    from cohyde.dag.submit import JobServer

    _say(upload, line, address)
    server = JobServer(address)
    server.submit(upload, line, name)
    content = {"job": name, "address": server.address, **content}
    if not as_json:
        print(name, flush=True)
    _say_how_to_look(server.address, name)
    if follow if follow is not None else sys.stdout.isatty():
        _follow(server, name, content, as_json)
    elif as_json:
        print_json({**content, "status": "SUBMITTED"})


def _follow(server: "JobServer", name: str, content: dict[str, Any], as_json: bool) -> None:
    """Show the job's output, and leave as it left."""
    from cohyde.terminal import err, print_json

    stream = sys.stderr if as_json else sys.stdout
    try:
        ending = server.follow(name, lambda text: print(text, end="", file=stream, flush=True))
    except KeyboardInterrupt:
        err().print(f"{name} goes on without being followed", style="yellow", markup=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json({**content, "status": ending.status, "exit_status": ending.exit_status})
    if ending.exit_status:
        err().print(f"{name}: {ending.status}: {ending.reason}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(ending.exit_status)


# -------------------------------------------------------------------------------------------- the command line


def job_line(
    command: Sequence[str], environment: Mapping[str, str], working_dir: Path, python: str = "python"
) -> tuple[str, str, list[str]]:
    """What the cluster's shell runs, a name for the job, and what the user should know.

    Args:
        command: as it would be typed after ``cohyde``.
        environment: of this process; its ``COHYDE_STORE`` holds where the command names no store.
        working_dir: the folder that is uploaded.
        python: the cluster's interpreter.

    Raises:
        UserError: no such command, a wrong configuration, or a store that would be lost with the job.
        click.UsageError: wrong options.
    """
    verb, *arguments = command
    if verb not in ON_CLUSTER:
        raise UserError(
            f"{verb!r} cannot be submitted",
            f"write: cohyde submit -- {ON_CLUSTER[0]} …, with one of {', '.join(ON_CLUSTER)}",
        )
    given = parsed(verb, arguments)
    arguments = [*arguments, *_store(given, arguments, environment)]
    if verb in JOINING and given.get("address") is None:
        arguments += ["--address", "auto"]
    notes = _data_notes(verb, given, working_dir)
    stem = str(given.get("name") or given.get("run_name") or Path(str(given.get("config", verb))).stem)
    name = f"cohyde-{re.sub('[^A-Za-z0-9_-]', '-', stem)[:40]}-{secrets.token_hex(4)}"
    return shlex.join([python, "-m", "cohyde", verb, *arguments]), name, notes


def parsed(verb: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The command's parameters: what is misspelt is told here, not by the job."""
    from typer.main import get_command

    from cohyde.cli import app

    known = get_command(app).commands[verb]  # type: ignore[attr-defined]
    return dict(known.make_context(f"cohyde {verb}", list(arguments)).params)


def _store(given: Mapping[str, Any], arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The option to add for the store.

    Raises:
        UserError: it lies below the job's folder, which Ray removes.
    """
    store = str(given.get("store") or DEFAULT_STORE)
    if not (store.startswith("/") or "://" in store):
        raise UserError(
            f"the store is {store!r}: below the job's own folder, which no other machine sees and Ray removes",
            "name a folder of the cluster's shared file system: --store /shared/store, or set COHYDE_STORE",
        )
    said = any(argument == "--store" or argument.startswith("--store=") for argument in arguments)
    return [] if said or environment.get("COHYDE_STORE") is None else ["--store", store]


def _data_notes(verb: str, given: Mapping[str, Any], working_dir: Path) -> list[str]:
    """A warning where the data is not where every machine sees it.

    Raises:
        UserError: the configuration is wrong.
    """
    from cohyde.config import load_config

    config = given.get("config")
    if config is None:  # a run's record names its data
        return []
    overrides = [str(one) for one in given.get("overrides") or ()]
    if verb == "sweep":  # whose settings may have several values each
        overrides = [one for one in overrides if one.startswith("data.path=")]
    path = load_config(str(config), overrides).data.path
    if path == "sample" or path.startswith("/"):
        return []
    if (working_dir / path).is_dir():
        return [f"data.path is {path!r}: it has to be among the files that are uploaded"]
    return [f"data.path is {path!r}, which is not here: name a folder of the cluster's shared file system"]


# ------------------------------------------------------------------------------------------------ what is said


def _say(upload: "Upload", line: str, address: str | None) -> None:
    from cohyde.dag.upload import megabytes
    from cohyde.terminal import err

    console = err()
    largest = ", ".join(f"{path} {megabytes(size)}" for path, size in upload.largest()[:2])
    count = len(upload.files)
    what = f"{count} file{'' if count == 1 else 's'}, {megabytes(upload.size)}, of {upload.folder}"
    where = f"uploading to {address}" if address else "would upload"
    console.print(f"{where}: {what} (largest: {largest})", style="dim", markup=False, soft_wrap=True)
    console.print(f"to run: {line}", style="dim", markup=False, soft_wrap=True)


def _say_how_to_look(address: str, name: str) -> None:
    from cohyde.terminal import err

    console = err()
    for what, command in (("look", f"logs {name} --follow"), ("state", f"status {name}"), ("stop", f"stop {name}")):
        line = f"  {what + ':':<7} ray job {command} --address {address}"
        console.print(line, style="dim", markup=False, soft_wrap=True)
