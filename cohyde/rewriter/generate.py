"""One interface for generation, whatever computes it: requests in, completions out, in the same order."""

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from cohyde.config import EndpointConfig, RewriterConfig, SamplingConfig, VllmConfig
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


AUTO = "auto"
INSTALL_VLLM = "pip install -c constraints.txt -e '.[gpu]'"


def request_seed(run_seed: int, stage: str, query_id: str) -> int:
    """A seed for one request: 63 bits of a hash, so that neither order nor sharding nor neighbours matter (TRAPS 10).

    Args:
        run_seed: the run's seed.
        stage: the stage's id with its round, such as ``S4s.2``.
        query_id: the query's id.
    """
    text = "\x1f".join((str(run_seed), stage, query_id))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8]) >> 1


TooLong = Literal["error", "drop"]


def with_room(
    requests: Sequence[Request],
    prompts: Sequence[Sequence[int]],
    most: int | None,
    sampling: SamplingConfig,
    too_long: TooLong,
) -> list[int]:
    """The places of the requests whose prompt and completion fit into the model's longest sequence.

    Args:
        requests: what is asked.
        prompts: token ids of each.
        most: tokens of the longest sequence; None: there is no limit.
        sampling: how much may be written.
        too_long: what becomes of the others; ``drop`` leaves them out, see :func:`unwritten`.

    Raises:
        UserError: one does not fit, and ``too_long`` is ``error``.
        ValueError: a prompt is empty.
    """
    fitting = []
    for place, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        if not prompt:
            raise ValueError(f"request {request.id}: the prompt is empty")
        if most is None or len(prompt) + sampling.max_new_tokens <= most:
            fitting.append(place)
        elif too_long == "error":
            raise UserError(
                f"request {request.id}: {len(prompt)} prompt tokens and {sampling.max_new_tokens} new ones are "
                f"more than the rewriter's longest sequence, {most}",
                "lower rewriter.max_prompt_tokens, rewriter.few_shot or max_new_tokens, or leave such prompts out: "
                "rewriter.too_long=drop",
            )
    return fitting


def unwritten(identifier: str, sampling: SamplingConfig) -> Completion:
    """The completion of a prompt that was dropped: nothing, and no end either."""
    n = sampling.n
    return Completion(id=identifier, texts=("",) * n, tokens=(0,) * n, finished=(False,) * n)


def _open_transformers(path: Path, config: RewriterConfig) -> Generator:
    from cohyde.rewriter.load import load_rewriter
    from cohyde.rewriter.transformers_backend import TransformersGenerator

    model, tokenizer = load_rewriter(path, config.precision)
    return TransformersGenerator(model, tokenizer, batch_size=config.batch_size, too_long=config.too_long)


def _open_vllm(path: Path, config: RewriterConfig) -> Generator:
    from cohyde.rewriter.vllm_backend import VllmGenerator

    return VllmGenerator(path, config)


def _open_openai(path: Path, config: RewriterConfig) -> Generator:
    from cohyde.rewriter.load import load_tokenizer
    from cohyde.rewriter.openai_backend import OpenAIGenerator

    return OpenAIGenerator(load_tokenizer(path), config)


BACKENDS: Mapping[str, Callable[[Path, RewriterConfig], Generator]] = {
    "transformers": _open_transformers,
    "vllm": _open_vllm,
    "openai": _open_openai,
}
"""Backends by the name that ``rewriter.backend`` chooses."""


def chosen(config: RewriterConfig, gpus: float = 0) -> RewriterConfig:
    """The configuration with ``auto`` replaced by a backend, and without the settings of the others.

    What ``auto`` means hangs on the configuration alone, never on what the planning machine happens to have: a plan
    made on a laptop for a cluster has the same fingerprints as one made there.

    Args:
        config: the rewriter's settings.
        gpus: what ``resources.generation`` reserves.
    """
    name = config.backend if config.backend != AUTO else "vllm" if gpus > 0 else "transformers"
    vllm = config.vllm if name == "vllm" else VllmConfig()
    return replace(config, backend=name, vllm=vllm, openai=config.openai if name == "openai" else EndpointConfig())


def check_backend_is_here(config: RewriterConfig) -> None:
    """Look for what the backend needs, without importing it.

    Raises:
        UserError: vLLM is not installed; says how to get it.
    """
    if config.backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UserError(
            "rewriter.backend is 'vllm', but vLLM is not installed",
            f"{INSTALL_VLLM}, on every machine that generates; or set rewriter.backend=transformers",
        )


@contextmanager
def open_generator(path: Path, config: RewriterConfig) -> Iterator[Generator]:
    """Load the rewriter at ``path`` with the configured backend; it is closed in the end, come what may.

    Outside of a run's stages, where nothing is reserved, ``auto`` is ``transformers``.

    Raises:
        UserError: there is no such backend, or the folder does not load.
    """
    config = chosen(config)
    if config.backend not in BACKENDS:
        raise UserError(
            f"rewriter.backend is {config.backend!r}, which does not exist", f"choose one of: {', '.join(BACKENDS)}"
        )
    generator = BACKENDS[config.backend](path, config)
    try:
        yield generator
    finally:
        generator.close()
