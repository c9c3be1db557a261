"""What a user waits for: start-up, planning, a run, the same run again, and how much memory it takes.

Run: ``python tests/benchmarks/product.py [--preset demo] [--rounds 3]``. Times are wall-clock, memory is that of the
whole process tree, workers included, sampled twice a second.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One command."""

    what: str
    seconds: float
    peak_gib: float
    status: int


def tree_bytes(pid: int) -> int:
    """Memory of a process and all below it; a page that several of them share counts once (PSS)."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for member in members:
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def measure(what: str, command: list[str]) -> Measured:
    """Run a command to its end."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_bytes(process.pid))
        time.sleep(SAMPLE_SECONDS if time.perf_counter() - started > 3 else 0.01)
    return Measured(what=what, seconds=time.perf_counter() - started, peak_gib=peak / 2**30, status=process.returncode)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--store", type=Path, help="default: a fresh temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = str(options.store or Path(scratch) / "store")
        cohyde = [sys.executable, "-m", "cohyde"]
        run = ["--config", options.preset, "--rounds", options.rounds, "--store", store]
        rows = [
            measure("import cohyde", [sys.executable, "-c", "import cohyde"]),
            measure("cohyde --help", [*cohyde, "--help"]),
            measure(f"plan, {options.rounds} rounds", [*cohyde, "plan", *run]),
            measure(f"run {options.preset}, {options.rounds} rounds", [*cohyde, "run", *run]),
            measure("the finished run again", [*cohyde, "run", *run]),
            measure("report", [*cohyde, "report", options.preset, "--store", store]),
        ]
    table = Table("what", "seconds", "peak GiB", "exit status")
    for row in rows:
        table.add_row(row.what, f"{row.seconds:.2f}", f"{row.peak_gib:.2f}", str(row.status))
    Console().print(table)


if __name__ == "__main__":
    main()
