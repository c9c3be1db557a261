"""What an importer is: a name, the files it looks for, and a function from those files to rows of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cohyde.data.reading import Reading
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows
from cohyde.errors import UserError

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "valid": "dev",
    "validation": "dev",
    "val": "dev",
    "test": "eval",
    "eval": "eval",
}
"""Splits of ours by the names that published files give them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a format may have to be told besides its files."""

    split: str | None = None
    """The split of queries whose files do not say it: ``train``, ``dev`` or ``eval``. None is the format's own rule."""
    catalog: Path | None = None
    """A catalogue to join with: a dataset folder of ours, or a file of the format's own; for formats without one."""


def split_named(name: str, path: Path, options: Options) -> str:
    """The split of ours that a file's name says, or what the options say of names that say none.

    Raises:
        UserError: neither says a split.
    """
    split = SPLIT_NAMES.get(name.lower()) or options.split
    if split is None:
        raise UserError(
            f"{path}: {name!r} is not the name of a split",
            f"known are: {', '.join(SPLIT_NAMES)}; name the files to read one by one, or say what it is: --split SPLIT",
        )
    return split


@dataclass(frozen=True, kw_only=True)
class Format:
    """A public format. ``read`` yields rows as they are asked for: the tools first, then the queries."""

    name: str
    """As the command line says it."""
    title: str
    """What it is, in a few words, for the help text."""
    published: str
    """The names under which its files are looked for in a folder."""
    read: Callable[[Sources, Reading, Options], DatasetRows]
    joins: bool = False
    """Whether it takes a catalogue to join with."""
