"""Embedding a catalogue and requests: ours against ``SentenceTransformer.encode`` as people call it.

Run: ``python tests/benchmarks/embedding.py [--tools 46980 --queries 10000] [--json]``

The same model (all-MiniLM-L6-v2, 256 tokens at most), the same texts; ``encode`` gets its default arguments. The texts
are those of toolbench_mini and ToolLens where they lie beside the checkout (or in ``--data FOLDER``), else of the
embedded sample; where more are wanted than there are, they are repeated, each time with another word in front, so that
no two are equal. The texts are cut into parts that both embed in turn, so that whatever else the machine does slows
both; the larger the parts, the better either can sort them. ``ratio`` is the other's seconds over ours.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from toollens import MODEL, PUBLIC_DATA

from cohyde.catalog import render
from cohyde.config import EmbeddingConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.model import embed, load_encoder
from cohyde.io import read_rows
from cohyde.models.reference import resolve
from cohyde.resources import sample_folder

FORM = 5
Embed = Callable[[Sequence[str]], np.ndarray]


def texts_of(folder: Path) -> tuple[str, list[str], list[str]]:
    """Where they are from, renderings of tools, and requests; each distinct one once."""
    names, tools, queries = [], [], []
    if (folder / "toolbench_mini").is_dir():
        dataset, _ = read_dataset(folder / "toolbench_mini")
        names.append("toolbench_mini")
        tools += [render(tool, FORM) for tool in dataset.tools]
        queries += [query.text for query in (*dataset.train, *dataset.eval)]
    if (folder / "toollens").is_dir():
        names.append("ToolLens")
        rows = read_rows(folder / "toollens" / "corpus.jsonl")
        tools += [" ".join(filter(None, (row.get("title", ""), row["text"]))) for row in rows]
        queries += [row["text"] for row in read_rows(folder / "toollens" / "queries.jsonl")]
    if not names:
        dataset, _ = read_dataset(sample_folder())
        names.append("the embedded sample")
        tools += [render(tool, FORM) for tool in dataset.tools]
        queries += [query.text for query in (*dataset.train, *dataset.eval)]
    return " and ".join(names), list(dict.fromkeys(tools)), list(dict.fromkeys(queries))


def enough(texts: Sequence[str], wanted: int, seed: int) -> list[str]:
    """So many distinct texts in a drawn order: all of them, then each with a word in front, then with another."""
    varied = (f"edition {again} {text}" if again else text for again in count() for text in texts)
    some = list(islice(varied, max(wanted, len(texts))))
    return [some[place] for place in np.random.default_rng(seed).permutation(len(some))[:wanted]]


def parts_of(tools: Sequence[str], queries: Sequence[str], turns: int) -> list[list[list[str]]]:
    """Equal shares of both for each turn; tools and queries are embedded apart, as they are in use."""
    return [[list(tools[turn::turns]), list(queries[turn::turns])] for turn in range(turns)]


def measure(ours: Embed, theirs: Embed, parts: Sequence[Sequence[Sequence[str]]]) -> dict[str, Any]:
    """Seconds of each over all parts, on the wall and of all cores together, and how far the vectors are apart."""
    contenders = {"cohyde": ours, "sentence_transformers": theirs}
    wall, processor, apart = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0.0), 0.0
    for texts in (texts for part in parts for texts in part if texts):
        found = {}
        for name, embedded in contenders.items():
            started, worked = time.perf_counter(), time.process_time()
            found[name] = embedded(texts)
            wall[name] += time.perf_counter() - started
            processor[name] += time.process_time() - worked
        apart = max(apart, float(np.abs(found["cohyde"] - found["sentence_transformers"]).max()))
    return {
        "ratio": wall["sentence_transformers"] / wall["cohyde"],
        "processor_ratio": processor["sentence_transformers"] / processor["cohyde"],
        "seconds": wall,
        "processor_seconds": processor,
        "largest_difference": apart,
    }


def main() -> None:
    """Print what was measured, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=int, default=46_980)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=2, help="parts that the texts are cut into")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, help="holds toolbench_mini and toollens")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    name, tools, queries = texts_of(given.data)
    parts = parts_of(
        enough(tools, given.tools, given.seed), enough(queries, given.queries, given.seed + 1), given.turns
    )
    config = EmbeddingConfig(model=given.model, pooling="auto", max_length=given.max_length)
    model = load_encoder(resolve(given.model), config, "cpu")
    plain = SentenceTransformer(str(resolve(given.model)), device="cpu", local_files_only=True)
    plain.max_seq_length = given.max_length
    for warm in (lambda: embed(model, tools[:8], 64, "document"), lambda: plain.encode(tools[:8])):
        warm()
    result = measure(
        lambda texts: embed(model, texts, config.embed_batch_size, "document"),
        lambda texts: plain.encode(list(texts), show_progress_bar=False),
        parts,
    )
    result = {"texts": name, "tools": given.tools, "queries": given.queries, **result}
    if given.json:
        print(json.dumps(result))
        return
    print(f"{given.tools:,} tools and {given.queries:,} queries of {name}, {given.max_length} tokens at most")
    for contender, seconds in result["seconds"].items():
        rate = (given.tools + given.queries) / seconds
        worked = result["processor_seconds"][contender]
        print(f"{contender:22} {seconds:8.1f} s  {worked:8.1f} processor seconds  {rate:7.1f} texts/s")
    print(f"ratio {result['ratio']:.2f} (processor {result['processor_ratio']:.2f}); ", end="")
    print(f"vectors differ by {result['largest_difference']:.1e} at most")


if __name__ == "__main__":
    main()
