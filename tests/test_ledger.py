"""Ledgers: finished rows survive a kill, half a line does not, and other work has a file of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cohyde.data.ledger import Ledger
from cohyde.errors import UserError


def test_appended_rows_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "work", {"seed": 1})
    assert ledger.rows == []
    for row in ({"id": "ä", "n": 1}, {"id": "two\nlines", "n": [2.5, None]}):
        ledger.append(row)
    again = Ledger(tmp_path / "work", {"seed": 1})
    assert again.rows == ledger.rows == [{"id": "ä", "n": 1}, {"id": "two\nlines", "n": [2.5, None]}]


def test_other_work_has_a_file_of_its_own(tmp_path: Path) -> None:
    Ledger(tmp_path, {"seed": 1, "model": "m"}).append({"id": "a"})
    assert Ledger(tmp_path, {"seed": 2, "model": "m"}).rows == []
    assert Ledger(tmp_path, {"model": "m", "seed": 1}).rows == [{"id": "a"}]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("half", ['{"id": "b', '{"id": "b"}', "{", '{"id": "ä'.encode()[:-1].decode("latin-1")])
def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path, half: str) -> None:
    ledger = Ledger(tmp_path, {})
    ledger.append({"id": "a"})
    with ledger.path.open("ab") as handle:
        handle.write(half.encode("latin-1"))
    again = Ledger(tmp_path, {})
    assert again.rows == [{"id": "a"}]
    again.append({"id": "c"})
    assert ledger.path.read_text("utf-8") == '{"id": "a"}\n{"id": "c"}\n'


def test_a_whole_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, {})
    ledger.append({"id": "a"})
    with ledger.path.open("a", encoding="utf-8") as handle:
        handle.write('{"id": \n')
    with pytest.raises(UserError, match=rf"{ledger.path.name}:2: not JSON"):
        Ledger(tmp_path, {})


def test_a_row_that_json_cannot_hold_leaves_no_trace(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, {})
    with pytest.raises(ValueError):
        ledger.append({"score": float("nan")})
    assert Ledger(tmp_path, {}).rows == ledger.rows == []


def test_a_place_that_cannot_be_written_to_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a directory"):
        Ledger(tmp_path / "file" / "work", {})


def test_a_killed_process_loses_no_finished_row(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from cohyde.data.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), {})
for number in range(5):
    ledger.append({"n": number})
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert Ledger(tmp_path, {}).rows == [{"n": number} for number in range(5)]
    assert [json.loads(line)["n"] for line in next(tmp_path.iterdir()).read_text().splitlines()] == [0, 1, 2, 3, 4]
