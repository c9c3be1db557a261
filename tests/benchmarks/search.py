"""Exact search: ours against a plain FAISS call and a plain torch product with ``topk``.

Run: ``python tests/benchmarks/search.py [--queries 10000 --tools 46980 --dimensions 384 -k 50] [--json]``

Random unit vectors, seeded; the three take turns, so that whatever else the machine does slows all of them; the fastest
turn of each counts. ``ratio`` is the faster one of the others over ours: at least 1 means level with both. Ours does
more: it orders ties by position and scores them in float64. Processor seconds, which others on the machine change less,
are told beside those on the wall.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from cohyde.encoder.index import ExactIndex

Search = Callable[[], np.ndarray]


def unit_rows(random: np.random.Generator, count: int, dimensions: int) -> np.ndarray:
    """(count, dimensions) float32 of length 1."""
    vectors = random.standard_normal((count, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def searches(tools: np.ndarray, queries: np.ndarray, k: int) -> dict[str, Search]:
    """By name, what gives the positions of the first ``k``; the indices are made before."""
    ours, flat = ExactIndex(tools), faiss.IndexFlatIP(tools.shape[1])
    flat.add(tools)
    tools_TD, queries_QD = torch.from_numpy(tools), torch.from_numpy(queries)

    def by_torch() -> np.ndarray:
        with torch.inference_mode():
            places: np.ndarray = torch.topk(queries_QD @ tools_TD.T, k).indices.numpy()
        return places

    return {
        "cohyde": lambda: ours.search(queries, k)[1],
        "faiss": lambda: flat.search(queries, k)[1],
        "torch": by_torch,
    }


def measure(contenders: dict[str, Search], repeats: int) -> dict[str, Any]:
    """Seconds of the fastest turn of each, on the wall and of all cores together, and whether they found the same."""
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    processor: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, np.ndarray] = {}
    for _ in range(repeats):
        for name, search in contenders.items():
            started, worked = time.perf_counter(), time.process_time()
            found[name] = search()
            wall[name].append(time.perf_counter() - started)
            processor[name].append(time.process_time() - worked)
    others = [name for name in contenders if name != "cohyde"]
    return {
        "ratio": min(min(wall[name]) for name in others) / min(wall["cohyde"]),
        "processor_ratio": min(min(processor[name]) for name in others) / min(processor["cohyde"]),
        "seconds": {name: min(times) for name, times in wall.items()},
        "processor_seconds": {name: min(times) for name, times in processor.items()},
        "same": {name: float((found[name] == found["cohyde"]).mean()) for name in others},
    }


def show(result: dict[str, Any]) -> None:
    """One line a contender."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("", "seconds", "processor", "same positions"):
        table.add_column(head, justify="right" if head else "left")
    for name, seconds in result["seconds"].items():
        same = f"{result['same'][name]:.4%}" if name in result["same"] else ""
        table.add_row(name, f"{seconds:.2f}", f"{result['processor_seconds'][name]:.2f}", same)
    Console().print(table)
    print(f"ratio {result['ratio']:.2f} (processor {result['processor_ratio']:.2f})")


def main() -> None:
    """Print what was measured, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--tools", type=int, default=46_980)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    random = np.random.default_rng(0)
    tools, queries = (unit_rows(random, count, given.dimensions) for count in (given.tools, given.queries))
    with threadpool_limits(given.threads):
        result = measure(searches(tools, queries, given.k), given.repeats)
    sizes = {name: getattr(given, name) for name in ("queries", "tools", "dimensions", "k", "repeats", "threads")}
    if given.json:
        print(json.dumps(sizes | result))
        return
    print(f"{given.queries:,} queries, {given.tools:,} tools, {given.dimensions} dimensions, top {given.k}")
    show(result)


if __name__ == "__main__":
    main()
