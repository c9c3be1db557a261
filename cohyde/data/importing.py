"""Import: a public format in, a dataset folder out, whole or not at all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset
from cohyde.data.dataset import write_dataset
from cohyde.data.importers import (
    beir,
    mcp,
    metatool,
    openai_tools,
    openapi,
    seal_tools,
    toolbench,
    toolbench_retriever,
    toolgen,
    toolret,
)
from cohyde.data.importers.format import Format, Options
from cohyde.data.reading import Reading
from cohyde.data.sources import Sources
from cohyde.data.validation import Findings, Row, validated
from cohyde.errors import UserError
from cohyde.filesystem import as_user_error, check_apart, whole_folder
from cohyde.io import sha256_file
from cohyde.progress import Progress, Silent

FORMATS: Mapping[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        beir,
        mcp,
        metatool,
        openai_tools,
        openapi,
        seal_tools,
        toolbench,
        toolbench_retriever,
        toolgen,
        toolret,
    )
}
"""Formats by the name that ``cohyde data import`` chooses."""


def import_dataset(
    format_name: str,
    sources: Sequence[str | Path],
    out: Path,
    *,
    vague: Path | None = None,
    card: Mapping[str, Any] | None = None,
    options: Options | None = None,
    drop_invalid: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    then: Callable[[Dataset], tuple[Dataset, Mapping[str, Any]]] | None = None,
) -> tuple[Dataset, Findings]:
    """Read a public format, validate it, and write a dataset folder; equal input gives equal bytes.

    Args:
        format_name: a key of :data:`FORMATS`.
        sources: files, or folders that hold them under their published names.
        out: the dataset folder to write; it appears when it is complete, and not at all where anything fails.
        vague: a JSON Lines file of paraphrases (``id``, ``text``) of evaluation queries.
        card: what the dataset's card shall say, such as ``name`` (else what the files say, else the folder's),
            ``source`` and ``licence``.
        options: what the format has to be told besides.
        drop_invalid: leave out and count rows at fault instead of raising.
        overwrite: replace what is at ``out``.
        progress: is told how far it is.
        then: what is made of the dataset before it is written, and what its card says of that.

    Raises:
        UserError: no such format, or none that a catalogue is joined with; faults in the data, files that are missing,
            a place that cannot be written to.
    """
    options = options or Options()
    chosen = _format_named(format_name, options)
    for source in (*sources, options.catalog, vague):
        if source is not None:
            check_apart(Path(source), out)
    reading = Reading(Findings(drop_invalid=drop_invalid), progress or Silent())
    with whole_folder(out, overwrite=overwrite) as folder, _file_errors(out):
        rows = chosen.read(Sources.of(sources), reading, options)
        if vague is not None:
            found = (Row(where, fields) for where, fields in reading.jsonl(vague))
            rows = replace(rows, paraphrases=chain(rows.paraphrases, found))
        said = {**rows.card, **(card or {})}
        dataset = validated(", ".join(map(str, sources)), rows, reading.findings)
        dataset = replace(dataset, name=str(said.get("name") or out.resolve().name))
        said |= {"imported": _provenance(format_name, reading, said)}
        if then is not None:
            dataset, made = then(dataset)
            said |= made
        write_dataset(folder, dataset, said)
    return dataset, reading.findings


def _format_named(name: str, options: Options) -> Format:
    if name not in FORMATS:
        raise UserError(f"there is no format {name!r}", f"formats are: {', '.join(FORMATS)}")
    if options.catalog is not None and not FORMATS[name].joins:
        those = ", ".join(other for other, each in FORMATS.items() if each.joins)
        raise UserError(f"{name} is not joined with a catalogue", f"leave --catalog out; it is for: {those}")
    return FORMATS[name]


@contextmanager
def _file_errors(out: Path) -> Iterator[None]:
    """What the file system refuses, said as a thing to mend: a source that may not be read, a disk that is full."""
    try:
        yield
    except OSError as error:
        known = as_user_error(error, out, "--out DIR")
        raise known or UserError(f"{error.filename or out}: {(error.strerror or str(error)).lower()}") from error


def _provenance(format_name: str, reading: Reading, card: Mapping[str, Any]) -> dict[str, Any]:
    """Where the data is from, without paths or times: the same files give the same card wherever they lie.

    What an earlier import said in the card is kept in it.
    """
    files = sorted((path.name, sha256_file(path)) for path in reading.files)
    findings = reading.findings
    return {
        "format": format_name,
        "files": [{"name": name, "sha256": sha256} for name, sha256 in files],
        "dropped": dict(sorted(findings.counts.items())),
        "remarks": dict(sorted(findings.remarks.counts.items())),
        **({"before": card["imported"]} if "imported" in card else {}),
    }
