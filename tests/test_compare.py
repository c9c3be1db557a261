"""Two systems query by query: what differs and how surely, what is refused, and what a person and TREC tools see."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from command_line import Call, caller
from rich.console import Console
from test_dag_store import manifest

from cohyde.catalog import Query
from cohyde.cli_jobs import Job, make_job, record
from cohyde.errors import UserError
from cohyde.evaluation.bootstrap import RESAMPLES, holm
from cohyde.evaluation.compare import changes, compare, shared_rows
from cohyde.evaluation.metrics import ALL, MEAN_OVER_TIERS
from cohyde.evaluation.per_query import Found, PerQuery, per_query_of, write_per_query
from cohyde.evaluation.results import metric_rows
from cohyde.evaluation.trec import write_trec
from cohyde.io import write_jsonl
from cohyde.terminal_compare import Shown, print_changes, print_differences

TOOLS = [f"tool/{number}" for number in range(12)]


def system(
    ranks: Sequence[int],
    *,
    tiers: Sequence[str] = ("G1",),
    split: str = "standard",
    search: str = "query",
    catalogue: str = "sum",
    gold: str = "gold",
) -> PerQuery:
    """Query ``n`` has one gold tool, at ``ranks[n]``; 0 is nowhere."""
    found = []
    for number, rank in enumerate(ranks):
        ranked = list(TOOLS)
        if rank:
            ranked.insert(rank - 1, gold)
        query = Query(id=f"q{number}", text=f"request {number}", tools=(gold,), tier=tiers[number % len(tiers)])
        ranking = [(tool, 1 - place / 20) for place, tool in enumerate(ranked)]
        found.append(Found(query=query, split=split, search=search, in_sample=True, ranking=ranking))
    return per_query_of(found, catalogue)


def joined(*parts: PerQuery) -> PerQuery:
    """Rows of several as one."""
    found = [
        Found(
            query=Query(id=part.id[row], text=part.text[row], tools=tuple(part.gold[row]), tier=part.tier[row]),
            split=part.split[row],
            search=part.search[row],
            in_sample=bool(part.in_sample[row]),
            ranking=[(tool, 1 - place / 20) for place, tool in enumerate(part.ranked[row])],
        )
        for part in parts
        for row in range(len(part))
    ]
    return per_query_of(found, parts[0].catalogue)


# ----------------------------------------------------------------------------------------------------- differences


def test_differences_are_b_minus_a_by_split_and_tier() -> None:
    # hit@1: of G1 (q0, q2) A finds one and B both, of G2 (q1, q3) A and B find one
    a, b = system([1, 1, 2, 0], tiers=("G1", "G2")), system([1, 0, 1, 1], tiers=("G1", "G2"))
    rows = {row.tier: row for row in compare(a, b, ["hit@1"])}
    assert list(rows) == ["G1", "G2", ALL, MEAN_OVER_TIERS]
    assert (rows["G1"].a, rows["G1"].b, rows["G1"].difference) == (1 / 2, 1, 1 / 2)
    assert (rows["G2"].a, rows["G2"].b, rows["G2"].difference) == (1 / 2, 1 / 2, 0)
    assert (rows[ALL].difference, rows[MEAN_OVER_TIERS].difference) == (1 / 4, 1 / 4)
    assert [row.n for row in rows.values()] == [2, 2, 4, 4]
    # The mean of two draws of (0, 1) is 0 with 1/4: the sign flips there, and p is twice that.
    assert rows["G1"].flips == pytest.approx(1 / 4, abs=0.02) and rows["G1"].p == pytest.approx(1 / 2, abs=0.04)
    assert (rows["G1"].low, rows["G1"].high) == (0, 1)


def test_all_rows_of_a_metric_are_one_family() -> None:
    b = system([1] * 20, tiers=("G1", "G2"))
    a = system([0] * 12 + [1] * 8, tiers=("G1", "G2"))
    rows = compare(a, b, ["hit@1", "ndcg@5"])
    assert [(row.metric, row.k) for row in rows] == [("hit", 1)] * 4 + [("ndcg", 5)] * 4
    for family in (rows[:4], rows[4:]):
        assert [row.p_holm for row in family] == holm([row.p or 0 for row in family])
    assert rows[0].p == 2 / (RESAMPLES + 1) and rows[0].p_holm == 4 * rows[0].p


def test_a_tier_of_one_query_says_so_and_is_in_no_family() -> None:
    a, b = system([2, 2, 1], tiers=("G1", "G1", "G3")), system([1, 2, 2], tiers=("G1", "G1", "G3"))
    [g1, g3, *_] = compare(a, b, ["hit@1"])
    assert (g3.n, g3.difference, g3.low, g3.high, g3.flips, g3.p, g3.p_holm) == (1, -1, None, None, None, None, None)
    assert g1.p is not None and g1.p_holm is not None


def test_the_queries_that_changed_most_come_first_and_those_that_did_not_are_left_out() -> None:
    a, b = system([1, 2, 0, 5]), system([1, 1, 1, 0])
    found = changes(a, b, "ndcg@5")
    assert [(change.row, change.a, change.b) for change in found] == [
        (2, 0, 1),
        (3, pytest.approx(1 / np.log2(6)), 0),
        (1, pytest.approx(1 / np.log2(3)), 1),
    ]


# --------------------------------------------------------------------------------------------- what can be compared


def test_what_only_one_has_answered_is_left_out() -> None:
    sample, everything = system([1, 2]), joined(system([2, 1, 1]), system([1], split="dev"))
    left, right = shared_rows(sample, everything)
    assert list(left.id) == list(right.id) == ["q0", "q1"]
    assert left.values["hit@1"].tolist() == [1, 0] and right.values["hit@1"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: replace(b, catalogue="other"), "they searched different catalogues"),
        (lambda b: replace(b, id=b.id + "x"), "no query in common: 3 here, 3 there"),
        (lambda b: replace(b, id=np.array(["q0", "q1", "r"], dtype=object)), "standard split: a has 1 queries that b"),
        (lambda b: replace(b, text=b.text + "!"), "'q0' (standard) has another text in each"),
        (lambda b: replace(b, tier=b.tier + "x"), "'q0' (standard) is of tier G1 here, G1x there"),
        (lambda b: replace(b, gold=system([1] * 3, gold="else").gold), "'q0' (standard) has other gold tools in each"),
    ],
)
def test_other_data_is_refused_by_what_differs(change: Any, says: str) -> None:
    a = system([1, 2, 3])
    with pytest.raises(UserError) as refused:
        shared_rows(a, change(system([1, 2, 3])), names=("a", "b"))
    assert says in str(refused.value) and "a and b are of different data" in str(refused.value)


# ---------------------------------------------------------------------------------------------------------- screen


def shown(a: PerQuery, b: PerQuery, described: bool = True) -> str:
    texts = {("standard", "q0"): "A tool that " + "does much " * 60} if described else {}
    sides = [Shown(title="run/E.0:description", found=a, descriptions=texts)]
    sides.append(Shown(title="run/E.1:description", found=b, descriptions=texts))
    console = Console(file=StringIO(), width=80, force_terminal=False, color_system=None)
    print_differences(console, sides, compare(a, b, ["ndcg@5"]), "ndcg@5")
    print_changes(console, sides, changes(a, b, "ndcg@5"), "ndcg@5", top=2, head=3)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_comparison_fits_80_columns_and_says_what_was_found() -> None:
    text = shown(system([7, 1, 1], tiers=("G1", "G2")), system([1, 1, 2], tiers=("G1", "G2")))
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert any(line.startswith("standard G1") for line in lines)
    assert next(line for line in lines if "G2" in line).split()[-6:] == ["+0.0", "n=1", "–", "–", "–", "1"]
    assert "2 of 3 queries changed: 1 for the better, 1 for the worse" in text
    assert "q0  standard G1  ndcg@5 0.0 → 100.0" in text
    assert "further down: gold (7)" in text and "1 gold ✓" in text and "A tool that does much" in text


def test_where_nothing_was_written_the_request_was_searched_with() -> None:
    assert "(searched with the request)" in shown(system([2, 1]), system([1, 1]), described=False)


# ----------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capfd, monkeypatch)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A run whose warm-up scores worse than its round."""
    made = make_job("tiny", 1, None, None, "try", tmp_path / "store")
    record(made)
    tiers = ("G1", "G2")
    before, after = system([2, 0, 3, 1], tiers=tiers), system([1, 4, 1, 1], tiers=tiers)
    finish(made, "E.untrained", before)
    finish(made, "E.0", joined(before, *(replace(before, search=np.full(4, mode)) for mode in ("description",))))
    finish(made, "E.1", replace(after, search=np.full(4, made.settings.search.mode, dtype=object)), ["written"] * 4)
    return made


def finish(job: Job, stage: str, found: PerQuery, described: Sequence[str] = ()) -> None:
    node = job.plan.nodes[job.plan.named(stage)[0]]
    scratch = job.store.scratch(node.id, node.fingerprint)
    write_per_query(scratch / "queries.parquet", found)
    write_jsonl(scratch / "metrics.jsonl", (row.to_row() for row in metric_rows(found)))
    texts = zip(found.id, found.split, described, strict=False)
    write_jsonl(scratch / "descriptions.jsonl", ({"id": i, "split": s, "text": text} for i, s, text in texts))
    identity = job.plan.identities[node.name]
    job.store.commit(
        scratch, manifest(id=node.id, fingerprint=node.fingerprint, identity=identity, metrics={}, seconds=1.0)
    )


def test_two_stages_of_a_run_are_compared(job: Job, call: Call) -> None:
    where = ("--store", job.store.location)
    status, text, _ = call("eval", "compare", "try/E.untrained", "try/E.1", *where, "--metric", "hit", "-k", "1")
    assert status == 0 and f"B  try/E.1:{job.settings.search.mode}" in text
    assert "2 of 4 queries changed: 2 for the better, 0 for the worse" in text and "written" in text
    status, text, _ = call("eval", "compare", "try/untrained", "try/r1", *where, "--json", "--top", "1")
    answer = json.loads(text)
    assert status == 0 and answer["a"] == "try/E.untrained:query"
    assert [row["tier"] for row in answer["rows"]] == ["G1", "G2", ALL, MEAN_OVER_TIERS]
    [changed] = answer["changed"]
    assert (changed["id"], changed["gold"], changed["b"]["description"]) == ("q2", ["gold"], "written")
    assert (changed["a"]["value"], changed["b"]["value"]) == (pytest.approx(1 / np.log2(4)), 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("try/E.9", "try/E.1"), "no stage is called 'E.9'"),
        (("try/S1a", "try/E.1"), "S1a is not done yet"),
        (("try/E.untrained:fused", "try/E.1"), "was not searched with 'fused'\n  but with: query"),
        (("try/E.untrained", "try/E.1", "--split", "vague"), "has no 'vague' split\n  there are: standard"),
        (("try/E.untrained", "try/E.1", "-k", "3"), "ndcg@3 was not measured\n  measured are: hit@1,"),
        (("none/E.1", "try/E.1"), "none"),
    ],
)
def test_what_cannot_be_compared_is_answered_with_what_can(
    arguments: tuple[str, ...], says: str, job: Job, call: Call
) -> None:
    status, output, errors = call("eval", "compare", *arguments, "--store", job.store.location)
    assert (status, output) == (2, "") and says in errors and "Traceback" not in errors


# ------------------------------------------------------------------------------------------------------------ TREC


def test_trec_files_say_to_pytrec_eval_what_we_measured(job: Job, call: Call, tmp_path: Path) -> None:
    status, output, _ = call("eval", "trec", "try/E.0", "--to", str(tmp_path / "trec"), "--store", job.store.location)
    names = {Path(line).name for line in output.split()}
    assert status == 0 and names == {"standard.qrels", "standard.query.run", "standard.description.run"}
    folder = tmp_path / "trec"
    with (folder / "standard.qrels").open() as qrels, (folder / "standard.query.run").open() as run:
        evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), {"ndcg_cut.5"})
        found = evaluator.evaluate(pytrec_eval.parse_run(run))
    ours = system([2, 0, 3, 1], tiers=("G1", "G2"))
    assert {query: scores["ndcg_cut_5"] for query, scores in found.items()} == {
        query: pytest.approx(value, abs=1e-9) for query, value in zip(ours.id, ours.values["ndcg@5"], strict=True)
    }


def test_blanks_and_ties_survive_trec(tmp_path: Path) -> None:
    query = Query(id="q 1", text="x", tools=("b tool",), tier="G1")
    ranking = [("z", 0.5), ("b tool", 0.5), ("a", 0.5), ("100%", -0.25), ("b tool", -0.25)]
    found = per_query_of([Found(query=query, split="dev", search="query", in_sample=True, ranking=ranking)], "c")
    qrels, run = write_trec(tmp_path, found, "my run")
    assert qrels.read_text() == "q%201 0 b%20tool 1\n"
    rows = [line.split(" ") for line in run.read_text().splitlines()]
    assert [(row[0], row[2], row[3], row[5]) for row in rows] == [
        ("q%201", "z", "1", "my%20run"),
        ("q%201", "b%20tool", "2", "my%20run"),
        ("q%201", "a", "3", "my%20run"),
        ("q%201", "100%25", "4", "my%20run"),
    ]
    scores = [np.float32(row[4]) for row in rows]
    assert scores == sorted(set(scores), reverse=True) and scores[2] == pytest.approx(0.5, abs=1e-6)
