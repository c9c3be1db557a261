"""Training pairs and the seeded draws about them, free of torch so that the pipeline may import them."""

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One positive pair: a text and the id of a tool that fulfils it. The tool is rendered when it is trained on."""

    anchor: str
    tool: str


def joined(query: str, description: str) -> str:
    """Query and description as one text, in search and in training alike (query2doc, Wang et al. 2023)."""
    return f"{query} {description}"


def uniform(*key: str | int) -> float:
    """A number in [0, 1) that depends on ``key`` alone: the same whenever, wherever and in whatever order it's drawn.

    The first 53 bits of the BLAKE2b hash of the key's JSON, as a fraction.
    """
    digest = hashlib.blake2b(json.dumps(key).encode("utf-8"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def draw_form(forms: tuple[int, ...], seed: int, epoch: int, pair: int) -> int:
    """The rendering φ of the ``pair``-th pair in an epoch, uniform over ``forms`` (DESIGN: per pair and epoch)."""
    return forms[int(uniform("form", seed, epoch, pair) * len(forms))]
