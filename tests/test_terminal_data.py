"""What a person sees of a dataset: figures in 80 columns, findings by kind, texts that look like markup."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cohyde import terminal_data
from cohyde.catalog import Dataset, Query, Tool
from cohyde.data.audit import Audit
from cohyde.data.importing import FORMATS
from cohyde.data.stats import Statistics, statistics
from cohyde.data.validation import Findings


@pytest.fixture(params=[80, 160], ids="{} columns".format)
def output(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """What commands print to, of two widths."""
    shown = Console(file=StringIO(), width=request.param, highlight=False, color_system=None)
    monkeypatch.setattr(terminal_data, "out", lambda: shown)
    yield shown
    assert max(map(len, said(shown).splitlines()), default=0) <= request.param


def said(on: Console) -> str:
    assert isinstance(on.file, StringIO)
    return on.file.getvalue()


def words(on: Console) -> str:
    """What was said, each run of white space as one blank: where lines are broken depends on the width."""
    return " ".join(said(on).split())


def lines(on: Console) -> list[str]:
    return [" ".join(line.split()) for line in said(on).splitlines()]


def queries(split: str, count: int, tier: str = "G1") -> tuple[Query, ...]:
    return tuple(
        Query(id=f"{split}{n}", text=f"{split} request {n}", tools=("a", "b")[: 1 + n % 2], tier=tier, split=split)
        for n in range(count)
    )


def dataset() -> Dataset:
    return Dataset(
        name="[sky]",
        tools=(Tool(id="a", category="[/]", title="Rain [bold]"), Tool(id="b", description="Tides"), Tool(id="c")),
        train=(*queries("train", 6), *queries("more", 2, "[G2]")),
        dev=queries("dev", 3),
        eval=queries("eval", 4),
        vague=tuple(replace(query, split="vague") for query in queries("eval", 1)),
    )


def large(found: Statistics) -> Statistics:
    """The same with as many queries as the paper has."""
    sizes = {"train": 93_801, "dev": 10_423, "eval": 1_092, "vague": 1_092}
    splits = {name: replace(part, queries=sizes[name], repeated_texts=99) for name, part in found.splits.items()}
    return replace(found, splits=splits)


def test_statistics_say_each_figure_in_its_column(output: Console) -> None:
    terminal_data.print_statistics(statistics(dataset()))
    found = lines(output)
    assert found[0] == "[sky] 3 tools of 1 provider in 2 categories"
    assert "Queries train dev eval vague" in found
    assert "G1 6 75% 3 100% 4 100% 1 100%" in found
    assert "[G2] 2 25% – – –" in found
    assert "all 8 3 4 1" in found
    assert "need one tool 4 50% 2 67% 2 50% 1 100%" in found
    assert "need 2 tools 4 50% 1 33% 2 50% –" in found
    assert not any(line.startswith(("need 3 tools", "have an instruction")) for line in found)  # nothing but dashes
    assert "Seen in training dev eval" in found and "all gold tools of a query 3 100% 4 100%" in found
    assert "that no query needs 1 33%" in found and "without any description 2 67%" in found
    assert "queries of a tool, train 8 Rain [bold]" in found and "queries of a tool, eval 4 Rain [bold]" in found


def test_four_splits_of_the_papers_size_fit(output: Console) -> None:
    terminal_data.print_statistics(large(statistics(dataset())))
    assert "all 93,801 10,423 1,092 1,092" in lines(output)
    assert "read as one before them 99 <1% 99 <1% 99 9% 99 9%" in lines(output)
    assert "…" not in said(output).replace("… and", "")


def test_statistics_of_a_catalogue_alone_say_what_there_is(output: Console) -> None:
    terminal_data.print_statistics(statistics(Dataset(name="mine", tools=(Tool(id="a", api_name="x" * 200),))))
    assert lines(output)[0] == "mine 1 tool in 1 category"
    assert "Queries" not in said(output) and "that no query needs 1 100%" in lines(output)


def test_long_names_are_cut_to_their_column(output: Console) -> None:
    long = replace(
        dataset(), eval=queries("eval", 4, "tier " * 30), tools=(Tool(id="a", title="x" * 200), Tool(id="b"))
    )
    terminal_data.print_statistics(statistics(long))
    assert "tier tier tier tier tier t… – – 4 100% –" in lines(output)
    assert "xxx…" in said(output)


def findings() -> Findings:
    found = Findings(drop_invalid=True)
    for line in (3, 4, 5):
        found.fault("unknown gold tool", f"data/sky/queries.jsonl:{line}", f"'q{line}' names '[/b]'")
    found.fault("malformed JSON", "data/sky/catalog.jsonl:1", "not JSON")
    found.remark("huge text", "data/sky/catalog.jsonl:7", "'c' has 30,000 characters", 1_200)
    return found


def test_findings_are_said_by_kind_the_most_frequent_fault_first(output: Console) -> None:
    terminal_data.print_findings(findings(), Path("data/sky"))
    found = words(output)
    assert found == (
        "3 unknown gold tool queries.jsonl:3: 'q3' names '[/b]' "
        "1 malformed JSON catalog.jsonl:1: not JSON "
        "1,200 huge text catalog.jsonl:7: 'c' has 30,000 characters"
    )


@pytest.mark.parametrize(
    ("given", "verdict"), [(Findings(), "✓ no faults"), (findings(), "✗ 4 rows at fault: mend the files")]
)
def test_an_audit_ends_with_its_verdict(output: Console, given: Findings, verdict: str) -> None:
    counts = {"tools": 1_200, "train": 3, "dev": 0, "eval": 1, "vague": 1}
    terminal_data.print_audit(Path("data/sky"), Audit(findings=given, counts=counts))
    assert words(output).startswith("sky 1,200 tools; 3 train, 1 eval queries; 1 paraphrase")
    assert verdict in words(output)


def test_what_was_made_is_said_with_what_was_left_out(output: Console) -> None:
    terminal_data.print_made(Path("out/[sky]"), dataset(), findings(), ["12 gold tools fell out"])
    found = words(output)
    assert found.startswith("out/[sky] 3 tools; 8 train, 3 dev, 4 eval queries; 1 paraphrase")
    assert "12 gold tools fell out" in found and "data/sky/queries.jsonl:3" in found
    assert found.endswith("✗ what is red was left out")


def test_what_was_made_without_faults_is_said_in_a_line(output: Console) -> None:
    terminal_data.print_made(Path("out"), dataset(), None, [])
    assert len(said(output).splitlines()) == 1


def test_files_and_formats_are_listed(output: Console) -> None:
    terminal_data.print_files(Path("out"), ["corpus.jsonl", "qrels/train.tsv"])
    assert lines(output) == ["out", "corpus.jsonl", "qrels/train.tsv"]
    terminal_data.print_formats(list(FORMATS.values()))
    assert all(name in said(output) for name in FORMATS)
