"""``cohyde sweep``, and ``status`` and ``report`` of one: what is planned, refused, shown, and said at the end.

The slow test is the product as a person uses it; nothing else here starts a stage.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call, caller
from rich.console import Console
from test_dag_store import manifest

import stages.pipeline
from cohyde.catalog import Query
from cohyde.cli_jobs import record
from cohyde.cli_sweep import Sweep, find_sweep, planned
from cohyde.config import plain
from cohyde.dag import events
from cohyde.dag.attempts import Attempt, Failure, Owner, new_attempt
from cohyde.dag.runner import RunResult
from cohyde.dag.runs import RunRecord, load_run, run_names, save_run
from cohyde.dag.state import states, states_by_name
from cohyde.dag.store import Store
from cohyde.dag.sweep import load_sweep, save_sweep
from cohyde.evaluation.per_query import Found, PerQuery, per_query_of, write_per_query
from cohyde.io import read_rows, write_jsonl
from cohyde.live import SweepLive
from cohyde.terminal_sweep import sweep_table

ROOT = Path(__file__).resolve().parent.parent
TINY = ("-c", "tiny", "-r", "1")
SHARED = ("data", "E.untrained", "S1a", "S1b", "E.0")
OWN = ("S2.1", "S3.1", "S4s.1", "S4p.1", "S4.1", "E.1", "report")


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """The command line, whose store is ``tmp_path/store`` unless told otherwise."""
    monkeypatch.setenv("COHYDE_STORE", str(tmp_path / "store"))
    return caller(capfd, monkeypatch)


class Made:
    """A store with a sweep of the tiny preset over seeds 1 and 2, one round; tests put into it what they need."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.store.prepare()
        self.keep(planned("tiny", "1,2", 1, [], "t", root))

    def keep(self, job: Sweep) -> None:
        """Write the records, as ``cohyde sweep`` does."""
        for one in job.jobs.values():
            record(one)
        save_sweep(self.store, job.record)
        self.job = job

    def name(self, stage: str) -> str:
        """Of a node, by its label."""
        [found] = [name for name, label in self.job.union.labels.items() if label == stage]
        return found

    def finish(self, *stages: str, files: Mapping[str, Any] | None = None, queries: PerQuery | None = None) -> None:
        for stage in stages:
            node = self.job.union.plan.nodes[self.name(stage)]
            scratch = self.store.scratch(node.id, node.fingerprint)
            for file, rows in (files or {}).items():
                write_jsonl(scratch / file, rows)
            if queries is not None:
                write_per_query(scratch / "queries.parquet", queries)
            identity = self.job.union.plan.identities[node.name]
            done = manifest(id=node.id, fingerprint=node.fingerprint, identity=identity, metrics={}, seconds=75.0)
            self.store.commit(scratch, done)

    def begin(self, stage: str) -> Attempt:
        attempt = new_attempt(self.store, self.name(stage))
        attempt.start(Owner.this_process("t-s1"))
        return attempt

    def fail(self, stage: str, error: str) -> Failure:
        attempt = self.begin(stage)
        node = self.job.union.plan.nodes[self.name(stage)]
        failure = Failure(id=node.id, name=node.name, attempt=1, error=error, log=str(attempt.log))
        attempt.end(failure)
        return failure

    def evaluate(self, stage: str, dev: float, **scores: list[float]) -> None:
        """Finish an evaluation: dev NDCG@5, and that of each query by tier, on the standard split."""
        search = "query" if stage == "E.untrained" else "description"
        common: dict[str, Any] = {"metric": "ndcg", "k": 5, "search": search, "scope": "sample"}
        rows = [{"split": "dev", "tier": "mean over tiers", "value": dev, "n": 9, **common}]
        found = []
        for tier, values in scores.items():
            mean = sum(values) / len(values)
            rows.append({"split": "standard", "tier": tier, "value": mean, "n": len(values), **common})
            for number in range(len(values)):
                query = Query(id=f"{tier}-{number}", text="", tools=("a",), tier=tier)
                found.append(
                    Found(
                        query=query,
                        split="standard",
                        search=search,
                        in_sample=True,
                        ranking=[("a", 1.0)],
                    )
                )
        chosen = np.array([value for values in scores.values() for value in values])
        queries = replace(per_query_of(found, "catalogue"), values={"ndcg@5": chosen})
        self.finish(stage, files={"metrics.jsonl": rows}, queries=queries)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "store")


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def refused(answer: tuple[int, str, str]) -> str:
    """The message, of a call that was refused."""
    code, output, errors = answer
    assert (code, output) == (2, ""), errors
    assert "Traceback" not in errors
    return errors.partition("error: ")[2]


# -------------------------------------------------------------------------------------------------------- planning


def test_a_dry_run_prints_a_row_for_every_run_and_stage(cohyde: Call, tmp_path: Path) -> None:
    code, output, errors = cohyde("sweep", *TINY, "--seeds", "1,2", "--dry-run", "--json")
    content = json.loads(output)
    assert (code, errors) == (0, "")
    assert set(content) == {"run", "runs", "store", "stages"}
    assert (content["run"], content["runs"]) == ("tiny-sweep", ["tiny-sweep-s1", "tiny-sweep-s2"])
    by_id = {stage["id"]: stage for stage in content["stages"]}
    assert set(by_id) == {f"{run}/{stage}" for run in content["runs"] for stage in (*SHARED, *OWN)}
    same = {
        stage for stage in (*SHARED, *OWN)
        if by_id[f"tiny-sweep-s1/{stage}"]["fingerprint"] == by_id[f"tiny-sweep-s2/{stage}"]["fingerprint"]
    }  # fmt: skip
    assert same == set(SHARED)
    assert by_id["tiny-sweep-s2/E.1"]["inputs"] == {
        "data": "tiny-sweep-s2/data", "encoder": "tiny-sweep-s2/S3.1", "rewriter": "tiny-sweep-s2/S4.1",
    }  # fmt: skip
    assert set(by_id["tiny-sweep-s1/data"]) == {"id", "state", "fingerprint", "inputs", "path", "seconds", "metrics"}
    assert not (tmp_path / "store").exists()


def test_its_rows_are_those_of_the_runs_by_themselves(cohyde: Call) -> None:
    _, output, _ = cohyde("sweep", *TINY, "--seeds", "1,2", "--dry-run", "--json", "dpo.beta=0.1,0.3")
    rows = [stage for stage in json.loads(output)["stages"] if stage["id"].startswith("tiny-sweep-beta0.3-s2/")]
    _, output, _ = cohyde("plan", *TINY, "--seed", "2", "--json", "dpo.beta=0.3")
    alone = json.loads(output)["stages"]
    assert [row["id"].partition("/")[2] for row in rows] == [stage["id"] for stage in alone]
    assert [row["fingerprint"] for row in rows] == [stage["fingerprint"] for stage in alone]


def test_without_json_it_shows_a_line_a_run(cohyde: Call, made: Made) -> None:
    made.finish("data", "S1a", "S1b", "s2/S2.1")
    code, output, errors = cohyde("sweep", *TINY, "--seeds", "1,2,3", "-n", "t", "--dry-run")
    assert code == 0
    assert lines_of(output) == [
        "run stages state",
        "all runs 3/5 ready",
        "s1 0/7 ready",
        "s2 1/7 ready",
        "s3 0/7 ready",
    ]
    assert errors.splitlines() == [
        "t changes: seeds: 1, 2 → 1, 2, 3",
        "t: 3 runs, 0 done; 26 stages: 4 done, 22 to run",  # 5 + 3 × 7
    ]


def test_without_seeds_the_presets_own_is_taken(cohyde: Call) -> None:
    _, output, _ = cohyde("sweep", *TINY, "--dry-run", "--json", "dpo.beta=0.1,0.3")
    assert json.loads(output)["runs"] == ["tiny-sweep-beta0.1-s42", "tiny-sweep-beta0.3-s42"]


def test_a_dry_run_loads_neither_ray_nor_torch() -> None:
    code = (
        "import sys\nfrom cohyde.cli import main\n"
        "sys.argv[1:] = ['sweep', '--seeds', '0,1', '--store', 'no-such-store', '--dry-run']\n"
        "try:\n    main()\nexcept SystemExit:\n    print({'ray', 'torch', 'transformers', 'faiss'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_hundred_seeds_of_ten_rounds_are_planned_as_one_in_500_megabytes(tmp_path: Path) -> None:
    code = """
import re, sys
from pathlib import Path
from cohyde.cli import main
sys.argv[1:] = ["sweep", "--seeds", ",".join(map(str, range(100))), "--rounds", "10", "--dry-run", "--json"]
try:
    main()
except SystemExit:
    # getrusage would tell of the process that this one was forked from, where that was larger.
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(int(peak[1]) / 1024, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True,
        env=os.environ | {"COHYDE_STORE": str(tmp_path)},
    )  # fmt: skip
    megabytes = float(done.stderr.split()[-1])
    rows = json.loads(done.stdout)["stages"]
    assert (len(rows), len({row["fingerprint"] for row in rows})) == (100 * 66, 5 + 100 * 61)
    assert megabytes < 500


def test_data_and_models_are_looked_at_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def counted(function: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda name: (looked.append(name), function(name))[1]

    for name in ("dataset_checksum", "identity", "load_prompt"):
        monkeypatch.setattr(f"stages.pipeline.{name}", counted(getattr(stages.pipeline, name)))
    job = planned("tiny", "1,2,3", 2, ["dpo.beta=0.1,0.2"], "t", tmp_path)
    assert len(job.union.plans) == 6
    assert looked.count("sample") == looked.count("tiny:bert") == looked.count("tiny:qwen3_5") == 1
    assert sorted(set(looked)) == ["hyde", "sample", "tiny:bert", "tiny:qwen3_5"]
    assert len(looked) == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seeds", "1,x"], "--seeds 1,x: 'x' is no seed\n  write whole numbers from 0 on"),
        (["--seeds", "1,1"], "--seeds 1,1: 1 is given twice"),
        (["--name", "../x"], "'../x' cannot be a run's name"),
        (["--name", "n" * 99], "-s42: 103 characters, 100 at most"),
        (["--name", "n" * 300], "cannot be a run's name"),
        (["dpo.beta=0.1,"], "'dpo.beta=0.1,': a value is empty"),
        (["dpo.beta=0.1,high"], "command line: dpo.beta has to be a number, got 'high'"),
        (["dpo.bta=0.1,0.2"], "command line: unknown key dpo.bta; did you mean dpo.beta?"),
        (["seeds.loop=1,2"], "a sweep's seeds are an option of their own\n  write --seeds 1,2"),
        (["rounds=1,2"], "rounds is given twice"),
        (["rewriter.batch_size=8,16"], "tiny-sweep-batch_size8-s42 and tiny-sweep-batch_size16-s42 would be the very"),
        (["dpo.beta=0.1,0.10"], "would be the very same: what differs between them changes no result"),
        (["retrain.anchor=description,none"], "retrain.anchor is 'none', which does not exist"),
    ],
)
def test_what_cannot_be_swept_is_refused(cohyde: Call, tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in refused(cohyde("sweep", *TINY, *arguments))
    assert not (tmp_path / "store").exists()


def test_seeds_without_a_round_would_all_be_the_same(cohyde: Call) -> None:
    message = refused(cohyde("sweep", "-c", "tiny", "-r", "0", "--seeds", "1,2"))
    assert message.startswith("runs tiny-sweep-s1 and tiny-sweep-s2 would be the very same")


# ------------------------------------------------------------------------------------------------------------ names


def test_two_sweeps_of_one_name_and_different_settings_are_not_mixed(cohyde: Call, made: Made) -> None:
    message = refused(cohyde("sweep", *TINY, "--seeds", "1,2", "-n", "t", "dpo.beta=0.3"))
    assert message.splitlines() == [
        "sweep t had other settings before: dpo.beta: 0.1 → 0.3",
        "  give this one another --name: what both share is done once all the same",
    ]
    message = refused(cohyde("sweep", *TINY, "--seeds", "1,2", "-n", "t", "dpo.beta=0.1,0.3"))
    assert message.startswith("sweep t had other settings before: swept over: seeds alone → dpo.beta\n")
    assert load_sweep(made.store, "t").overrides == ("rounds=1",)


def test_seeds_rounds_and_resources_may_change_under_a_name(cohyde: Call, made: Made) -> None:
    arguments = ("-c", "tiny", "-r", "2", "--seeds", "2,3", "-n", "t", "--dry-run", "resources.training.cpus=2")
    code, _, errors = cohyde("sweep", *arguments)
    assert code == 0
    assert errors.splitlines()[0] == (
        "t changes: rounds: 1 → 2; resources.training.cpus: 1.0 → 2.0; seeds: 1, 2 → 2, 3"
    )
    _, _, errors = cohyde("sweep", *TINY, "--seeds", "1,2", "-n", "t", "--dry-run")
    assert "changes" not in errors


def test_values_may_be_added_to_a_sweep(cohyde: Call, tmp_path: Path) -> None:
    store = tmp_path / "store"
    Store(store).prepare()
    save_sweep(Store(store), planned("tiny", "1", 1, ["dpo.beta=0.1,0.2"], "t", store).record)
    code, output, _ = cohyde("sweep", *TINY, "--seeds", "1", "-n", "t", "--dry-run", "dpo.beta=0.3,0.2")
    assert (code, len(lines_of(output))) == (0, 4)


def test_a_run_of_a_sweeps_name_with_other_settings_is_not_taken_over(cohyde: Call, made: Made) -> None:
    job = made.job.jobs["t-s1"]
    save_run(made.store, RunRecord(name="u-s1", config={**plain(job.settings), "rounds": 9}, plan=job.plan))
    arguments = ("sweep", *TINY, "--seeds", "1", "-n", "u", "--dry-run")
    assert cohyde(*arguments)[0] == 0
    message = refused(cohyde(*arguments, "sft.enabled=false"))
    assert message.startswith("run u-s1 had other settings before: sft.enabled: True → False\n")


def test_a_name_means_a_run_or_a_sweep(cohyde: Call, made: Made) -> None:
    assert "'t-s1' is the name of a run" in refused(cohyde("sweep", *TINY, "-n", "t-s1", "--seeds", "1"))
    assert "'t' is the name of a sweep" in refused(cohyde("run", *TINY, "-n", "t"))
    for command in (("rerun", "t", "S1a"), ("search", "t", "rain")):
        assert refused(cohyde(*command)) == "t is a sweep, and this is about one run\n  its runs are: t-s1, t-s2\n"


def test_a_damaged_record_is_told(cohyde: Call, made: Made) -> None:
    (made.store.root / "sweeps" / "t.yaml").write_text("runs: [")
    assert "sweeps/t.yaml: damaged: " in refused(cohyde("status", "t"))
    code, _, errors = cohyde("sweep", *TINY, "--seeds", "1,2", "-n", "t", "--dry-run")
    assert code == 0
    assert errors.startswith("warning: ")


# ----------------------------------------------------------------------------------------------------------- status


def test_status_shows_what_is_running_and_what_failed(cohyde: Call, made: Made) -> None:
    made.finish("data", "S1a", "S1b", "s1/S2.1", "s2/S2.1")
    going = {"done": 30.0, "total": 120.0, "what": "steps", "first": 10.0, "seconds": 8.0, "warnings": []}
    made.begin("s1/S3.1").write_progress(going)
    made.begin("s1/S4s.1").write_progress({**going, "first": 29.0, "seconds": 10.0})
    failure = made.fail("s2/S3.1", "loss is nan\nat step 7")
    code, output, errors = cohyde("status")
    assert code == 0
    assert lines_of(output) == [
        "run stages state",
        "all runs 3/5 ready",
        "s1 1/7 running S3.1 30 of 120 steps 2.5/s 36 s left",  # 20 steps in 8 s; 90 to go
        "S4s.1 30 of 120 steps 6.0/min 15 min 00 s left",
        "s2 1/7 failed S3.1 loss is nan at step 7",
    ]
    assert max(map(len, output.splitlines())) <= 80
    told = errors.splitlines()
    assert told[0] == "t: 2 runs, 0 done; 19 stages: 5 done, 2 running, 12 to run"
    assert told[2:] == [
        "s2/S3.1 failed: loss is nan", "at step 7", f"  log:     {failure.log}",
        "  blocked: s2: S4p.1, S4.1, E.1, report",
        f"  resume:  cohyde sweep --seeds 1,2 --config tiny --name t --store {made.store.root} rounds=1",
    ]  # fmt: skip


def test_what_only_some_runs_share_is_told_of_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    job = planned("tiny", "1,2", 1, ["encoder.train.lr=1e-3,2e-3"], "t", tmp_path)
    [warm_up] = [name for name, label in job.union.labels.items() if label == "lr0.001-s1/S1a +1"]
    attempt = new_attempt(store, warm_up)
    attempt.start(Owner.this_process("t"))
    attempt.write_progress({"done": 1.0, "total": 4.0, "what": "steps", "warnings": []})
    shown = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    shown.print(sweep_table(job.union, states_by_name(job.union.plan, store), store))
    assert lines_of(shown.export_text()) == [
        "run stages state",
        "all runs 0/3 ready",
        "lr0.001-s1 0/9 running S1a 1 of 4 steps",
        "lr0.001-s2 0/9 running S1a as lr0.001-s1",
        "lr0.002-s1 0/9 waiting",
        "lr0.002-s2 0/9 waiting",
    ]


def test_a_low_terminal_shows_what_is_running_and_counts_the_rest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    job = planned("tiny", ",".join(map(str, range(30))), 1, [], "t", tmp_path)
    running = ("s3/S3.1", "s17/S3.1", "s29/S4s.1")
    for label in running:
        [name] = [name for name, known in job.union.labels.items() if known == label]
        new_attempt(store, name).start(Owner.this_process("t"))
    table = sweep_table(job.union, states_by_name(job.union.plan, store), store, height=10)
    shown = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    shown.print(table)
    lines = lines_of(shown.export_text())
    assert len(lines) == 10 - 1
    assert [line.split()[0] for line in lines if "running" in line] == ["s3", "s17", "s29"]
    assert lines[-1] == "… 24 more waiting"


def test_status_prints_the_object_of_the_dry_run(cohyde: Call, made: Made) -> None:
    made.finish("data")
    _, planned_now, _ = cohyde("sweep", *TINY, "--seeds", "1,2", "-n", "t", "--dry-run", "--json")
    code, output, errors = cohyde("status", "t", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output) == json.loads(planned_now)
    by_id = {stage["id"]: stage for stage in json.loads(output)["stages"]}
    assert by_id["t-s1/data"]["path"] == by_id["t-s2/data"]["path"] is not None


def test_status_watched_ends_when_there_is_nothing_to_wait_for(cohyde: Call, made: Made) -> None:
    made.finish(*SHARED, *(f"{seed}/{stage}" for seed in ("s1", "s2") for stage in OWN))
    code, output, errors = cohyde("status", "t", "--watch")
    assert (code, errors) == (0, "t: 2 runs: all 19 stages are done\n")
    assert lines_of(output) == ["run stages state", "all runs 5/5 done", "s1 7/7 done", "s2 7/7 done"]


def test_one_run_of_a_sweep_is_a_run_like_any_other(cohyde: Call, made: Made) -> None:
    made.finish("data")
    assert [stage["id"] for stage in json.loads(cohyde("status", "t-s2", "--json")[1])["stages"]][:2] == [
        "data", "E.untrained",
    ]  # fmt: skip
    os.utime(made.store.runs / "t-s2" / "run.yaml", (2**32, 2**32))
    assert json.loads(cohyde("status", "--json")[1])["run"] == "t-s2"  # it was started last


# ----------------------------------------------------------------------------------------------------------- report


def measured(made: Made) -> None:
    made.evaluate("E.untrained", 0.1, G1=[0.0, 0.25], G2=[0.25])
    made.evaluate("E.0", 0.2, G1=[0.25, 0.5], G2=[0.25])
    made.evaluate("s1/E.1", 0.5, G1=[0.5, 1.0], G2=[0.5])
    made.evaluate("s2/E.1", 0.4, G1=[0.25, 1.0], G2=[0.0])


def test_report_shows_seeds_and_what_they_come_to(cohyde: Call, made: Made) -> None:
    measured(made)
    code, output, errors = cohyde("report", "t")
    assert (code, errors) == (0, f"page: {made.store.root}/reports/t.html\n")
    assert max(map(len, output.splitlines())) <= 80
    assert lines_of(output) == [
        "t NDCG@5 in %, searched with: description",
        "",
        "standard",
        "seed G1 G2 dev",
        "all E.0 37.5 25.0 20.0",
        "1 E.1 * 75.0 50.0 50.0",
        "2 E.1 * 62.5 0.0 40.0",
        "",
        "mean E.1 * 68.8 25.0 45.0",
        "sd 8.8 35.4 7.1",  # (75 − 62.5) / √2
        "mean E.0 37.5 25.0 20.0",
        "gain on E.0 +31.2 +0.0 +25.0",
        "95% over seeds, from +25.0 -25.0 +20.0",
        "to +37.5 +25.0 +30.0",
        "95% seeds and queries, from +0.0 -25.0 –",
        "to +50.0 +25.0 –",
        "",
        "* selected by dev NDCG@5, the mean over seeds",
        "95%: of the gain, paired bootstrap, 10,000 resamples",
    ]


def test_report_for_programs(cohyde: Call, made: Made) -> None:
    measured(made)
    code, output, _ = cohyde("report", "t", "--json")
    assert code == 0
    [arm] = json.loads(output)["arms"]
    assert (arm["settings"], arm["runs"], arm["left_out"]) == ({}, ["t-s1", "t-s2"], [])
    table = arm["table"]
    assert (table["selected"], table["baseline"]) == ("E.1", {"stage": "E.0", "search": "description"})
    [cell] = [cell for cell in table["cells"] if (cell["split"], cell["tier"]) == ("standard", "G1")]
    assert (cell["values"], cell["mean"], cell["baseline"], cell["queries"]) == (
        {"1": 0.75, "2": 0.625},
        0.6875,
        0.375,
        2,
    )
    assert cell["difference"] == 0.6875 - 0.375
    assert (cell["interval_seeds"], cell["interval_seeds_queries"]) == ([0.25, 0.375], [0.0, 0.5])


def test_a_selected_warm_up_has_no_spread_over_seeds(cohyde: Call, made: Made) -> None:
    made.evaluate("E.untrained", 0.1, G1=[0.0, 0.25])
    made.evaluate("E.0", 0.9, G1=[0.25, 0.5])
    made.evaluate("s1/E.1", 0.5, G1=[0.5, 1.0])
    made.evaluate("s2/E.1", 0.4, G1=[0.25, 1.0])
    lines = lines_of(cohyde("report", "t")[1])
    assert "mean E.untrained, query 12.5 10.0" in lines
    assert "gain on E.untrained +25.0 +80.0" in lines
    assert "E.0 is the same for every seed: it has no spread over seeds" in lines


def test_a_seed_that_is_not_done_is_left_out_and_named(cohyde: Call, made: Made) -> None:
    made.evaluate("E.0", 0.2, G1=[0.25, 0.5])
    message = refused(cohyde("report", "t"))
    assert message.startswith("sweep t: no run is done yet\n  see how far they are: cohyde status t")
    made.evaluate("s1/E.1", 0.5, G1=[0.5, 1.0])
    code, output, errors = cohyde("report", "t")
    left_out = "not done, and not in the table: t-s2\n"
    assert (code, errors) == (0, f"{left_out}page: {made.store.root}/reports/t.html\n")
    lines = lines_of(output)
    assert "mean E.1 * 75.0 50.0" in lines
    assert not any(line.startswith("sd") or "over seeds, from" in line for line in lines)
    assert "95% seeds and queries, from +25.0 –" in lines


def test_each_combination_of_settings_has_a_table(cohyde: Call, tmp_path: Path) -> None:
    store = tmp_path / "store"
    made = Made(store)
    made.keep(planned("tiny", "1", 1, ["dpo.beta=0.1,0.3"], "b", store))
    made.evaluate("E.0", 0.2, G1=[0.25])
    made.evaluate("beta0.1-s1/E.1", 0.5, G1=[0.5])
    made.evaluate("beta0.3-s1/E.1", 0.5, G1=[0.75])
    lines = lines_of(cohyde("report", "b")[1])
    assert [line for line in lines if line.startswith("b ")] == [
        "b dpo.beta=0.1 NDCG@5 in %, searched with: description",
        "b dpo.beta=0.3 NDCG@5 in %, searched with: description",
    ]
    assert [line for line in lines if line.startswith("gain")] == ["gain on E.0 +25.0 +30.0", "gain on E.0 +50.0 +30.0"]


# -------------------------------------------------------------------------------------------------------------- run


def test_what_is_told_names_runs_and_counts_what_is_blocked(
    made: Made, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    of = {label: {"id": label.rpartition("/")[2], "name": made.name(label)} for label in ("S1b", "s2/S2.1", "s2/E.1")}
    failure = made.fail("s2/S2.1", "ValueError: x")
    with SweepLive(made.job.union, made.job.kinds) as live:
        live(events.RayStarting(address=None, done=1, todo=18))
        live(events.Started(**of["S1b"], attempt=1, host="here", pid=1))
        live(events.Finished(**of["S1b"], seconds=8.25, metrics={}))
        live(events.Failed(**of["s2/S2.1"], failure=failure, retrying=False))
        for _ in range(5):
            live(events.Blocked(**of["s2/E.1"], by="S2.1"))
        live(events.Warned(**of["s2/E.1"], message="mind the gap"))
        live(events.Blocked(**of["s2/E.1"], by="S1b"))
    assert lines_of(capfd.readouterr().err) == [
        "t: 1 of 19 stages are done already; 18 to run; starting a local Ray …",
        "· S1b rewriter warm-up started",
        "✓ 2/19 S1b rewriter warm-up 8.2 s",
        "✗ s2/S2.1 failed: ValueError: x",
        "– 5 stages are blocked by S2.1",
        "! s2/E.1 mind the gap",
        "– 1 stage is blocked by S1b",
    ]


def pretend(monkeypatch: pytest.MonkeyPatch, outcome: Callable[..., RunResult] | BaseException) -> list[Any]:
    """Let the runner return (or raise) this; returns the plans that it got."""
    plans: list[Any] = []

    def run(plan: Any, store: Store, **settings: Any) -> RunResult:
        plans.append(plan)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome(plan, store)

    monkeypatch.setattr("cohyde.dag.runner.run", run)
    return plans


def test_a_sweep_is_one_execution_of_all_runs_and_each_has_its_record(
    cohyde: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = pretend(monkeypatch, KeyboardInterrupt())
    code, output, errors = cohyde("sweep", *TINY, "--seeds", "1,2", "dpo.lora.targets=[q_proj]")
    assert (code, output) == (130, "")
    assert errors.splitlines() == [
        "tiny-sweep: interrupted; what is finished stays",
        "  resume:  cohyde sweep -c tiny -r 1 --seeds 1,2 'dpo.lora.targets=[q_proj]'",
    ]
    assert [len(plan.nodes) for plan in plans] == [5 + 2 * 7]
    store = Store(tmp_path / "store")
    assert run_names(store) == ["tiny-sweep-s1", "tiny-sweep-s2"]
    second = load_run(store, "tiny-sweep-s2")
    assert second.config["seeds"] == {"warmup": 42, "loop": 2}
    assert second.overrides == ("dpo.lora.targets=[q_proj]", "rounds=1", "seeds.loop=2")
    found = find_sweep(None, tmp_path / "store")
    assert found is not None
    assert found.record.seeds == (1, 2)
    assert set(found.union.plan.nodes) == set(plans[0].nodes)
    assert found.command.endswith(" 'dpo.lora.targets=[q_proj]' rounds=1")


def test_a_sweep_in_which_a_seed_fails_ends_with_its_table_its_reason_and_1(
    cohyde: Call, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(made)
    node = made.job.union.plan.nodes[made.name("s2/E.1")]
    made.store.discard(node.id, node.fingerprint)
    failure = made.fail("s2/S4.1", "loss is nan")
    pretend(
        monkeypatch,
        lambda plan, store: RunResult(states=tuple(states(plan, store)), failures=(failure,)),
    )
    arguments = ("sweep", *TINY, "--seeds", "1,2", "-n", "t")
    code, output, errors = cohyde(*arguments)
    assert code == 1
    assert "E.1 * 75.0 50.0 50.0" in lines_of(output)
    told = errors.splitlines()
    assert "not done, and not in the table: t-s2" in told
    assert (
        told[-4:]
        == [
            "s2/S4.1 failed: loss is nan",
            f"  log:     {failure.log}",
            "  blocked: s2: report",
            "  resume:  cohyde sweep -c tiny -r 1 --seeds 1,2 -n t",
        ]
        or "  blocked: s2: E.1, report" in told
    )
    code, output, _ = cohyde(*arguments, "--json")
    assert code == 1
    content = json.loads(output)
    assert set(content) == {"run", "runs", "store", "stages", "arms"}
    assert content["arms"][0]["left_out"] == ["t-s2"]
    assert {stage["state"] for stage in content["stages"] if stage["id"] == "t-s2/S4.1"} == {"failed"}


def test_faults_of_the_data_are_found_before_anything_is_written(cohyde: Call, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "catalog.jsonl").write_text('{"id": "a", "title": "A"}\n')
    (data / "queries.jsonl").write_text('{"id": "q", "text": "x", "tools": ["gone"], "split": "train"}\n')
    assert "queries.jsonl:1" in refused(cohyde("sweep", *TINY, "--seeds", "1,2", f"data.path={data}"))
    assert not (tmp_path / "store").exists()


# ------------------------------------------------------------------------------------------------------ for real


@pytest.mark.slow
def test_a_sweep_for_real_of_which_one_seed_fails_and_is_resumed(
    tmp_path: Path, tiny_encoder_path: Path, tiny_rewriter_path: Path
) -> None:
    from test_end_to_end import TINIER, Command

    (tmp_path / "errors").mkdir()
    store = Store(tmp_path / "store")
    arguments = ["sweep", "-c", "tiny", "--seeds", "1,2", "--rounds", "1", "-n", "t", "--store", str(store.root)]

    def owners(stage: str) -> list[dict[str, Any]]:
        paths = store.logs.glob(f"{stage}-*/attempt-*/owner.json")
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(paths)]

    # Long candidates, so that the kill below comes while they are written and not after.
    tinier = [item.replace("candidates.max_new_tokens=6", "candidates.max_new_tokens=100") for item in TINIER]
    command = Command(tmp_path / "errors", *arguments, "runner.retries=0", *tinier)
    command.wait_for(r"s2/S4s\.1 .*started")
    [owner] = [owner for owner in owners("S4s.1") if owner["run"] == "t-s2"]
    os.kill(owner["pid"], signal.SIGKILL)
    output, errors = command.end(expected=1)
    assert re.search(r"^s2/S4s\.1 failed: its worker process was killed", errors, re.MULTILINE)
    assert "  blocked: s2: S4p.1, S4.1, E.1, report" in errors.splitlines()
    assert "not done, and not in the table: t-s2" in errors.splitlines()
    assert re.search(r"^1 +E\.0 ", output, re.MULTILINE)
    assert not re.search(r"^2 ", output, re.MULTILINE)
    for stage in ("data", "S1a", "S1b"):
        assert len(owners(stage)) == 1

    output, errors = Command(tmp_path / "errors", *arguments, "runner.retries=0", *tinier).end()
    assert "t: 14 of 19 stages are done already; 5 to run; starting a local Ray …" in errors.splitlines()
    assert re.search(r"^sd ", output, re.MULTILINE)
    assert "not in the table" not in errors

    output, errors = Command(tmp_path / "errors", *arguments, "runner.retries=0", "--json", *tinier).end()
    content = json.loads(output)
    assert {stage["state"] for stage in content["stages"]} == {"done"}
    [arm] = content["arms"]
    assert arm["table"]["seeds"] == [1, 2]
    for cell in arm["table"]["cells"]:
        assert 0 <= cell["mean"] <= 1
        if cell["split"] != "dev":
            assert cell["interval_seeds_queries"][0] <= cell["difference"] <= cell["interval_seeds_queries"][1]
    assert read_rows(Path(content["stages"][0]["path"]) / "catalog.jsonl")
