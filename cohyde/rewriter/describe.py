"""From queries to descriptions: prompt, generate, clean, fall back. Used wherever the rewriter speaks."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cohyde.catalog import Query
from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.evaluation.metrics import mean_or_zero
from cohyde.executor import Do, Row
from cohyde.io import canonical_json, sha256_text
from cohyde.progress import Progress
from cohyde.rewriter.clean import clean
from cohyde.rewriter.generate import Completion, Generator, Request, open_generator, request_seed
from cohyde.rewriter.load import load_tokenizer
from cohyde.rewriter.prompts import Example, fit_prompt, load_prompt
from cohyde.shards import in_shards

SMALLEST_SHARD = 16
"""Prompts that a shard has at least: fewer would often begin alike by chance, and share more than the template."""

FILLED_AGAIN = 4
"""Sequences a shard for each place of an engine or a server: a kill costs so many at most."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """One query's completions. ``texts[i]`` is what ``raw[i]`` is after cleaning; empty where nothing was left."""

    id: str
    prompt: str
    raw: tuple[str, ...]
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    finished: tuple[bool, ...]


def describe(
    model: Path,
    queries: Sequence[Query],
    examples: Sequence[Example],
    rewriter: RewriterConfig,
    sampling: SamplingConfig,
    seed: int,
    progress: Progress,
    fields: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[list[Described], dict[str, float]]:
    """Let the rewriter at ``model`` describe every query; the result is in the order of ``queries``.

    It works in shards: what an earlier attempt has finished, below ``progress.checkpoints``, is not written again.
    ``fields`` are what the prompt has to be told beside the query, by the query's text.

    Returns:
        The completions, and counts and shares that tell whether the rewriter is healthy (TRAPS 10, 12, 13, 38).
    """
    requests, cut = _requests(load_tokenizer(model), queries, examples, rewriter, seed, fields or {})
    completions = _completions(model, requests, rewriter, sampling, progress)
    described = [_described(request, completion) for request, completion in zip(requests, completions, strict=True)]
    return described, _health(described, cut)


def _completions(
    model: Path, requests: Sequence[Request], rewriter: RewriterConfig, sampling: SamplingConfig, progress: Progress
) -> list[Completion]:
    """What the rewriter writes for every request, shard by shard."""
    # Longest first, so that what a shard decodes together is of similar length, and memory that is short shows at once.
    order = sorted(range(len(requests)), key=lambda place: (-len(requests[place].prompt), place))
    key = [sha256_text(canonical_json([asdict(request) for request in requests])), asdict(sampling)]
    work = Completing(model=model, rewriter=rewriter, sampling=sampling)
    size = shard_size(rewriter, sampling)
    rows = in_shards([requests[place] for place in order], size, work, key, progress, "prompts", progress.executor)
    by_place = dict(zip(order, rows, strict=True))
    return [_completion(by_place[place]) for place in range(len(requests))]


@dataclass(frozen=True, kw_only=True)
class Completing:
    """Work on requests, for any process that sees the rewriter's folder: one row of a completion for each."""

    model: Path
    rewriter: RewriterConfig
    sampling: SamplingConfig

    @contextmanager
    def open(self) -> Iterator[Do[Request]]:
        """Load the rewriter."""
        with open_generator(self.model, self.rewriter) as generator:

            def complete(requests: Sequence[Request], progress: Progress) -> list[Row]:
                return [asdict(completion) for completion in generator.generate(requests, self.sampling, progress)]

            yield complete


def shard_size(rewriter: RewriterConfig, sampling: SamplingConfig) -> int:
    """Prompts a shard: whole batches of decoding, so that shards cost no time.

    An engine or a server fills a place as soon as it is free, which is lost at a shard's end alone: few and large ones.
    """
    at_once = {"vllm": rewriter.vllm.max_sequences, "openai": rewriter.openai.concurrency}
    sequences = FILLED_AGAIN * at_once[rewriter.backend] if rewriter.backend in at_once else rewriter.batch_size
    batch = max(1, sequences // sampling.n)
    return batch * math.ceil(SMALLEST_SHARD / batch)


def describe_with(
    generator: Generator,
    queries: Sequence[Query],
    examples: Sequence[Example],
    rewriter: RewriterConfig,
    sampling: SamplingConfig,
    seed: int,
    progress: Progress,
) -> tuple[list[Described], dict[str, float]]:
    """As :func:`describe`, with a generator that is open already, and in one go."""
    requests, cut = _requests(generator.tokenizer, queries, examples, rewriter, seed, {})
    completions = generator.generate(requests, sampling, progress)
    described = [_described(request, completion) for request, completion in zip(requests, completions, strict=True)]
    return described, _health(described, cut)


def _requests(
    tokenizer: Any,
    queries: Sequence[Query],
    examples: Sequence[Example],
    rewriter: RewriterConfig,
    seed: int,
    fields: Mapping[str, Mapping[str, str]],
) -> tuple[list[Request], int]:
    """What the rewriter is asked, and how many of the prompts were cut."""
    prompt = load_prompt(rewriter.prompt)
    told = [{"query": query.text, **fields.get(query.text, {})} for query in queries]
    fitted = [fit_prompt(tokenizer, prompt, own, examples, rewriter.max_prompt_tokens) for own in told]
    requests = [
        Request(id=query.id, prompt=text, seed=request_seed(seed, "describe", query.id))
        for query, (text, _) in zip(queries, fitted, strict=True)
    ]
    return requests, sum(was_cut for _, was_cut in fitted)


def _completion(row: Row) -> Completion:
    return Completion(
        id=row["id"], texts=tuple(row["texts"]), tokens=tuple(row["tokens"]), finished=tuple(row["finished"])
    )


def _described(request: Request, completion: Completion) -> Described:
    return Described(
        id=request.id,
        prompt=request.prompt,
        raw=completion.texts,
        texts=tuple(clean(text) for text in completion.texts),
        tokens=completion.tokens,
        finished=completion.finished,
    )


def or_query(text: str, query: Query) -> str:
    """The description, or the query where cleaning left nothing: the encoder never sees an empty text."""
    return text or query.text


def described_to_row(described: Described) -> dict[str, Any]:
    """The row of ``candidates.jsonl``."""
    return {
        "id": described.id,
        "prompt": described.prompt,
        "candidates": [
            {"raw": raw, "text": text, "tokens": tokens, "finished": finished}
            for raw, text, tokens, finished in zip(
                described.raw, described.texts, described.tokens, described.finished, strict=True
            )
        ],
    }


def _health(described: Sequence[Described], cut: int) -> dict[str, float]:
    texts = [text for item in described for text in item.texts]
    count = max(1, len(texts))
    finished = [flag for item in described for flag in item.finished]
    tokens = [number for item in described for number in item.tokens]
    return {
        "descriptions": len(texts),
        "empty_after_clean": sum(not text for text in texts),
        "cut_prompts": cut,
        "finished_share": sum(finished) / count,
        "repetitive_share": sum(map(is_repetitive, texts)) / count,
        "distinct_share": mean_or_zero([len(set(item.texts)) / len(item.texts) for item in described]),
        "most_common_share": max(Counter(texts).values(), default=0) / count,
        "mean_tokens": sum(tokens) / count,
    }


def is_repetitive(text: str) -> bool:
    """Whether a text goes round in circles: under a third of its word 3-grams are distinct (12 words at least)."""
    words = text.lower().split()
    grams = [tuple(words[start : start + 3]) for start in range(len(words) - 2)]
    return len(words) >= 12 and len(set(grams)) * 3 < len(grams)
