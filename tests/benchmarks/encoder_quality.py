"""What gold-aware negatives and mined hard ones are worth: three trainings of the same pairs, under several seeds.

Run: ``python tests/benchmarks/encoder_quality.py --queries 800 --seeds 0 1 2``
(ToolLens is read from ``--data FOLDER`` or ``COHYDE_TOOLLENS``; without it the embedded sample is.)

Each row trains all-MiniLM-L6-v2 on the pairs of the same training queries in the same order, in two halves:

- plain: every other tool of a batch is a negative;
- gold-aware: what is right for a query is none;
- hard negatives: the first half gold-aware; then that encoder mines the tools which it ranks high and which are not
  right for the queries of the second half, and these stand in its batches too.

The intervals are over seeds and queries; the differences are from plain, query by query.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from toollens import MODEL, evenly, read_toollens, scored

from cohyde.catalog import Dataset, Query
from cohyde.config import EncoderConfig, EncoderTrainConfig, MiningConfig
from cohyde.encoder.embedder import open_embedder
from cohyde.encoder.mining import mine
from cohyde.encoder.model import load_encoder
from cohyde.encoder.pairs import Pair, pairs_of, right_tools, same_texts
from cohyde.encoder.train import train_encoder
from cohyde.evaluation.bootstrap import over_seeds_and_queries
from cohyde.models.reference import resolve
from cohyde.progress import Silent

METRICS = ("ndcg@5", "recall@5", "comp@5")
UNTRAINED, PLAIN, GOLD_AWARE, HARD = "untrained", "plain", "gold-aware", "+ hard negatives"
ROWS = (UNTRAINED, PLAIN, GOLD_AWARE, HARD)
Scores = dict[str, np.ndarray]


def half(
    start: Path,
    queries: Sequence[Query],
    dataset: Dataset,
    config: EncoderConfig,
    negatives: str,
    seed: int,
    out: Path,
    mining: MiningConfig | None = None,
) -> Path:
    """Train on the pairs of some queries; with ``mining`` against what ``start`` ranks high for them too."""
    pairs: list[Pair] = [pair for query in queries for pair in pairs_of(query.text, query)]
    model, hard = load_encoder(start, config), {}
    if mining is not None:
        right = right_tools(pairs, same_texts(dataset.tools, config.index_form))
        embedder = open_embedder(start, config)
        mined = mine(embedder, right, dataset.tools, config.index_form, mining, Silent())
        hard = {anchor: tuple(tool for tool, _ in found) for anchor, found in mined}
    train_encoder(
        model,
        pairs,
        dataset.tools,
        config,
        forms=(config.index_form,),
        seed=seed,
        dev=None,
        out=out,
        progress=Silent(),
        negatives=negatives,
        hard_negatives=hard,
    )
    return out


def of_seed(
    dataset: Dataset, count: int, unseen: Sequence[Query], config: EncoderConfig, mining: MiningConfig, seed: int
) -> dict[str, Scores]:
    """The rows under one seed, which draws the queries, their order and dropout."""
    queries = evenly(dataset.train, count, seed)
    np.random.default_rng(seed).shuffle(queries)  # type: ignore[arg-type]
    first, second = queries[: len(queries) // 2], queries[len(queries) // 2 :]
    start = resolve(config.model)
    found = {UNTRAINED: start}
    with tempfile.TemporaryDirectory() as scratch:
        for negatives, name in (("all", PLAIN), ("gold_aware", GOLD_AWARE)):
            folder = Path(scratch) / negatives
            begun = half(start, first, dataset, config, negatives, seed, folder / "first")
            found[name] = half(begun, second, dataset, config, negatives, seed + 1, folder / "second")
        begun = Path(scratch) / "gold_aware" / "first"
        out = Path(scratch) / "hard"
        found[HARD] = half(begun, second, dataset, config, "gold_aware", seed + 1, out, mining)
        return {name: scored(load_encoder(found[name], config), dataset.tools, unseen, config) for name in ROWS}


def summary(by_seed: Sequence[dict[str, Scores]]) -> list[dict[str, Any]]:
    """A row a system and metric: mean, interval, difference from plain and its interval; fractions."""
    rows = []
    for name in ROWS:
        for metric in METRICS:
            values = [found[name][metric].tolist() for found in by_seed]
            gains = [(found[name][metric] - found[PLAIN][metric]).tolist() for found in by_seed]
            own, gain = over_seeds_and_queries(values), over_seeds_and_queries(gains)
            rows.append(
                {
                    "system": name,
                    "metric": metric,
                    "mean": float(np.mean(values)),
                    "interval": [own.low, own.high],
                    "difference": float(np.mean(gains)),
                    "difference_interval": [gain.low, gain.high],
                }
            )
    return rows


def main() -> None:
    """Print what was measured, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=800, help="training queries of a seed")
    parser.add_argument("--eval-queries", type=int, help="default: all")
    parser.add_argument("--data", type=Path, help="ToolLens as published (corpus.jsonl, queries.jsonl, qrels)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--per-anchor", type=int, default=1, help="hard negatives a query")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(arguments.threads)
    name, dataset = read_toollens(arguments.data)
    recipe = EncoderTrainConfig(batch_size=arguments.batch_size, epochs=1, lr=arguments.lr, precision="float32")
    config = EncoderConfig(model=arguments.model, pooling="auto", max_length=arguments.max_length, train=recipe)
    mining = replace(MiningConfig(), per_anchor=arguments.per_anchor)
    unseen = evenly(dataset.eval, arguments.eval_queries, 0)
    by_seed = []
    for seed in arguments.seeds:
        by_seed.append(of_seed(dataset, arguments.queries, unseen, config, mining, seed))
        means = {row: round(100 * float(by_seed[-1][row]["ndcg@5"].mean()), 2) for row in ROWS}
        print(f"seed {seed}: NDCG@5 {means}", file=sys.stderr, flush=True)
    rows = summary(by_seed)
    if arguments.json:
        print(json.dumps({"data": name, "queries": arguments.queries, "seeds": arguments.seeds, "rows": rows}))
        return
    print(f"{name}: {arguments.queries} training queries a seed, {len(arguments.seeds)} seeds, {len(unseen)} unseen")
    for row in rows:
        own, gain = ([100 * end for end in row[key]] for key in ("interval", "difference_interval"))
        against = f"{100 * row['difference']:+6.1f} [{gain[0]:+.1f}, {gain[1]:+.1f}]" if row["system"] != PLAIN else ""
        between = f"[{own[0]:.1f}, {own[1]:.1f}]"
        print(f"{row['system']:18} {row['metric']:9} {100 * row['mean']:5.1f} {between:14} {against}")


if __name__ == "__main__":
    main()
