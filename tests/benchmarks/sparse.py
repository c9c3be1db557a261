"""How long BM25 takes over a catalogue of ToolBench's size: the index, and the evaluation queries.

Run: ``python tests/benchmarks/sparse.py [--scale 0.1] [--data DIR] [--json]``. Without a dataset the catalogue is
generated, seeded. Goal, on two cores: an index of 46,980 tools in under 20 s.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence

from data import EVALUATION, TOOLS, tools, words

from cohyde.catalog import Tool
from cohyde.config import Bm25Config
from cohyde.data.dataset import read_dataset
from cohyde.evaluation.bm25 import Bm25Index

DEPTH = 50


def generated(scale: float) -> tuple[list[Tool], list[str]]:
    """A catalogue and requests of twelve words."""
    rng = random.Random(2)
    return list(tools(round(scale * TOOLS))), [words(rng, 12) for _ in range(round(scale * EVALUATION))]


def measured(catalogue: Sequence[Tool], requests: Sequence[str]) -> dict[str, float]:
    """Seconds of each part, the library's import aside."""
    import bm25s  # noqa: F401

    started = time.perf_counter()
    index = Bm25Index(catalogue, 5, Bm25Config())
    indexed = time.perf_counter()
    rankings = index.rank(requests, DEPTH)
    ranked = time.perf_counter()
    return {
        "tools": len(index),
        "index_seconds": round(indexed - started, 2),
        "requests": len(rankings),
        "search_seconds": round(ranked - indexed, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the paper's size")
    parser.add_argument("--data", help="a dataset folder in place of a generated catalogue")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.data:
        dataset, _ = read_dataset(arguments.data)
        catalogue, requests = list(dataset.tools), [query.text for query in dataset.eval]
    else:
        catalogue, requests = generated(arguments.scale)
    found = measured(catalogue, requests)
    print(json.dumps(found) if arguments.json else "  ".join(f"{name} {value:g}" for name, value in found.items()))


if __name__ == "__main__":
    main()
