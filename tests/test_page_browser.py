"""The page in a real browser: Chromium, as Debian has it. Left out where there is none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser
from report_store import ReportStore

from cohyde.cli_report import _find, _page
from cohyde.evaluation.page.render import to_html


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, tab: Browser) -> Path:
    """A run with baselines and a second one, of names and texts that are hard to lay out."""
    folder = tmp_path_factory.mktemp("page")
    store = ReportStore(
        root=folder / "store", query="<script>document.title='x'</script>" + "W" * 90, title="Donaudampfschiff" * 6
    )
    store.run("all", "pipeline=baselines", rounds=2)
    store.run("a-run-with-a-very-long-name-that-says-all-that-was-changed-in-it", "sft.enabled=false")
    names = ("all", "a-run-with-a-very-long-name-that-says-all-that-was-changed-in-it")
    path = folder / "report.html"
    path.write_text(to_html(_page([_find(name, str(store.root)) for name in names])), encoding="utf-8")
    return path


MAIN = "document.querySelector('#main table')"
FIRST_COLUMN = (
    f"[...{MAIN}.querySelectorAll('tbody tr:not(.group)')].filter(r => !r.hidden).map(r => r.cells[0].firstChild.data)"
)
NUMBERS = f"[...{MAIN}.querySelectorAll('tbody tr:not(.group)')].map(r => Number(r.cells[4].dataset.v))"


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_overflows_and_nothing_is_complained_of(tab: Browser, page: Path, width: int) -> None:
    tab.open(page, width)
    assert tab.complaints() == []
    assert tab.requests() == [page.resolve().as_uri()]
    assert tab.evaluate("document.title") == "all · CoHyDE report"  # no script of a request has run
    assert tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)") is None
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
    small = "[...document.querySelectorAll('svg.panel')].map(s => s.getBoundingClientRect().width)"
    assert min(tab.evaluate(small)) > 250


def test_a_table_sorts_down_up_and_back(tab: Browser, page: Path) -> None:
    tab.open(page)
    before, numbers = tab.evaluate(FIRST_COLUMN), tab.evaluate(NUMBERS)
    assert len(before) > 10 and numbers != sorted(numbers, reverse=True)
    head = f"{MAIN}.querySelectorAll('tr.heads th')[4]"
    seen = []
    for _ in range(3):
        tab.evaluate(f"{head}.querySelector('button').click()")
        seen.append((tab.evaluate(f"{head}.getAttribute('aria-sort')"), tab.evaluate(NUMBERS)))
    assert seen == [
        ("descending", sorted(numbers, reverse=True)),
        ("ascending", sorted(numbers)),
        ("none", numbers),
    ]
    assert tab.evaluate(FIRST_COLUMN) == before


def test_a_table_is_filtered_by_words(tab: Browser, page: Path) -> None:
    tab.open(page)
    whole = tab.evaluate(FIRST_COLUMN)
    search = "document.querySelector('#main input[type=search]')"
    tab.evaluate(f"{search}.value = 'cohyde r'; {search}.dispatchEvent(new Event('input'))")
    shown = tab.evaluate(FIRST_COLUMN)
    assert {"CoHyDE, r = 0", "CoHyDE, r = 2"} <= set(shown) and "BM25" not in shown
    assert tab.evaluate("document.querySelector('#main output').textContent") == f"{len(shown)} of {len(whole)}"
    tab.evaluate(f"{search}.value = ''; {search}.dispatchEvent(new Event('input'))")
    assert tab.evaluate(FIRST_COLUMN) == whole


def test_dark_mode_turns_paper_and_ink_around(tab: Browser, page: Path) -> None:
    light_of = """(() => { const [r, g, b] = getComputedStyle(document.body)[%r].match(/\\d+/g).map(Number);
                  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255; })()"""
    curve = "getComputedStyle(document.querySelector('svg.panel path[style*=series-0]')).stroke"
    seen = {}
    for dark in (False, True):
        tab.open(page, dark=dark)
        seen[dark] = [tab.evaluate(light_of % name) for name in ("backgroundColor", "color")], tab.evaluate(curve)
    (paper, ink), blue = seen[False]
    assert paper > 0.95 and ink < 0.15
    (paper, ink), other = seen[True]
    assert paper < 0.15 and ink > 0.8 and other != blue


def test_without_scripts_it_is_a_page_of_plain_tables(tab: Browser, page: Path) -> None:
    tab.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page)
        found = tab.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        ids = tab.send("DOM.querySelectorAll", nodeId=found, selector="#main tbody tr:not(.group)")["nodeIds"]
        inputs = tab.send("DOM.querySelectorAll", nodeId=found, selector="input, th button")["nodeIds"]
    finally:
        tab.send("Emulation.setScriptExecutionDisabled", value=False)
    assert len(ids) > 10 and inputs == []
