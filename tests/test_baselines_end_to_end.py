"""Both tables as a person gets them: processes of their own, a real Ray, tiny models, one store."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cohyde.evaluation.per_query import read_per_query

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow
TINIER = (
    *("--rounds", "1", "data.train_queries=20", "data.eval_queries=6", "encoder.train.epochs=1", "sft.max_steps=1"),
    *("sft.eval_queries=0", "describe.max_new_tokens=6", "candidates.max_new_tokens=6", "preferences.queries=8"),
    *("retrain.queries=8", "baselines.refine.rounds=1"),
)


def cohyde(store: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """What a command prints, and what it says of its stages."""
    command = [sys.executable, "-m", "cohyde", *arguments, "--store", str(store), "--json"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"COLUMNS": "80"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


def cell(table: dict[str, Any], key: str, split: str, tier: str) -> dict[str, Any]:
    [row] = [row for row in table["rows"] if row["key"] == key]
    [found] = [one for one in row["cells"] if (one["split"], one["tier"]) == (split, tier)]
    return found


def test_both_tables_on_one_store_and_nothing_is_done_twice(tmp_path: Path) -> None:
    store = tmp_path / "store"
    main, _ = cohyde(store, "eval", "baselines", "-c", "tiny", *TINIER)
    [table] = main["tables"]
    assert main["not_done"] == [] and [row["key"] for row in table["rows"]] == [
        *("bm25", "untrained", "expand", "hyde", "warm-up", "hyde-warm-up", "refine", "aligned"),
        *("r0", "r1", "fused-texts", "fused-bm25"),
    ]
    # One number of the table by hand, from the file of what each query scored.
    [folder] = store.glob("B.bm25-*")
    found = read_per_query(folder / "queries.parquet").select(split="standard", tier="G1")
    by_hand = sum(found.values["ndcg@5"]) / len(found)
    shown = cell(table, "bm25", "standard", "G1")
    assert shown["value"] == pytest.approx(by_hand) and shown["n"] == len(found)

    before = {path.name for path in store.glob("*-*")}
    only = ("--only", "untrained-encoder,untrained-rewriter,search-concatenated")
    ablations, _ = cohyde(store, "eval", "ablations", "-c", "tiny", *only, *TINIER)
    new = {path.name.rpartition("-")[0] for path in store.glob("*-*")} - {name.rpartition("-")[0] for name in before}
    assert new == {"A.untrained-encoder", "A.untrained-rewriter"}
    [table] = ablations["tables"]
    assert [row["key"] for row in table["rows"]] == [
        *("main", "search-concatenated", "untrained-encoder", "untrained-rewriter"),
    ]
    [one], [other] = (store.glob(f"{name}-*") for name in ("A.untrained-encoder", "E.1"))
    results = [read_per_query(path / "queries.parquet") for path in (one, other)]
    a, b = (file.select(split="vague", tier="G1", search="description").values["ndcg@5"] for file in results)
    [row] = [row for row in table["rows"] if row["key"] == "untrained-encoder"]
    [difference] = [one for one in row["differences"] if (one["split"], one["tier"]) == ("vague", "G1")]
    assert difference["value"] == pytest.approx((a - b).mean())

    _, told = cohyde(store, "eval", "ablations", "-c", "tiny", *only, *TINIER)
    assert "started" not in told

    # The same on a page and as files, under the name that the table has.
    again, _ = cohyde(store, "report", "tiny-ablations", "--to", str(tmp_path / "tables"))
    assert again["tables"] == ablations["tables"]
    assert "With untrained encoder" in (tmp_path / "tables" / "report.html").read_text("utf-8")
    header, *rows = csv.reader((tmp_path / "tables" / "ablations.csv").read_text("utf-8").splitlines())
    place = header.index("vague G1")
    values = {row[0]: float(row[place]) for row in rows}
    assert list(values) == ["CoHyDE, r = 1", *(row["title"] for row in table["rows"][1:])]
    assert values["With untrained encoder"] == pytest.approx(100 * a.mean())
