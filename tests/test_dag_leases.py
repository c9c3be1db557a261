"""Leases: one holder at a time, taken over when it is dead, and found out by the one that lost it."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cohyde.dag import leases
from cohyde.dag.leases import Holder, Lease, LeaseLostError, Watch, newest, revoke, take
from cohyde.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases" / "S1a-0123"


def elsewhere(folder: Path, number: int = 1, **changes: object) -> Holder:
    """A lease of a process on another host."""
    given = {"token": f"t{number}", "run": "other", "attempt": "a", "host": "far-away", "pid": 7, "birth": None}
    holder = Holder(**{**given, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.json").write_text(json.dumps(dataclasses.asdict(holder)), encoding="utf-8")
    return holder


def taken(folder: Path, over: int = 0) -> Lease:
    lease = take(folder, over, "mine", "attempt-1")
    assert lease is not None
    return lease


def test_a_lease_is_free_held_and_free_again(folder: Path) -> None:
    watch = Watch(folder)
    assert (watch.holder(), watch.number) == (None, 0)
    lease = taken(folder)
    holder = watch.holder()
    assert holder is not None and (holder.run, holder.pid, watch.number) == ("mine", os.getpid(), 1)
    assert take(folder, 0, "late", "b") is None
    lease.release()
    assert (watch.holder(), watch.number) == (None, 1)
    assert taken(folder, over=1).number == 2


def test_of_many_takers_one_wins(folder: Path) -> None:
    barrier, won = threading.Barrier(16), []

    def taker() -> None:
        barrier.wait()
        won.append(take(folder, 0, "r", "a"))

    threads = [threading.Thread(target=taker) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lease for lease in won if lease]) == 1
    assert [path.name for path in folder.iterdir()] == ["1.json"]


def test_the_lease_of_a_process_that_ended_on_this_host_is_free_at_once(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cohyde.dag.leases import take; take(Path(sys.argv[1]), 0, 'r', 'a')"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    number, holder = newest(folder)
    assert number == 1 and holder is not None and not holder.released
    assert Watch(folder).holder() is None


def test_a_heartbeat_that_stands_still_is_dead_only_after_it_was_watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    holder = elsewhere(folder)
    watch = Watch(folder)
    assert watch.holder() == holder
    now[0] += leases.DEAD_SECONDS - 1
    assert watch.holder() == holder
    beaten = elsewhere(folder, beat=1)  # a sign of life: the count begins anew
    assert watch.holder() == beaten
    now[0] += leases.DEAD_SECONDS - 1
    assert watch.holder() == beaten
    now[0] += 1
    assert (watch.holder(), watch.number) == (None, 1)


def test_the_age_of_a_file_says_nothing_since_clocks_differ(folder: Path) -> None:
    holder = elsewhere(folder)
    for seconds in (0, 4e9):
        os.utime(folder / "1.json", (seconds, seconds))
        assert Watch(folder).holder() == holder


def test_who_lost_its_lease_finds_out_and_its_release_harms_nobody(folder: Path) -> None:
    lost = taken(folder)
    assert lost.beat()
    new = taken(folder, over=1)
    assert not lost.beat() and not lost.is_held()
    with pytest.raises(LeaseLostError, match="taken over by run mine"):
        lost.check()
    lost.release()
    new.check()
    assert newest(folder) == (2, new.holder)
    assert [path.name for path in folder.iterdir()] == ["2.json"]


def test_a_number_that_is_used_again_does_not_bring_a_lost_lease_back(folder: Path) -> None:
    lost = taken(folder)
    leases.forget(folder)
    assert not lost.is_held()
    taken(folder)
    assert not lost.is_held()


def test_beats_are_seen_by_others(folder: Path) -> None:
    lease = taken(folder)
    lease.beat()
    lease.beat()
    holder = newest(folder)[1]
    assert holder is not None and holder.beat == 2 and holder == lease.holder


def test_a_beat_that_is_under_way_does_not_take_a_release_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = taken(folder)
    beating, may_go_on, held_before = threading.Event(), threading.Event(), lease.is_held

    def slowly() -> bool:
        found = held_before()
        if threading.current_thread() is heart:
            beating.set()
            may_go_on.wait(5)
        return found

    monkeypatch.setattr(lease, "is_held", slowly)
    heart, releasing = threading.Thread(target=lease.beat), threading.Thread(target=lease.release)
    heart.start()
    beating.wait(5)
    releasing.start()
    releasing.join(0.2)
    may_go_on.set()
    heart.join()
    releasing.join()
    assert Watch(folder).holder() is None and not lease.beat() and Watch(folder).holder() is None


def test_a_dead_attempts_lease_is_revoked_and_no_other(folder: Path) -> None:
    elsewhere(folder, attempt="logs/x/attempt-1")
    revoke(folder, "logs/x/attempt-2")
    assert Watch(folder).holder() is not None
    revoke(folder, "logs/x/attempt-1")
    watch = Watch(folder)
    assert (watch.holder(), watch.number) == (None, 2)
    revoke(folder, "logs/x/attempt-1")
    assert newest(folder)[0] == 2


def test_a_file_that_is_not_written_yet_is_somebodys(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "1.json").touch()
    assert Watch(folder).holder() == leases.UNKNOWN


def test_where_there_are_no_hard_links_exclusive_creation_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(leases.os, "link", refuse)
    assert taken(folder).is_held()
    assert take(folder, 0, "late", "b") is None


def test_a_store_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--store DIR"):
        take(tmp_path / "file" / "lease", 0, "r", "a")
