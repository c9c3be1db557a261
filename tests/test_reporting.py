"""From a store to a page: numbers are those of the per-query files, and what is missing or broken is said."""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command_line import Call, caller
from report_store import TIERS, WARNING, ReportStore

from cohyde.cli_report import _find, _subjects
from cohyde.evaluation.bootstrap import holm, over_queries, over_tiers
from cohyde.evaluation.compare import shared_rows
from cohyde.evaluation.page.data import Cell, Notices, PageData, Part, Table
from cohyde.evaluation.per_query import PerQuery, read_per_query
from stages.reporting.page import Subject, page_of
from stages.reporting.views import shareable


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportStore]:
    """A run with baselines, one with another setting, one that failed, and a sweep; all of two rounds at most."""
    store = ReportStore(root=tmp_path_factory.mktemp("report") / "store", query="<script>alert(1)</script> weather")
    store.run("all", "pipeline=baselines", rounds=2)
    store.run("other", "sft.enabled=false")
    store.run("broken", "dpo.beta=0.4", rounds=2, fail="S3.2", leave=("S4p.2", "S4.2", "E.2", "report"))
    store.sweep("seeds", [0, 1], "dpo.beta=0.3")
    yield store


@pytest.fixture
def cohyde(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made: ReportStore) -> Call:
    monkeypatch.setenv("COHYDE_STORE", str(made.root))
    return caller(capfd, monkeypatch)


def subjects(made: ReportStore, *names: str) -> list[Subject]:
    found = [_find(name, str(made.root)) for name in names]
    return [subject for one in found for subject in _subjects(one, alone=len(found) == 1)]


@cache
def page(made: ReportStore, *names: str) -> PageData:
    return page_of("page", subjects(made, *names), {})


def parts(data: PageData) -> dict[str, Part]:
    return {part.key: part for section in data.sections for part in section.parts}


def table(data: PageData, key: str) -> Table:
    found = parts(data)[key]
    assert isinstance(found, Table)
    return found


def cell(found: Table, row: str, split: str, tier: str) -> Cell:
    [cells] = [one.cells for one in found.rows if row in (one.cells[0].text, " ".join(c.text for c in one.cells[:2]))]
    [at] = [at for at, column in enumerate(found.columns) if (column.group, column.head) == (split, tier)]
    return cells[at]


def queries(made: ReportStore, run: str, stage: str) -> PerQuery:
    """The per-query file of a stage."""
    view = subjects(made, run)[0].arm.first
    return read_per_query(made.store.artifact_path(stage, view.manifests[stage].fingerprint) / "queries.parquet")


# ----------------------------------------------------------------------------------- each table, by hand from the file


def test_the_main_table_is_the_mean_of_the_queries_that_all_rounds_share(made: ReportStore) -> None:
    found = table(page(made, "all"), "main")
    rows = queries(made, "all", "E.1").select(split="vague", tier="G2", search="description", in_sample=True)
    values = rows.values["ndcg@5"].tolist()
    assert len(values) == len(range(0, TIERS["G1"] + TIERS["G2"] + TIERS["G3"], 2)[3:6])  # 5 of G2, every other one
    shown = cell(found, "CoHyDE, r = 1", "vague", "G2")
    assert shown.value == pytest.approx(100 * sum(values) / len(values))
    assert shown.text == f"{100 * sum(values) / len(values):.1f}"
    assert shown.low is not None and shown.high is not None and shown.low <= shown.value <= shown.high


def test_the_mean_gives_every_tier_the_same_weight(made: ReportStore) -> None:
    rows = queries(made, "all", "B.bm25").select(split="standard", search="query", in_sample=True)
    tiers = [rows.select(tier=tier).values["ndcg@5"].mean() for tier in TIERS]
    shown = cell(table(page(made, "all"), "main"), "BM25", "standard", "mean")
    assert shown.value == pytest.approx(100 * (tiers[0] + tiers[1] + tiers[2]) / 3)


def test_intervals_are_those_that_other_commands_show(made: ReportStore) -> None:
    found = table(page(made, "all"), "main")
    rows = queries(made, "all", "E.1").select(split="standard", search="description", in_sample=True)
    [over_all] = over_tiers(rows.values["ndcg@5"][:, None], list(rows.tier))
    [in_one] = over_queries(rows.select(tier="G3").values["ndcg@5"][:, None])
    for tier, estimate in (("mean", over_all), ("G3", in_one)):
        shown = cell(found, "CoHyDE, r = 1", "standard", tier)
        assert estimate.interval is not None
        assert (shown.low, shown.high) == (
            pytest.approx(100 * estimate.interval.low),
            pytest.approx(100 * estimate.interval.high),
        )


def test_the_table_over_every_query_is_the_mean_of_all_of_them(made: ReportStore) -> None:
    found = table(page(made, "all"), "main-all")
    rows = queries(made, "all", "E.2").select(split="standard", tier="G1", search="description")
    values = rows.values["ndcg@5"].tolist()
    assert len(values) == TIERS["G1"]  # twice as many as in the sample
    assert cell(found, "CoHyDE, r = 2", "standard", "G1").value == pytest.approx(100 * sum(values) / 6)
    assert "CoHyDE, r = 1" not in [row.cells[0].text for row in found.rows]  # scored its sample alone


def test_the_table_of_rounds_has_every_way_to_search(made: ReportStore) -> None:
    found = table(page(made, "all"), "rounds")
    values = queries(made, "all", "E.0").select(split="dev", tier="G3", search="query").values["ndcg@5"]
    others = [queries(made, "all", "E.0").select(split="dev", tier=t, search="query").values["ndcg@5"].mean()
              for t in ("G1", "G2")]  # fmt: skip
    assert cell(found, "E.0 query", "dev", "mean").value == pytest.approx(100 * (sum(others) + values.mean()) / 3)


def test_a_gain_is_the_mean_of_differences_query_by_query(made: ReportStore) -> None:
    [subject] = subjects(made, "all")
    data = page(made, "all")
    names = {"split": "standard", "tier": "G1", "in_sample": True}
    after = queries(made, "all", subject.selected or "").select(search="description", **names)
    before = queries(made, "all", "E.untrained").select(search="query", **names)
    by_id = dict(zip(before.id, before.values["ndcg@5"], strict=True))
    gains = [value - by_id[name] for name, value in zip(after.id, after.values["ndcg@5"], strict=True)]
    shown = cell(table(data, "differences"), "over Untrained encoder", "standard", "G1")
    assert shown.value == pytest.approx(100 * sum(gains) / len(gains))
    assert shown.low is not None and shown.high is not None
    assert shown.best == (shown.low > 0 or shown.high < 0)


def test_how_sure_a_gain_is_counts_all_comparisons_of_the_table(made: ReportStore) -> None:
    [subject] = subjects(made, "all")
    found = table(page(made, "all"), "certainty")
    systems = [(one.stage, one.search) for one in subject.arm.systems
               if (one.stage, one.search) != (subject.selected, "description")]  # fmt: skip
    flips, p_values = [], []
    for stage, search in systems:
        for split in ("standard", "vague"):
            after = queries(made, "all", subject.selected or "").select(search="description", split=split)
            before = queries(made, "all", stage).select(search=search, split=split)
            left, right = shared_rows(before.select(in_sample=True), after.select(in_sample=True))
            gains = [b - a for a, b in zip(left.values["ndcg@5"], right.values["ndcg@5"], strict=True)]
            [estimate] = over_tiers([[gain] for gain in gains], left.tier.tolist())
            flips.append(estimate.flips)
            p_values.append(estimate.p)
    shown = [row.cells[1:] for row in found.rows]
    assert [cells[at].value for cells in shown for at in (0, 2)] == [pytest.approx(100 * one) for one in flips]
    corrected = holm(p_values)
    assert [cells[at].value for cells in shown for at in (1, 3)] == [pytest.approx(one) for one in corrected]
    assert [cells[at].best for cells in shown for at in (1, 3)] == [one < 0.05 for one in corrected]
    assert f"corrected for all {2 * len(systems)} comparisons" in found.caption


def test_the_table_of_metrics_is_the_mean_over_tiers(made: ReportStore) -> None:
    rows = queries(made, "all", "B.refine").select(split="vague", search="description", in_sample=True)
    tiers = [rows.select(tier=tier).values["comp@10"].mean() for tier in TIERS]
    [cells] = [row.cells for row in table(page(made, "all"), "metrics").rows
               if (row.group, row.cells[0].text) == ("vague", "Iterative refinement")]  # fmt: skip
    heads = [(column.group, column.head) for column in table(page(made, "all"), "metrics").columns]
    assert cells[heads.index(("COMP", "@10"))].value == pytest.approx(100 * sum(tiers) / 3)


def test_the_table_over_seeds_has_their_mean_and_deviation(made: ReportStore) -> None:
    found = table(page(made, "seeds"), "seeds-0")
    [subject] = subjects(made, "seeds")
    values = []
    for run in subject.arm.runs:
        path = made.store.artifact_path("E.1", run.manifests["E.1"].fingerprint) / "queries.parquet"
        rows = read_per_query(path).select(split="standard", tier="G1", search="description", in_sample=True)
        values.append(100 * rows.values["ndcg@5"].mean())
    assert subject.selected == "E.1" and [run.seed for run in subject.arm.runs] == [0, 1]
    assert cell(found, "seed 1", "standard", "G1").value == pytest.approx(values[1])
    assert cell(found, "mean", "standard", "G1").value == pytest.approx((values[0] + values[1]) / 2)
    deviation = abs(values[0] - values[1]) / 2**0.5
    assert cell(found, "standard deviation", "standard", "G1").value == pytest.approx(deviation)
    main = cell(table(page(made, "seeds"), "main"), "CoHyDE, r = 1", "standard", "G1")
    assert main.value == pytest.approx((values[0] + values[1]) / 2)


def test_runs_are_compared_with_the_first(made: ReportStore) -> None:
    data = page(made, "all", "other")
    main, other = subjects(made, "all", "other")
    names = {"split": "vague", "tier": "G1", "search": "description", "in_sample": True}
    one = queries(made, "other", other.selected or "").select(**names)
    two = queries(made, "all", main.selected or "").select(**names)
    assert list(one.id) == list(two.id)
    gain = 100 * np.mean(one.values["ndcg@5"] - two.values["ndcg@5"])
    shown = cell(table(data, "runs"), "other", "vague", "G1")
    assert shown.value == pytest.approx(100 * one.values["ndcg@5"].mean())
    assert shown.note.partition("\n")[0] == f"{gain:+.1f}".replace("-", "−")
    [label] = [row.cells[0].note for row in table(data, "runs").rows if row.cells[0].text == "other"]
    assert "sft.enabled: True → False" in label and "pipeline" not in label


def test_time_is_counted_by_kind_of_work_and_once_where_runs_share_it(made: ReportStore) -> None:
    one, two = page(made, "other"), page(made, "other", "other")
    assert table(one, "cost") == table(two, "cost")
    [training] = [row.cells for row in table(one, "cost").rows if row.cells[0].text == "Encoder training"]
    assert [c.value for c in training[1:]] == [2, 2 * 45.0, 0.0]  # S1a and S3.1, 45 s each, no GPU
    latency = {row.cells[0].text: row.cells for row in table(one, "latency").rows}
    assert latency["S2.1"][-1].value == pytest.approx(1000 * 45.0 / 20)  # 20 descriptions


def test_gpu_hours_are_the_time_of_what_a_stage_reserved(made: ReportStore) -> None:
    made.run("gpus", "resources.training.gpus=2")
    rows = {row.cells[0].text: row.cells for row in table(page(made, "gpus"), "stages").rows}
    assert rows["S4.1"][4].value == pytest.approx(2 * 45 / 3600)
    assert rows["S3.1"][4].value == 0


def test_health_is_what_the_stages_recorded(made: ReportStore) -> None:
    rows = {(row.group, row.cells[0].text): row.cells for row in table(page(made, "all"), "health").rows}
    ties = rows["S4p · preference pairs", "tie rate"]
    assert [c.value for c in ties[1:]] == [None, 0.5, 0.5]  # rounds 0, 1 and 2
    assert {"health-0", "health-1", "health-2", "training-S3", "training-S4"} <= set(parts(page(made, "all")))


# ------------------------------------------------------------------------------------------------ what is not there


def test_a_run_in_which_a_round_failed_shows_what_there_is(made: ReportStore) -> None:
    data = page(made, "broken")
    assert data.summary.sentences[0] == "S3.2 failed; the page shows what there is."
    assert [row.cells[0].text for row in table(data, "main").rows][-1] == "CoHyDE, r = 1"
    notices = parts(data)["notices"]
    assert isinstance(notices, Notices)
    first = notices.items[0]
    assert (first.source, first.severe, first.remedy) == ("S3.2", True, "a smaller batch")
    assert first.text == "failed: RuntimeError: out of memory in …/model.bin"
    assert (WARNING, "S3.1") in [(notice.text, notice.source) for notice in notices.items]


def test_without_vague_paraphrases_there_are_no_such_columns_and_a_line_says_so(tmp_path: Path) -> None:
    made = ReportStore(root=tmp_path / "store", vague=False)
    made.run("plain")
    data = page(made, "plain")
    assert {column.group for column in table(data, "main").columns} == {"", "standard", "dev"}
    assert any("no vague paraphrases" in note for note in table(data, "main").notes)
    assert any("no vague paraphrases" in sentence for sentence in data.summary.sentences)


def test_one_query_in_a_tier_says_n_1_and_has_no_interval(tmp_path: Path) -> None:
    made = ReportStore(root=tmp_path / "store", tiers={"G1": 6, "G2": 1}, sampled=False)
    made.run("small")
    found = table(page(made, "small"), "main")
    shown = cell(found, "CoHyDE, r = 1", "standard", "G2")
    assert (shown.low, shown.high, shown.note) == (None, None, "n=1")
    assert cell(found, "CoHyDE, r = 1", "standard", "G1").low is not None
    assert "standard G2 1" in found.notes[0] and "n=1" in found.notes[0]


def test_a_damaged_evaluation_is_named_and_left_out(tmp_path: Path) -> None:
    made = ReportStore(root=tmp_path / "store")
    plan = made.run("torn")
    [name] = plan.named("E.1")
    path = made.root / name / "queries.parquet"
    path.write_bytes(bytes(path.stat().st_size))  # as long as it was, so that only reading it tells
    data = page(made, "torn")
    assert [row.cells[0].text for row in table(data, "main").rows][-1] == "CoHyDE, r = 0"
    notices = parts(data)["notices"]
    assert isinstance(notices, Notices)
    assert notices.items[0].severe and "queries.parquet" in notices.items[0].text


def test_no_page_shows_folders_hosts_or_more_of_a_path_than_its_end() -> None:
    assert shareable("no space in /home/me/store/S1 (left 3/4)") == "no space in …/S1 (left 3/4)"
    assert shareable("https://host/v1 and a/b") == "https://host/v1 and a/b"
    assert shareable(r"C:\data\models\x.bin is gone") == "…/x.bin is gone"


# ------------------------------------------------------------------------------------------------- the command line


def test_report_writes_a_page_and_every_table(cohyde: Call, made: ReportStore, tmp_path: Path) -> None:
    code, output, errors = cohyde("report", "all", "--to", str(tmp_path / "out"))
    assert code == 0 and "NDCG@5 in %" in output
    assert errors == f"page: {tmp_path}/out/report.html\ntables: {tmp_path}/out\n"
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert html.count("<script") == 1 and "&lt;script&gt;alert(1)" in html
    assert "secret-host" not in html and str(made.root) not in html and "84aab6339d48, changed" in html
    names = {"main", "main-all", "differences", "certainty", "metrics", "rounds", "health", "cost", "latency", "stages"}
    assert {path.stem for path in (tmp_path / "out").glob("*.csv")} == names
    assert {path.stem for path in (tmp_path / "out").glob("*.tex")} == names
    rows = list(csv.DictReader((tmp_path / "out" / "main.csv").open(encoding="utf-8")))
    shown = cell(table(page(made, "all"), "main"), "BM25", "vague", "G3")
    assert float(rows[0]["vague G3"]) == shown.value and float(rows[0]["vague G3 high"]) == shown.high
    assert (tmp_path / "out" / "report.md").read_text(encoding="utf-8").startswith("# all\n")


def test_the_page_lies_in_the_store_unless_told_otherwise_and_is_the_same_every_time(
    cohyde: Call, made: ReportStore
) -> None:
    code, _, errors = cohyde("report", "other")
    path = made.root / "reports" / "other.html"
    assert (code, errors) == (0, f"page: {path}\n")
    before = path.read_bytes()
    assert cohyde("report", "other")[0] == 0
    assert path.read_bytes() == before


def test_several_runs_make_one_page(cohyde: Call, made: ReportStore) -> None:
    code, output, errors = cohyde("report", "seeds", "other")
    assert (code, errors) == (0, f"page: {made.root}/reports/seeds+other.html\n")
    assert "Runs compared" in (made.root / "reports" / "seeds+other.html").read_text(encoding="utf-8")
    assert output.index("seeds  NDCG@5") < output.index("other  NDCG@5")


def test_for_programs_a_page_is_written_only_where_one_is_asked_for(
    cohyde: Call, made: ReportStore, tmp_path: Path
) -> None:
    code, output, errors = cohyde("report", "broken", "--json")
    assert (code, errors, output.count("\n")) == (0, "", 1)
    assert not (made.root / "reports" / "broken.html").exists()
    code, output, errors = cohyde("report", "broken", "--json", "--html", str(tmp_path / "x.html"))
    assert (code, output.count("\n"), (tmp_path / "x.html").is_file()) == (0, 1, True)
