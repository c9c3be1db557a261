"""``cohyde index``: an index of a catalogue as a folder of its own, made, changed, measured, and searched in."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohyde.cli_options import DEFAULT_STORE, AsJson, State, StoreFolder, prepare_for_models
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.retrieval.catalog import Change
    from cohyde.retrieval.index_building import IndexStats
    from cohyde.retrieval.index_folder import IndexCard
    from cohyde.retrieval.trained import Trained

app = typer.Typer(
    no_args_is_help=True,
    help="Make an index of a catalogue, change it, and measure what it finds.",
    epilog="Search in it: cohyde search RUN TEXT --index DIR, or cohyde serve RUN --index DIR.",
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="An index: what [bold]index build[/bold] wrote.")]
To = Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder to write.", show_default=False)]


@app.command(epilog="Example: cohyde index build demo --catalog tools.jsonl --to big index.kind=hnsw")
def build(
    run: Annotated[
        str, typer.Argument(metavar="RUN|DIR", help="Name of a run, or a folder that [bold]export[/bold] wrote.")
    ],
    to: To,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Such as [bold]index.kind=hnsw[/bold] (exact, hnsw, ivf) or [bold]index.dtype=float16[/bold].",
            show_default=False,
        ),
    ] = None,
    catalog: Annotated[
        Path | None,
        typer.Option("--catalog", metavar="FILE", help="Tools: JSON Lines, as a dataset's.", show_default="the run's"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index at --to.")] = False,
    state: State = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Embed a catalogue with a run's encoder, and write its index.

    exact compares with every tool, up to some 200,000. Beyond, hnsw and ivf
    are faster and miss a little: how much is measured, as is float16's cost.
    """
    from cohyde.live import Work
    from cohyde.retrieval.catalog import read_tools
    from cohyde.retrieval.index_building import build_index

    trained = _of_run(run, state, store, overrides or ())
    tools = trained.tools if catalog is None else tuple(read_tools(catalog))
    prepare_for_models()
    with Work("embedding") as work:
        card = build_index(trained, tools, to, work, overwrite=overwrite)
    if as_json:
        _print_json(to, asdict(card))
        return
    _say(f"{to}: {_described(card.tools, card.dimensions, card.config.kind, card.config.dtype)}")
    if card.recall is not None:
        _say(f"recall@{card.recall['k']} against exact float32: {card.recall['value']:.4f}")
    _say(f'search in it: cohyde search {run} "will I get wet on my way home" --index {to}')


@app.command(epilog="Example: cohyde index add big new-tools.jsonl --run demo")
def add(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tools: JSON Lines, as a dataset's catalog.jsonl.")],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN|DIR", help="Whose encoder.", show_default="the run it was built with"),
    ] = None,
    state: State = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Add tools to an index, or replace those that have their ids.

    Only what the index does not have yet is embedded.
    """
    from cohyde.live import Work
    from cohyde.retrieval.catalog import read_tools
    from cohyde.retrieval.index_building import add_tools
    from cohyde.retrieval.index_folder import read_index_card

    card, _ = read_index_card(folder)
    tools = read_tools(file)
    trained = _of_run(run, state, store) if run is not None else _of_card(card, state, store)
    prepare_for_models()
    with Work("embedding") as work:
        change = add_tools(folder, tools, trained, work)
    _tell(folder, change, as_json)


@app.command(epilog="Example: cohyde index remove big weather/forecast weather/alerts")
def remove(
    folder: Folder,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of tools.")],
    as_json: AsJson = False,
) -> None:
    """Remove tools from an index. Needs no encoder."""
    from cohyde.retrieval.index_building import remove_tools

    _tell(folder, remove_tools(folder, ids), as_json)


@app.command(epilog="Example: cohyde index stats big -k 5 --json")
def stats(
    folder: Folder,
    k: Annotated[int, typer.Option("-k", metavar="K", min=1, max=1000, help="Neighbours that are looked for.")] = 10,
    sampled: Annotated[
        int, typer.Option("--sample", metavar="N", min=1, help="Tools whose neighbours are looked for.")
    ] = 200,
    as_json: AsJson = False,
) -> None:
    """Show the size of an index, what it misses, and how long a search takes.

    Recall is of sampled tools' neighbours, against an exact search over the
    vectors as it holds them; float16's cost was measured when it was built.
    """
    from cohyde.retrieval.index_building import measure_index
    from cohyde.terminal import err

    with err().status(f"measuring {folder} …"):
        found = measure_index(folder, k, sampled)
    if as_json:
        measured = {"bytes": found.bytes, "recall": found.recall}
        latency = {"median_ms": round(found.median_ms, 4), "p95_ms": round(found.p95_ms, 4)}
        built = asdict(found.card)
        _print_json(folder, built | {"built_recall": built.pop("recall")} | measured | latency)
        return
    _print_stats(folder, found)


def _of_run(run: str, state: str | None, store: str, overrides: Sequence[str] = ()) -> "Trained":
    from cohyde.cli_serve import trained_of

    return trained_of(run, list(overrides), state, store)


def _of_card(card: "IndexCard", state: str | None, store: str) -> "Trained":
    """What the index was built with, if it is still there."""
    try:
        return _of_run(card.run, state or card.state or None, store)
    except UserError as error:
        remedy = f"the index was built with run {card.run}; say where it is now: --run RUN|DIR, --store DIR"
        raise UserError(error.message, remedy) from None


def _described(tools: int, dimensions: int, kind: str, dtype: str) -> str:
    return f"{tools:,} tools, {dimensions} dimensions, {kind}, {dtype}"


def _say(line: str) -> None:
    from cohyde.terminal import err

    err().print(line, style="dim", markup=False, soft_wrap=True)


def _print_json(folder: Path, told: dict[str, Any]) -> None:
    from cohyde.config import plain
    from cohyde.terminal import print_json

    print_json({"index": str(folder), **plain(told)})


def _tell(folder: Path, change: "Change", as_json: bool) -> None:
    told = asdict(change)
    if as_json:
        _print_json(folder, told)
        return
    counts = ", ".join(f"{told[name]:,} {name}" for name in ("added", "changed", "unchanged", "removed") if told[name])
    _say(f"{folder}: {counts or 'nothing changed'}; {change.embedded:,} embedded; {change.tools:,} tools now")


def _print_stats(folder: Path, found: "IndexStats") -> None:
    from cohyde.terminal import out, plain_table
    from cohyde.terminal_store import size

    card = found.card
    table = plain_table(("", "left"), ("", "left"))
    rows = {
        "kind": f"{card.config.kind}, {card.config.dtype}",
        "tools": f"{card.tools:,}, {card.dimensions} dimensions",
        "encoder": f"{card.state} of {card.run}".removeprefix(" of "),
        "size": ", ".join(f"{name} {size(count)}" for name, count in found.bytes.items()),
        f"recall@{found.recall['k']}": f"{found.recall['value']:.4f} against exact, {found.recall['sampled']:,} tools",
        "a search": f"{found.median_ms:.2f} ms, 95% under {found.p95_ms:.2f} ms",
    }
    if card.recall is not None:
        told = f"{card.recall['value']:.4f} against exact float32, {card.recall['sampled']:,} tools"
        rows[f"recall@{card.recall['k']} when built"] = told
    for name, value in rows.items():
        table.add_row(name, value)
    out().print(f"[bold]{folder}[/bold]")
    out().print(table)
