"""What data of the paper's size costs: import, validation, statistics, subset; and the validation of a million tools.

Run: ``python tests/benchmarks/data.py [--scale 0.1] [--json]``. The data is generated, seeded, in the forms of several
published sets. Each command runs in a process of its own. Goals, on two cores: import, validation and subset together
in under 60 s and 2 GiB, a million tools validated in under 180 s and 4 GiB.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cohyde.catalog import Parameter, Query, Tool, tool_to_row

TOOLS, TRAIN, EVALUATION, SUBSET, MILLION = 46_980, 104_224, 1_092, 10_000, 1_000_000
CATEGORIES = 49
APIS_OF_A_PROVIDER = 4
CANDIDATES = 5
VOCABULARY = ["".join(syllables) for syllables in product(("ka", "lo", "mi", "ru", "se", "ta", "vo"), repeat=4)]
KIB = 1 << 10


# ---------------------------------------------------------------------------------------------- what is generated


def words(rng: random.Random, count: int) -> str:
    """A text of this many words."""
    return " ".join(rng.choices(VOCABULARY, k=count))


def tools(count: int) -> Iterator[Tool]:
    """Tools as long as ToolBench's: about 40 words, up to three parameters."""
    rng = random.Random(1)
    for number in range(count):
        provider = number // APIS_OF_A_PROVIDER
        yield Tool(
            id=str(number),
            category=f"Category {provider % CATEGORIES}",
            title=f"Provider {provider}",
            api_name=f"{words(rng, 2)} {number}",
            api_description=words(rng, 14),
            parameters=tuple(
                Parameter(name=words(rng, 1), type="STRING", description=words(rng, 6), required=position == 0)
                for position in range(rng.randrange(4))
            ),
            schema=words(rng, 6),
        )


def queries(count: int, split: str, catalogue: int) -> Iterator[Query]:
    """Requests of about 40 words for one to three tools that stand side by side."""
    rng = random.Random(split)
    for number in range(count):
        size = rng.randrange(1, 4)
        first = rng.randrange(catalogue - CANDIDATES)
        yield Query(
            id=f"{split}-{number}",
            text=words(rng, 40),
            tools=tuple(str(first + position) for position in range(size)),
            tier=f"G{size}",
            split=split,
        )


@dataclass(frozen=True)
class Generated:
    """A catalogue and its queries."""

    tools: Sequence[Tool]
    queries: Sequence[Query]

    def tool(self, identifier: str) -> Tool:
        """The tool of an id, which is its position."""
        return self.tools[int(identifier)]


def generate(scale: float) -> Generated:
    """The paper's numbers of tools and queries, or this share of them."""
    catalogue = list(tools(round(TOOLS * scale)))
    sizes = {"train": TRAIN, "eval": EVALUATION}
    found = [list(queries(round(size * scale), split, len(catalogue))) for split, size in sizes.items()]
    return Generated(catalogue, [query for part in found for query in part])


# ------------------------------------------------------------------------------------------ in the published forms


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as handle:
        handle.writelines(line + "\n" for line in lines)


def write_array(path: Path, values: Iterable[Any]) -> None:
    """A JSON array, one item a line."""
    texts = (("[" if position == 0 else ",") + json.dumps(value) for position, value in enumerate(values))
    write_lines(path, (*texts, "]"))


def write_beir(folder: Path, data: Generated) -> None:
    """``corpus.jsonl``, ``queries.jsonl``, ``qrels/*.tsv``."""
    corpus = ({"_id": tool.id, "title": tool.title, "text": tool.api_description} for tool in data.tools)
    write_lines(folder / "corpus.jsonl", map(json.dumps, corpus))
    texts = ({"_id": query.id, "text": query.text} for query in data.queries)
    write_lines(folder / "queries.jsonl", map(json.dumps, texts))
    for split, name in (("train", "train"), ("eval", "test")):
        judged = [query for query in data.queries if query.split == split]
        pairs = (f"{query.id}\t{tool}\t1" for query in judged for tool in query.tools)
        write_lines(folder / "qrels" / f"{name}.tsv", ["query-id\tcorpus-id\tscore", *pairs])


def write_toolbench(folder: Path, data: Generated) -> None:
    """``G?_query.json`` and ``G?_instruction.json``, each request with the APIs that it was written from."""
    for tier, (split, name) in product(("G1", "G2", "G3"), (("train", "query"), ("eval", "instruction"))):
        chosen = (query for query in data.queries if (query.tier, query.split) == (tier, split))
        write_array(folder / f"{tier}_{name}.json", (instruction(query, data) for query in chosen))


def instruction(query: Query, data: Generated) -> dict[str, Any]:
    """A record of ToolBench's instruction files."""
    first = int(query.tools[0])
    gold = map(data.tool, query.tools)
    return {
        "api_list": [api_record(tool) for tool in data.tools[first : first + CANDIDATES]],
        "query": query.text,
        "relevant APIs": [[tool.title, tool.api_name] for tool in gold],
        "query_id": int(query.id.rpartition("-")[2]),
    }


def api_record(tool: Tool) -> dict[str, Any]:
    """An API as ToolBench has it."""
    parameters = {
        required: [
            {"name": p.name, "type": p.type, "description": p.description, "default": ""}
            for p in tool.parameters
            if p.required == required
        ]
        for required in (True, False)
    }
    return {
        "category_name": tool.category,
        "tool_name": tool.title,
        "api_name": tool.api_name,
        "api_description": tool.api_description,
        "required_parameters": parameters[True],
        "optional_parameters": parameters[False],
        "method": "GET",
        "template_response": {"text": tool.schema},
    }


def write_toolgen(folder: Path, data: Generated) -> None:
    """Conversations, one for each pair of a request and its tool, and the memorisation file."""
    pairs = ((query.text, data.tool(tool)) for query in data.queries for tool in query.tools if query.split == "train")
    documents = (
        f"Tool Name: {tool.title}. Tool Description: None "
        f"Api Name: {tool.api_name} Api Description: {tool.api_description}."
        for tool in data.tools
    )
    write_array(folder / "toolgen_atomic_retrieval_G123.json", (conversation(*pair) for pair in pairs))
    memorised = zip(documents, data.tools, strict=True)
    write_array(folder / "toolgen_atomic_memorization.json", (conversation(*pair) for pair in memorised))


def conversation(text: str, tool: Tool) -> dict[str, Any]:
    """A text, and the tool that answers it."""
    answer = {"role": "assistant", "content": f"<<{tool.title}&&{tool.api_name}>>", "loss": True}
    return {"conversations": [{"role": "user", "content": text, "loss": False}, answer]}


def write_toolret(folder: Path, data: Generated) -> None:
    """``tools.jsonl`` and ``queries.jsonl``, documentation and labels as JSON in a text."""
    documents = {tool.id: json.dumps({"name": tool.title, "description": tool.api_description}) for tool in data.tools}
    write_lines(
        folder / "tools.jsonl",
        (json.dumps({"id": tool, "documentation": document}) for tool, document in documents.items()),
    )
    records = (
        {
            "id": query.id,
            "query": query.text,
            "instruction": f"Given a request, retrieve tools of {query.tier}.",
            "labels": json.dumps(
                [{"id": tool, "doc": json.loads(documents[tool]), "relevance": 1} for tool in query.tools]
            ),
            "category": query.tier,
        }
        for query in data.queries
    )
    write_lines(folder / "queries.jsonl", map(json.dumps, records))


FORMS: Mapping[str, Callable[[Path, Generated], None]] = {
    "beir": write_beir,
    "toolgen": write_toolgen,
    "toolret": write_toolret,
    "toolbench": write_toolbench,
}
"""Writers by the name of the format that ``cohyde data import`` knows."""


def write_million(folder: Path, count: int) -> None:
    """A dataset folder of this many tools."""
    write_lines(folder / "catalog.jsonl", (json.dumps(tool_to_row(tool)) for tool in tools(count)))
    row = {"id": "q", "text": "one request", "tools": ["0"], "split": "train"}
    write_lines(folder / "queries.jsonl", [json.dumps(row)])


# ------------------------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One command: wall-clock and processor seconds, most memory held, exit status."""

    what: str
    seconds: float
    processor_seconds: float
    peak_gib: float
    status: int


def measure(what: str, *arguments: str | Path) -> Measured:
    """Run ``cohyde data`` with these arguments to its end."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "cohyde", "data", *map(str, arguments)], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    return Measured(
        what=what,
        seconds=time.perf_counter() - started,
        processor_seconds=used.ru_utime + used.ru_stime,
        peak_gib=used.ru_maxrss * KIB / 2**30,
        status=os.waitstatus_to_exitcode(status),
    )


def write_everything(scratch: Path, scale: float) -> None:
    """All sources, below one folder."""
    data = generate(scale)
    for name, write in FORMS.items():
        write(scratch / f"{name}-source", data)
    write_million(scratch / "million", round(MILLION * scale))


def measurements(scratch: Path, scale: float) -> Iterator[Measured]:
    """Every command, in the order in which a person runs them."""
    # In a process of its own: the memory of the one that starts a command counts in what the command held at most.
    generating = multiprocessing.get_context("spawn").Process(target=write_everything, args=(scratch, scale))
    generating.start()
    generating.join()
    for name in FORMS:
        source = scratch / f"{name}-source"
        size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        yield measure(f"import {name} ({size / 1e6:.0f} MB)", "import", name, source, "--out", scratch / name)
    whole = scratch / "beir"
    subset, split = scratch / "subset", scratch / "split"
    yield measure("validate", "validate", whole)
    yield measure("stats", "stats", whole)
    yield measure("subset", "subset", whole, "--tools", str(round(SUBSET * scale)), "--out", subset)
    yield measure("split", "split", subset, "--out", split)
    yield measure(f"validate {round(MILLION * scale):,} tools", "validate", scratch / "million")


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the paper's numbers, and of a million")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = list(measurements(Path(scratch), options.scale))
    if options.json:
        print(json.dumps({"scale": options.scale, "rows": [asdict(row) for row in rows]}))
        return
    table = Table("what", "seconds", "processor s", "peak GiB", "exit status")
    for row in rows:
        table.add_row(
            row.what, f"{row.seconds:.1f}", f"{row.processor_seconds:.1f}", f"{row.peak_gib:.2f}", str(row.status)
        )
    Console().print(table)


if __name__ == "__main__":
    main()
