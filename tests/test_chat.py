"""Chat models: one that is loaded here, and one behind a real HTTP server that misbehaves."""

import json
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_server import Act, Script, body, chat_server, hang, hang_up, hang_up_midway, said, status

from cohyde.config import ChatConfig, SamplingConfig
from cohyde.errors import UserError
from cohyde.rewriter import openai_endpoint
from cohyde.rewriter.chat import ChatModel, Conversation, Reply, open_chat
from cohyde.rewriter.load import copy_model
from cohyde.rewriter.openai_endpoint import checked_endpoint

KEY = "sk-quite<secret&key"
GREEDY = SamplingConfig(max_new_tokens=20)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pause before a retry is 10 ms, and no key or proxy comes from outside."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai_endpoint, "FIRST_PAUSE", 0.01)
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def asked(*texts: str) -> list[Conversation]:
    """One conversation a text, which is its id as well."""
    return [
        Conversation(id=text, messages=({"role": "user", "content": text},), seed=2**62 + place)
        for place, text in enumerate(texts)
    ]


def settings(url: str, **departures: Any) -> ChatConfig:
    return ChatConfig(**{"backend": "openai", "model": "m", "endpoint": url, "retries": 1, **departures})


def ask(config: ChatConfig, conversations: Sequence[Conversation], sampling: SamplingConfig = GREEDY) -> list[Reply]:
    with open_chat(config) as chat:
        return list(chat.replies(conversations, sampling))


def echo(request: dict[str, Any], before: int) -> str:
    return f"re: {request['messages'][-1]['content']}"


def at_first(act: Act) -> Script:
    """Something else the first time that a conversation is sent, and then its echo."""
    return lambda request, before: echo(request, before) if before else act


def for_one(text: str, act: Act) -> Script:
    """Something else for one conversation, always; an echo for the others."""
    return lambda request, before: act if request["messages"][-1]["content"] == text else echo(request, before)


# ---------------------------------------------------------------------------------------------- what is sent and read


def test_every_conversation_gets_one_reply() -> None:
    with chat_server(echo) as server:
        replies = ask(settings(server.url), asked(*"abcdefghijk"))
    assert sorted((reply.id, reply.text) for reply in replies) == [(x, f"re: {x}") for x in "abcdefghijk"]
    assert all(reply.finished and not reply.error for reply in replies)
    assert sorted(server.questions()) == list("abcdefghijk")


def test_every_setting_of_the_sampling_is_sent() -> None:
    with chat_server(echo) as server:
        ask(settings(server.url), asked("a"), SamplingConfig(temperature=0.7, top_p=0.9, max_new_tokens=7))
        ask(settings(server.url), asked("a"), SamplingConfig(top_k=5, repetition_penalty=1.1, max_new_tokens=7))
    messages = [{"role": "user", "content": "a"}]
    plain = {"model": "m", "messages": messages, "n": 1, "max_tokens": 7, "seed": 0}
    assert server.requests == [
        {**plain, "temperature": 0.7, "top_p": 0.9},
        {**plain, "temperature": 0.0, "top_p": 1.0, "top_k": 5, "repetition_penalty": 1.1},
    ]
    assert server.headers[0]["authorization"] == "Bearer none"


def test_no_more_requests_than_allowed_are_under_way() -> None:
    def slowly(request: dict[str, Any], before: int) -> str:
        time.sleep(0.05)
        return "yes"

    with chat_server(slowly) as server:
        assert len(ask(settings(server.url, concurrency=3), asked(*"abcdefghi"))) == 9
    assert server.most_at_once == 3


def test_a_slow_reply_holds_up_no_other() -> None:
    def script(request: dict[str, Any], before: int) -> str:
        if request["messages"][-1]["content"] == "slow":
            time.sleep(0.3)
        return "yes"

    with chat_server(script) as server:
        replies = ask(settings(server.url, concurrency=2), asked("slow", "b", "c", "d"))
    assert [reply.id for reply in replies][-1] == "slow"


def test_work_that_is_given_up_asks_no_more() -> None:
    with chat_server(echo) as server, open_chat(settings(server.url, concurrency=1)) as chat:
        replies = chat.replies(asked(*map(str, range(500))), GREEDY)
        next(replies)
        replies.close()  # type: ignore[attr-defined]
        time.sleep(0.05)
        count = len(server.requests)
        time.sleep(0.05)
        assert len(server.requests) == count < 500


@pytest.mark.parametrize(
    ("act", "text", "finished"),
    [
        (said("<think>hm</think>\nyes"), "yes", True),
        (said("hm</think> yes"), "yes", True),
        (said("yes, and", "length"), "yes, and", False),
        (said("<think>hm, let me", "length"), "", False),
        (said(None, "length"), "", False),
        (said("yes, but", "content_filter"), "yes, but", False),
        (said(""), "", True),
        (said("half \ud83d a pair\0"), "half � a pair", True),
        (body('{"choices": [{"message": {"content": "yes"}}]}', "text/plain"), "yes", True),
    ],
)
def test_what_a_model_wrote_is_read(act: Act, text: str, finished: bool) -> None:
    with chat_server(lambda request, before: act) as server:
        assert ask(settings(server.url), asked("a")) == [Reply(id="a", text=text, finished=finished)]


def test_only_one_reply_a_conversation_can_be_asked_for() -> None:
    with pytest.raises(ValueError, match="one reply, not 2"):
        ask(settings("http://127.0.0.1:9/v1"), asked("a"), SamplingConfig(n=2, temperature=1))


# ------------------------------------------------------------------------------------------------------- bad luck


@pytest.mark.parametrize(
    "act",
    [
        status(429, retry_after="0"),
        status(500),
        status(503),
        body("Bad gateway", "text/html", 502),
        hang(1.0),
        hang_up,
        hang_up_midway,
        body('{"choices": [{"mess'),
        body("<html>Please log in</html>", "text/html"),
        body(""),
    ],
    ids=["429", "500", "503", "502", "hangs", "hangs up", "hangs up midway", "half JSON", "HTML", "nothing"],
)
def test_what_fails_once_is_asked_again(act: Act) -> None:
    with chat_server(at_first(act)) as server:
        assert ask(settings(server.url, timeout_seconds=0.2), asked("a")) == [
            Reply(id="a", text="re: a", finished=True)
        ]
    assert server.questions() == ["a", "a"]


def test_a_server_that_says_how_long_to_wait_is_given_that_time() -> None:
    with chat_server(at_first(status(429, retry_after="0.3"))) as server:
        begin = time.monotonic()
        ask(settings(server.url), asked("a"))
        assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize(
    ("act", "why", "requests"),
    [
        (status(429), "status 429: 'out of order'", 2),
        (status(500), "status 500: 'out of order'", 2),
        (body("<h1>Oh\nno</h1>", "text/html", 500), "status 500: '<h1>Oh no</h1>'", 2),
        (body('{"detail": "no"}', status=422), 'status 422: \'{"detail": "no"}\'', 1),
        (status(400, "too long"), "status 400: 'too long'", 1),
        (status(403, "flagged"), "status 403: 'flagged'", 1),
        (hang(1.0), "no answer in 0.2 seconds", 2),
        (hang_up, "no connection (RemoteProtocolError", 2),
        (body('{"choices": [{"mess'), 'the answer is not JSON: \'{"choices": [{"mess\'', 2),
        (body("<html>" + "x" * 1000), "the answer is not JSON: '<html>" + "x" * 294 + "…'", 2),
        (body("[" * 100_000), "the answer is not JSON", 2),
        (body("{}"), "holds no message", 1),
        (body('{"choices": []}'), "holds no message", 1),
        (body('{"choices": [null]}'), "holds no message", 1),
        (body('{"choices": {"0": 1}}'), "holds no message", 1),
        (body('{"choices": [{"message": "text"}]}'), "holds no message", 1),
        (said(None), "message holds no text", 1),
    ],
)
def test_one_conversation_that_keeps_failing_costs_no_other(act: Act, why: str, requests: int) -> None:
    with chat_server(for_one("bad", act)) as server:
        replies = ask(settings(server.url, timeout_seconds=0.2, concurrency=2), asked("a", "bad", "c", "d"))
    by_id = {reply.id: reply for reply in replies}
    assert len(replies) == 4
    assert {by_id[x].text for x in "acd"} == {"re: a", "re: c", "re: d"}
    assert why in by_id["bad"].error
    assert (by_id["bad"].text, by_id["bad"].finished) == ("", False)
    assert server.questions().count("bad") == requests


def test_an_endpoint_where_nothing_succeeds_stops_the_work() -> None:
    message = "4 requests in a row have failed, the last one: status 500"
    with chat_server(lambda request, before: status(500)) as server, pytest.raises(UserError, match=message) as caught:
        ask(settings(server.url, concurrency=2, retries=0), asked(*map(str, range(100))))
    assert "keeps what is done" in caught.value.remedy
    assert 4 <= len(server.requests) <= 4 + 2 + 2


def test_an_endpoint_that_dies_during_the_work_stops_it() -> None:
    def script(request: dict[str, Any], before: int) -> Act | str:
        return "yes" if int(request["messages"][-1]["content"]) < 10 else hang_up

    with chat_server(script) as server, open_chat(settings(server.url, concurrency=2, retries=0)) as chat:
        replies = []
        with pytest.raises(UserError, match="4 requests in a row have failed"):
            replies += chat.replies(asked(*map(str, range(100))), GREEDY)
        replies = list(chat.replies(asked("1"), GREEDY))
    assert replies[0].text == "yes"


def test_refused_texts_do_not_stop_an_endpoint_that_answers() -> None:
    with chat_server(lambda request, before: "yes" if request["seed"] == 0 else status(400, "too long")) as server:
        replies = ask(settings(server.url, concurrency=1), asked(*map(str, range(20))))
    assert [bool(reply.error) for reply in replies] == [False] + [True] * 19


# ------------------------------------------------------------------------------------ what the user has to see to


def test_an_endpoint_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(UserError, match=rf"{url}: no connection \(ConnectError: .*refused") as caught:
            ask(settings(url), asked("a", "b"))
    assert "the server is running" in caught.value.remedy


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"http://no-such-host\.invalid/v1: no connection"):
        ask(settings("http://no-such-host.invalid/v1", retries=0), asked("a"))


def test_an_unknown_model_is_answered_with_those_there_are() -> None:
    act = status(404, "The model `m` does not exist")
    with (
        chat_server(lambda request, before: act, ("small", "large")) as server,
        pytest.raises(UserError, match="status 404: 'The model `m` does not exist'") as caught,
    ):
        ask(settings(server.url), asked("a"))
    assert "small, large" in caught.value.remedy
    assert len(server.requests) == 1


def test_a_wrong_path_is_the_users_to_mend() -> None:
    with chat_server(echo) as server:
        wrong = server.url.removesuffix("/v1")
        with pytest.raises(UserError, match=f"{wrong}: status 404") as caught:
            ask(settings(wrong), asked("a"))
    assert "/v1" in caught.value.remedy


@pytest.mark.parametrize(("key", "words"), [("", "TEAM_KEY is not set"), (KEY, "TEAM_KEY holds a key that it does")])
def test_a_refused_key_names_the_variable_and_not_the_key(
    monkeypatch: pytest.MonkeyPatch, key: str, words: str
) -> None:
    monkeypatch.setenv("TEAM_KEY", key)
    with (
        chat_server(lambda request, before: status(401, f"Incorrect API key {KEY[:8]}***")) as server,
        pytest.raises(UserError, match="refuses the key") as caught,
    ):
        ask(settings(server.url, api_key_env="TEAM_KEY"), asked("a"))
    assert words in caught.value.remedy
    assert KEY[:8] not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "act",
    [
        status(500, f"upstream refused Bearer {KEY}"),
        status(400, f"{KEY} " * 20),
        body(f"<pre>Authorization: Bearer {KEY}".replace("&", "&amp;").replace("<q", "&lt;q"), "text/html"),
        body(json.dumps({"error": KEY}), status=404),
        status(401, KEY),
        status(403, f"Incorrect API key provided: {KEY[:8]}***{KEY[-4:]}."),
        body(f'{{"detail":"no such key:{KEY[:8]}..."}}', status=403),
        hang_up,
    ],
)
def test_the_key_is_sent_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], act: Act
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    shown = ""
    with chat_server(lambda request, before: act, (KEY,)) as server:
        config = settings(server.url)
        with open_chat(config) as chat:
            shown += repr(chat) + repr(config) + json.dumps(dict(chat.identity))
            try:
                shown += repr(list(chat.replies(asked("a"), GREEDY)))
            except UserError as error:
                shown += str(error)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    output = capfd.readouterr()
    for text in (shown, caplog.text, output.out, output.err):
        assert "quite" not in text and "secret" not in text


@pytest.mark.parametrize("key", ["zwei schlüssel", "one two", "line\nbreak", "schlüssel"])
def test_a_text_that_is_no_key_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match="OPENAI_API_KEY holds characters that no API key has") as caught:
        ask(settings("http://127.0.0.1:9/v1"), [])
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "there is no endpoint"),
        ("localhost:8000/v1", "'localhost:8000/v1' is not an http or https URL"),
        ("ftp://host/v1", "not an http"),
        ("http:///v1", "not an http"),
        ("http://host:port/v1", "not an http"),
        ("http://host:99999/v1", "not an http"),
        ("http://[::1/v1", "not an http"),
        ("http://host/v 1", "not an http"),
        ("http://host/v1\n", "not an http"),
        ("http://me:secret@host/v1", "'host/v1' comes with a name, a password"),
        ("me:secret@host/v1", "'host/v1' is not"),
        ("http://host/v1?key=secret", "'http://host/v1' comes with"),
        ("http://host/v1/chat/completions", "not a base URL"),
    ],
)
def test_an_endpoint_that_cannot_be_right_is_refused(url: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_endpoint(url)
    assert message in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_slash_at_the_end_of_an_endpoint_makes_no_difference() -> None:
    with chat_server(echo) as server:
        assert ask(settings(server.url + "/"), asked("a"))[0].text == "re: a"


@pytest.mark.parametrize("model", ["", " ", ChatConfig().model])
def test_an_endpoint_needs_the_name_of_a_model(model: str) -> None:
    with pytest.raises(UserError, match="is not the name of a model that an endpoint serves"):
        ask(settings("http://127.0.0.1:9/v1", model=model), asked("a"))


def test_an_unknown_backend_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError, match="no chat backend 'parrot'") as caught:
        ask(ChatConfig(backend="parrot"), asked("a"))  # type: ignore[arg-type]
    assert "transformers, openai" in caught.value.remedy


def test_identity_is_the_model_and_not_where_it_is_asked() -> None:
    def identity(**departures: Any) -> dict[str, Any]:
        with open_chat(settings("http://127.0.0.1:9/v1", **departures)) as chat:
            return dict(chat.identity)

    same = identity()
    assert same == {"backend": "openai", "model": "m"}
    assert identity(endpoint="http://127.0.0.1:10/v1", concurrency=2, timeout_seconds=1.0, retries=0) == same
    assert identity(model="n") != same


# ---------------------------------------------------------------------------------------------- a model loaded here


def loaded(path: Path, **departures: Any) -> ChatConfig:
    return ChatConfig(model=str(path), **departures)


def by_id(replies: Sequence[Reply]) -> dict[str, Reply]:
    return {reply.id: reply for reply in replies}


def test_a_loaded_model_replies_alike_in_batches_of_any_size(tiny_rewriter_path: Path) -> None:
    conversations = asked("rain?", "what is the weather like in Leeds", "a song")
    sampling = SamplingConfig(temperature=1.0, max_new_tokens=8)
    together = ask(loaded(tiny_rewriter_path), conversations, sampling)
    one_by_one = ask(loaded(tiny_rewriter_path, batch_size=1), conversations, sampling)
    assert len(together) == 3
    assert by_id(together) == by_id(one_by_one)
    assert [reply.id for reply in one_by_one] == [conversation.id for conversation in conversations]
    assert not any(reply.error for reply in together)


def test_replies_of_a_batch_are_there_before_the_next_is_begun(tiny_rewriter_path: Path) -> None:
    with open_chat(loaded(tiny_rewriter_path, batch_size=2)) as chat:
        replies = chat.replies([*asked("a", "b"), broken_conversation("c")], GREEDY)
        assert {next(replies).id, next(replies).id} == {"a", "b"}
        with pytest.raises(UserError, match="chat template"):
            next(replies)


def broken_conversation(identifier: str) -> Conversation:
    return Conversation(id=identifier, messages=({"role": "nobody", "content": "x"},), seed=0)


@pytest.mark.parametrize(
    ("words", "most", "new", "why"),
    [(300, 100, 8, "tokens, of at most 100"), (3, 2048, 100_000, "longest sequence")],
)
def test_a_conversation_that_is_too_long_gets_an_error(
    tiny_rewriter_path: Path, words: int, most: int, new: int, why: str
) -> None:
    config = loaded(tiny_rewriter_path, max_prompt_tokens=most)
    replies = ask(config, asked("word " * words), SamplingConfig(max_new_tokens=new))
    assert [(reply.text, reply.finished) for reply in replies] == [("", False)]
    assert why in replies[0].error


def test_a_conversation_that_is_too_long_costs_no_other(tiny_rewriter_path: Path) -> None:
    with open_chat(loaded(tiny_rewriter_path, max_prompt_tokens=1_000_000)) as chat:
        longest = longest_sequence(chat)
        conversations = asked("rain?", "word " * longest, "a song")
        replies = by_id(list(chat.replies(conversations, GREEDY)))
    assert [bool(replies[conversation.id].error) for conversation in conversations] == [False, True, False]


def longest_sequence(chat: ChatModel) -> int:
    generator: Any = chat.generator  # type: ignore[attr-defined]
    return int(generator.model.config.get_text_config().max_position_embeddings)


def test_a_loaded_model_s_identity_is_its_content(tiny_rewriter_path: Path, tmp_path: Path) -> None:
    copy_model(tiny_rewriter_path, tmp_path / "copy")
    identities = []
    for config in (
        loaded(tiny_rewriter_path, batch_size=1),
        loaded(tmp_path / "copy"),
        loaded(tiny_rewriter_path, precision="bf16"),
    ):
        with open_chat(config) as chat:
            identities.append(dict(chat.identity))
    assert identities[0] == identities[1] != identities[2]
    assert str(tiny_rewriter_path) not in json.dumps(identities)


def test_a_model_that_is_not_there_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        ask(ChatConfig(model="no/such/model/folder"), asked("a"))
