"""The rewriter as live retrieval uses it: whatever generates completions, asked for one description a request."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.progress import Silent
from cohyde.rewriter.clean import clean
from cohyde.rewriter.prompts import Example, Prompt


class GeneratorRewriter:
    """A rewriter behind one of the generation backends, loaded once; see :class:`~cohyde.rewriter.generate.Generator`.

    It describes as the evaluation does: same prompt, same examples, same sampling.
    """

    def __init__(
        self,
        model: Path,
        *,
        rewriter: RewriterConfig,
        sampling: SamplingConfig,
        prompt: Prompt,
        examples: Sequence[Example] = (),
        seed: int = 0,
    ) -> None:
        """Load it.

        Args:
            model: a transformers folder.
            rewriter: backend and limits.
            sampling: how descriptions are drawn; of ``n`` the first is taken.
            prompt: what it is asked with.
            examples: few-shot examples in every prompt, beside the prompt's own.
            seed: of sampled descriptions; each request's own comes from it and the request's text.

        Raises:
            UserError: there is no such backend, or the folder does not load.
        """
        from cohyde.rewriter.generate import open_generator

        self._rewriter = rewriter
        self._sampling = sampling
        self._prompt = prompt
        self._examples = tuple(examples)
        self._seed = seed
        self._stack = ExitStack()
        self._generator = self._stack.enter_context(open_generator(model, rewriter))
        self.batches_at_once = BATCHES_AT_ONCE.get(rewriter.backend, 1)

    def describe(self, texts: Sequence[str]) -> list[str]:
        """A cleaned description of each request, in order; empty where nothing was left after cleaning."""
        from cohyde.rewriter.generate import Request, request_seed
        from cohyde.rewriter.prompts import fit_prompt

        most = self._rewriter.max_prompt_tokens
        prompts = [
            fit_prompt(self._generator.tokenizer, self._prompt, {"query": text}, self._examples, most)[0]
            for text in texts
        ]
        requests = [
            Request(id=str(place), prompt=written, seed=request_seed(self._seed, "search", text))
            for place, (text, written) in enumerate(zip(texts, prompts, strict=True))
        ]
        completions = self._generator.generate(requests, self._sampling, Silent())
        return [clean(completion.texts[0]) for completion in completions]

    def close(self) -> None:
        """Free the model's memory."""
        self._stack.close()


BATCHES_AT_ONCE = {"openai": 8}
"""Calls under way at once, by backend: one where the model is in this process; a server takes several."""


def hurried(config: RewriterConfig, deadline_seconds: float | None) -> RewriterConfig:
    """The settings for answers that somebody waits for: a server that is late is not waited for, nor asked again."""
    if deadline_seconds is None:
        return config
    seconds = min(config.openai.timeout_seconds, deadline_seconds)
    return replace(config, openai=replace(config.openai, timeout_seconds=seconds, retries=0))
