"""``cohyde eval``: what is compared, and how it came out."""

import typer

from cohyde.cli_compare import compare, trec
from cohyde.cli_systems import ablations, baselines, list_all

app = typer.Typer(
    no_args_is_help=True,
    help="Compare: the baselines and ablations of the paper, run and put into a table each.",
    epilog="Start with [bold]cohyde eval list[/bold].",
)
app.command(name="baselines", epilog="Example: cohyde eval baselines --config demo --only bm25,untrained,hyde")(
    baselines
)
app.command(name="ablations", epilog="Example: cohyde eval ablations -c demo --only no-warm-up")(ablations)
app.command(name="list", epilog="Example: cohyde eval list --json")(list_all)
app.command(name="compare", epilog="Example: cohyde eval compare demo/E.0 demo/E.3 --split vague")(compare)
app.command(name="trec", epilog="Example: cohyde eval trec demo/E.3 --to trec")(trec)
