"""Export: a dataset folder in, a public format out, whole or not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset
from cohyde.data.dataset import read_card, read_dataset
from cohyde.data.exporters import beir
from cohyde.errors import UserError
from cohyde.filesystem import check_apart, whole_folder, writing_to

Exporter = Callable[[Path, Dataset, Mapping[str, Any]], None]
"""Writes a dataset and its card below a folder that is there."""
EXPORTERS: Mapping[str, Exporter] = {"beir": beir.write}
"""By the name that ``cohyde data export`` chooses."""


def export_dataset(name: str, folder: Path, out: Path, *, overwrite: bool = False) -> Dataset:
    """Write a dataset folder in a public format; equal datasets give equal bytes.

    Importing what was written gives the same dataset again, name, paraphrases and card included.

    Args:
        name: a key of :data:`EXPORTERS`.
        folder: the dataset folder.
        out: the folder to write; it appears when it is complete, and not at all where anything fails.
        overwrite: replace what is at ``out``.

    Returns:
        The dataset that was written.

    Raises:
        UserError: no such format, faults in the dataset, something the format cannot hold, a place that cannot be
            written to.
    """
    if name not in EXPORTERS:
        raise UserError(f"there is no format {name!r} to export to", f"formats are: {', '.join(EXPORTERS)}")
    check_apart(folder, out)
    dataset, _ = read_dataset(folder)
    with whole_folder(out, overwrite=overwrite) as scratch, writing_to(out, "--out DIR"):
        EXPORTERS[name](scratch, dataset, read_card(folder))
    return dataset
