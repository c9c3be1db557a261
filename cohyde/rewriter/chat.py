"""One interface to chat models that data is written with: conversations in, replies out as they come.

Other than a :class:`cohyde.rewriter.generate.Generator`, a chat model renders the messages itself, so that it may as
well be a server; and a conversation that gets no reply does not stop the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from cohyde.catalog import SURROGATE
from cohyde.config import ChatConfig, RewriterConfig, SamplingConfig
from cohyde.errors import UserError
from cohyde.models.reference import identity, resolve
from cohyde.progress import Silent
from cohyde.rewriter.clean import without_reasoning
from cohyde.rewriter.generate import BACKENDS, Completion, Generator, Request
from cohyde.rewriter.prompts import encode_prompt, render_chat


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages that end with what is asked, as :func:`cohyde.rewriter.prompts.build_messages` makes them."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    seed: int
    """Of its own random numbers; 63 bits at most, as :func:`cohyde.rewriter.generate.request_seed` gives."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a model wrote in a conversation, without reasoning blocks, or why it wrote nothing."""

    id: str
    text: str
    finished: bool
    """False: cut at the token limit, or never begun."""
    error: str = ""
    """Why there is no reply: nobody answered for this conversation, or it is too long. ``text`` is then empty."""


class ChatModel(Protocol):
    """A chat model that is ready to reply."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON data: what of the model can change a reply: its content or name, never a key."""

    def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
        """Each reply as soon as it is there, in any order; exactly one a conversation.

        Args:
            conversations: with ids that differ.
            sampling: how replies are drawn; ``n`` has to be 1.

        Raises:
            UserError: no conversation will get a reply: the endpoint is not there or refuses, the model's chat
                template refuses the prompt.
        """

    def close(self) -> None:
        """Free what the model holds."""


class TransformersChat:
    """A model that is loaded here, through :mod:`cohyde.rewriter.generate`."""

    def __init__(self, generator: Generator, config: ChatConfig, identity: Mapping[str, Any]) -> None:
        self.generator = generator
        self.config = config
        self.identity = identity

    def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
        """The replies, batch by batch; see :class:`ChatModel`."""
        check_one(sampling)
        for begin in range(0, len(conversations), self.config.batch_size):
            requests = []
            for conversation in conversations[begin : begin + self.config.batch_size]:
                prompt = render_chat(self.generator.tokenizer, conversation.messages)
                tokens = len(encode_prompt(self.generator.tokenizer, prompt))
                if tokens > self.config.max_prompt_tokens:
                    most = self.config.max_prompt_tokens
                    yield failed(conversation.id, f"the prompt has {tokens} tokens, of at most {most}")
                else:
                    requests.append(Request(id=conversation.id, prompt=prompt, seed=conversation.seed))
            yield from self._complete(requests, sampling)

    def _complete(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[Reply]:
        try:
            completions = self.generator.generate(requests, sampling, Silent())
        except UserError as error:
            # One of them does not fit into the model; which, shows when each is tried alone.
            if len(requests) == 1:
                yield failed(requests[0].id, error.message)
                return
            for request in requests:
                yield from self._complete([request], sampling)
            return
        yield from map(_reply, completions)

    def close(self) -> None:
        """Free the model's memory."""
        self.generator.close()


def _reply(completion: Completion) -> Reply:
    return replied(completion.id, completion.texts[0], finished=completion.finished[0])


def replied(identifier: str, written: str, *, finished: bool) -> Reply:
    """The reply that a model's words make: without reasoning, and in characters that a file can hold."""
    text = SURROGATE.sub("\ufffd", without_reasoning(written)).replace("\0", "").strip()
    return Reply(id=identifier, text=text, finished=finished)


def failed(identifier: str, why: str) -> Reply:
    """The reply of a conversation that gets none."""
    return Reply(id=identifier, text="", finished=False, error=why)


def check_one(sampling: SamplingConfig) -> None:
    """Refuse to draw several replies a conversation.

    Raises:
        ValueError: ``n`` is not 1.
    """
    if sampling.n != 1:
        raise ValueError(f"a conversation gets one reply, not {sampling.n}")


def _open_transformers(config: ChatConfig) -> ChatModel:
    content = {"backend": "transformers", "model": identity(config.model), "precision": config.precision}
    rewriter = RewriterConfig(model=config.model, batch_size=config.batch_size, precision=config.precision)
    return TransformersChat(BACKENDS["transformers"](resolve(config.model), rewriter), config, content)


def _open_openai(config: ChatConfig) -> ChatModel:
    from cohyde.rewriter.openai_endpoint import OpenAIChat

    return OpenAIChat(config)


CHAT_BACKENDS: Mapping[str, Callable[[ChatConfig], ChatModel]] = {
    "transformers": _open_transformers,
    "openai": _open_openai,
}
"""Backends by the name that ``ChatConfig.backend`` chooses."""


@contextmanager
def open_chat(config: ChatConfig) -> Iterator[ChatModel]:
    """Open a chat model; it is closed in the end, come what may.

    Raises:
        UserError: there is no such backend or model, or the endpoint's URL or key cannot be right.
    """
    if config.backend not in CHAT_BACKENDS:
        raise UserError(f"there is no chat backend {config.backend!r}", f"choose one of: {', '.join(CHAT_BACKENDS)}")
    model = CHAT_BACKENDS[config.backend](config)
    try:
        yield model
    finally:
        model.close()
