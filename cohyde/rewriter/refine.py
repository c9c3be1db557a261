"""A request that is refined by what it finds: comprehension, assessment, refinement, and search again.

The nearest prior method that changes the query side by retrieval feedback (iterative feedback from an LLM to a tool
retriever), as the CoHyDE paper re-implements it (appendix M): the encoder is trained once and stays as it is, the LLM
is not trained at all.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cohyde.catalog import Query, Tool, catalog_line
from cohyde.config import RefineConfig, RewriterConfig
from cohyde.evaluation.results import Ranking
from cohyde.executor import AtHand, Row
from cohyde.io import canonical_json, sha256_text
from cohyde.progress import Progress
from cohyde.rewriter.clean import clean, without_reasoning
from cohyde.rewriter.describe import shard_size
from cohyde.rewriter.generate import Generator, Request, open_generator, request_seed
from cohyde.rewriter.prompts import fit_prompt, load_prompt
from cohyde.shards import in_shards

STEPS = ("comprehension", "assessment", "refinement")
"""The prompts of a round, in their order."""
LONGEST_LINE = 200
"""Characters of a tool that the model is shown: ten tools and what was said of them have to fit one prompt."""
CONTENT = re.compile(r"\W*n ?/ ?a\b|\W*na\W*\Z", re.IGNORECASE)
"""How a model begins that has nothing to refine."""

Rank = Callable[[Sequence[str], int], Sequence[Ranking]]
"""``(texts, depth)`` to the ranked tools of each."""


@dataclass(frozen=True, kw_only=True)
class Refined:
    """What became of a request."""

    text: str
    """What the last round searched with: the request itself, where none was refined."""
    rounds: int
    """Rounds that refined it."""
    stopped: bool
    """Whether the model was content before the rounds were over."""
    steps: tuple[Mapping[str, str], ...]
    """Of every round, also of one that ended in N/A: what each step wrote."""


def refine(
    model: Path,
    queries: Sequence[Query],
    tools: Mapping[str, Tool],
    rank: Rank,
    rewriter: RewriterConfig,
    config: RefineConfig,
    seed: int,
    progress: Progress,
) -> list[Refined]:
    """Refine every request; the result is in the order of ``queries``.

    It works in shards: requests that an earlier attempt has finished are not refined again.

    Args:
        model: the rewriter's folder.
        queries: what was asked; ids may occur again in another split.
        tools: the catalogue by id.
        rank: the search, by a frozen encoder.
        rewriter: how the model is loaded and how long a prompt may be; its own prompt and examples play no part.
        config: rounds, tools shown and sampling.
        seed: of sampling.
        progress: told of requests.
    """
    texts = [[query.id, query.text] for query in queries]
    key = [sha256_text(canonical_json(texts)), asdict(config), rewriter.max_prompt_tokens, seed]
    with ExitStack() as stack:
        opened = cache(lambda: stack.enter_context(open_generator(model, rewriter)))  # where all is done, never

        def work(part: Sequence[Query], progress: Progress) -> list[Row]:
            loop = _Loop(opened(), tools, rank, rewriter.max_prompt_tokens, config, seed, progress)
            return [asdict(one) for one in loop.run(part)]

        rows = in_shards(queries, shard_size(rewriter, config.sampling), AtHand(work), key, progress, "requests")
    return [Refined(**{**row, "steps": tuple(row["steps"])}) for row in rows]


@dataclass(frozen=True)
class _Loop:
    """The rounds over the requests of one shard."""

    generator: Generator
    tools: Mapping[str, Tool]
    rank: Rank
    max_prompt_tokens: int
    config: RefineConfig
    seed: int
    progress: Progress

    def run(self, queries: Sequence[Query]) -> list[Refined]:
        states = [Refined(text=query.text, rounds=0, stopped=False, steps=()) for query in queries]
        for number in range(1, self.config.rounds + 1):
            active = [place for place, state in enumerate(states) if not state.stopped]
            if not active:
                break
            asked = [(queries[place], states[place]) for place in active]
            for place, state in zip(active, self._round(number, asked), strict=True):
                states[place] = state
        return states

    def _round(self, number: int, asked: Sequence[tuple[Query, Refined]]) -> list[Refined]:
        found = self.rank([state.text for _, state in asked], self.config.top)
        fields = [
            {"query": query.text, "tools": self._shown(ranking)}
            for (query, _), ranking in zip(asked, found, strict=True)
        ]
        for step in STEPS:
            written = self._write(step, number, [query.id for query, _ in asked], fields)
            fields = [{**own, step: text} for own, text in zip(fields, written, strict=True)]
        return [after(state, own) for (_, state), own in zip(asked, fields, strict=True)]

    def _shown(self, ranking: Ranking) -> str:
        lines = (catalog_line(self.tools[tool])[:LONGEST_LINE] for tool, _ in ranking)
        return "\n".join(f"{place}. {line}" for place, line in enumerate(lines, start=1))

    def _write(self, step: str, number: int, ids: Sequence[str], fields: Sequence[Mapping[str, str]]) -> list[str]:
        """What the model writes at one step for each request; a dash where it writes nothing."""
        prompt = load_prompt(step)
        requests = []
        for place, (query_id, own) in enumerate(zip(ids, fields, strict=True)):
            needed = {name: own[name] for name in prompt.fields}
            text, _ = fit_prompt(self.generator.tokenizer, prompt, needed, (), self.max_prompt_tokens)
            seed = request_seed(self.seed, f"{step}.{number}", query_id)
            requests.append(Request(id=f"{place}/{query_id}", prompt=text, seed=seed))
        completions = self.generator.generate(requests, self.config.sampling, self.progress)
        return [without_reasoning(completion.texts[0]).strip() or "-" for completion in completions]


def after(state: Refined, written: Mapping[str, str]) -> Refined:
    """The state after a round: content (N/A), refined, or as it was, where nothing is left of what was written.

    Args:
        state: before the round.
        written: what each step wrote, by the step's name; other fields are left out.
    """
    steps = (*state.steps, {step: written[step] for step in STEPS})
    if CONTENT.match(written["refinement"]):
        return Refined(text=state.text, rounds=state.rounds, stopped=True, steps=steps)
    text = clean(written["refinement"])
    if not text:
        return Refined(text=state.text, rounds=state.rounds, stopped=False, steps=steps)
    return Refined(text=text, rounds=state.rounds + 1, stopped=False, steps=steps)


def health(refined: Sequence[Refined]) -> dict[str, Any]:
    """Counts that tell whether the loop did anything."""
    count = max(1, len(refined))
    return {
        "descriptions": len(refined),
        "mean_rounds": sum(one.rounds for one in refined) / count,
        "stopped_early_share": sum(one.stopped for one in refined) / count,
        "never_refined": sum(not one.rounds for one in refined),
    }
