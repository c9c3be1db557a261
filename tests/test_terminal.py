"""What a person sees beside the commands' own output: texts that look like markup, searches, checks, live views."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cohyde import live, terminal
from cohyde.catalog import Tool
from cohyde.dag import events
from cohyde.dag.attempts import Failure
from cohyde.dag.plan import Plan, make_plan
from cohyde.dag.spec import StageSpec
from cohyde.dag.state import StageState, State
from cohyde.doctor import Check
from cohyde.errors import UserError
from cohyde.evaluation.report import build_report
from cohyde.evaluation.results import SAMPLE, MetricRow
from cohyde.live import Live
from cohyde.retrieval.answer import Answer


def console(width: int = 80, *, is_terminal: bool = False, height: int = 25) -> Console:
    return Console(
        file=StringIO(), width=width, height=height, highlight=False, force_terminal=is_terminal, color_system=None
    )


def said(on: Console) -> str:
    assert isinstance(on.file, StringIO)
    return on.file.getvalue()


@pytest.fixture(params=[80, 200], ids="{} columns".format)
def output(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """What commands print to, of two widths."""
    shown = console(request.param)
    monkeypatch.setattr(terminal, "out", lambda: shown)
    monkeypatch.setattr(terminal, "err", lambda: shown)
    yield shown
    assert max(map(len, said(shown).splitlines()), default=0) <= request.param


# ------------------------------------------------------------------------------------------------------- counts


def test_an_evaluation_says_how_many_queries_it_scored_and_why_not_the_others() -> None:
    counts = {"standard_scored": 40, "standard_skipped: not sampled": 12, "standard_skipped: no gold": 1}
    assert terminal.scored({"dev_ndcg@5 (query)": 0.5, **counts, "dev_scored": 7}) == (
        "standard 40 (left out: 1 no gold, 12 not sampled), dev 7"
    )
    assert terminal.scored({}) == ""


# ------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("tier", ["[G1]", "[/]", "[bold]", "G[red]1"])
def test_a_tier_may_look_like_markup(tier: str) -> None:
    rows = [
        MetricRow(split=split, tier=tier, metric="ndcg", k=5, value=0.5, n=1, search="query", scope=SAMPLE)
        for split in ("standard", "vague")
    ]
    shown = console()
    terminal.print_report(shown, build_report({"E.0": rows}, "query"), "a [run]")
    assert said(shown).count(tier) == 2 and "a [run]" in said(shown)


def test_an_error_is_said_with_its_remedy_as_it_is(output: Console) -> None:
    terminal.print_error(UserError("queries[3] [/bold]", "write [a] list"))
    assert said(output) == "error: queries[3] [/bold]\n  write [a] list\n"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min")],
)
def test_durations_round_up_into_the_next_unit(seconds: float, expected: str) -> None:
    assert terminal.duration(seconds) == expected


# -------------------------------------------------------------------------------------------- checks and searches


def test_a_check_that_fails_is_followed_by_its_remedy(output: Console) -> None:
    terminal.print_checks(
        [
            Check(name="torch", state="ok", found="2.13", remedy="not shown"),
            Check(name="data", state="missing", found="no [folder]", remedy="give one"),
            Check(name="GPUs", state="note", found="none"),
        ]
    )
    lines = [" ".join(line.split()) for line in said(output).splitlines()]
    assert lines == ["✓ torch 2.13", "✗ data no [folder]", "→ give one", "· GPUs none"]


def test_a_long_finding_is_folded_and_not_cut(output: Console) -> None:
    terminal.print_checks([Check(name="store", state="missing", found="/long" * 60, remedy="x" * 150)])
    assert "".join(said(output).split()).count("/long") == 60
    assert said(output).count("x") == 150


TOOLS = (
    (Tool(id="rain", title="Weather", api_name="forecast", api_description="[Returns] a forecast."), 0.75),
    (Tool(id="bare"), 0.5),
    (Tool(id="half", title="Clock", description="Tells the time."), 0.25),
)


def test_a_search_shows_the_description_and_ranked_tools(output: Console) -> None:
    timings = {"load": 2.5, "rewrite": 0.5, "retrieve": 0.01}
    terminal.print_search(
        Answer(query="[will] it rain", description="A forecast.", rewritten=True, tools=TOOLS, timings=timings)
    )
    lines = [" ".join(line.split()) for line in said(output).splitlines()]
    assert lines == [
        "request [will] it rain",
        "description A forecast.",
        "",
        "score tool",
        "1 0.750 Weather · forecast rain",
        "[Returns] a forecast.",
        "2 0.500 bare",
        "3 0.250 Clock half",
        "Tells the time.",
        "",
        "load 2.5 s, rewrite 0.5 s, retrieve 0.0 s",
    ]


def test_a_search_without_a_description_says_so(output: Console) -> None:
    terminal.print_search(Answer(query="x", description="", rewritten=False, reason="as asked", tools=(), timings={}))
    assert "(none: as asked; searched with the request)" in said(output)


# ----------------------------------------------------------------------------------------------------- watching


def state(stage_id: str, is_in: State) -> StageState:
    return StageState(id=stage_id, state=is_in, fingerprint="0" * 64, inputs={}, path=None, seconds=None, metrics={})


def test_a_low_terminal_shows_what_is_under_way_rather_than_what_is_done() -> None:
    found = [*(state(f"a{number}", "done") for number in range(30)), state("now", "running"), state("next", "waiting")]
    shown = [one.id for one in terminal._fitting(found, console(is_terminal=True, height=12))]
    assert shown == [*(f"a{number}" for number in range(22, 30)), "now", "next"]
    assert terminal._fitting(found, console()) == found


# --------------------------------------------------------------------------------------------------------- live


def plan() -> Plan:
    entry = "trivial_stages.basic:number"
    return make_plan(
        [
            StageSpec(id="S1a", entry=entry, version="1", kind="encoder warm-up"),
            StageSpec(id="report", entry=entry, version="1", inputs={"x": "S1a"}, kind="report"),
        ]
    )


def live_on(shown: Console, monkeypatch: pytest.MonkeyPatch) -> Live:
    monkeypatch.setattr(live, "err", lambda: shown)
    return Live("demo", plan(), {"S1a": "encoder warm-up", "report": "report"})


def started(stage_id: str = "S1a") -> events.Started:
    return events.Started(id=stage_id, name=f"{stage_id}-0", attempt=1, host="here", pid=1)


def progressed(done: float) -> events.Progressed:
    return events.Progressed(id="S1a", name="S1a-0", done=done, total=40, what="steps")


def finished() -> events.Finished:
    return events.Finished(id="S1a", name="S1a-0", seconds=75, metrics={"best_dev_ndcg@5": 0.5})


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(200)
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    with live_on(shown, monkeypatch) as listener:
        listener(started())
        for second in range(95):
            clock[0] = float(second)
            listener(progressed(second / 4))
        listener(finished())
    lines = said(shown).splitlines()
    assert sum("steps" in line for line in lines) == 95 // live.PLAIN_EVERY_SECONDS
    assert " ".join(lines[-1].split()) == "✓ 1/2 S1a encoder warm-up 1 min 15 s dev NDCG@5 0.500"
    assert "\x1b" not in said(shown)


def test_on_a_terminal_a_bar_shows_how_far_it_is_and_leaves_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(120, is_terminal=True)
    with live_on(shown, monkeypatch) as listener:
        listener(started())
        listener(progressed(10))
        listener.progress.refresh()
        assert "10/40" in said(shown) and "steps" in said(shown)
        listener(finished())
        assert listener.bars == {}
    assert "dev NDCG@5 0.500" in said(shown)


def test_warnings_failures_and_what_they_block_are_said_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(200)
    failure = Failure(id="S1a", name="S1a-0", attempt=1, error="NaN at step [3]", log="log.txt")
    with live_on(shown, monkeypatch) as listener:
        listener(events.Warned(id="S1a", name="S1a-0", message="[all] candidates tie"))
        listener(events.Failed(id="S1a", name="S1a-0", failure=failure, retrying=True))
        listener(events.Failed(id="S1a", name="S1a-0", failure=failure, retrying=False))
        listener(events.Blocked(id="report", name="report-0", by="S1a"))
    lines = [" ".join(line.split()) for line in said(shown).splitlines()]
    assert lines == [
        "! S1a [all] candidates tie",
        "✗ S1a failed: NaN at step [3]; trying again",
        "✗ S1a failed: NaN at step [3]",
        "– report blocked by S1a",
    ]


def test_what_happens_to_a_stage_that_was_never_started_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(200)
    with live_on(shown, monkeypatch) as listener:
        listener(progressed(1))
        listener(finished())
        listener(events.Submitted(id="report", name="report-0", attempt=1, log=Path("log.txt")))
    assert len(said(shown).splitlines()) == 1


def test_stages_that_others_had_done_count_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console(200)
    with live_on(shown, monkeypatch) as listener:
        listener(events.RayStarting(address="ray://head:10001", done=1, todo=1))
        listener(events.Finished(id="report", name="report-0", seconds=1, metrics={}))
    assert "1 of 2 stages are done already" in said(shown) and "connecting to Ray at ray://head:10001" in said(shown)
    assert "2/2" in said(shown)
