"""What an evaluation found for each query: one Parquet file that any two systems can be compared by afterwards.

One row a split, search mode and query: ``id``, ``text``, ``split``, ``tier``, ``search``, ``in_sample``, ``n_gold``,
``gold``, ``ranked``, ``scores`` and one column a metric, such as ``ndcg@5``. Any Parquet reader opens it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cohyde.catalog import Query
from cohyde.errors import UserError
from cohyde.evaluation.lists import Lists
from cohyde.evaluation.scoring import score_equivalents, score_lists
from cohyde.io import check_readable, write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = ("id", "text", "split", "tier", "search")
CATALOGUE = "cohyde.catalogue"
"""Key of the file's metadata under which the catalogue's checksum stands."""
EQUIVALENTS = ":equivalents"
"""What ends the names of metrics that take the best of several valid gold sets."""
LARGEST_DICTIONARY = 1 << 26
"""Bytes: the ids of a catalogue of a million tools still are written once, and not again in every ranking."""


@dataclass(frozen=True, kw_only=True)
class PerQuery:
    """The columns of a file, n rows, each a query under one split and one search mode."""

    catalogue: str
    """Checksum of the catalogue that was searched."""
    id: npt.NDArray[np.object_]
    text: npt.NDArray[np.object_]
    """What was asked."""
    split: npt.NDArray[np.object_]
    tier: npt.NDArray[np.object_]
    search: npt.NDArray[np.object_]
    """What the index was searched with."""
    in_sample: npt.NDArray[np.bool_]
    """Whether it belongs to the sample of its split that all rounds share."""
    gold: Lists
    ranked: Lists
    """Tool ids, best first, as deep as was configured."""
    scores: npt.NDArray[np.float32]
    """One for each entry of ``ranked``."""
    values: Mapping[str, npt.NDArray[np.float64]]
    """Fractions by metric, such as ``ndcg@5``."""

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.id)

    def take(self, rows: npt.NDArray[np.int64]) -> "PerQuery":
        """These rows alone, in this order."""
        return PerQuery(
            catalogue=self.catalogue,
            **{name: getattr(self, name)[rows] for name in TEXTS},
            in_sample=self.in_sample[rows],
            gold=self.gold.take(rows),
            ranked=self.ranked.take(rows),
            scores=self.scores[self.ranked.entries(rows)] if len(self.scores) else self.scores,
            values={name: column[rows] for name, column in self.values.items()},
        )

    def select(
        self,
        *,
        split: str | None = None,
        tier: str | None = None,
        search: str | None = None,
        in_sample: bool | None = None,
    ) -> "PerQuery":
        """The rows under these labels, in order; None takes all."""
        wanted = {"split": split, "tier": tier, "search": search, "in_sample": in_sample}
        kept = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            if value is not None:
                kept &= getattr(self, name) == value
        return self.take(np.flatnonzero(kept))


@dataclass(frozen=True, kw_only=True)
class Found:
    """One row to be: what a query was answered with under one search mode."""

    query: Query
    split: str
    search: str
    in_sample: bool
    ranking: Sequence[tuple[str, float]]
    """Tool ids with their scores, best first."""


def per_query_of(found: Sequence[Found], catalogue: str) -> PerQuery:
    """The columns of these rows, scored by every metric at every cutoff.

    Where a query has several valid gold sets, every metric is there a second time, as the maximum over the sets
    (``ndcg@5:equivalents``; ToolEq).

    Raises:
        ValueError: a score that is no number, or a query without gold; names the query.
    """
    texts = {"id": [row.query.id for row in found], "text": [row.query.text for row in found]}
    texts |= {name: [getattr(row, name) for row in found] for name in ("split", "search")}
    gold = Lists.of(row.query.tools for row in found)
    ranked = Lists.of([tool for tool, _ in row.ranking] for row in found)
    scores = np.array([score for row in found for _, score in row.ranking], dtype=np.float32)
    _check(found, ranked, scores)
    return PerQuery(
        catalogue=catalogue,
        **{name: np.array(column, dtype=object) for name, column in texts.items()},
        tier=np.array([row.query.tier for row in found], dtype=object),
        in_sample=np.array([row.in_sample for row in found], dtype=bool),
        gold=gold,
        ranked=ranked,
        scores=scores,
        values=score_lists(ranked, gold) | _equivalents(found, ranked),
    )


def _equivalents(found: Sequence[Found], ranked: Lists) -> dict[str, npt.NDArray[np.float64]]:
    """The scores over all valid gold sets; none where every query has one set alone."""
    sets = [row.query.valid_sets for row in found]
    if all(len(valid) == 1 for valid in sets):
        return {}
    owner = np.repeat(np.arange(len(sets)), [len(valid) for valid in sets])
    scores = score_equivalents(ranked, Lists.of(one for valid in sets for one in valid), owner)
    return {f"{name}{EQUIVALENTS}": column for name, column in scores.items()}


def _check(found: Sequence[Found], ranked: Lists, scores: npt.NDArray[np.float32]) -> None:
    for row in found:
        if not row.query.tools:
            raise ValueError(f"query {row.query.id!r} ({row.split}) has no gold tools: it cannot be scored")
    wrong = np.flatnonzero(np.isnan(scores))
    if len(wrong):
        at = int(np.searchsorted(ranked.offsets, wrong[0], side="right")) - 1
        row, place = found[at], int(wrong[0] - ranked.offsets[at])
        raise ValueError(
            f"query {row.query.id!r} ({row.split}, searched with {row.search}): {row.ranking[place][0]!r} at rank "
            f"{place + 1} has a score that is no number (NaN); whatever scored it has diverged"
        )


def write_per_query(path: Path, found: PerQuery) -> None:
    """Write the file, whole or not at all; equal rows give equal bytes under one version of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {name: pa.array(getattr(found, name), pa.string()) for name in TEXTS}
    columns |= {
        "in_sample": pa.array(found.in_sample),
        "n_gold": pa.array(found.gold.lengths.astype(np.int32)),
        "gold": _arrow_lists(found.gold),
        "ranked": _arrow_lists(found.ranked),
        "scores": pa.ListArray.from_arrays(found.ranked.offsets.astype(np.int32), found.scores.astype(np.float32)),
        **{name: pa.array(column) for name, column in found.values.items()},
    }
    table, file = pa.table(columns), pa.BufferOutputStream()
    how = {"compression": "zstd", "dictionary_pagesize_limit": LARGEST_DICTIONARY, "store_schema": False}
    with pq.ParquetWriter(file, table.schema, **how) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({CATALOGUE: found.catalogue})
    write_bytes(path, file.getvalue().to_pybytes())


def _arrow_lists(lists: Lists) -> "pa.ListArray":
    import pyarrow as pa

    entries = pa.DictionaryArray.from_arrays(lists.codes.astype(np.int32), pa.array(lists.names, pa.string()))
    return pa.ListArray.from_arrays(lists.offsets.astype(np.int32), entries)


def read_per_query(path: Path, *, rankings: bool = True) -> PerQuery:
    """Read what :func:`write_per_query` wrote.

    Args:
        path: the file.
        rankings: without them ``ranked`` and ``scores`` come back empty, and reading takes a fraction of the time.

    Raises:
        UserError: the file is missing, may not be read, is no Parquet, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_readable(path, "expected the per-query results of an evaluation")
    lists = ("gold", "ranked", "scores") if rankings else ("gold",)
    wanted = [*TEXTS, "in_sample", *lists]
    try:
        names = pq.read_schema(path).names
        missing = [name for name in wanted if name not in names]
        if missing:
            raise UserError(f"{path}: has no column {missing[0]!r}", "expected the per-query results of an evaluation")
        metrics = [name for name in names if "@" in name]
        with pq.ParquetFile(path, read_dictionary=["gold.list.element", "ranked.list.element"]) as file:
            table = file.read(columns=[*wanted, *metrics])
            catalogue = (file.metadata.metadata or {}).get(CATALOGUE.encode(), b"").decode()
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a Parquet file, or cut short: {error}", "run its evaluation again") from None
    columns = {name: _whole(table, name) for name in table.column_names}
    none = Lists(names=np.empty(0, object), codes=np.empty(0, np.int64), offsets=np.zeros(len(table) + 1, np.int64))
    return PerQuery(
        catalogue=catalogue,
        **{name: columns[name].to_numpy(zero_copy_only=False) for name in TEXTS},
        in_sample=columns["in_sample"].to_numpy(zero_copy_only=False),
        gold=_lists(columns["gold"]),
        ranked=_lists(columns["ranked"]) if rankings else none,
        scores=columns["scores"].flatten().to_numpy() if rankings else np.empty(0, np.float32),
        values={name: columns[name].to_numpy() for name in metrics},
    )


def _whole(table: "pa.Table", name: str) -> "pa.Array":
    """A column as one array."""
    import pyarrow as pa

    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _lists(column: "pa.ListArray") -> Lists:
    entries = column.flatten()
    lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return Lists(
        names=entries.dictionary.to_numpy(zero_copy_only=False),
        codes=entries.indices.to_numpy().astype(np.int64),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
    )
