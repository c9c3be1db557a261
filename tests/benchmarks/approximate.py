"""Kinds of index on a large catalogue: what they miss, how long a search takes, their size; and what float16 costs.

Run: ``python tests/benchmarks/approximate.py [--tools 200000 --queries 500 -k 10] [--json]``

Vectors are all-MiniLM-L6-v2's, of the texts that ``embedding.py`` reads. There are a few thousand of those, so a larger
catalogue is filled up with vectors between two real ones that are near each other: one of them, moved a drawn part of
the way towards one of its ten nearest, and a little aside. Real catalogues are crowded in the same way, with many tools
that nearly say the same; random directions would not be. Queries are the real ones. *recall* is the share of what an
exact search of float32 vectors finds; searches are timed one at a time. The first table is of the real vectors alone.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedding import FORM, texts_of
from rich.console import Console
from rich.progress import track
from rich.table import Table
from search import unit_rows
from threadpoolctl import threadpool_limits
from toollens import MODEL, PUBLIC_DATA

from cohyde.config import EmbeddingConfig, IndexConfig
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.index_kinds import EXACT, INDEX_KINDS, make_index
from cohyde.encoder.index_recall import search_seconds, share_found
from cohyde.encoder.model import embed, load_encoder
from cohyde.models.reference import resolve

NEAREST = 10
ASIDE = 0.2
"""Length of the step in a random direction, against unit vectors."""
TIMED = 200
"""Searches that are timed, one at a time."""
DTYPES = ("float32", "float16")


def unit(vectors: np.ndarray) -> np.ndarray:
    """The rows at length 1."""
    scaled: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def crowded(real: np.ndarray, size: int, seed: int) -> np.ndarray:
    """The real rows, and between them so many others that there are ``size``."""
    random, more = np.random.default_rng(seed), size - len(real)
    if more <= 0:
        return real[:size]
    near = ExactIndex(real).search(real, NEAREST + 1)[1][:, 1:]
    start = random.integers(len(real), size=more)
    towards = near[start, random.integers(NEAREST, size=more)]
    part = random.random((more, 1), dtype=np.float32)
    aside = unit_rows(random, more, real.shape[1])
    return np.concatenate([real, unit(real[start] * (1 - part) + real[towards] * part + ASIDE * aside)])


def measure(vectors: np.ndarray, queries: np.ndarray, k: int, configs: Sequence[IndexConfig]) -> list[dict[str, Any]]:
    """One row for each kind of index."""
    right, rows = ExactIndex(vectors).search(queries, k)[1], []
    for config in track(configs, f"{len(vectors):,} vectors", transient=True, console=Console(stderr=True)):
        started = time.perf_counter()
        index = make_index(vectors, config)
        built = time.perf_counter() - started
        found = index.search(queries, k)[1]
        recall = share_found(found.tolist(), right.tolist(), k)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "index.faiss"
            index.save_faiss(path)
            size = path.stat().st_size
        row = {"kind": config.kind, "dtype": config.dtype, "build_seconds": built, "bytes": size}
        row |= {"recall": recall, "same_first": float((found[:, 0] == right[:, 0]).mean())}
        rows.append(row | {"median_ms": 1000 * statistics.median(search_seconds(index, queries[:TIMED], k))})
    return rows


def show(rows: Sequence[dict[str, Any]], k: int) -> None:
    """One line a kind."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("kind", "numbers", "built in s", "MB", f"recall@{k}", "same first", "ms a search"):
        table.add_column(head, justify="left" if head in ("kind", "numbers") else "right")
    for row in rows:
        table.add_row(
            row["kind"],
            row["dtype"],
            f"{row['build_seconds']:.1f}",
            f"{row['bytes'] / 1e6:.0f}",
            f"{row['recall']:.4f}",
            f"{row['same_first']:.4f}",
            f"{row['median_ms']:.2f}",
        )
    Console().print(table)


def main() -> None:
    """Print what was measured, as tables or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, help="holds toolbench_mini and toollens")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="of the large catalogue")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    name, tools, queries = texts_of(given.data)
    drawn = np.random.default_rng(given.seed).permutation(len(queries))[: given.queries]
    config = EmbeddingConfig(model=given.model, pooling="auto", index_form=FORM)
    model = load_encoder(resolve(given.model), config, "cpu")
    real = embed(model, tools, config.embed_batch_size, "document")
    asked = embed(model, [queries[place] for place in drawn], config.embed_batch_size)
    every = [IndexConfig(kind=kind, dtype=dtype) for kind in INDEX_KINDS for dtype in given.dtypes]
    with threadpool_limits(given.threads):
        of_real = measure(real, asked, given.k, [IndexConfig(kind=EXACT, dtype=dtype) for dtype in DTYPES])
        of_many = measure(crowded(real, given.tools, given.seed), asked, given.k, every)
    if given.json:
        sizes = {"texts": name, "real": len(real), "tools": given.tools, "queries": len(asked), "k": given.k}
        print(json.dumps({**sizes, "of_real": of_real, "of_many": of_many}))
        return
    print(f"{len(real):,} tools and {len(asked):,} requests of {name}, {real.shape[1]} dimensions")
    show(of_real, given.k)
    print(f"\nFilled up to {given.tools:,}")
    show(of_many, given.k)


if __name__ == "__main__":
    main()
