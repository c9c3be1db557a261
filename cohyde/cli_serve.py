"""``cohyde serve``: a trained run that answers over HTTP or MCP until it is told to stop."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohyde.cli_options import DEFAULT_STORE, IndexFolder, State, StoreFolder, prepare_for_models
from cohyde.errors import UserError

if TYPE_CHECKING:
    import socket

    from cohyde.retrieval.live import LiveRetriever
    from cohyde.retrieval.trained import Trained

EXAMPLE = 'Example: cohyde serve demo --port 8080, then curl localhost:8080/search --json \'{"query": "will it rain"}\''
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080


def serve(
    run: Annotated[
        str, typer.Argument(metavar="RUN|DIR", help="Name of a run, or a folder that [bold]export[/bold] wrote.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of [bold]serve[/bold], [bold]search[/bold], [bold]index[/bold], the rewriter's backend, "
            "the encoder's embedder.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="H", help="The address to listen on.")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="P", min=0, max=65535, help="The port; 0 takes a free one.")
    ] = DEFAULT_PORT,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Speak MCP over standard input and output, in place of HTTP.")
    ] = False,
    state: State = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FILE",
            dir_okay=False,
            help="Keep changes of the catalogue here, and start from it where it exists.",
            show_default="they are gone when the server ends",
        ),
    ] = None,
    index: IndexFolder = None,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Answer requests with a trained run, over HTTP or MCP.

    POST /search answers as [bold]search --json[/bold] prints; /docs shows the rest, MCP is at /mcp. Where the rewriter
    fails or is slow, the encoder answers alone and says so. With COHYDE_TOKEN set, clients have to send that token.
    """
    from cohyde.terminal import err, print_warning

    _check_installed()
    token = "" if mcp else token_from(os.environ.get("COHYDE_TOKEN", ""))
    if not mcp:
        from cohyde.server.app import is_loopback
        from cohyde.server.http import listen

        own = listen(host, port)
        if not is_loopback(host) and not token:
            print_warning(
                f"whoever reaches {host}:{own.getsockname()[1]} may search: set COHYDE_TOKEN to a secret of your own. "
                "Without it the catalogue cannot be changed."
            )
    trained = trained_of(run, overrides or [], state, store)
    prepare_for_models()
    with err().status(f"loading {_named(trained)} …"):
        retriever = _open(trained, keep, index)
    if mcp:
        _serve_mcp(retriever, trained)
        return
    _serve_http(retriever, trained, own, host, token)


def token_from(given: str) -> str:
    """The token that clients have to send; empty where there is none.

    Raises:
        UserError: it cannot be sent in a header. It is not repeated.
    """
    token = given.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UserError("COHYDE_TOKEN holds characters that no header can", "use letters and digits")
    return token


def _check_installed() -> None:
    """What is imported here alone is an extra of its own."""
    try:
        import fastapi  # noqa: F401
        import mcp  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"cohyde serve needs {error.name}", "install the extra: pip install 'cohyde[serve]'") from None


def trained_of(run: str, overrides: list[str], state: str | None, store: str) -> "Trained":
    """The models that a run's name, or an exported folder, means.

    Raises:
        UserError: there are none, or an override is none.
    """
    from cohyde.dag.remote import open_store
    from cohyde.exported import RECIPE, read_trained
    from cohyde.retrieval.trained import with_settings
    from stages.search import find_trained

    folder = Path(run)
    if not (folder / RECIPE).is_file():
        return with_settings(find_trained(open_store(store), run, state), overrides)
    if state is not None:
        raise UserError(f"{folder} is an exported run, which has one state", "leave out --state")
    return with_settings(read_trained(folder), overrides)


def _named(trained: "Trained") -> str:
    return f"{trained.state} of {trained.name}" if trained.state else trained.name


def _open(trained: "Trained", keep: Path | None, index: Path | None) -> "LiveRetriever":
    from cohyde.retrieval.live import LiveRetriever

    limits = trained.serve
    deadline = limits.rewriter_deadline_seconds
    return LiveRetriever.open(trained, index=index, limits=limits, deadline_seconds=deadline, keep=keep)


def _serve_mcp(retriever: "LiveRetriever", trained: "Trained") -> None:
    from cohyde.server.mcp import serve_stdio
    from cohyde.terminal import err

    err().print(f"{_summary(retriever, trained)}; MCP on standard input and output", markup=False, soft_wrap=True)
    try:
        serve_stdio(retriever, trained.name)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        retriever.close(trained.serve.shutdown_seconds)


def _serve_http(retriever: "LiveRetriever", trained: "Trained", own: "socket.socket", host: str, token: str) -> None:
    from cohyde.server.app import make_app
    from cohyde.server.http import serve_http
    from cohyde.terminal import err

    limits = trained.serve
    app = make_app(retriever, limits=limits, run=trained.name, state=trained.state, token=token, host=host)
    address = f"http://{f'[{host}]' if ':' in host else host}:{own.getsockname()[1]}"

    def tell() -> None:
        console = err()
        console.print(_summary(retriever, trained), markup=False, soft_wrap=True)
        console.print(f"answering at {address} (/docs, /metrics, /mcp); Ctrl-C ends it", markup=False, soft_wrap=True)

    try:
        ended_by = serve_http(app, own, limits, tell)
    finally:
        retriever.close(limits.shutdown_seconds)
    err().print("ended; what was in work was answered", style="dim")
    if ended_by == signal.SIGINT:
        raise typer.Exit(130)


def _summary(retriever: "LiveRetriever", trained: "Trained") -> str:
    from cohyde.rewriter.generate import chosen

    tools = len(retriever.catalog.current.tools)
    backend = chosen(trained.rewriting).backend if retriever.descriptions else "none"
    return f"{_named(trained)}: {tools:,} tools, searched with: {trained.search.mode}, rewriter: {backend}"
