"""What the machinery itself costs: 200 stages that do nothing, and plans of 6,000.

Run it with ``python tests/benchmarks/runner_overhead.py [STAGES]``.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trivial_stages.basic import Numbers

from cohyde.dag import events
from cohyde.dag.plan import Plan, make_plan, merge
from cohyde.dag.runner import run
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import states
from cohyde.dag.store import Store

T = TypeVar("T")


def pipeline(stages: int, seed: int = 0) -> list[StageSpec]:
    """Chains of six, as in a round."""
    return [
        StageSpec(
            id=f"S{position}",
            entry="trivial_stages.basic:number",
            version="1",
            config=Numbers(value=seed * stages + position),
            inputs={"x": f"S{position - 1}"} if position % 6 else {},
        )
        for position in range(stages)
    ]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result and the seconds that it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def main(stages: int = 200) -> None:
    """Print the table."""
    rows: list[tuple[str, float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        specs = pipeline(stages)
        submitted: list[float] = []

        def note(event: events.Event) -> None:
            if isinstance(event, events.Submitted) and not submitted:
                submitted.append(time.perf_counter())

        start = time.perf_counter()
        assert run(specs, store, run_name="benchmark", on_event=note).ok
        end = time.perf_counter()
        rows.append(("start of Ray", submitted[0] - start, 1))
        rows.append((f"run of {stages} stages", end - submitted[0], stages))
        rows.append(("the same again", timed(lambda: run(specs, store, run_name="benchmark"))[1], stages))

        def plan_sweep() -> Plan:
            return merge(make_plan(pipeline(60, seed)) for seed in range(100))

        plan, seconds = timed(plan_sweep)
        rows.append(("plan of a sweep", seconds, len(plan.nodes)))
        rows.append(("its states", timed(lambda: states(plan, store))[1], len(plan.nodes)))
    print(f"{'':24}{'seconds':>9}{'each, ms':>10}")
    for what, seconds, count in rows:
        print(f"{what:24}{seconds:9.2f}{1000 * seconds / count:10.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
