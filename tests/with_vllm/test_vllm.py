"""vLLM for real: the offline engine and ``vllm serve``, held against the ``transformers`` backend."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.errors import UserError
from cohyde.progress import Silent
from cohyde.rewriter.clean import clean
from cohyde.rewriter.generate import Completion, Generator, Request, open_generator
from tests.with_vllm.conftest import LONGEST

pytestmark = pytest.mark.vllm
GREEDY = SamplingConfig(max_new_tokens=16)
SAMPLED = SamplingConfig(n=4, temperature=0.7, top_p=0.95, top_k=50, max_new_tokens=12)


@pytest.fixture(params=["offline", "served"])
def generator(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def expected(smollm: Path, requests: list[Request]) -> list[Completion]:
    """What the ``transformers`` backend writes."""
    with open_generator(smollm, RewriterConfig(backend="transformers", precision="float32")) as generator:
        return generator.generate(requests, GREEDY, Silent())


def test_greedy_text_is_that_of_transformers(
    generator: Generator, requests: list[Request], expected: list[Completion]
) -> None:
    assert generator.generate(requests, GREEDY, Silent()) == expected


def test_repetition_penalty_falls_on_what_it_falls_on_in_transformers(
    generator: Generator, smollm: Path, requests: list[Request]
) -> None:
    sampling = replace(GREEDY, repetition_penalty=1.3)
    with open_generator(smollm, RewriterConfig(backend="transformers", precision="float32")) as ours:
        assert generator.generate(requests[:2], sampling, Silent()) == ours.generate(requests[:2], sampling, Silent())


def test_candidates_differ_and_come_again_in_any_order_and_company(
    generator: Generator, requests: list[Request]
) -> None:
    first = generator.generate(requests, SAMPLED, Silent())
    for item in first:
        assert len(item.texts) == 4 and len(set(item.texts)) >= 3
    alone = [generator.generate([request], SAMPLED, Silent())[0] for request in requests[:2]]
    assert alone == first[:2]
    halves = [
        item for part in (requests[3:], requests[:3]) for item in generator.generate(part[::-1], SAMPLED, Silent())
    ]
    assert sorted(halves, key=lambda item: item.id) == first
    other = replace(requests[0], seed=5)
    assert generator.generate([other], SAMPLED, Silent())[0].texts != first[0].texts


def test_a_thought_that_is_cut_off_is_empty(generator: Generator, requests: list[Request]) -> None:
    thinking = "".join(f"User: {word}\nAnswer: <think> I wonder about {word} and so on\n" for word in ("sun", "sea"))
    request = replace(requests[0], prompt=f"{thinking}User: tea\nAnswer:")
    (done,) = generator.generate([request], SamplingConfig(max_new_tokens=8), Silent())
    assert done.texts[0].strip().startswith("<think>") and done.finished == (False,)
    assert clean(done.texts[0]) == ""


def test_a_prompt_longer_than_the_model_takes_is_an_error_or_dropped(
    generator: Any, requests: list[Request], smollm: Path
) -> None:
    long = replace(requests[0], id="long", prompt="weather " * LONGEST)
    with pytest.raises(UserError, match="request long"):
        generator.generate([long], GREEDY, Silent())
    config = generator.config
    generator.config = replace(config, too_long="drop")
    try:
        dropped, kept = generator.generate([long, requests[0]], GREEDY, Silent())
    finally:
        generator.config = config
    assert (dropped.texts, dropped.tokens, dropped.finished) == (("",), (0,), (False,))
    assert kept.texts[0]


def test_progress_is_told(offline: Generator, requests: list[Request]) -> None:
    class Counting(Silent):
        seen: tuple[float, float, str] = (0, 0, "")

        def update(self, done: float, total: float, what: str = "") -> None:
            self.seen = (done, total, what)

    counting = Counting()
    offline.generate(requests, GREEDY, counting)
    assert counting.seen[1:] == (len(requests), "prompts")
