"""What the machinery itself costs: stages that do nothing, their leases and manifests, plans of 6,000, a store's check.

Run it with ``python tests/benchmarks/runner_overhead.py [--stages N] [--megabytes N] [--folder DIR]``.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trivial_stages.basic import Numbers

from cohyde.dag import events
from cohyde.dag.leases import Watch, take
from cohyde.dag.manifest import Manifest, library_versions
from cohyde.dag.plan import make_plan, merge
from cohyde.dag.runner import run
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states
from cohyde.dag.store import Store
from cohyde.dag.verify import verify

T = TypeVar("T")
SEEDS, ROUNDS, STAGES_A_ROUND = 100, 10, 6
TARGETS = {
    "run": "200 in 30 s",
    "bookkeeping": "20 ms each",
    "plan": "5 s, 500 MB",
    "verify": "the disk's",
}


def pipeline(stages: int, seed: int = 0) -> list[StageSpec]:
    """Chains of six, as in a round."""
    return [
        StageSpec(
            id=f"S{position}",
            entry="trivial_stages.basic:number",
            version="1",
            config=Numbers(value=seed * stages + position),
            inputs={"x": f"S{position - 1}"} if position % STAGES_A_ROUND else {},
        )
        for position in range(stages)
    ]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result and the seconds that it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def row(what: str, seconds: float, count: int, note: str = "") -> None:
    """One line of the table."""
    print(f"{what:34}{seconds:9.2f}{1000 * seconds / count:10.2f}  {note}", flush=True)


def measure_run(folder: Path, stages: int) -> None:
    """Stages that do nothing, on a Ray of this machine that is warm, and the same run again."""
    store, specs, submitted = Store(folder), pipeline(stages), []

    def note(event: events.Event) -> None:
        if isinstance(event, events.Submitted) and not submitted:
            submitted.append(time.perf_counter())

    start = time.perf_counter()
    assert run(specs, store, run_name="benchmark", on_event=note).ok
    row("start of Ray", submitted[0] - start, 1)
    row(f"run of {stages} stages", time.perf_counter() - submitted[0], stages, TARGETS["run"])
    row("the same again", timed(lambda: run(specs, store, run_name="benchmark"))[1], stages)


def measure_bookkeeping(folder: Path, stages: int = 200) -> None:
    """All that is written of a stage beside its own files: the lease from its taking to its release, the manifest."""
    store, plan = Store(folder), make_plan(pipeline(stages))
    store.prepare()
    library_versions()

    def bookkeeping() -> None:
        for node in plan.nodes.values():
            watch = Watch(store.lease(node.id, node.fingerprint))
            assert watch.holder() is None
            lease = take(store.lease(node.id, node.fingerprint), watch.number, "benchmark", "attempt")
            assert lease is not None
            scratch = store.scratch(node.id, node.fingerprint)
            lease.beat()
            lease.check()
            store.commit(scratch, manifest_of(node.id, node.fingerprint, plan.identities[node.name]))
            lease.release()

    row("leases and manifests", timed(bookkeeping)[1], stages, TARGETS["bookkeeping"])


def manifest_of(stage_id: str, fingerprint: str, identity: dict[str, object]) -> Manifest:
    """A manifest as the worker writes it."""
    when = "2026-01-01T00:00:00+00:00"
    return Manifest(
        id=stage_id, fingerprint=fingerprint, kind="", identity=identity, inputs={}, config=None, metrics={},
        run="benchmark", attempt=1, host="here", started=when, ended=when, seconds=0.0,
        versions=library_versions(), git=None,
    )  # fmt: skip


def measure_plan(folder: Path) -> None:
    """A sweep's plan, and the state of all its stages: in a process of its own, for its memory."""
    command = [sys.executable, __file__, "--plan-only", "--folder", str(folder)]
    subprocess.run(command, check=True)


def plan_only(folder: Path) -> None:
    """The child of :func:`measure_plan`."""
    stages = ROUNDS * STAGES_A_ROUND
    plan, seconds = timed(lambda: merge(make_plan(pipeline(stages, seed)) for seed in range(SEEDS)))
    _, looking = timed(lambda: states(plan, Store(folder)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row(
        f"plan, {SEEDS} seeds, {ROUNDS} rounds",
        seconds + looking,
        len(plan.nodes),
        f"{memory:.0f} MB; {TARGETS['plan']}",
    )


def measure_real_plan() -> None:
    """``cohyde sweep --dry-run`` of the same size, with the stages of the product, as a person waits for it."""
    seeds = ",".join(map(str, range(SEEDS)))
    command = [
        sys.executable,
        "-m",
        "cohyde",
        "sweep",
        "--seeds",
        seeds,
        "--rounds",
        str(ROUNDS),
        "--dry-run",
        "--json",
    ]
    with tempfile.TemporaryDirectory() as store:
        start = time.perf_counter()
        done = subprocess.run([*command, "--store", store], capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
    row("cohyde sweep --dry-run", seconds, done.stdout.count('"id"'), TARGETS["plan"])


def measure_verify(folder: Path, megabytes: int) -> None:
    """Verify's rate beside that of only reading the files, with the files out of the page cache where that works."""
    store, plan = Store(folder), make_plan(pipeline(8))
    store.prepare()
    block = os.urandom(1 << 20)
    for node in plan.nodes.values():
        scratch = store.scratch(node.id, node.fingerprint)
        for part in range(4):
            with (scratch / f"model-{part}.bin").open("wb") as handle:
                for _ in range(max(1, megabytes // 32)):
                    handle.write(block)
        store.commit(scratch, manifest_of(node.id, node.fingerprint, plan.identities[node.name]))
    files = list(folder.rglob("*.bin"))
    size = sum(path.stat().st_size for path in files) / 1e6

    def read() -> None:
        for path in files:
            with path.open("rb", buffering=0) as handle:
                while handle.read(1 << 20):
                    pass

    for what, work in (("only reading", read), ("verify", lambda: verify(store))):
        for path in files:
            forget(path)
        _, seconds = timed(work)
        row(f"{what}, {size:.0f} MB", seconds, len(files), f"{size / seconds:.0f} MB/s; {TARGETS['verify']}")


def forget(path: Path) -> None:
    """Take a file out of the page cache, so that it is read from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; the default is the temporary folder's")
    parser.add_argument("--plan-only", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.plan_only:
        plan_only(chosen.folder)
        return
    print(f"{'':34}{'seconds':>9}{'each, ms':>10}  and the target")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        measure_run(Path(folder) / "run", chosen.stages)
        measure_bookkeeping(Path(folder) / "bookkeeping")
        measure_plan(Path(folder) / "plan")
        measure_real_plan()
        measure_verify(Path(folder) / "verify", chosen.megabytes)


if __name__ == "__main__":
    main()
