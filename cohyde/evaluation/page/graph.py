"""Where the nodes of a graph lie: a row a band, columns by what needs what; of edges only those that say something."""

from dataclasses import dataclass

from cohyde.evaluation.page.data import Graph, Node

NODE_WIDTH, NODE_HEIGHT = 146, 40
COLUMN, ROW, BAND = 176, 52, 30
"""From node to node, from row to row, and what bands are apart beyond that; CSS pixels."""
MARGIN, LABEL = 2, 98
"""Around all, and for the names of the bands on the left."""


@dataclass(frozen=True, kw_only=True)
class PlacedNode:
    """A node and its upper left corner."""

    node: Node
    x: float
    y: float
    row: int
    """Of its band, from 0."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A graph, placed."""

    nodes: tuple[PlacedNode, ...]
    edges: tuple[tuple[str, bool], ...]
    """Paths in SVG's words, and whether they pass a band by."""
    bands: tuple[tuple[str, float], ...]
    """Names, and the middle of their height."""
    width: float
    height: float


def lay_out(shown: Graph) -> Layout:
    """Place the nodes. An edge that others imply is left out."""
    nodes = shown.nodes
    by_name = {node.name: node for node in nodes}
    needs = reduced({node.name: [name for name in node.needs if name in by_name] for node in nodes})
    column: dict[str, int] = {}
    for node in nodes:
        inside = [column[name] + 1 for name in node.needs if name in by_name and by_name[name].band == node.band]
        column[node.name] = max(inside, default=0)
    places: dict[str, PlacedNode] = {}
    bands, top = [], float(MARGIN)
    there = {node.band for node in nodes}
    for band in (band for band in shown.bands if band in there):
        filled: dict[int, int] = {}
        for node in (node for node in nodes if node.band == band):
            row = filled.get(column[node.name], 0)
            filled[column[node.name]] = row + 1
            places[node.name] = PlacedNode(node=node, x=LABEL + column[node.name] * COLUMN, y=top + row * ROW, row=row)
        height = max(filled.values()) * ROW
        bands.append((band, top + (height - ROW + NODE_HEIGHT) / 2))
        top += height + BAND
    pairs = [(places[source], places[name]) for name, sources in needs.items() for source in sources]
    order = {name: at for at, (name, _) in enumerate(bands)}
    edges = [(_edge(one, two), order[two.node.band] - order[one.node.band] > 1) for one, two in pairs]
    return Layout(
        nodes=tuple(places[node.name] for node in nodes),
        edges=tuple(edges),
        bands=tuple(bands),
        width=LABEL + max(column.values(), default=0) * COLUMN + NODE_WIDTH + MARGIN,
        height=top - BAND - ROW + NODE_HEIGHT + MARGIN,
    )


def reduced(needs: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without what is needed by something else that is needed (transitive reduction); keys in topological order."""
    above: dict[str, set[str]] = {}
    for name, sources in needs.items():
        above[name] = set(sources).union(*(above[source] for source in sources))
    return {
        name: [source for source in dict.fromkeys(sources) if not any(source in above[other] for other in sources)]
        for name, sources in needs.items()
    }


def _edge(source: PlacedNode, target: PlacedNode) -> str:
    """A curve from side to side within a band; between bands from below to the top, or the side of a lower row."""
    if source.node.band == target.node.band:
        x1, y1 = source.x + NODE_WIDTH, source.y + NODE_HEIGHT / 2
        x2, y2 = target.x, target.y + NODE_HEIGHT / 2
        bend = max(14.0, (x2 - x1) / 2)
        return f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    x1, y1 = source.x + NODE_WIDTH / 2, source.y + NODE_HEIGHT
    if target.row:
        x2, y2, lane = target.x, target.y + NODE_HEIGHT / 2, target.x - 18
        top = target.y - target.row * ROW  # past the rows above it on their left
        turn = f"V{y2 - 8:g}Q{lane:g} {y2:g} {lane + 8:g} {y2:g}H{x2:g}"
        return f"M{x1:g} {y1:g}C{x1:g} {y1 + 24:g} {lane:g} {top - 22:g} {lane:g} {top + 8:g}{turn}"
    x2, y2 = target.x + NODE_WIDTH / 2, target.y
    bend = max(14.0, (y2 - y1) / 2)
    return f"M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
