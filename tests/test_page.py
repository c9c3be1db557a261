"""The page of results, from data to HTML, Markdown, CSV and LaTeX; nothing here reads a store."""

import csv
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cohyde.errors import UserError
from cohyde.evaluation.page import graph, plots, timeline
from cohyde.evaluation.page.data import (
    Bar,
    Cell,
    Column,
    Curve,
    Example,
    Examples,
    Figure,
    Graph,
    Hit,
    Node,
    Notice,
    Notices,
    PageData,
    Panel,
    Row,
    Section,
    Setting,
    Settings,
    Side,
    Stat,
    Summary,
    Table,
    Timeline,
)
from cohyde.evaluation.page.render import KINDS, to_html
from cohyde.evaluation.page.tables import (
    interval_text,
    latex_text,
    markdown_table,
    to_csv,
    to_latex,
    to_markdown,
)

ROOT = Path(__file__).resolve().parent.parent
EVIL = "<script>alert('x')</script> & \"quotes\" <img src=x onerror=alert(1)>"
TABLE = Table(
    key="main",
    title="Systems",
    caption="NDCG@5 in %",
    columns=(
        Column(head="System", numeric=False),
        Column(head="G1", group="standard"),
        Column(head="G2", group="standard"),
        Column(head="dev"),
    ),
    rows=(
        Row(cells=(Cell(text="BM25"), Cell(text="49.0", value=49.04, low=40.0, high=58.06), Cell(text="–"),
                   Cell(text="50.0", value=50.0, note="n=1")), group="Baselines"),
        Row(cells=(Cell(text="r = 3", note="E.3"), Cell(text="86.8", value=86.8, low=80.5, high=92.25, best=True),
                   Cell(text="73.6", value=73.6, best=True), Cell(text="60.1", value=60.1, best=True)),
            group="CoHyDE", marked=True),
    ),
    notes=("Over 3 & more queries.",),
)  # fmt: skip
PANEL = Panel(
    title="standard G1",
    curves=(
        Curve(label="query", x=(0.0, 1.0), y=(50.0, 55.5), low=(40.0, 45.0), high=(60.0, 66.0)),
        Curve(label="description", x=(0.0, 1.0), y=(30.0, 45.0), style=1),
        Curve(label="seed 1", x=(0.0, 1.0), y=(31.0, 44.0), style=1, faint=True),
    ),
    x_label="round",
    whole_x=True,
)
NODES = (
    Node(name="data", title="data", state="done", band="warm-up"),
    Node(name="S1", title="train", state="failed", band="warm-up", needs=("data",)),
    Node(name="S2.1", title="describe", state="blocked", band="round 1", needs=("data", "S1")),
)
GRAPH = Graph(key="dag", title="Stages", caption="c", nodes=NODES, bands=("warm-up", "round 1"))
TIMELINE = Timeline(
    key="gantt", title="Time", caption="c", bars=(Bar(label="S1", start=0.0, end=60.0, group="training"),),
    groups=("training", "other"), neutral="other",
)  # fmt: skip


def page(*parts: object, title: str = "demo") -> PageData:
    section = Section(key="s", title="Section", parts=parts)  # type: ignore[arg-type]
    return PageData(title=title, kicker="k", summary=Summary(headline="It worked."), sections=(section,))


def everything(text: str) -> PageData:
    """Each kind of part, with the text wherever a text may stand."""
    side = Side(title=text, score=text, description=text, ranked=(Hit(title=text, gold=True),), first_gold=text)
    example = Example(query=text, labels=(text,), gold=(text,), sides=(side, side), change=text)
    row = replace(TABLE.rows[0], cells=(Cell(text=text, note=text), *TABLE.rows[0].cells[1:]), group=text)
    figure = Figure(key="f", title=text, caption=text, panels=(replace(PANEL, title=text, x_label=text),))
    parts = (
        replace(TABLE, title=text, caption=text, rows=(row,), notes=(text,)),
        figure,
        replace(TIMELINE, bars=(Bar(label=text, start=0, end=1, group=text, about=text),), groups=(text,)),
        replace(GRAPH, nodes=(Node(name=text, title=text, state="done", band=text, about=text),), bands=(text,)),
        Examples(key="e", title=text, caption=text, items=(example,)),
        Notices(key="n", title=text, caption=text, items=(Notice(source=text, text=text, remedy=text, severe=True),)),
        Settings(key="c", title=text, caption=text, items=(Setting(name=text, value=text, changed=True),)),
    )
    summary = Summary(headline=text, sentences=(text,), stats=(Stat(label=text, value=text, detail=text, tone="good"),))
    section = Section(key="s", title=text, lead=text, parts=parts)
    return PageData(title=text, kicker=text, summary=summary, sections=(section,), colophon=(text,))


# ------------------------------------------------------------------------------------------------------------- page


def test_html_in_a_request_or_a_title_stays_text() -> None:
    html = to_html(everything(EVIL))
    assert html.count("<script") == 1 and html.count("</script>") == 1  # the page's own
    assert "<img" not in html
    assert html.count("&lt;script&gt;") > 25


def test_a_page_shows_every_kind_of_part() -> None:
    parts = everything("x").sections[0].parts
    assert {type(part) for part in parts} == set(KINDS)
    html = to_html(everything("x"))
    assert all(f'<div class="part {kind}-part"' in html for kind in KINDS.values())


def test_a_page_asks_for_nothing_from_outside() -> None:
    html = to_html(page(TABLE, Figure(key="f", title="t", caption="c", panels=(PANEL,)), TIMELINE, GRAPH))
    assert set(re.findall(r'(?:src|href)="([^"#]+)', html)) == {"data:,"}
    assert "@import" not in html and "url(http" not in html
    assert "default-src 'none'" in html


def test_equal_data_give_equal_bytes() -> None:
    data = page(TABLE, Figure(key="f", title="t", caption="c", panels=(PANEL, PANEL)), GRAPH)
    assert to_html(data) == to_html(data)


def test_every_id_occurs_once_and_what_is_referred_to_is_there() -> None:
    figures = [Figure(key=key, title="t", caption="c", panels=(PANEL, PANEL)) for key in ("f", "g")]
    html = to_html(page(*figures, GRAPH, TABLE))
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert sorted(ids) == sorted(set(ids))
    referred = re.findall(r'(?:url\(#|href="#|aria-labelledby=")([^")]+)', html)
    assert {name for names in referred for name in names.split()} <= set(ids)


def test_a_cell_shows_number_interval_and_note_and_sorts_by_the_number() -> None:
    html = to_html(page(TABLE))
    assert '<td class="n" data-v="86.8"><b>86.8</b><small class="ci">[80.5, 92.2]</small></td>' in html
    assert '<td class="n" data-v="50.0">50.0<small>n=1</small></td>' in html
    assert '<td class="n">–</td>' in html
    assert '<th colspan="2" scope="colgroup">standard</th>' in html
    assert '<tr class="marked">' in html and "<caption><span>NDCG@5 in %</span></caption>" in html


def test_the_example_in_the_docs_is_small_asks_for_nothing_and_names_no_folder() -> None:
    html = (ROOT / "docs" / "example-report.html").read_text(encoding="utf-8")
    assert len(html.encode()) < 1_500_000
    assert set(re.findall(r'(?:src|href)="([^"#]+)', html)) == {"data:,"}
    assert not re.search(r"(?<![\w/…])/(?:home|root|tmp|work|mnt|data|usr|var)/", html)


# ----------------------------------------------------------------------------------------------------------- curves


def test_curves_are_coloured_by_the_page_and_told_in_words() -> None:
    [svg] = plots.draw(Figure(key="f", title="t", caption="c", panels=(PANEL,)))
    assert "var(--series-0)" in svg and "var(--series-1)" in svg and "currentColor" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)
    assert '<desc id="f-0-desc">query at 0: 50, 1: 55.5. description at 0: 30, 1: 45.</desc>' in svg  # no faint one
    assert 'role="img" aria-labelledby="f-0-title f-0-desc"' in svg
    assert "<text" in svg and len(svg) < 20_000


def test_long_curves_are_thinned_out_and_keep_their_ends() -> None:
    assert plots._thinned(3) == [0, 1, 2]
    kept = plots._thinned(10_000)
    assert (kept[0], kept[-1], len(kept)) == (0, 9_999, plots.MOST_POINTS)
    many = tuple(float(step) for step in range(10_000))
    panel = Panel(title="loss", curves=(Curve(label="loss", x=many, y=many),))
    assert len(plots.draw(Figure(key="f", title="t", caption="c", panels=(panel,)))[0]) < 20_000
    assert plots.describe(panel.curves) == "loss goes from 0 to 9999, between 0 and 9999."


def test_a_legend_is_shared_where_panels_agree() -> None:
    other = Panel(title="x", curves=(Curve(label="loss", x=(0.0,), y=(1.0,), style=0),))
    assert Figure(key="f", title="t", caption="c", panels=(PANEL, PANEL)).legend == {0: "query", 1: "description"}
    assert Figure(key="f", title="t", caption="c", panels=(PANEL, other)).legend == {}


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install 'matplotlib"):
        to_html(page(Figure(key="f", title="t", caption="c", panels=(PANEL,))))
    assert "Systems" in to_html(page(TABLE))  # a page without curves needs none


# ------------------------------------------------------------------------------------------------- time and graph


def test_time_in_which_nothing_ran_is_cut_out() -> None:
    bars = (
        Bar(label="a", start=0.0, end=60.0, group="g"),
        Bar(label="b", start=30.0, end=100.0, group="g"),
        Bar(label="c", start=1100.0, end=1200.0, group="h"),
    )
    laid = timeline.lay_out(replace(TIMELINE, bars=bars, groups=("g", "h"), neutral="h"))
    whole = 100 + 0.04 * 200 + 100  # what ran, and 4% of it in place of the 1000 s between
    a, b, c = laid.bars
    assert (a.left, a.width) == (0.0, pytest.approx(100 * 60 / whole))
    assert (b.left, b.width) == (pytest.approx(100 * 30 / whole), pytest.approx(100 * 70 / whole))
    assert (c.left, c.width) == (pytest.approx(100 * 108 / whole), pytest.approx(100 * 100 / whole))
    assert [mark.text for mark in laid.marks if mark.cut] == ["17 min idle"]
    assert laid.groups == {"g": 0, "h": None} and (a.series, c.series) == (0, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0"), (45.4, "45 s"), (90, "1:30 min"), (120, "2 min"), (754, "13 min"), (9000, "2 h 30"), (7200, "2 h"),
     (273_600, "3 d 4 h")],
)  # fmt: skip
def test_a_span_of_time_is_told_as_people_say_it(seconds: float, text: str) -> None:
    assert timeline.span(seconds) == text


def test_an_edge_that_others_imply_is_left_out() -> None:
    assert graph.reduced({"data": [], "S1": ["data"], "S2": ["data", "S1"], "E": ["S1", "S2", "data"]}) == {
        "data": [], "S1": ["data"], "S2": ["S1"], "E": ["S2"],
    }  # fmt: skip
    laid = graph.lay_out(GRAPH)
    assert len(laid.edges) == 2  # data → S1 → S2.1
    assert [placed.y for placed in laid.nodes] == [2, 2, 2 + graph.ROW + graph.BAND]
    assert laid.nodes[1].x - laid.nodes[0].x == graph.COLUMN


# ---------------------------------------------------------------------------------------------------- other formats


def test_markdown_has_every_number_with_its_interval() -> None:
    assert markdown_table(TABLE).splitlines() == [
        "| System | standard G1 | standard G2 | dev |",
        "| --- | ---: | ---: | ---: |",
        "| BM25 | 49.0 [40.0, 58.1] | – | 50.0 n=1 |",
        "| r = 3 E.3 | **86.8** [80.5, 92.2] | **73.6** | **60.1** |",
    ]
    assert to_markdown(page(TABLE)).startswith("# demo\n\n**It worked.**\n\n## Systems\n\nNDCG@5 in %\n\n| System")


def test_markdown_takes_no_text_for_markup() -> None:
    table = replace(TABLE, rows=(Row(cells=(Cell(text="a|b *c* <b>_d_"), *TABLE.rows[0].cells[1:])),))
    assert r"| a\|b \*c\* &lt;b>\_d\_ |" in markdown_table(table)


def test_csv_has_all_decimals_and_bounds_in_columns_of_their_own() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [
        ["group", "System", "standard G1", "standard G1 low", "standard G1 high", "standard G2", "dev"],
        ["Baselines", "BM25", "49.04", "40.0", "58.06", "", "50.0"],
        ["CoHyDE", "r = 3", "86.8", "80.5", "92.25", "73.6", "60.1"],
    ]


def test_latex_is_a_booktabs_table_whose_rows_are_as_long_as_its_columns() -> None:
    text = to_latex(TABLE)
    assert text.count("{") == text.count("}")
    begun, ended = re.findall(r"\\begin\{(\w+)\}", text), re.findall(r"\\end\{(\w+)\}", text)
    assert begun == ended[::-1] == ["table", "tabular"]
    assert r"\begin{tabular}{lrrr}" in text and r"\cmidrule(lr){2-3}" in text
    assert r"BM25 & 49.0 {\scriptsize [40.0, 58.1]} & -- & 50.0 {\scriptsize n=1} \\" in text
    assert r"\textbf{86.8} {\scriptsize [80.5, 92.2]} & \textbf{73.6} & \textbf{60.1} \\" in text
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [3, 3]
    assert r"Over 3 \& more queries." in text


def test_latex_reads_no_text_as_a_command() -> None:
    assert latex_text(r"50% of $x_1 & {a}#~^\n <b>") == (
        r"50\% of \$x\_1 \& \{a\}\#\textasciitilde{}\textasciicircum{}\textbackslash{}n \textless{}b\textgreater{}"
    )
    assert latex_text("θ1 → ψ, −3.0 – x…") == r"$\theta$1 $\rightarrow$ $\psi$, $-$3.0 -- x\dots{}"


def test_bounds_have_signs_where_the_number_has_one() -> None:
    assert interval_text(Cell(text="+2.0", value=2.0, low=-0.51, high=4.5)) == "[−0.5, +4.5]"
    assert interval_text(Cell(text="+2.0", value=2.0, low=0.0, high=4.5)) == "[0.0, +4.5]"
    assert interval_text(Cell(text="2.0", value=2.0, low=0.0, high=4.5)) == "[0.0, 4.5]"
    assert interval_text(Cell(text="2.0", value=2.0)) == ""
