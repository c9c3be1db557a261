"""Options that several groups of commands take."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for programs.")]
