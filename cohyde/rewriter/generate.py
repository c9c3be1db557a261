"""One interface for generation, whatever computes it: requests in, completions out, in the same order."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.errors import UserError
from cohyde.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt, rendered as chat text, and the seed of its own random numbers."""

    id: str
    prompt: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What was written for a request: ``n`` texts, each with its number of tokens and whether it came to an end.

    A text is as the model wrote it, without special tokens; :func:`cohyde.rewriter.clean.clean` comes after.
    """

    id: str
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    finished: tuple[bool, ...]


class Generator(Protocol):
    """A loaded rewriter."""

    tokenizer: Any
    """The tokenizer that prompts are rendered with."""

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig, progress: Progress) -> list[Completion]:
        """Complete every request; the result is in the order of ``requests``.

        A request's texts depend on its prompt, its seed and the sampling alone, not on its neighbours (but for
        rounding, which may tip a greedy choice between two tokens that are as good as equal).
        """

    def close(self) -> None:
        """Free the model's memory."""


def request_seed(run_seed: int, stage: str, query_id: str) -> int:
    """A seed for one request: 63 bits of a hash, so that neither order nor sharding nor neighbours matter (TRAPS 10).

    Args:
        run_seed: the run's seed.
        stage: the stage's id with its round, such as ``S4s.2``.
        query_id: the query's id.
    """
    text = "\x1f".join((str(run_seed), stage, query_id))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8]) >> 1


def _open_transformers(path: Path, config: RewriterConfig) -> Generator:
    from cohyde.rewriter.load import load_rewriter
    from cohyde.rewriter.transformers_backend import TransformersGenerator

    model, tokenizer = load_rewriter(path, config.precision)
    return TransformersGenerator(model, tokenizer, batch_size=config.batch_size)


BACKENDS: Mapping[str, Callable[[Path, RewriterConfig], Generator]] = {"transformers": _open_transformers}
"""Backends by the name that ``rewriter.backend`` chooses."""


@contextmanager
def open_generator(path: Path, config: RewriterConfig) -> Iterator[Generator]:
    """Load the rewriter at ``path`` with the configured backend; it is closed in the end, come what may.

    Raises:
        UserError: there is no such backend, or the folder does not load.
    """
    if config.backend not in BACKENDS:
        raise UserError(
            f"rewriter.backend is {config.backend!r}, which does not exist", f"choose one of: {', '.join(BACKENDS)}"
        )
    generator = BACKENDS[config.backend](path, config)
    try:
        yield generator
    finally:
        generator.close()
