"""Kill the tiny pipeline again and again, anywhere, run it again, and compare every artifact with a quiet run's.

``python tests/chaos.py --kills 60`` prints who was killed in which stage, and leaves with 1 if a byte differs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from cohyde.dag import manifest as manifests
from cohyde.dag.attempts import Attempt
from cohyde.dag.store import Store
from cohyde.io import sha256_file
from cohyde.progress import untimed

ROOT = Path(__file__).resolve().parent.parent
EVERY_STEP = "runner.checkpoint_minutes=0"
LONGEST_WAIT = 25.0
"""Seconds from when a stage is at work to the kill, at most, on a fast machine: a fresh worker imports for ten before
it computes. On a slow one half of what an undisturbed run takes, or kills would never get past its imports."""
PATIENCE = 600.0


def command(store: Path, rounds: int, settings: Sequence[str]) -> list[str]:
    """The run under attack."""
    arguments = ["run", "--config", "tiny", "--rounds", str(rounds), "--name", "chaos", "--store", str(store)]
    return [sys.executable, "-m", "cohyde", *arguments, EVERY_STEP, *settings]


@dataclass
class Driver:
    """A ``cohyde run`` in a process of its own; what it says goes to a file."""

    store: Path
    rounds: int
    settings: Sequence[str]
    log: Path

    def __post_init__(self) -> None:
        with self.log.open("a", encoding="utf-8") as handle:
            self.process = subprocess.Popen(
                command(self.store, self.rounds, self.settings), stdout=handle, stderr=handle, cwd=ROOT
            )

    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self.process.poll() is not None

    def descendants(self) -> list[psutil.Process]:
        """All processes below, the driver's own not among them."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


def attempts_at_work(store: Path) -> list[Attempt]:
    """Attempts whose worker has begun and not ended."""
    attempts = [Attempt(path) for path in store.glob("logs/*/attempt-*")]
    return [attempt for attempt in attempts if attempt.is_running()]


# ------------------------------------------------------------------------------------------------- ways to kill


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_driver(driver: Driver) -> None:
    """SIGKILL to the process that a person started."""
    _kill(driver.process.pid)


def kill_worker(driver: Driver) -> None:
    """SIGKILL to a stage's worker; the run itself tries again."""
    for attempt in attempts_at_work(driver.store):
        if owner := attempt.owner():
            _kill(owner.pid)
            return


def kill_raylet(driver: Driver) -> None:
    """SIGKILL to Ray's node manager, which takes the workers with it."""
    for process in driver.descendants():
        with suppress(psutil.NoSuchProcess):
            if process.name() == "raylet":
                _kill(process.pid)
                return


def terminate_driver(driver: Driver) -> None:
    """SIGTERM to the driver alone."""
    _kill(driver.process.pid, signal.SIGTERM)


def terminate_all(driver: Driver) -> None:
    """SIGTERM to every process at once, as a scheduler sends it when the time is up."""
    for process in (*driver.descendants(), psutil.Process(driver.process.pid)):
        with suppress(psutil.NoSuchProcess):
            _kill(process.pid, signal.SIGTERM)


KILLS: dict[str, Callable[[Driver], None]] = {
    "SIGKILL driver": kill_driver,
    "SIGKILL worker": kill_worker,
    "SIGKILL raylet": kill_raylet,
    "SIGTERM driver": terminate_driver,
    "SIGTERM all": terminate_all,
}


# ---------------------------------------------------------------------------------------------------- the attack


@dataclass
class Outcome:
    """What was done and what came of it."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(way, stage) → how often."""
    runs: int = 0
    """Stores that were brought to their end under attack."""
    artifacts: int = 0
    resumed: int = 0
    """Attempts that were a second or later one of their stage."""
    differences: list[str] = field(default_factory=list)


def checksums(store: Path) -> dict[str, str]:
    """SHA-256 of every file of every artifact, and its metrics; times and hosts are no part of what is compared."""
    found = {}
    for folder in Store(store).artifacts():
        record = manifests.parse((folder / manifests.FILE_NAME).read_text(encoding="utf-8"))
        found[f"{folder.name}: metrics"] = json.dumps(untimed(record.metrics), sort_keys=True)
        for file in record.files:
            found[f"{folder.name}/{file.path}"] = sha256_file(folder / file.path)
    return found


def quiet_run(store: Path, rounds: int, settings: Sequence[str], log: Path) -> tuple[dict[str, str], float]:
    """The same run, undisturbed: what it made, and the seconds that it took."""
    started = time.monotonic()
    driver = Driver(store, rounds, settings, log)
    if driver.process.wait(timeout=PATIENCE):
        raise RuntimeError(f"the undisturbed run failed; see {log}")
    return checksums(store), time.monotonic() - started


def attack(
    driver_of: Callable[[], Driver], kills: int, longest_wait: float, rng: random.Random, outcome: Outcome
) -> int:
    """Run, kill, run again, until the run is through or ``kills`` have been made; returns how many were made."""
    made = 0
    while True:
        driver = driver_of()
        while made < kills and _wait_for_work(driver, longest_wait * rng.random()):
            stages = [attempt.folder.parent.name.rpartition("-")[0] for attempt in attempts_at_work(driver.store)]
            if not stages or driver.is_over():
                continue
            way = rng.choice(list(KILLS))
            KILLS[way](driver)
            made += 1
            outcome.kills[way, "+".join(sorted(stages))] += 1
            print(f"{outcome.kills.total():>4}  {way:<15} {' + '.join(sorted(stages))}", file=sys.stderr, flush=True)
            if way != "SIGKILL worker":
                break
        status = driver.process.wait(timeout=PATIENCE)
        for process in driver.descendants():  # a killed driver's Ray ends by itself, in its own time
            _kill(process.pid)
        if status == 0:
            return made


def _wait_for_work(driver: Driver, seconds: float) -> bool:
    """Wait until a stage is at work, and then for some seconds; whether the run is still under way."""
    while not driver.is_over() and not attempts_at_work(driver.store):
        time.sleep(0.05)
    end = time.monotonic() + seconds
    while not driver.is_over() and time.monotonic() < end:
        time.sleep(0.02)
    return not driver.is_over()


def chaos(folder: Path, kills: int, seed: int = 0, rounds: int = 1, settings: Sequence[str] = ()) -> Outcome:
    """Make ``kills`` kills in as many runs as it takes, each brought to its end and compared with a quiet one."""
    rng, outcome = random.Random(seed), Outcome()
    expected, seconds = quiet_run(folder / "quiet", rounds, settings, folder / "quiet.log")
    made = 0
    while made < kills:
        store = folder / f"attacked-{outcome.runs + 1}"
        driver_of = partial(Driver, store, rounds, settings, store.with_suffix(".log"))
        made += attack(driver_of, kills - made, max(LONGEST_WAIT, seconds / 2), rng, outcome)
        found = checksums(store)
        outcome.runs += 1
        outcome.artifacts += len(list(Store(store).artifacts()))
        outcome.resumed += sum(1 for path in store.glob("logs/*/attempt-*") if not path.name.endswith("-1"))
        outcome.differences += [
            f"{store.name}: {name}" for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)
        ]
    return outcome


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6, help="how many (default: 6)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the ways (default: 0)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each run (default: 1)")
    parser.add_argument("--folder", type=Path, help="keep the stores there (default: a temporary folder)")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = chaos(folder, given.kills, given.seed, given.rounds, given.settings)
    for (way, stages), count in sorted(outcome.kills.items()):
        print(f"{count:>4}  {way:<15} {stages}")
    print(
        f"{outcome.kills.total()} kills in {outcome.runs} runs; {outcome.artifacts} artifacts compared, "
        f"{outcome.resumed} attempts were not a stage's first; {len(outcome.differences)} differences"
    )
    for difference in outcome.differences:
        print(f"  {difference}")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
