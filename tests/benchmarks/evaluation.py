"""What evaluation costs after embedding: search, scores, intervals; and the same lists scored by pytrec_eval and ranx.

Run: ``python tests/benchmarks/evaluation.py [--queries 1092,100000] [--json]``. Vectors and gold are generated, seeded;
each size runs in a process of its own. Goals, on two cores: 1,092 queries over 10,000 tools, at four cutoffs, with
10,000 resamples of six cells, in under 2 s; 100,000 queries in under 60 s and 2 GB. ranx is compared with where it is
installed; its numba is not the one that vLLM wants, so that belongs to an environment of its own.
"""

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cohyde.catalog import Query
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.search import rank
from cohyde.evaluation.bootstrap import over_queries
from cohyde.evaluation.metrics import CUTOFFS, score_query
from cohyde.evaluation.per_query import Found, PerQuery, per_query_of
from cohyde.evaluation.results import metric_rows

TOOLS, DIMENSIONS, DEPTH = 10_000, 384, 50
TIERS, SHARES = ("G1", "G2", "G3"), (0.54, 0.37, 0.09)
"""Of the paper's 1,092 evaluation queries."""
THEIRS = {"hit": ("success", "hit_rate"), "recall": ("recall", "recall"), "ndcg": ("ndcg_cut", "ndcg")}
"""Our metrics that pytrec_eval and ranx have, by what they are called there."""
Rankings = list[list[tuple[str, float]]]


def unit_rows(random: np.random.Generator, count: int) -> np.ndarray:
    """(count, DIMENSIONS) float32 of length 1."""
    vectors = random.standard_normal((count, DIMENSIONS), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def questions(random: np.random.Generator, count: int) -> list[Query]:
    """One to three gold tools each."""
    tiers = random.choice(TIERS, p=SHARES, size=count)
    golds = random.integers(TOOLS, size=(count, 3))
    sizes = random.integers(1, 4, size=count)
    return [
        Query(id=f"q{n}", text="", tools=tuple(f"tool/{tool}" for tool in gold[:size]), tier=str(tier))
        for n, (tier, gold, size) in enumerate(zip(tiers, golds.tolist(), sizes, strict=True))
    ]


class Clock:
    """Seconds by what was done in them: on the wall, and of all cores, which others on the machine change less."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.cpu[name] = time.process_time() - cpu


def measure(count: int, compare: bool) -> dict[str, Any]:
    """One size: half of the queries are of each split, so that there are six cells."""
    random, clock = np.random.default_rng(0), Clock()
    tools, vectors, queries = unit_rows(random, TOOLS), unit_rows(random, count), questions(random, count)
    with clock("search"):
        rankings = rank(ExactIndex(tools), vectors, [f"tool/{number}" for number in range(TOOLS)], DEPTH)
    with clock("scores"):
        found = [
            Found(query=query, split=("standard", "vague")[n % 2], search="query", in_sample=True, ranking=ranking)
            for n, (query, ranking) in enumerate(zip(queries, rankings, strict=True))
        ]
        per_query = per_query_of(found, "")
    with clock("means"):
        metric_rows(per_query)
    with clock("intervals"):
        for cell in cells(per_query):
            over_queries(np.stack([cell.values[f"ndcg@{k}"] for k in CUTOFFS], axis=1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # before others take more
    others = side_by_side(queries, rankings, per_query) if compare else {}
    return {"queries": count, "seconds": clock.seconds, "cpu_seconds": clock.cpu, "peak_gb": peak, **others}


def cells(found: PerQuery) -> list[PerQuery]:
    """By split and tier."""
    return [found.select(split=split, tier=tier) for split in ("standard", "vague") for tier in TIERS]


def side_by_side(queries: Sequence[Query], rankings: Rankings, ours: PerQuery) -> dict[str, Any]:
    """Seconds that others take for the same lists, from the form that each wants; and the largest difference."""
    golds = {query.id: dict.fromkeys(query.tools, 1) for query in queries}
    # Their order is that of the scores, and ties go by id: ranks stand in for scores.
    runs = {q.id: {t: float(-n) for n, (t, _) in enumerate(r)} for q, r in zip(queries, rankings, strict=True)}
    row_of = {query: row for row, query in enumerate(ours.id)}
    clock, differences = Clock(), {}
    scorers: dict[str, Callable[[Any, Any, Clock], dict[str, Any]]] = {"pytrec_eval": by_pytrec_eval, "ranx": by_ranx}
    with clock("the definition"):
        for query, ranking in zip(queries, rankings, strict=True):
            score_query([tool for tool, _ in ranking], query.tools)
    for name, scorer in scorers.items():
        if find_spec(name):
            theirs = scorer(golds, runs, clock)
            rows = [row_of[query] for query in (sorted(runs) if name == "ranx" else runs)]
            gaps = [np.abs(ours.values[metric][rows] - np.asarray(column)).max() for metric, column in theirs.items()]
            differences[name] = float(max(gaps))
    return {"others": {"seconds": clock.seconds, "cpu_seconds": clock.cpu}, "differences": differences}


def by_pytrec_eval(golds: dict[str, Any], runs: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Scores by our name of the metric."""
    import pytrec_eval

    measures = {f"{theirs}.{','.join(map(str, CUTOFFS))}" for theirs, _ in THEIRS.values()}
    with clock("pytrec_eval"):
        found = pytrec_eval.RelevanceEvaluator(golds, measures).evaluate(runs)
    names = {f"{ours}@{k}": f"{theirs}_{k}" for ours, (theirs, _) in THEIRS.items() for k in CUTOFFS}
    return {ours: [found[query][theirs] for query in runs] for ours, theirs in names.items()}


def by_ranx(golds: dict[str, Any], runs: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """The same; what numba compiles is compiled before, and its queries come sorted."""
    import ranx

    names = {f"{ours}@{k}": f"{theirs}@{k}" for ours, (_, theirs) in THEIRS.items() for k in CUTOFFS}
    for part in (sorted(golds)[:2], sorted(golds)):
        with clock("ranx"):
            qrels, run = ranx.Qrels({query: golds[query] for query in part}), ranx.Run({q: runs[q] for q in part})
            found = ranx.evaluate(qrels, run, list(names.values()), return_mean=False)
    return {ours: found[theirs] for ours, theirs in names.items()}


def show(results: Sequence[dict[str, Any]]) -> None:
    """One line a step, one column a size: seconds on the wall, and of all cores together."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{TOOLS:,} tools, {DIMENSIONS} dimensions")
    for result in results:
        table.add_column(f"{result['queries']:,} queries", justify="right")
        table.add_column("CPU", justify="right")
    for step in results[0]["seconds"]:
        table.add_row(step, *(cell for result in results for cell in _seconds(result, step)))
    table.add_row("in all", *(cell for result in results for cell in _seconds(result)), style="bold")
    table.add_row("peak memory", *(cell for result in results for cell in (f"{result['peak_gb']:.2f} GB", "")))
    table.add_section()
    others = [result for result in results if "others" in result]
    for name in others[0]["others"]["seconds"] if others else ():
        table.add_row(f"scores by {name}", *(cell for result in others for cell in _seconds(result["others"], name)))
    for name in others[0]["differences"] if others else ():
        gaps = [cell for result in others for cell in (f"{result['differences'][name]:.0e}", "")]
        table.add_row(f"largest difference to {name}", *gaps)
    Console().print(table)


def _seconds(result: dict[str, Any], step: str | None = None) -> tuple[str, str]:
    """Of one step, or of all."""
    told = [result[kind][step] if step else sum(result[kind].values()) for kind in ("seconds", "cpu_seconds")]
    return f"{told[0]:.2f} s", f"{told[1]:.2f} s"


def main() -> None:
    """Measure every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", default="1092,100000")
    parser.add_argument("--alone", action="store_true", help="without pytrec_eval and ranx")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = [int(size) for size in given.queries.split(",")]
    context = multiprocessing.get_context("spawn")
    results = []
    for size in sizes:
        with context.Pool(1) as pool:
            results.append(pool.apply(measure, (size, not given.alone)))
    if given.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    main()
