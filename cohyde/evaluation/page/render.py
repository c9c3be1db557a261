"""The page as one HTML file that needs nothing beside it: no network, no other file, no script to be read."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohyde.evaluation.page import graph, timeline
from cohyde.evaluation.page.data import (
    Examples,
    Figure,
    Graph,
    Notices,
    PageData,
    Settings,
    Table,
    Timeline,
)
from cohyde.evaluation.page.plots import STYLES, draw
from cohyde.evaluation.page.tables import interval_text, row_groups, spans

TEMPLATES = Path(__file__).parent / "templates"
KINDS: Mapping[type, str] = {
    Table: "table",
    Figure: "figure",
    Timeline: "timeline",
    Graph: "graph",
    Examples: "examples",
    Notices: "notices",
    Settings: "settings",
}
"""What a part is → the macro of ``parts.html.j2`` that shows it."""
SYMBOLS = {"done": "✓", "running": "◐", "ready": "○", "waiting": "·", "failed": "✕", "blocked": "⊘"}


def to_html(data: PageData) -> str:
    """The page.

    Whatever came from data, models or people is escaped: a request may hold HTML. On top of that the page forbids
    itself, by its content security policy, every script but its own and everything that would be fetched.

    Raises:
        UserError: matplotlib is not installed, and there is a figure.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    known: dict[str, Any] = {
        "kind": lambda part: KINDS[type(part)],
        "row_groups": row_groups,
        "interval": interval_text,
        "spans": spans,
        "panels": lambda figure: [Markup(svg) for svg in draw(figure)],  # drawn here, its texts escaped there
        "time_layout": timeline.lay_out,
        "span": timeline.span,
        "graph_layout": graph.lay_out,
        "node_width": graph.NODE_WIDTH,
        "node_height": graph.NODE_HEIGHT,
        "styles": STYLES,
        "symbols": SYMBOLS,
    }
    return environment.get_template("page.html.j2").render(
        known,
        page=data,
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
