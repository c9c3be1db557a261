"""Models behind an OpenAI-compatible server: a hosted one, or one's own (``vllm serve``, ``llama-server``).

What goes wrong is of three kinds. What every request would meet (a wrong address, key or model name) stops the work;
what may be one request's fault or bad luck costs that request alone; bad luck time after time stops the work after all.
The key is in no message: it is taken out of what a server says before that is quoted.
"""

import html
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from cohyde.catalog import fold
from cohyde.config import ChatConfig, SamplingConfig
from cohyde.errors import UserError
from cohyde.rewriter.chat import Conversation, Reply, check_one, failed, replied

PLACEHOLDER_KEY = "none"
"""Sent where there is no key: the client wants one, servers of one's own ignore it."""
HOPELESS = (401, 404, 405)
"""Statuses that every other request would get as well."""
ONE_REQUEST = (400, 403, 413, 422)
"""Statuses that a request may get for what it says; 403 comes from providers that screen texts."""
NOT_CONNECTED = ("ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol")
"""The HTTP client's errors when it has reached nobody."""
CUT = ("length", "content_filter")
"""Reasons for an end that is not the model's own."""
SEEDS = 1 << 31
"""Seeds are taken modulo this: some servers read 32 bits with a sign."""
QUOTED_CHARACTERS = 300
"""Of what a server says; it may be a whole web page."""
MASK = re.compile(r"\*|•|…|\.\.\.")
"""What stands for the middle of a key where a provider shows its ends."""
KEY_END = 3
"""Characters by which an end of the key is known."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a request is repeated whose answer could not be read; doubled each time, as the client does."""


class Named(Protocol):
    """What is asked: anything that a failure can be told by."""

    @property
    def id(self) -> str:
        """Its id."""


Asked = TypeVar("Asked", bound=Named)
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a request got no answer, after all retries."""

    id: str
    why: str
    status: int = 0
    connected: bool = True


class Endpoint:
    """A server that is asked many things at once."""

    def __init__(
        self, *, url: str, model: str, api_key_env: str, concurrency: int, timeout_seconds: float, retries: int
    ) -> None:
        """Get ready to ask; nothing is sent yet.

        Raises:
            UserError: the URL, the model's name or the key cannot be right.
        """
        from openai import OpenAI

        self.url, self.model = checked_endpoint(url), _checked_name(model)
        self._key_env, self._concurrency = api_key_env, concurrency
        self._timeout, self._retries = timeout_seconds, retries
        self._key = _key_from(api_key_env)
        self._answered = False
        self._failures_in_a_row = 0
        self.client = OpenAI(
            api_key=self._key or PLACEHOLDER_KEY, base_url=self.url, timeout=timeout_seconds, max_retries=retries
        )

    def answers(
        self,
        asked: Sequence[Asked],
        post: Callable[[Asked], str],
        read: Callable[[Asked, Mapping[str, Any]], "Answer | Failure"],
    ) -> Iterator["Answer | Failure"]:
        """The answers as they come, with ``concurrency`` requests under way.

        Args:
            asked: with ids that differ.
            post: sends a request with :attr:`client` and gives the body of the answer, as text.
            read: takes the answer from the body's JSON object.

        Raises:
            UserError: every request would fail, or too many have failed in a row.
        """
        waiting: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stop = threading.Event()
        for item in asked:
            waiting.put(item)

        def work() -> None:
            while not stop.is_set():
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put(self._ask(item, post, read))
                except Exception as error:
                    done.put(error)

        for _ in range(min(self._concurrency, len(asked))):
            # Daemons: whoever interrupts the work does not wait for a server that hangs.
            threading.Thread(target=work, daemon=True).start()
        try:
            for _ in asked:
                outcome = done.get()
                if isinstance(outcome, Exception):
                    raise outcome
                self._judge(outcome)
                yield outcome
        finally:
            stop.set()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _judge(self, outcome: Any) -> None:
        """What a failure means for the rest of the work."""
        if not isinstance(outcome, Failure):
            self._answered, self._failures_in_a_row = True, 0
            return
        if outcome.status in HOPELESS or not (outcome.connected or self._answered):
            raise UserError(f"{self.url}: {outcome.why}", self._remedy(outcome.status))
        if not (outcome.status in ONE_REQUEST and self._answered):
            self._failures_in_a_row += 1
        count = self._failures_in_a_row
        if count >= 2 * self._concurrency:
            raise UserError(
                f"{self.url}: {count} requests in a row have failed, the last one: {outcome.why}",
                "see to the endpoint; then run the same command again, which keeps what is done",
            )

    def _remedy(self, status: int) -> str:
        if status == 401:
            holds = "holds a key that it does not take" if self._key else "is not set"
            return f"the environment variable {self._key_env} {holds}; put the key there"
        if status in HOPELESS:
            served = ", ".join(self._served_models())
            models = f"the models there are: {served}" if served else "check the model's name"
            return f"{models}; the endpoint is the base URL, which mostly ends in /v1"
        return "check the address, and that the server is running"

    # -------------------------------------------------------------------------------------------------- one request

    def _ask(self, item: Any, post: Callable[[Any], str], read: Callable[[Any, Mapping[str, Any]], Any]) -> Any:
        """What became of a request, after all retries."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        try:
            for attempt in range(self._retries + 1):
                # It is parsed here and not by the client, which takes almost anything for valid.
                body = post(item)
                if isinstance(answer := _json_or_none(body), dict):
                    return read(item, answer)
                if attempt < self._retries:
                    time.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        except APIStatusError as error:
            return self._refused(item.id, error.status_code, error.response.text)
        except APITimeoutError:
            return Failure(id=item.id, why=f"no answer in {self._timeout:g} seconds")
        except APIConnectionError as error:
            name = type(error.__cause__).__name__
            why = f"no connection ({name}: {self._quotable(str(error.__cause__))})"
            return Failure(id=item.id, why=why, connected=name not in NOT_CONNECTED)
        return Failure(id=item.id, why=f"the answer is not JSON: {self._quotable(body)!r}")

    def _refused(self, identifier: str, status: int, body: str) -> Failure:
        if status == 401:
            # Not quoted: providers repeat parts of the key here.
            return Failure(id=identifier, why="it refuses the key (status 401)", status=status)
        why = f"status {status}: {self._quotable(_message_in(body))!r}"
        return Failure(id=identifier, why=why, status=status)

    def _quotable(self, text: str) -> str:
        """What may be shown of a server's words: without the key or its ends, on one line, and not too long."""
        text = fold(html.unescape(text))
        if self._key:
            for form in (self._key, quote(self._key), json.dumps(self._key)[1:-1]):
                text = text.replace(form, "[key]")
            text = _without_ends(text, self._key)
        return text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "…"

    def _served_models(self) -> list[str]:
        from openai import OpenAIError

        try:
            listed = _json_or_none(self.client.with_options(max_retries=0).models.with_raw_response.list().text)
        except OpenAIError:
            return []
        models = listed.get("data") if isinstance(listed, dict) else None
        names = [model.get("id") for model in models or () if isinstance(model, dict)]
        return [self._quotable(name) for name in names if isinstance(name, str)][:20]


class OpenAIChat(Endpoint):
    """A model behind a server's ``/chat/completions``; see :class:`cohyde.rewriter.chat.ChatModel`."""

    def __init__(self, config: ChatConfig) -> None:
        """As :class:`Endpoint`."""
        super().__init__(
            url=config.endpoint,
            model=config.model,
            api_key_env=config.api_key_env,
            concurrency=config.concurrency,
            timeout_seconds=config.timeout_seconds,
            retries=config.retries,
        )
        self.identity: Mapping[str, Any] = {"backend": "openai", "model": self.model}

    def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
        """The replies as they come, with ``concurrency`` requests under way; see :class:`ChatModel`."""
        check_one(sampling)
        extra: dict[str, Any] = {}
        if sampling.top_k:
            extra["top_k"] = sampling.top_k
        if sampling.repetition_penalty != 1:
            extra["repetition_penalty"] = sampling.repetition_penalty

        def post(conversation: Conversation) -> str:
            messages: Any = [dict(message) for message in conversation.messages]
            return self.client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=messages,
                n=1,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                seed=conversation.seed % SEEDS,
                extra_body=extra or None,
            ).text

        for outcome in self.answers(conversations, post, _reply_from):
            yield failed(outcome.id, outcome.why) if isinstance(outcome, Failure) else outcome


def _without_ends(text: str, key: str) -> str:
    """A text on one line without the words that show the key masked, as ``sk-1234***cdef``."""
    ends = (key[:KEY_END], key[-KEY_END:])
    is_masked = (MASK.search(word) and any(end in word for end in ends) for word in text.split(" "))
    return " ".join("[key]" if masked else word for word, masked in zip(text.split(" "), is_masked, strict=True))


# ---------------------------------------------------------------------------------------------------- reading answers


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _reply_from(conversation: Conversation, answer: Mapping[str, Any]) -> Reply | Failure:
    identifier = conversation.id
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return Failure(id=identifier, why="the answer holds no message")
    finished = choice.get("finish_reason") not in CUT
    content = message.get("content")
    if isinstance(content, str):
        return replied(identifier, content, finished=finished)
    if choice.get("finish_reason") == "length":
        # The server keeps reasoning apart, and the model never came to the end of it.
        return replied(identifier, "", finished=False)
    return Failure(id=identifier, why="the answer's message holds no text")


def _message_in(body: str) -> str:
    """What an error's body says: its message where it has the usual form, else all of it."""
    answer = _json_or_none(body)
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else body


# -------------------------------------------------------------------------------------------------- what is configured


def checked_endpoint(url: str) -> str:
    """The base URL without a slash at its end.

    Raises:
        UserError: it is no http(s) URL, or holds more than scheme, host, port and path: a user's name, a password or
            a query string would end up in logs.
    """
    remedy = "give the server's base URL, such as http://127.0.0.1:8000/v1"
    # What stands before an @ or after a ? may be a secret.
    shown = url.rpartition("@")[2].partition("?")[0]
    if not url:
        raise UserError("there is no endpoint", remedy)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise UserError(f"endpoint {shown!r} is not an http or https URL", remedy)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            f"endpoint {shown!r} comes with a name, a password, a query or a fragment",
            f"{remedy}; a key belongs into the environment variable that holds the API key",
        )
    if parts.path.rstrip("/").endswith("/chat/completions"):
        raise UserError(f"endpoint {shown!r} is not a base URL", "leave out /chat/completions")
    return url.rstrip("/")


def _checked_name(model: str) -> str:
    if not model.strip() or model.startswith(("package:", "tiny:")):
        raise UserError(f"model {model!r} is not the name of a model that an endpoint serves", "name the model")
    return model


def _key_from(variable: str) -> str:
    """The key, or an empty text. White space around it is not its own: it comes from files that end in a newline."""
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"the environment variable {variable} holds characters that no API key has", "set it to the key alone"
        )
    return key
