"""A sheet on which a person checks some paraphrases, and what the check then says about all of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from cohyde.catalog import fold

PAIRS = 50
"""Paraphrases on a sheet (paper: 50)."""
BOUNDS = (3.0, 4.74, 6.3)
"""Upper 95% confidence bounds of the mean of a Poisson variable that was 0, 1, 2; the first gives the rule of three."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An evaluation query and its paraphrase; ``tools`` are the gold tools' names."""

    id: str
    original: str
    text: str
    tools: tuple[str, ...]


def spot_check_text(pairs: Sequence[Pair], seed: int) -> str:
    """A Markdown sheet of 50 random pairs with boxes to tick, or of all pairs where there are fewer.

    It says what passes and failures mean: if all n pairs pass, at most 3/n of all paraphrases are bad, at 95%
    confidence (the rule of three; for 50 that is 6%).

    Args:
        pairs: all that were kept; those on the sheet stay in this order.
        seed: of the draw.
    """
    chosen = sorted(random.Random(f"{seed}/spot check").sample(range(len(pairs)), min(PAIRS, len(pairs))))
    parts = ["# Spot check of vague paraphrases", _how_to_read(len(chosen), len(pairs), seed)]
    parts += [_entry(number, pairs[place]) for number, place in enumerate(chosen, start=1)]
    return "\n\n".join(parts) + "\n"


def _how_to_read(count: int, total: int, seed: int) -> str:
    if not count:
        return "No paraphrase was kept: there is nothing to check."
    none, one, two = (f"{min(100.0, 100 * bound / count):.3g}%" for bound in BOUNDS)
    return f"""{count} of {total} paraphrases, drawn at random (seed {seed}). For each, tick what holds; it passes if \
all three do:

- **intent**: whoever fulfils the paraphrase has fulfilled the original, with the same tools;
- **hidden**: no name of a tool, no verb of an API, no keyword of the subject gives the tools away;
- **natural**: a person could have said it like this.

If all {count} pass, then at 95% confidence at most {none} of all paraphrases made in this way are bad (the rule of
three: 3/{count}). With one that fails the bound is {one}, with two {two}."""


def _entry(number: int, pair: Pair) -> str:
    return f"""## {number}. {fold(pair.id)}

- original: {fold(pair.original)}
- paraphrase: {fold(pair.text)}
- gold tools: {"; ".join(pair.tools)}

- [ ] intent
- [ ] hidden
- [ ] natural"""
