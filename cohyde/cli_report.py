"""``cohyde report``: the terminal's tables, and a page of all there is, with its tables in other formats."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohyde.cli_jobs import Job, job_of, print_report_of, report_of
from cohyde.cli_options import DEFAULT_STORE, AsJson, StoreFolder
from cohyde.cli_sweep import Sweep, arms, find_sweep, sweep_report
from cohyde.cli_systems import Study, find_study

if TYPE_CHECKING:
    from cohyde.evaluation.page.data import PageData
    from stages.reporting.page import Subject
    from stages.reporting.results import Results
    from stages.reporting.views import RunView

Found = Job | Sweep | Study
PAGES = "reports"
"""Folder of the store that pages are written to, unless told otherwise."""

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN…",
        help="Runs, sweeps and ablations (demo-ablations); the first is what the others are compared with.",
        show_default="the latest",
    ),
]


def report(
    runs: Runs = None,
    store: StoreFolder = DEFAULT_STORE,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Where to write the page.", show_default="STORE/reports/RUN.html"),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Write the page and every table as Markdown, CSV and LaTeX.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the tables of a run, a sweep or several, and write a page.

    The page is one HTML file that needs no network: tables with intervals,
    curves, examples, times, settings. Of what is under way it shows what there
    is. With [bold]--json[/bold] a page is written only where one is asked for.
    """
    from cohyde.terminal import err

    found = [_find(name, store) for name in dict.fromkeys([*runs] if runs else [None])]
    for number, one in enumerate(found):
        _show(one, as_json, apart=number > 0)
    if as_json and html is None and to is None:
        return
    data = _page(found)
    for path in _write(data, _place(found, html, to), to):
        err().print(
            f"page: {path}" if path.suffix == ".html" else f"tables: {path}", style="dim", soft_wrap=True, markup=False
        )


def _find(name: str | None, store: str) -> Found:
    return find_sweep(name, store) or find_study(name, store) or job_of(name, store)


def _show(found: Found, as_json: bool, apart: bool) -> None:
    from cohyde.terminal import out, print_json

    if apart and not as_json:
        out().print()
    if isinstance(found, Sweep):
        sweep_report(found, as_json)
    elif isinstance(found, Study):
        found.print(as_json)
    elif as_json:
        rows = report_of(found)
        print_json({"run": found.name, "selected": rows.selected, "rows": list(rows.rows)})
    else:
        print_report_of(found)


def _place(found: Sequence[Found], html: Path | None, to: Path | None) -> Path:
    """Where the page goes.

    Raises:
        UserError: the store is no folder, so that it has to be said.
    """
    if html is not None:
        return html
    if to is not None:
        return to / "report.html"
    store = _main(found[0]).store
    if store.location != str(store.root):
        return Path(f"{_title(found)}.html")
    return store.root / PAGES / f"{_title(found)}.html"


def _title(found: Sequence[Found]) -> str:
    more = len(found) - 2
    return "+".join(one.name for one in found[:2]) + (f"+{more}-more" if more > 0 else "")


def _write(data: "PageData", page: Path, to: Path | None) -> list[Path]:
    from cohyde.evaluation.page.render import to_html
    from cohyde.evaluation.page.tables import FORMATS, to_markdown
    from cohyde.filesystem import writing_to
    from cohyde.io import write_text

    text = to_html(data)
    files = {page: text}
    if to is not None:
        files[to / "report.md"] = to_markdown(data)
        for ending, render in FORMATS.values():
            files |= {to / f"{table.key}.{ending}": render(table) for table in data.tables}
    for path, content in files.items():
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, content)
    return [page, *([to] if to is not None else [])]


# ------------------------------------------------------------------------------------------------------- collecting


def _page(found: Sequence[Found]) -> "PageData":
    from stages.reporting.page import page_of

    studies = [one for one in found if isinstance(one, Study)]
    single = [one for one in found if not isinstance(one, Study)] or [studies[0].main]
    subjects = [subject for one in single for subject in _subjects(one, alone=len(single) == 1)]
    return page_of(found[0].name, subjects, _main(found[0]).kinds, [_rows(study) for study in studies])


def _main(found: Found) -> Job | Sweep:
    """What the page over it is about."""
    return found.main if isinstance(found, Study) else found


def _subjects(found: Job | Sweep, alone: bool) -> "list[Subject]":
    from stages.reporting.page import Subject
    from stages.reporting.views import Arm

    if isinstance(found, Job):
        arm = Arm(title=found.name, runs=(_view(found),))
        return [Subject(arm=arm, selected=report_of(found).selected)]
    subjects = []
    for one in arms(found):
        runs = one.runs or one.left_out
        views = tuple(_view(found.jobs[name]) for name in runs)
        own = "  ".join(f"{key}={value}" for key, value in one.settings.items())
        title = own if alone and own else one.title(found.name)
        selected = one.table.selected if one.table and one.table.by_dev else None
        table = one.table if len(one.runs) > 1 else None
        subjects.append(Subject(arm=Arm(title=title, runs=views), selected=selected, seeds=table))
    return subjects


def _rows(study: Study) -> "list[Results]":
    """The rows of its table that are measured, each at the stage that it is measured by."""
    from stages.reporting.results import Results
    from stages.reporting.views import Arm

    rows = []
    for _, title, job in study.rows():
        view, stage = _view(job), study.measured_by(job)
        if stage in view.evaluations:
            rows.append(Results(arm=Arm(title=title, runs=(view,)), selected=stage))
    return rows


def _view(job: Job) -> "RunView":
    from stages.reporting.views import RunView

    return RunView(
        name=job.name,
        settings=job.settings,
        store=job.store,
        plan=job.seen,
        preset=job.preset,
        overrides=job.overrides,
        seed=job.settings.seeds.loop,
    )
