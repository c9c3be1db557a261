"""The command line: help, tables that fit 80 columns, messages, exit statuses. Nothing here starts a stage."""

import io
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import Call, caller
from rich.console import Console
from test_dag_store import manifest

import cohyde as package
from cohyde import cli
from cohyde.config import load_config, plain
from cohyde.dag import events
from cohyde.dag.attempts import Attempt, Failure, Owner, new_attempt
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.runner import RunResult
from cohyde.dag.runs import RunRecord, save_run
from cohyde.dag.state import StageState, states
from cohyde.dag.store import Store
from cohyde.live import Live
from cohyde.terminal import blockers, compact, duration, key_metric, plan_table, states_table, summary
from stages.pipeline import pipeline

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = sorted(str(command.callback.__name__) for command in cli.app.registered_commands if command.callback)
ONE_ROUND = ["data", "E.untrained", "S1a", "S1b", "E.0", "S2.1", "S3.1", "S4s.1", "S4p.1", "S4.1", "E.1", "report"]


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """The command line, whose store is ``tmp_path/store`` unless told otherwise."""
    monkeypatch.setenv("COHYDE_STORE", str(tmp_path / "store"))
    return caller(capfd, monkeypatch)


class Made:
    """A store with a run of the tiny preset, one round; tests put into it what they need."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.store.prepare()
        config = load_config("tiny", ["rounds=1"])
        self.plan: Plan = make_plan(pipeline(config))
        record = RunRecord(name="tiny", config=plain(config), preset="tiny", overrides=("rounds=1",), plan=self.plan)
        save_run(self.store, record)

    @property
    def kinds(self) -> dict[str, str]:
        return {spec.id: spec.kind for spec in self.plan.specs.values()}

    def name(self, stage: str) -> str:
        return self.plan.named(stage)[0]

    def finish(self, stage: str, **metrics: Any) -> Path:
        node = self.plan.nodes[self.name(stage)]
        identity = self.plan.identities[node.name]
        record = manifest(id=node.id, fingerprint=node.fingerprint, identity=identity, metrics=metrics, seconds=75.0)
        self.store.commit(self.store.scratch(node.id, node.fingerprint), record)
        return self.store.artifact_path(node.id, node.fingerprint)

    def begin(self, stage: str) -> Attempt:
        attempt = new_attempt(self.store, self.name(stage))
        before = datetime.now().astimezone() - timedelta(seconds=65)
        attempt.start(replace(Owner.this_process("tiny"), started=before.isoformat(timespec="seconds")))
        return attempt

    def fail(self, stage: str, error: str, remedy: str = "") -> Failure:
        attempt = self.begin(stage)
        failure = Failure(id=stage, name=self.name(stage), attempt=1, error=error, remedy=remedy, log=str(attempt.log))
        attempt.end(failure)
        return failure


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "store")


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


# --------------------------------------------------------------------------------------------------------- help


def test_every_command_is_listed_with_one_line(cohyde: Call) -> None:
    code, output, _ = cohyde("--help")
    assert code == 0
    assert widest(output) <= 80
    listed = [line for line in output.splitlines() if line.startswith("│ ") and line.split()[1] in COMMANDS]
    assert len(listed) == len(COMMANDS) >= 7
    assert all(line.rstrip(" │").endswith(".") for line in listed)  # whole sentences, none goes on below


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_fits_and_has_an_example(cohyde: Call, command: str) -> None:
    code, output, _ = cohyde(command, "--help")
    assert code == 0
    assert widest(output) <= 80
    assert f"Example: cohyde {command}" in output
    assert " ." not in output.replace("...", "")
    assert cohyde(command, "-h")[1] == output


def test_the_version(cohyde: Call) -> None:
    assert cohyde("--version") == (0, f"cohyde {package.__version__}\n", "")


def test_python_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "cohyde", "run", "-h"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert "Usage: cohyde run [OPTIONS] [KEY=VALUE]..." in done.stdout


# --------------------------------------------------------------------------------------------------------- plan


def test_plan_shows_what_each_stage_needs_in_80_columns(cohyde: Call) -> None:
    code, output, errors = cohyde("plan", "-c", "tiny", "-r", "12")
    assert code == 0
    assert widest(output) <= 80
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in output.splitlines()}
    assert lines["stage"].split() == ["what", "needs", "state", "time"]
    assert lines["E.0"].rstrip() == "evaluation            data, S1a, S1b         waiting"
    assert lines["S4p.12"].rstrip() == "preference pairs      data, S4s.12, S3.12    waiting"
    assert lines["report"].rstrip() == "report                E.untrained, E.0–E.12  waiting"
    assert errors == "tiny: 78 stages: 0 done, 78 to run\n"  # 5 + 12 × 6 + 1


def test_needs_are_left_out_where_they_do_not_fit(made: Made) -> None:
    found = states(made.plan, made.store)
    wide, narrow = (plan_table(found, made.kinds, Console(width=width)) for width in (80, 60))
    assert [str(column.header) for column in wide.columns] == ["stage", "what", "needs", "state", "time"]
    assert [str(column.header) for column in narrow.columns] == ["stage", "what", "state", "time"]


def test_plan_until_a_stage_shows_what_that_needs(cohyde: Call) -> None:
    _, output, errors = cohyde("plan", "-c", "tiny", "--until", "S3.1")
    assert [line.split()[0] for line in output.splitlines()[1:]] == ["data", "S1a", "S1b", "S2.1", "S3.1"]
    assert errors == "tiny: 5 stages: 0 done, 5 to run\n"


def test_plan_prints_the_documented_object(cohyde: Call, tmp_path: Path) -> None:
    code, output, _ = cohyde("plan", "-c", "tiny", "-r", "1", "--json")
    content = json.loads(output)
    assert code == 0
    assert (content["run"], content["store"]) == ("tiny", str(tmp_path / "store"))
    assert [stage["id"] for stage in content["stages"]] == ONE_ROUND
    first, second, *_ = content["stages"]
    fingerprint = first.pop("fingerprint")
    assert len(fingerprint) == 64
    assert first == {"id": "data", "state": "ready", "inputs": {}, "path": None, "seconds": None, "metrics": {}}
    assert (second["state"], second["inputs"]) == ("waiting", {"data": "data"})
    assert not (tmp_path / "store").exists()


def test_plan_loads_neither_ray_nor_torch() -> None:
    code = (
        "import sys\nfrom cohyde.cli import main\nsys.argv[1:] = ['plan', '--store', 'no-such-store']\n"
        "try:\n    main()\nexcept SystemExit:\n    print({'ray', 'torch', 'transformers', 'faiss'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "set()"


def test_changed_settings_of_a_name_that_was_used_are_told(cohyde: Call, made: Made) -> None:
    _, _, errors = cohyde("plan", "-c", "tiny", "-r", "1")
    assert "other settings" not in errors
    _, _, errors = cohyde("plan", "-c", "tiny", "-r", "4")
    assert errors.splitlines()[0] == "tiny had other settings before: rounds: 1 → 4"
    assert len(errors.splitlines()) == 2
    _, _, errors = cohyde("plan", "-c", "tiny", "-r", "1", "dpo.beta=0.2", "sft.lora.targets=[q_proj]")
    first, second, _ = errors.splitlines()
    assert first.startswith("tiny had other settings before: sft.lora.targets: [")
    assert first.endswith("] → ['q_proj']; dpo.beta: 0.1 → 0.2")
    assert second == "  what was finished with those stays in the store; --name NAME keeps two runs apart"
    _, _, errors = cohyde("plan", "-c", "demo", "-r", "1", "-n", "tiny")
    assert "; and " in errors.splitlines()[0]  # not a hundred of them
    assert errors.splitlines()[0].endswith(" more")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    for arguments in ("--rounds 40", "--rounds 400 --json"):
        command = f"set -o pipefail; {sys.executable} -m cohyde plan -c tiny {arguments} | head -c 10"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, len(done.stdout)) == (0, 10)
        assert "Error" not in done.stderr


# ------------------------------------------------------------------------------------------------------- status


def test_status_shows_results_progress_and_failures(cohyde: Call, made: Made) -> None:
    made.finish("data", tools=60)
    made.begin("S1a").write_progress({"done": 2.0, "total": 8.0, "what": "steps", "warnings": []})
    made.begin("E.untrained")
    failure = made.fail("S1b", "loss is nan at step 7 " + "of very many words " * 9 + "it ends", remedy="lower sft.lr")
    code, output, errors = cohyde("status")
    assert code == 0
    assert widest(output) <= 100
    lines = {line.split()[0]: line.rstrip() for line in output.splitlines()}
    assert lines["data"].split() == ["data", "data", "done", "1", "min", "15", "s", "60", "tools"]
    assert re.search(r" running  1 min 0\d s  2 of 8 steps$", lines["S1a"])
    assert re.search(r" running  1 min 0\d s$", lines["E.untrained"])
    assert lines["S1b"].split("failed")[1].strip().startswith("loss is nan at step 7 of very many")
    assert lines["S1b"].endswith("…")
    assert lines["E.1"].split() == ["E.1", "evaluation", "blocked", "by", "S1b"]
    told = errors.splitlines()
    assert told[0] == "tiny: 12 stages: 1 done, 2 running, 9 to run; S1b failed last time"
    assert told[2] == f"S1b failed: {failure.error}"
    assert told[3:5] == ["  lower sft.lr", f"  log:     {failure.log}"]
    assert told[5] == "  blocked: E.0, S2.1, S3.1, S4s.1, S4p.1, S4.1, E.1, report"
    assert told[6] == f"  resume:  cohyde run --config tiny --name tiny --store {made.store.root} rounds=1"


def test_a_status_table_fits_a_narrow_terminal(made: Made) -> None:
    made.finish("S1a", **{"best_dev_ndcg@5": 0.25})
    made.fail("S1b", "a reason that is too long for what there is of room in such a terminal")
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(states_table(states(made.plan, made.store), made.kinds, made.store))
    text = console.export_text()
    assert widest(text) <= 80
    assert len(text.splitlines()) == 1 + len(ONE_ROUND)
    assert "dev NDCG@5 0.250" in text


def test_status_prints_the_documented_object_of_a_running_run(cohyde: Call, made: Made) -> None:
    path = made.finish("data", tools=60)
    made.begin("S1a").write_progress({"done": 2.0, "total": 8.0, "what": "steps", "warnings": []})
    code, output, errors = cohyde("status", "tiny", "--json")
    assert (code, errors) == (0, "")
    by_id = {stage.pop("id"): stage for stage in json.loads(output)["stages"]}
    keys = {"state", "fingerprint", "inputs", "path", "seconds", "metrics"}
    assert all(set(stage) == keys for stage in by_id.values())
    assert by_id["S1a"]["state"] == "running"
    assert (by_id["data"]["path"], by_id["data"]["seconds"]) == (str(path), 75.0)
    assert by_id["data"]["metrics"] == {"tools": 60}


def test_status_watched_ends_when_there_is_nothing_to_wait_for(cohyde: Call, made: Made) -> None:
    for stage in ONE_ROUND:
        made.finish(stage)
    code, output, errors = cohyde("status", "--watch")
    assert (code, errors) == (0, "tiny: all 12 stages are done\n")
    assert len(output.splitlines()) == 13


def test_a_run_stays_what_it_was_when_its_data_are_gone(
    cohyde: Call, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.finish("data", tools=60)
    monkeypatch.setattr("cohyde.data.dataset.sample_folder", lambda: Path("/no/such/folder"))
    code, output, _ = cohyde("status", "--json")
    assert code == 0
    assert json.loads(output)["stages"][0]["state"] == "done"
    assert cohyde("status")[0] == 0


# ---------------------------------------------------------------------------------------------------------- run


def pretend(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    """Let the runner return (or raise) this."""

    def run(*arguments: Any, **settings: Any) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome(*arguments)

    monkeypatch.setattr("cohyde.dag.runner.run", run)


def test_ctrl_c_leaves_with_130_and_says_how_to_resume(cohyde: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, KeyboardInterrupt())
    code, output, errors = cohyde("run", "-c", "tiny", "sft.lora.targets=[q_proj]")
    assert (code, output) == (130, "")
    assert errors.splitlines() == [
        "tiny: interrupted; what is finished stays",
        "  resume:  cohyde run -c tiny 'sft.lora.targets=[q_proj]'",
    ]


def test_a_failed_run_tells_the_remedy_and_leaves_with_1(
    cohyde: Call, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = made.fail("S1b", "LoRA target 'x' matches no layer", remedy="layers that can be adapted are: q_proj (1)")
    pretend(monkeypatch, lambda plan, store: RunResult(states=tuple(states(plan, store)), failures=(failure,)))
    code, output, errors = cohyde("run", "-c", "tiny", "-r", "1", "--json")
    assert code == 1
    assert {stage["state"] for stage in json.loads(output)["stages"]} == {"ready", "waiting", "failed", "blocked"}
    assert errors.splitlines()[-5:] == [
        "S1b failed: LoRA target 'x' matches no layer",
        "  layers that can be adapted are: q_proj (1)",
        f"  log:     {failure.log}",
        "  blocked: E.0, S2.1, S3.1, S4s.1, S4p.1, S4.1, E.1, report",
        "  resume:  cohyde run -c tiny -r 1 --json",
    ]


def test_a_run_until_a_stage_shows_no_table(cohyde: Call, made: Made) -> None:
    made.finish("data", tools=60)
    assert cohyde("run", "-c", "tiny", "-r", "1", "--until", "data") == (
        0, "", "tiny: all 1 stages are done already\n"
    )  # fmt: skip


def test_rerun_discards_the_stage_and_what_is_below(cohyde: Call, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {stage: made.finish(stage) for stage in ONE_ROUND}
    pretend(monkeypatch, KeyboardInterrupt())
    code, _, errors = cohyde("rerun", "tiny", "S4.1")
    assert code == 130
    assert errors.splitlines()[0] == "tiny: discarded S4.1, E.1, report"
    assert [stage for stage in ONE_ROUND if not paths[stage].exists()] == ["S4.1", "E.1", "report"]
    assert errors.splitlines()[-1].startswith("  resume:  cohyde run --config tiny --name tiny --store ")


def test_what_is_told_while_it_runs_are_plain_lines(
    made: Made, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("cohyde.live.PLAIN_EVERY_SECONDS", 0)
    of = {stage: {"id": stage, "name": made.name(stage)} for stage in ONE_ROUND}
    failure = made.fail("S1b", "ValueError: x")
    with Live("tiny", made.plan, {"data": "data", "S1a": "encoder warm-up", "S1b": "rewriter warm-up"}) as live:
        live(events.RayStarting(address=None, done=1, todo=11))
        live(events.Started(**of["S1a"], attempt=1, host="here", pid=1))
        live(events.Progressed(**of["S1a"], done=1, total=2, what="steps"))
        live(events.Warned(**of["S1a"], message="mind the gap"))
        live(events.Finished(**of["S1a"], seconds=8.25, metrics={"best_dev_ndcg@5": 0.5}))
        live(events.Failed(**of["S1b"], failure=failure, retrying=True))
        live(events.Blocked(**of["E.0"], by="S1b"))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "tiny: 1 of 12 stages are done already; 11 to run; starting a local Ray …",
        "· S1a          encoder warm-up started",
        "· S1a          1 of 2 steps",
        "! S1a          mind the gap",
        "✓   2/12 S1a          encoder warm-up  8.2 s  dev NDCG@5 0.500",
        "✗ S1b          failed: ValueError: x; trying again",
        "– E.0          blocked by S1b",
    ]


def test_bars_tell_rate_and_time_left_in_80_columns(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(width=80, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr("cohyde.live.err", lambda: terminal)
    of = {stage: {"id": stage, "name": made.name(stage)} for stage in ("S1a", "S4.1")}
    with Live("tiny", made.plan, made.kinds) as live:
        for stage in of:
            live(events.Started(**of[stage], attempt=1, host="here", pid=1))
        for done in (1000, 1020, 1040):
            time.sleep(0.02)
            live(events.Progressed(**of["S4.1"], done=done, total=4371, what="steps"))
        seen = Console(width=80, file=io.StringIO(), record=True)
        seen.print(live.progress.get_renderable())
    unknown, known = seen.export_text().splitlines()
    assert re.search(r"S1a +encoder warm-up .* 0\.\d s *$", unknown)
    assert re.search(r"S4\.1 +preference alignment .* 1040/4371 steps  \d+\.\d/s \d\d:\d\d$", known)


# ------------------------------------------------------------------------------------------------------ results


def test_a_report_of_nothing_says_so(cohyde: Call, made: Made) -> None:
    code, output, errors = cohyde("report")
    assert (code, output) == (2, "")
    assert errors == ("error: run tiny: no evaluation is done yet\n  see how far it is: cohyde status tiny\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rain"], "E.1 is not done yet: missing data, S1a, S1b, S2.1, S3.1, S4s.1 and 3 more\n  see how far"),
        (["rain", "--state", "E.0"], "E.0 is not done yet"),
        (["rain", "--state", "E.untrained"], "E.untrained is no state that can be searched with\n"),
        (["rain", "--state", "S1a"], "S1a is no state that can be searched with\n  states are: E.0, E.1"),
        (["rain", "--state", "E.9"], "no stage is called 'E.9'"),
        ([""], "the request is empty\n  say in a sentence what the tools are for"),
        (["  "], "the request holds nothing but white space or invisible characters\n  say in a sentence"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_with_is_told(cohyde: Call, made: Made, arguments: list[str], expected: str) -> None:
    code, output, errors = cohyde("search", "tiny", *arguments)
    assert (code, output) == (2, "")
    assert expected in errors


def test_a_prompt_that_has_changed_since_is_not_asked_with(
    cohyde: Call, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("data", "S1a", "S1b", "E.0"):
        made.finish(stage)
    monkeypatch.setattr("stages.search.prompt_hash", lambda name: "another")
    code, output, errors = cohyde("search", "tiny", "rain", "--state", "E.0")
    assert (code, output) == (2, "")
    assert "prompts/hyde.yaml has changed since run tiny was trained with it\n  put its text back" in errors


def test_doctor_says_what_is_missing(cohyde: Call, tmp_path: Path) -> None:
    code, output, _ = cohyde("doctor", "-c", "tiny", "--json")
    checks = json.loads(output)["checks"]
    assert code == 0
    assert all(set(check) == {"name", "state", "found", "remedy"} for check in checks)
    code, output, _ = cohyde("doctor", "-c", "tiny", "encoder.model=package:no_such_package/model")
    assert code == 1
    assert "pip install" in output


# ------------------------------------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], ""),
        (["data"], "data"),
        (["data", "S1a"], "data, S1a"),
        (["E.untrained", "E.0", "E.1"], "E.untrained, E.0, E.1"),
        (["E.untrained", "E.0", "E.1", "E.2", "E.3"], "E.untrained, E.0–E.3"),
        (["E.8", "E.9", "E.10", "E.12"], "E.8–E.10, E.12"),
        (["S4s.1", "S4.2", "S4.3"], "S4s.1, S4.2, S4.3"),
        (["data", "data"], "data"),
    ],
)
def test_ids_in_short(ids: list[str], expected: str) -> None:
    assert compact(ids) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, ""), (0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({}, ""),
        ({"tools": 60, "train_queries": 40}, "60 tools"),
        ({"first_loss": 0.6931, "last_loss": 0.5, "pairs": 12}, "loss 0.693 → 0.500"),
        ({"pairs": 12, "pairs_kept": 10}, "10 pairs"),
        ({"unchanged": 1}, "unchanged"),
        ({"dev_ndcg@5 (query)": 0.25, "dev_ndcg@5 (fused)": 0.5, "vague_ndcg@5 (a)": 1}, "dev NDCG@5 0.500 (fused)"),
    ],
)  # fmt: skip
def test_the_number_by_which_a_stage_is_judged(metrics: dict[str, Any], expected: str) -> None:
    assert key_metric(metrics) == expected


def stage(id_: str, state: Any, *above: str) -> StageState:
    return StageState(
        id=id_, state=state, fingerprint="f", inputs={name: name for name in above}, path=None, seconds=None, metrics={}
    )


def test_a_blocked_stage_knows_the_failed_ones_above() -> None:
    chain = [
        stage("a", "failed"), stage("b", "failed"), stage("c", "blocked", "a"), stage("d", "blocked", "c", "b"),
        stage("e", "ready"),
    ]  # fmt: skip
    assert blockers(chain) == {"a": [], "b": [], "c": ["a"], "d": ["a", "b"], "e": []}
    assert summary(chain) == "5 stages: 0 done, 5 to run; a, b failed last time"
