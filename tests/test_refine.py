"""A request that is refined by what it finds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cohyde.catalog import Query, Tool
from cohyde.config import RefineConfig, RewriterConfig, SamplingConfig
from cohyde.progress import Silent
from cohyde.rewriter import refine as module
from cohyde.rewriter.generate import BACKENDS, Completion, Request
from cohyde.rewriter.load import load_tokenizer
from cohyde.rewriter.prompts import load_prompt
from cohyde.rewriter.refine import STEPS, Refined, after, health, refine

START = Refined(text="a request", rounds=0, stopped=False, steps=())
TOOLS = {name: Tool(id=name, title=name.upper(), api_description="x" * 300) for name in ("one", "two", "three")}


def written(refinement: str) -> dict[str, str]:
    return {"comprehension": "goals", "assessment": "judged", "refinement": refinement, "query": "a request"}


@pytest.mark.parametrize("text", ["N/A", " n/a.", "**N/A**", "NA", "N / A: everything is solved"])
def test_a_model_that_is_content_ends_the_rounds(text: str) -> None:
    state = after(START, written(text))
    assert (state.text, state.rounds, state.stopped) == ("a request", 0, True)


@pytest.mark.parametrize("text", ["Name a tool", "NASA pictures of the day", "n a tool", "Na is sodium"])
def test_words_that_begin_alike_do_not(text: str) -> None:
    state = after(START, written(text))
    assert (state.text, state.rounds, state.stopped) == (text, 1, False)


def test_what_is_refined_is_cleaned_and_every_step_is_kept() -> None:
    raw = "Sure! Here is a better request:\n- Convert money,\n  at today's rate"
    state = after(START, written(raw))
    assert state.text == "Convert money, at today's rate"
    assert state.steps == ({"comprehension": "goals", "assessment": "judged", "refinement": raw},)


def test_a_refinement_of_which_nothing_is_left_changes_nothing() -> None:
    state = after(START, written("-"))
    assert (state.text, state.rounds, state.stopped, len(state.steps)) == ("a request", 0, False, 1)


def test_health_counts_what_the_loop_did() -> None:
    states = [after(START, written("better")), after(START, written("N/A"))]
    assert health(states) == {"descriptions": 2, "mean_rounds": 0.5, "stopped_early_share": 0.5, "never_refined": 1}


def test_the_prompts_hand_on_what_was_written() -> None:
    assert [set(load_prompt(step).fields) for step in STEPS] == [
        {"query", "tools"},
        {"query", "tools", "comprehension"},
        {"query", "assessment"},
    ]


@dataclass
class Scripted:
    """A generator that answers by a function, behind the real tokenizer, prompts and shards."""

    tokenizer: Any
    answer: Any
    prompts: list[str] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig, progress: Any) -> list[Completion]:
        assert len({request.id for request in requests}) == len(requests)
        self.prompts += [request.prompt for request in requests]
        return [
            Completion(id=request.id, texts=(self.answer(request.prompt),), tokens=(1,), finished=(True,))
            for request in requests
        ]

    def close(self) -> None:
        pass


def test_every_round_searches_with_the_last_and_one_that_is_content_leaves(
    tiny_rewriter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[list[str]] = []

    def rank(texts: Sequence[str], depth: int) -> list[list[tuple[str, float]]]:
        searched.append(list(texts))
        return [[("one", 0.9), ("two", 0.5)][:depth] for _ in texts]

    def answer(prompt: str) -> str:
        if "Better request:" not in prompt:
            return "noted"
        return "N/A" if "easy" in prompt else "ask better"

    scripted = Scripted(load_tokenizer(tiny_rewriter_path), answer)
    monkeypatch.setitem(BACKENDS, "transformers", lambda path, config: scripted)
    queries = [Query(id="q", text="easy", tools=("one",)), Query(id="q", text="hard", tools=("two",))]
    config = RefineConfig(rounds=2, top=1)
    rewriter = RewriterConfig(backend="transformers", precision="float32")
    easy, hard = refine(tiny_rewriter_path, queries, TOOLS, rank, rewriter, config, 0, Silent())
    assert searched == [["easy", "hard"], ["ask better"]]
    assert (easy.text, easy.rounds, easy.stopped, len(easy.steps)) == ("easy", 0, True, 1)
    assert (hard.text, hard.rounds, hard.stopped, len(hard.steps)) == ("ask better", 2, False, 2)
    shown = scripted.prompts[0]
    assert "1. ONE" in shown and "TWO" not in shown and "x" * 180 in shown and "x" * 200 not in shown


def test_a_tiny_model_refines_the_same_in_one_shard_or_in_many(
    tiny_rewriter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank(texts: Sequence[str], depth: int) -> list[list[tuple[str, float]]]:
        return [[(tool, 1.0) for tool in TOOLS][:depth] for _ in texts]

    queries = [Query(id=f"q{number}", text=f"request number {number}", tools=("one",)) for number in range(3)]
    config = RefineConfig(rounds=1, top=2, sampling=SamplingConfig(max_new_tokens=4))
    rewriter = RewriterConfig(backend="transformers", precision="float32", batch_size=2)
    whole = refine(tiny_rewriter_path, queries, TOOLS, rank, rewriter, config, 0, Silent())
    monkeypatch.setattr(module, "shard_size", lambda *_: 1)
    assert refine(tiny_rewriter_path, queries, TOOLS, rank, rewriter, config, 0, Silent()) == whole
    assert all(set(step) == set(STEPS) for one in whole for step in one.steps)
