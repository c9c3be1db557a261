"""Generation by an OpenAI-compatible server whose weights stay as they are, such as ``vllm serve``.

Asked is ``/completions`` with the prompt's token ids, not ``/chat/completions``: the prompt is the one that training
and the other backends see, whatever template the server has.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.errors import Interrupted, UserError
from cohyde.progress import Progress
from cohyde.rewriter.generate import Completion, Request, unwritten
from cohyde.rewriter.openai_endpoint import SEEDS, Endpoint, Failure
from cohyde.rewriter.prompts import encode_prompt

TOO_LONG = re.compile(r"context|length|too long|too many tokens", re.IGNORECASE)
"""What servers say of a prompt that leaves no room for its completion."""


class OpenAIGenerator:
    """The ``openai`` backend of :class:`cohyde.rewriter.generate.Generator`."""

    def __init__(self, tokenizer: Any, config: RewriterConfig) -> None:
        """Get ready to ask; nothing is sent yet.

        Args:
            tokenizer: the one of the model that the server holds.
            config: the rewriter's settings.

        Raises:
            UserError: the URL, the model's name or the key cannot be right.
        """
        self.tokenizer, self.config = tokenizer, config
        endpoint = config.openai
        self._endpoint = Endpoint(
            url=endpoint.url,
            model=endpoint.model,
            api_key_env=endpoint.api_key_env,
            concurrency=endpoint.concurrency,
            timeout_seconds=endpoint.timeout_seconds,
            retries=endpoint.retries,
        )

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig, progress: Progress) -> list[Completion]:
        """Complete every request; the result is in the order of ``requests``.

        Raises:
            UserError: the server is not there or refuses what every request says; or it has not answered one of the
                requests, and ``too_long`` does not say that such are to be dropped.
            Interrupted: ``progress`` asked to stop; requests under way are given up.
        """

        def post(request: Request) -> str:
            return self._post(request, sampling)

        def read(request: Request, answer: Mapping[str, Any]) -> Completion | Failure:
            return self._completion(request, answer, sampling.n)

        done: dict[str, Completion] = {}
        for outcome in self._endpoint.answers(requests, post, read):
            if isinstance(outcome, Failure):
                outcome = self._dropped(outcome, sampling)
            done[outcome.id] = outcome
            progress.update(len(done), len(requests), "prompts")
            if progress.stopping and len(done) < len(requests):
                raise Interrupted(f"asked to stop after {len(done)} of {len(requests)} prompts")
        return [done[request.id] for request in requests]

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def _post(self, request: Request, sampling: SamplingConfig) -> str:
        # Beyond OpenAI's own parameters, as vLLM takes them; other servers ignore what they do not know, or say so.
        extra: dict[str, Any] = {
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "skip_special_tokens": True,
            "return_token_ids": True,
        }
        return self._endpoint.client.completions.with_raw_response.create(
            model=self._endpoint.model,
            prompt=encode_prompt(self.tokenizer, request.prompt),
            n=sampling.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            # A candidate's own is this and its place among the n, so that the last is below SEEDS as well.
            seed=request.seed % (SEEDS - sampling.n),
            extra_body=extra,
        ).text

    def _completion(self, request: Request, answer: Mapping[str, Any], n: int) -> Completion | Failure:
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != n or not all(map(_is_choice, choices)):
            return Failure(id=request.id, why=f"the answer does not hold {n} completions")
        choices = sorted(choices, key=lambda choice: choice.get("index") or 0)
        finished = tuple(choice.get("finish_reason") == "stop" for choice in choices)
        return Completion(
            id=request.id,
            texts=tuple(choice["text"] for choice in choices),
            tokens=tuple(self._count(choice, ended) for choice, ended in zip(choices, finished, strict=True)),
            finished=finished,
        )

    def _count(self, choice: Mapping[str, Any], ended: bool) -> int:
        """Tokens of a completion without the one that ended it, by the server's account or else by the text."""
        tokens = choice.get("token_ids")
        if isinstance(tokens, list):
            return max(0, len(tokens) - ended)
        return len(encode_prompt(self.tokenizer, choice["text"]))

    def _dropped(self, failure: Failure, sampling: SamplingConfig) -> Completion:
        """Nothing for a prompt that the server refuses as too long, if that is how it shall be."""
        refused = failure.status in (400, 413, 422) and TOO_LONG.search(failure.why)
        if refused and self.config.too_long == "drop":
            return unwritten(failure.id, sampling)
        raise UserError(
            f"{self._endpoint.url}: request {failure.id}: {failure.why}",
            "see to the endpoint; then run the same command again, which keeps what is done",
        )


def _is_choice(choice: Any) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("text"), str)
