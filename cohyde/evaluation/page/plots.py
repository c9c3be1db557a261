"""Panels as inline SVG, drawn by matplotlib: small, without a date, and coloured by the page's own style sheet."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from cohyde.errors import UserError
from cohyde.evaluation.page.data import Curve, Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 360, 230
"""Of a panel, in CSS pixels: at this size its letters are those of the page's small print."""
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 36
"""Room around the axes."""
MOST_POINTS = 240
"""Of a curve; longer ones are thinned out evenly: a panel has no more pixels to tell them apart."""
MOST_MARKERS = 24


@dataclass(frozen=True)
class Style:
    """What tells a curve from others, also without colour."""

    dashes: tuple[float, ...]
    marker: str
    shape: str
    """The marker's path in the legend, around (0, 0)."""


STYLES = (
    Style((), "o", "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z"),
    Style((6, 2.5), "s", "M-3 -3h6v6h-6z"),
    Style((1.5, 2), "^", "M0 -3.8L3.7 3H-3.7z"),
    Style((7, 2, 1.5, 2), "D", "M0 -4L4 0L0 4L-4 0z"),
    Style((3, 1.5), "v", "M0 3.8L3.7 -3H-3.7z"),
    Style((9, 3), "X", "M-3.4 -2L-2 -3.4L0 -1.4L2 -3.4L3.4 -2L1.4 0L3.4 2L2 3.4L0 1.4L-2 3.4L-3.4 2L-1.4 0z"),
)
"""As many as the palette of Okabe and Ito (2008) has colours that stand out from both paper and night."""
_COLOURS = [f"#0a0b{index:02x}" for index in range(len(STYLES))]
_INK, _RULE = "#0a0c00", "#0a0c01"
_NAMED = {colour: f"var(--series-{index})" for index, colour in enumerate(_COLOURS)} | {
    _INK: "currentColor",
    _RULE: "var(--rule)",
}
"""Stand-ins that are drawn with → what the page's style sheet calls them, light or dark."""


def draw(figure: Figure) -> list[str]:
    """Each panel as an ``svg`` element for the middle of a page.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError("the report's curves are drawn by matplotlib, which is not installed here",
                        "install it: pip install 'matplotlib>=3.10'") from None  # fmt: skip
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cohyde", "path.simplify_threshold": 0.5}):
        return [_svg(panel, f"{figure.key}-{number}") for number, panel in enumerate(figure.panels)]


def _svg(panel: Panel, prefix: str) -> str:
    import io

    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
    FigureCanvasSVG(canvas)
    canvas.patch.set_visible(False)
    size = (LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / HEIGHT)
    axes = canvas.add_axes(size)
    _prepare(axes, panel)
    for curve in sorted(panel.curves, key=lambda curve: not curve.faint):
        _draw_curve(axes, curve)
    file = io.StringIO()
    canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    return _inline(file.getvalue(), prefix, panel)


def _prepare(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6, labelsize=11, colors=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=panel.whole_x, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(panel.x_label, fontsize=11, color=_INK, labelpad=3)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    axes.margins(x=0.04, y=0.08)


def _draw_curve(axes: "Axes", curve: Curve) -> None:
    style, colour = STYLES[curve.style % len(STYLES)], _COLOURS[curve.style % len(STYLES)]
    kept = _thinned(len(curve.x))
    x, y = [curve.x[at] for at in kept], [curve.y[at] for at in kept]
    if curve.low and not curve.faint:
        low, high = [curve.low[at] for at in kept], [curve.high[at] for at in kept]
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    look: dict[str, Any] = {"color": colour, "linewidth": 1.0 if curve.faint else 1.8, "solid_capstyle": "round"}
    look["alpha"] = 0.45 if curve.faint else 1.0
    if style.dashes:
        look["dashes"] = [length / look["linewidth"] for length in style.dashes]
    if len(x) <= MOST_MARKERS and not curve.faint:
        look |= {"marker": style.marker, "markersize": 6, "markeredgewidth": 0}
    axes.plot(x, y, clip_on=False, **look)


def _thinned(count: int) -> list[int]:
    """Positions of the points that are drawn, the first and the last among them."""
    if count <= MOST_POINTS:
        return list(range(count))
    return [round(place * (count - 1) / (MOST_POINTS - 1)) for place in range(MOST_POINTS)]


def _inline(drawn: str, prefix: str, panel: Panel) -> str:
    """What matplotlib wrote, made fit to stand beside others in one document."""
    body = drawn[drawn.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', body))
    names = {name for pair in used for name in pair if name}
    body = re.sub(r' id="([^"]+)"', lambda at: f' id="{prefix}-{at[1]}"' if at[1] in names else "", body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", body)
    for colour, name in _NAMED.items():
        body = body.replace(colour, name)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"<style type=\"text/css\">.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"(?<=\d\.\d{2})\d+", "", body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    opening = (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{prefix}-title {prefix}-desc">'
        f'<title id="{prefix}-title">{escape(panel.title)}</title>'
        f'<desc id="{prefix}-desc">{escape(describe(panel.curves))}</desc>'
    )
    return opening + body[body.index(">") + 1 :].strip()


def describe(curves: Sequence[Curve]) -> str:
    """The curves in words, for those who hear the page: where each begins and ends, and its extremes."""
    told = []
    for curve in curves:
        if curve.faint or not curve.y:
            continue
        if len(curve.y) <= 8:
            points = ", ".join(f"{x:g}: {y:.4g}" for x, y in zip(curve.x, curve.y, strict=True))
            told.append(f"{curve.label} at {points}.")
        else:
            told.append(
                f"{curve.label} goes from {curve.y[0]:.4g} to {curve.y[-1]:.4g}, "
                f"between {min(curve.y):.4g} and {max(curve.y):.4g}."
            )
    return " ".join(told)
