"""``cohyde data``: where every tool data set becomes a dataset folder, is looked at, cut, and completed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohyde.cli_options import AsJson, prepare_for_models

if TYPE_CHECKING:
    from cohyde.catalog import Dataset
    from cohyde.config import ChatConfig
    from cohyde.data.validation import Findings

app = typer.Typer(
    no_args_is_help=True,
    help="Import, check, look at, cut and complete datasets.",
    epilog="A dataset is a folder with catalog.jsonl, queries.jsonl, vague.jsonl and a dataset.yaml card; "
    "'sample' names the embedded one.",
)
IN, LOOK, MAKE, WRITE = "In and out", "Look", "Cut and join", "Let a model write"

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A dataset folder, or 'sample'.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="The dataset folder to write.", show_default=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at --out, once the new one is complete.")]
DropInvalid = Annotated[bool, typer.Option("--drop-invalid", help="Leave out and count what is at fault.")]
Seed = Annotated[int, typer.Option("--seed", metavar="S", min=0, help="Of every draw.")]


# --------------------------------------------------------------------------------------------------- in and out


@app.command("import", rich_help_panel=IN, epilog="Example: cohyde data import mcp tools.json --out mytools")
def import_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help="One of the formats: cohyde data formats.")],
    sources: Annotated[list[Path], typer.Argument(metavar="SRC…", help="Files, or a folder of the published files.")],
    out: Out,
    name: Annotated[str | None, typer.Option("--name", help="The dataset's name.", show_default="--out's")] = None,
    vague: Annotated[Path | None, typer.Option("--vague", metavar="FILE", help="Paraphrases: JSON Lines.")] = None,
    catalog: Annotated[
        Path | None,
        typer.Option("--catalog", metavar="PATH", help="A catalogue to join with, for formats without one."),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="train, dev or eval, where the files don't say it.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Where it is from, for the card.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="Its licence, for the card.")] = None,
    drop_invalid: DropInvalid = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a dataset folder of a public format, or of your own catalogue.

    What is wrong is said by file, line or JSON pointer, and nothing half-written is left.
    """
    from cohyde.data.importers.format import Options
    from cohyde.data.importing import import_dataset
    from cohyde.live import Work

    card = {"name": name, "source": source, "licence": licence}
    with Work(f"importing {format_name}") as work:
        dataset, findings = import_dataset(
            format_name,
            sources,
            out,
            vague=vague,
            card={key: value for key, value in card.items() if value is not None},
            options=Options(split=_split(split), catalog=catalog),
            drop_invalid=drop_invalid,
            overwrite=overwrite,
            progress=work,
        )
    _tell(out, dataset, findings, as_json)


@app.command(rich_help_panel=IN, epilog="Example: cohyde data formats")
def formats(as_json: AsJson = False) -> None:
    """List the formats that can be imported, and the files each looks for."""
    from cohyde.data.importing import FORMATS
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_formats

    if as_json:
        rows = [{"name": each.name, "title": each.title, "published": each.published} for each in FORMATS.values()]
        print_json({"formats": rows})
    else:
        print_formats(list(FORMATS.values()))


@app.command(rich_help_panel=IN, epilog="Example: cohyde data prepare toollens --source downloads --out toollens")
def prepare(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe in configs/data.")],
    source: Annotated[Path, typer.Option("--source", metavar="DIR", help="The folder that holds the downloads.")],
    out: Out,
    drop_invalid: DropInvalid = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a dataset as a paper's protocol has it: import, check the counts, take the subset, split off dev.

    Where a file is missing, it says which, where it is published, and where to put it.
    """
    from cohyde.data import recipe as recipes
    from cohyde.live import Work

    with Work(f"preparing {recipe}") as work:
        dataset, findings = recipes.prepare(
            recipe, source, out, drop_invalid=drop_invalid, overwrite=overwrite, progress=work
        )
    _tell(out, dataset, findings, as_json)


@app.command(rich_help_panel=IN, epilog="Example: cohyde data export beir mytools --out mytools-beir")
def export(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help="What to write: beir.")],
    folder: Folder,
    out: Out,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a dataset in a public format; importing that gives the same dataset again."""
    from cohyde.data.dataset import dataset_folder
    from cohyde.data.exporting import export_dataset
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_files

    with Work(f"exporting to {format_name}"):
        export_dataset(format_name, dataset_folder(folder), out, overwrite=overwrite)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    if as_json:
        print_json({"path": str(out), "files": files})
    else:
        print_files(out, files)


# --------------------------------------------------------------------------------------------------------- look


@app.command(rich_help_panel=LOOK, epilog="Example: cohyde data validate mytools")
def validate(folder: Folder, as_json: AsJson = False) -> None:
    """Check every line of a dataset: faults, which stop a run, and remarks, which you should know of.

    Exit status 2 where there are faults.
    """
    from cohyde.data.audit import audit
    from cohyde.data.dataset import dataset_folder
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_audit

    path = dataset_folder(folder)
    with Work("validating") as work:
        found = audit(path, progress=work)
    if as_json:
        print_json({"path": str(path), **found.to_json()})
    else:
        print_audit(path, found)
    if found.findings.counts:
        raise typer.Exit(2)


@app.command(rich_help_panel=LOOK, epilog="Example: cohyde data stats sample")
def stats(folder: Folder, drop_invalid: DropInvalid = False, as_json: AsJson = False) -> None:
    """Show what a dataset is like: sizes, gold, lengths, duplicates, and what its splits share."""
    from cohyde.data.stats import statistics
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_statistics

    dataset = _read(folder, drop_invalid)
    with Work("counting") as work:
        found = statistics(dataset, progress=work)
    if as_json:
        print_json(found.to_json())
    else:
        print_statistics(found)


# ------------------------------------------------------------------------------------------------- cut and join


@app.command(rich_help_panel=MAKE, epilog="Example: cohyde data subset toolbench --tools 10000 --out toolbench-10k")
def subset(
    folder: Folder,
    tools: Annotated[int, typer.Option("--tools", metavar="N", min=1, help="How many tools to keep.")],
    out: Out,
    seed: Seed = 42,
    drop_invalid: DropInvalid = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Keep a part of the catalogue: every gold tool of evaluation, the rest stratified by tier and category.

    Gold tools of training queries that fall out are dropped from those queries, and counted.
    """
    from cohyde.data.split import subset_tools

    dataset = _read(folder, drop_invalid)
    kept, dropped = subset_tools(dataset, tools, seed)
    lost = len(dataset.train) + len(dataset.dev) - len(kept.train) - len(kept.dev)
    made = {"subset_of": dataset.name, "tools": tools, "seed": seed, "dropped_gold": dropped, "dropped_queries": lost}
    note = f"{dropped:,} gold tools of train and dev queries fell out, and with them {lost:,} queries that had no other"
    _write(folder, out, kept, made, overwrite, as_json, note)


@app.command(rich_help_panel=MAKE, epilog="Example: cohyde data split mytools --dev 0.1 --eval 0.2 --out mytools-split")
def split(
    folder: Folder,
    out: Out,
    dev: Annotated[float, typer.Option("--dev", metavar="SHARE", min=0, max=1, help="Of the training queries.")] = 0.1,
    evaluation: Annotated[
        float, typer.Option("--eval", metavar="SHARE", min=0, max=1, help="The same, where there is no evaluation yet.")
    ] = 0.0,
    seed: Seed = 42,
    anew: Annotated[bool, typer.Option("--anew", help="Also where there is such a split already.")] = False,
    drop_invalid: DropInvalid = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Split off dev queries, and evaluation queries where there are none: stratified by tier, disjoint by text."""
    from cohyde.data.split import split_dataset

    dataset = split_dataset(_read(folder, drop_invalid), dev=dev, evaluation=evaluation, seed=seed, anew=anew)
    made = {"split": {"dev": dev, "eval": evaluation, "seed": seed}}
    _write(folder, out, dataset, made, overwrite, as_json)


@app.command(rich_help_panel=MAKE, epilog="Example: cohyde data merge weather calendar --out mytools")
def merge(
    folders: Annotated[list[str], typer.Argument(metavar="DIR…", help="Dataset folders, two or more.")],
    out: Out,
    drop_invalid: DropInvalid = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Join datasets: what is equal once, what clashes under its dataset's name, no query on two sides."""
    from cohyde.data.merge import merge as join

    datasets = [_read(folder, drop_invalid) for folder in folders]
    dataset, counts = join(datasets, name=out.resolve().name)
    made = {"merged": [each.name for each in datasets], **counts}
    _write(
        None, out, dataset, made, overwrite, as_json, *(f"{count:,} {what}" for what, count in counts.items() if count)
    )


# ------------------------------------------------------------------------------------------- let a model write

Model = Annotated[
    str | None,
    typer.Option("--model", metavar="M", help="A model reference; with --endpoint, the name that it serves."),
]
Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="URL", help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1."),
]
KeyName = Annotated[
    str, typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the endpoint's key.")
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, max=1024, help="Requests to the endpoint at once.")]
Attempts = Annotated[int, typer.Option("--attempts", min=1, help="Times that the model is asked for one, at most.")]


@app.command(rich_help_panel=WRITE, epilog="Example: cohyde data queries mytools --per-tool 6")
def queries(
    folder: Folder,
    model: Model = None,
    endpoint: Endpoint = None,
    per_tool: Annotated[int, typer.Option("--per-tool", metavar="N", min=1, help="Requests for each tool alone.")] = 4,
    multi_share: Annotated[
        float, typer.Option("--multi-share", min=0, max=0.9, help="Share of all that need two or three tools.")
    ] = 1 / 3,
    eval_share: Annotated[
        float | None,
        typer.Option("--eval-share", min=0, max=0.9, help="Held out.", show_default="0.15, or 0 where there are some"),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Requests at most.")] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="FILTER", help="Leave a filter out: 'off topic', where the model is good."),
    ] = None,
    attempts: Attempts = 3,
    seed: Seed = 42,
    concurrency: Concurrency = 8,
    api_key_env: KeyName = "OPENAI_API_KEY",
    as_json: AsJson = False,
) -> None:
    """Write training and evaluation queries for a catalogue that has none, or more of them.

    A model asks for each tool alone and for related tools together; requests that name a tool, copy the catalogue, are
    no requests or repeat another are drawn again. Running it again goes on where it was.
    """
    from cohyde.data.queries import QueriesConfig, write_queries
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_outcome

    path = _writable(folder)
    config = QueriesConfig(
        per_tool=per_tool,
        multi_share=multi_share,
        eval_share=eval_share,
        attempts=attempts,
        filters=_filters(without or []),
        limit=limit,
        seed=seed,
    )
    with Work("writing queries") as work:
        outcome = write_queries(path, _chat(model, endpoint, concurrency, api_key_env), config, progress=work)
    if as_json:
        print_json({"path": str(path), **outcome.to_json()})
    else:
        drawn_again = {f"drawn again: {kind}": count for kind, count in outcome.rejected.counts.items()}
        print_outcome(path, outcome.counts, drawn_again | dict(outcome.unanswered.counts))


@app.command(
    rich_help_panel=WRITE,
    epilog="Example: cohyde data vague mytools --endpoint http://127.0.0.1:8000/v1 --model Qwen3.5-4B",
)
def vague(
    folder: Folder,
    model: Model = None,
    endpoint: Endpoint = None,
    attempts: Attempts = 3,
    seed: Seed = 42,
    redo: Annotated[bool, typer.Option("--redo", help="Also the queries that have a paraphrase.")] = False,
    concurrency: Concurrency = 8,
    api_key_env: KeyName = "OPENAI_API_KEY",
    as_json: AsJson = False,
) -> None:
    """Paraphrase the evaluation queries in everyday words, each judged afresh on three criteria.

    Only what passes all three is kept, in vague.jsonl; the rest is in vague_rejected.jsonl with the reason, and
    vague_spot_check.md has 50 pairs for you to look at. Running it again goes on where it was.
    """
    from cohyde.data.vague import write_vague
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_outcome

    path = _writable(folder)
    with Work("vague paraphrases") as work:
        outcome = write_vague(
            path,
            _chat(model, endpoint, concurrency, api_key_env),
            attempts=attempts,
            seed=seed,
            redo=redo,
            progress=work,
        )
    if as_json:
        print_json({"path": str(path), **outcome.counts, "reasons": dict(outcome.reasons)})
    else:
        print_outcome(path, outcome.counts, outcome.reasons)


# ------------------------------------------------------------------------------------------------------ helpers


def _writable(folder: str) -> Path:
    """A dataset folder that may be added to."""
    from cohyde.data.dataset import dataset_folder
    from cohyde.errors import UserError
    from cohyde.resources import sample_folder

    path = dataset_folder(folder)
    if path.resolve() == sample_folder().resolve():
        raise UserError("the embedded sample is not written to", "give a dataset folder of your own")
    return path


def _filters(without: list[str]) -> tuple[str, ...]:
    from cohyde.data.drafts import FILTERS
    from cohyde.errors import UserError

    for name in without:
        if name not in FILTERS:
            raise UserError(f"--without: there is no filter {name!r}", f"filters are: {', '.join(FILTERS)}")
    return tuple(name for name in FILTERS if name not in without)


def _chat(model: str | None, endpoint: str | None, concurrency: int, api_key_env: str) -> "ChatConfig":
    from cohyde.config import ChatConfig

    given: dict[str, Any] = {"concurrency": concurrency, "api_key_env": api_key_env}
    given |= {"model": model} if model else {}
    if endpoint is None:
        prepare_for_models()
        return ChatConfig(**given)
    return ChatConfig(backend="openai", endpoint=endpoint, **given)


def _split(given: str | None) -> str | None:
    from cohyde.data.validation import SPLITS
    from cohyde.errors import UserError

    if given is not None and given not in SPLITS:
        raise UserError(f"--split: there is no split {given!r}", f"splits are: {', '.join(SPLITS)}")
    return given


def _read(folder: str, drop_invalid: bool) -> "Dataset":
    from cohyde.data.dataset import dataset_folder, read_dataset
    from cohyde.live import Work
    from cohyde.terminal import print_warning

    with Work("reading") as work:
        dataset, findings = read_dataset(dataset_folder(folder), drop_invalid=drop_invalid, progress=work)
    for line in findings.lines():
        print_warning(f"dropped: {line}")
    return dataset


def _write(
    origin: str | None, out: Path, dataset: "Dataset", made: dict[str, Any], overwrite: bool, as_json: bool, *notes: str
) -> None:
    """Write a dataset that was made of another; its card says how, and keeps what the other's said."""
    from dataclasses import replace

    from cohyde.data.dataset import dataset_folder, read_card, write_dataset
    from cohyde.filesystem import whole_folder, writing_to

    card = read_card(dataset_folder(origin)) if origin else {}
    dataset = replace(dataset, name=out.resolve().name)
    with whole_folder(out, overwrite=overwrite) as folder, writing_to(out, "--out DIR"):
        write_dataset(folder, dataset, {**card, "made": made})
    _tell(out, dataset, None, as_json, *notes)


def _tell(out: Path, dataset: "Dataset", findings: "Findings | None", as_json: bool, *notes: str) -> None:
    from cohyde.data.dataset import counts_of
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_made

    if as_json:
        content: dict[str, Any] = {"path": str(out), "name": dataset.name, "counts": counts_of(dataset)}
        if findings is not None:
            content |= {"dropped": dict(findings.counts), "remarks": dict(findings.remarks.counts)}
        print_json(content)
    else:
        print_made(out, dataset, findings, notes)
