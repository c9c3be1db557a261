"""From queries to descriptions, with a generator whose words the test decides."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cohyde.catalog import Query
from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.errors import UserError
from cohyde.progress import Progress, Silent
from cohyde.rewriter.describe import (
    Described,
    describe,
    describe_with,
    described_to_row,
    is_repetitive,
    or_query,
    shard_size,
)
from cohyde.rewriter.generate import Completion, Request
from cohyde.rewriter.load import load_tokenizer
from cohyde.rewriter.prompts import Example

QUERIES = [Query(id="q1", text="will it rain", tools=("a",)), Query(id="q2", text="wake me at six", tools=("b",))]
REWRITER = RewriterConfig(max_prompt_tokens=512)


class Scripted:
    """Writes what it is told, by query id, and remembers what it was asked."""

    def __init__(self, tokenizer: Any, script: dict[str, list[str]]) -> None:
        self.tokenizer, self.script, self.asked = tokenizer, script, list[Request]()

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig, progress: Progress) -> list[Completion]:
        self.asked = list(requests)
        return [
            Completion(
                id=request.id,
                texts=tuple(self.script[request.id]),
                tokens=tuple(len(text.split()) for text in self.script[request.id]),
                finished=tuple(not text.endswith("…") for text in self.script[request.id]),
            )
            for request in requests
        ]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def tokenizer(tiny_rewriter_path: Path) -> Any:
    return load_tokenizer(tiny_rewriter_path)


def described(
    tokenizer: Any,
    script: dict[str, list[str]],
    queries: Sequence[Query] = QUERIES,
    *,
    rewriter: RewriterConfig = REWRITER,
    examples: Sequence[Example] = (),
    seed: int = 0,
) -> tuple[list[Described], dict[str, float], list[Request]]:
    generator = Scripted(tokenizer, script)
    items, health = describe_with(generator, queries, examples, rewriter, SamplingConfig(), seed, Silent())
    return items, health, generator.asked


def test_descriptions_are_cleaned_and_in_the_order_of_the_queries(tokenizer: Any) -> None:
    script = {"q1": ["<think>hm</think>\n- Returns a forecast."], "q2": ["Sets an alarm."]}
    items, _, _ = described(tokenizer, script, QUERIES[::-1])
    assert [(item.id, item.texts) for item in items] == [("q2", ("Sets an alarm.",)), ("q1", ("Returns a forecast.",))]
    assert items[1].raw == ("<think>hm</think>\n- Returns a forecast.",)


def test_the_prompt_holds_the_request_after_the_examples(tokenizer: Any) -> None:
    examples = [Example(query="what is a euro worth", answer="Returns an exchange rate.")]
    items, _, asked = described(tokenizer, {"q1": ["x"], "q2": ["x"]}, examples=examples)
    assert [item.prompt for item in items] == [request.prompt for request in asked]
    for query, request in zip(QUERIES, asked, strict=True):
        assert re.search(f"euro worth.*exchange rate.*{query.text}", request.prompt, re.DOTALL)


def test_a_request_s_seed_hangs_on_seed_and_query_alone(tokenizer: Any) -> None:
    script = {"q1": ["x"], "q2": ["x"]}
    seeds = {request.id: request.seed for request in described(tokenizer, script)[2]}
    alone = described(tokenizer, script, QUERIES[1:])[2][0]
    assert alone.seed == seeds["q2"] != seeds["q1"]
    assert described(tokenizer, script, seed=1)[2][0].seed != seeds["q1"]


def test_where_nothing_is_left_the_query_stands_in_and_is_counted(tokenizer: Any) -> None:
    items, health, _ = described(tokenizer, {"q1": ["<think>never comes to an end"], "q2": ["Sets an alarm."]})
    assert items[0].texts == ("",)
    assert [or_query(item.texts[0], query) for item, query in zip(items, QUERIES, strict=True)] == [
        "will it rain",
        "Sets an alarm.",
    ]
    assert (health["descriptions"], health["empty_after_clean"]) == (2, 1)


def test_health_is_shares_over_all_completions(tokenizer: Any) -> None:
    script = {"q1": ["Returns a forecast.", "Returns a forecast.", "Weather…"], "q2": ["Sets alarms.", "a", "b"]}
    health = described(tokenizer, script)[1]
    assert health["descriptions"] == 6
    assert health["finished_share"] == 5 / 6
    assert health["most_common_share"] == 2 / 6
    assert health["distinct_share"] == pytest.approx((2 / 3 + 3 / 3) / 2)
    assert health["mean_tokens"] == (3 + 3 + 1 + 2 + 1 + 1) / 6
    assert (health["repetitive_share"], health["cut_prompts"]) == (0, 0)


def test_a_prompt_that_is_too_long_is_cut_and_counted(tokenizer: Any) -> None:
    long = Query(id="q1", text="will it rain " * 400, tools=("a",))
    _, health, asked = described(tokenizer, {"q1": ["x"], "q2": ["x"]}, [long, QUERIES[1]])
    assert health["cut_prompts"] == 1
    assert len(tokenizer(asked[0].prompt, add_special_tokens=False)["input_ids"]) <= 512


def test_no_queries_have_no_descriptions(tokenizer: Any) -> None:
    items, health, _ = described(tokenizer, {}, [])
    assert items == [] and health["descriptions"] == health["distinct_share"] == 0


def test_text_that_goes_round_in_circles_is_told_from_a_long_list() -> None:
    assert is_repetitive("returns the weather " * 8)
    assert is_repetitive("a " * 12)
    assert not is_repetitive("a " * 11)  # too short to tell
    assert not is_repetitive(" ".join(f"Returns the {word} of a city." for word in ["wind", "rain", "snow", "heat"]))


def test_a_row_of_candidates_keeps_raw_and_cleaned_text_side_by_side() -> None:
    item = Described(id="q", prompt="p", raw=("- One.", ""), texts=("One.", ""), tokens=(3, 0), finished=(True, False))
    assert described_to_row(item) == {
        "id": "q",
        "prompt": "p",
        "candidates": [
            {"raw": "- One.", "text": "One.", "tokens": 3, "finished": True},
            {"raw": "", "text": "", "tokens": 0, "finished": False},
        ],
    }


# -------------------------------------------------------------------------------------------------------- shards

SAMPLED = SamplingConfig(n=2, temperature=1.0, max_new_tokens=4)
MANY = [
    Query(id=f"q{number}", text=f"tell me {'more ' * (number % 5)}about {number}", tools=("a",)) for number in range(40)
]


class Kept(Silent):
    """A progress with a place for what is finished."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints, self.warnings = checkpoints, list[str]()

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def described_by(model: Path, progress: Progress, batch_size: int = 8) -> Any:
    rewriter = RewriterConfig(precision="float32", max_prompt_tokens=512, batch_size=batch_size)
    return describe(model, MANY, [], rewriter, SAMPLED, 0, progress)


@pytest.fixture(scope="module")
def whole(tiny_rewriter_path: Path) -> Any:
    return described_by(tiny_rewriter_path, Silent())


def test_shards_are_whole_batches_of_about_as_many_sequences() -> None:
    sizes = {
        (batch, n): shard_size(RewriterConfig(batch_size=batch), SamplingConfig(n=n, temperature=1))
        for batch, n in ((64, 1), (64, 4), (128, 4), (6, 1), (1, 4))
    }
    assert sizes == {(64, 1): 64, (64, 4): 16, (128, 4): 32, (6, 1): 18, (1, 4): 16}


def test_without_anything_to_do_nothing_is_loaded(tiny_rewriter_path: Path, tmp_path: Path, whole: Any) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_rewriter_path, model)
    assert described_by(model, Kept(tmp_path / "kept")) == whole
    (model / "model.safetensors").unlink()
    assert described_by(model, Kept(tmp_path / "kept")) == whole
    with pytest.raises(UserError, match="does not load"):
        described_by(model, Silent())


def test_shards_of_an_earlier_attempt_change_nothing(tiny_rewriter_path: Path, tmp_path: Path, whole: Any) -> None:
    described_by(tiny_rewriter_path, Kept(tmp_path))
    files = sorted(tmp_path.glob("shards-*/*"))
    assert len(files) == 3  # 40 prompts, 16 a shard
    files[0].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-9])
    progress = Kept(tmp_path)
    assert described_by(tiny_rewriter_path, progress) == whole
    assert len(progress.warnings) == 1
