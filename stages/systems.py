"""The rows of the main table: which stage of a run measured each system, and what it was searched with."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BASELINE, PRIOR, COHYDE, FUSION = "baseline", "prior method", "cohyde", "fusion"
GROUPS = (BASELINE, PRIOR, COHYDE, FUSION)
"""In the order of the main table."""
ROUNDS = "E."
"""What the ids of the states after each round begin with; ``E.0`` is the state after the warm-up."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One row of the main table."""

    key: str
    """By which commands name it."""
    title: str
    """For people; at most 30 characters, so that a table fits 80 columns."""
    group: str
    """One of :data:`GROUPS`."""
    stage: str
    """The stage whose artifact holds its results."""
    search: str
    """The search mode that its results are read under."""
    about: str
    """One line."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A system before it is known what a run searches with."""

    key: str
    title: str
    group: str
    stage: str
    search: str | None
    """None: whatever ``search.mode`` says, as for CoHyDE itself, so that both are compared at their like."""
    about: str


SYSTEMS = (
    Entry(
        key="bm25",
        title="BM25",
        group=BASELINE,
        stage="B.bm25",
        search="query",
        about="words that request and tool share, over the index's rendering (φ5)",
    ),
    Entry(
        key="untrained",
        title="Untrained encoder",
        group=BASELINE,
        stage="E.untrained",
        search="query",
        about="θ0 on the raw request",
    ),
    Entry(
        key="endpoint",
        title="Embedding endpoint",
        group=BASELINE,
        stage="B.endpoint",
        search="query",
        about="vectors of an OpenAI-compatible server; only where baselines.endpoint.url names one",
    ),
    Entry(
        key="expand",
        title="Query expansion",
        group=BASELINE,
        stage="B.expand",
        search=None,
        about="ψ0 restates the request, θ0 retrieves",
    ),
    Entry(
        key="hyde",
        title="HyDE",
        group=BASELINE,
        stage="B.hyde",
        search=None,
        about="ψ0 describes what would fulfil the request, θ0 retrieves (Gao et al. 2023)",
    ),
    Entry(
        key="warm-up",
        title="Warm-up encoder",
        group=BASELINE,
        stage="E.0",
        search="query",
        about="θ1 (after S1a) on the raw request",
    ),
    Entry(
        key="hyde-warm-up",
        title="HyDE, warm-up encoder",
        group=BASELINE,
        stage="B.hyde-warm-up",
        search=None,
        about="ψ0 describes, θ1 retrieves: both parts, but not trained for each other",
    ),
    Entry(
        key="refine",
        title="Iterative refinement",
        group=PRIOR,
        stage="B.refine",
        search="description",
        about="ψ0 looks at what θ1 found and refines the request, round by round, until it is content",
    ),
    Entry(
        key="aligned",
        title="Aligned rewriter, frozen θ1",
        group=PRIOR,
        stage="B.aligned",
        search=None,
        about="ψ0 restates the request and is aligned by DPO with what θ1, never trained on, ranks well",
    ),
    Entry(
        key="fused-texts",
        title="CoHyDE, request + description",
        group=FUSION,
        stage="B.fused-texts",
        search="fused rankings",
        about="the last round's rankings for raw request and for description, fused",
    ),
    Entry(
        key="fused-bm25",
        title="CoHyDE + BM25",
        group=FUSION,
        stage="B.fused-bm25",
        search="fused rankings",
        about="the last round's ranking and BM25's, fused",
    ),
)
"""Every system but CoHyDE's own rounds, of which there are as many as a run has; in the order of the main table."""


def systems_of(stages: Iterable[str], search: str) -> list[System]:
    """The systems that a run measures, in the order of the main table.

    Args:
        stages: ids of the run's stages, of which some may not be done.
        search: the run's ``search.mode``.
    """
    ids = list(dict.fromkeys(stages))
    found = [_of(entry, search) for entry in SYSTEMS if entry.stage in ids]
    found += [_round(number, search) for number in _rounds(ids)]
    return sorted(found, key=lambda system: GROUPS.index(system.group))


def _of(entry: Entry, search: str) -> System:
    return System(
        key=entry.key,
        title=entry.title,
        group=entry.group,
        stage=entry.stage,
        search=entry.search or search,
        about=entry.about,
    )


def _round(number: int, search: str) -> System:
    return System(
        key=f"r{number}",
        title=f"CoHyDE, r = {number}",
        group=COHYDE,
        stage=f"{ROUNDS}{number}",
        search=search,
        about="both parts after their warm-up, not yet co-trained" if not number else f"after round {number}",
    )


def _rounds(ids: Iterable[str]) -> Iterator[int]:
    """Numbers of the rounds that are evaluated, ascending."""
    numbers = [stage_id.removeprefix(ROUNDS) for stage_id in ids if stage_id.startswith(ROUNDS)]
    yield from sorted(int(number) for number in numbers if number.isdecimal())
