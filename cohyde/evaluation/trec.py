"""Per-query results as TREC run and qrels files, which trec_eval, pytrec_eval and ranx read."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np

from cohyde.evaluation.per_query import PerQuery
from cohyde.io import write_text

KEPT = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")
"""What may stand in an id: columns are separated by blanks, so those are written as %20, like in a URL."""


def write_trec(folder: Path, found: PerQuery, tag: str) -> list[Path]:
    """Write ``SPLIT.qrels``, and ``SPLIT.SEARCH.run`` for every search mode; returns what was written.

    Args:
        folder: is made where it is missing.
        found: the rows, with their rankings.
        tag: the system's name, the last column of a run.
    """
    written = []
    for split in dict.fromkeys(found.split):
        of_split = found.select(split=split)
        modes = list(dict.fromkeys(of_split.search))
        asked = of_split.select(search=modes[0])
        written.append(folder / f"{_name(split)}.qrels")
        write_text(written[-1], "".join(_judgements(asked)))
        for mode in modes:
            written.append(folder / f"{_name(split)}.{_name(mode)}.run")
            write_text(written[-1], "".join(_ranked(of_split.select(search=mode), tag)))
    return written


def _name(label: str) -> str:
    return label.replace(" ", "-")


def _id(text: str) -> str:
    return quote(text, safe=KEPT)


def _judgements(found: PerQuery) -> Iterator[str]:
    for row, query in enumerate(found.id):
        for tool in dict.fromkeys(found.gold[row]):
            yield f"{_id(query)} 0 {_id(tool)} 1\n"


def _ranked(found: PerQuery, tag: str) -> Iterator[str]:
    """Readers order by score and break ties by id, so scores that tie are lowered by as little as a float32 can be."""
    for row, query in enumerate(found.id):
        scores = found.scores[found.ranked.offsets[row] : found.ranked.offsets[row + 1]]
        first = dict(reversed([*zip(found.ranked[row], scores, strict=True)]))  # an id that comes again is ignored
        above = np.float32(np.inf)
        for rank, tool in enumerate(dict.fromkeys(found.ranked[row]), start=1):
            above = min(first[tool], np.nextafter(above, np.float32(-np.inf)))
            yield f"{_id(query)} Q0 {_id(tool)} {rank} {above:.9g} {_id(tag)}\n"
