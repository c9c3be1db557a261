"""How long a report takes: a sweep of 3 seeds × 3 rounds × 12 systems and more, made up, but of the paper's size.

Run: ``python tests/benchmarks/report.py [--queries 1092] [--seeds 3] [--rounds 3]``. The store is written first, which
is not counted. Wall-clock and processor seconds are those of a process of its own, from its start to its end.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def measured(*command: str) -> tuple[float, float]:
    """Wall-clock and processor seconds of a command that has to succeed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, spent


def main() -> None:
    """Make the store, time the command, print a table."""
    from report_store import ReportStore

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1092, help="evaluation queries; as many vague ones")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", type=int, default=10_000)
    chosen = parser.parse_args()
    tiers = {"G1": chosen.queries // 2, "G2": chosen.queries // 3, "G3": chosen.queries - chosen.queries // 2
             - chosen.queries // 3}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        made = ReportStore(root=store, tiers=tiers, tools=chosen.tools, depth=50, sampled=False, steps=4000)
        made.sweep("paper", range(chosen.seeds), "pipeline=baselines", rounds=chosen.rounds)
        page, tables = Path(folder) / "report.html", Path(folder) / "tables"
        base = (sys.executable, "-m", "cohyde", "report", "paper", "--store", str(store))
        table = Table(box=None, title=f"{chosen.seeds} seeds × {chosen.rounds} rounds, every baseline")
        for head in ("command", "wall, s", "processor, s", "page, kB"):
            table.add_column(head, justify="left" if head == "command" else "right")
        for title, more in (("report", ["--html", str(page)]), ("report --to", ["--to", str(tables)])):
            wall, spent = measured(*base, *more)
            size = (page if "--html" in more else tables / "report.html").stat().st_size
            table.add_row(title, f"{wall:.1f}", f"{spent:.1f}", f"{size / 1000:.0f}")
        Console().print(table)


if __name__ == "__main__":
    main()
