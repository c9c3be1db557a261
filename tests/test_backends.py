"""Which backend generates, what of it bears identity, and a server in place of a model that is loaded here."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohyde.config import EndpointConfig, RewriterConfig, SamplingConfig, VllmConfig, identity_of, load_config
from cohyde.dag.attempts import Owner, end_left_processes, new_attempt
from cohyde.dag.processes import birth_of, is_alive
from cohyde.dag.store import Store
from cohyde.errors import Interrupted, UserError
from cohyde.progress import Silent
from cohyde.rewriter.generate import Request, chosen, open_generator
from cohyde.rewriter.load import load_tokenizer
from cohyde.rewriter.openai_backend import OpenAIGenerator
from cohyde.rewriter.prefix_caching import caches_prefixes, finding, is_hybrid, remember
from cohyde.rewriter.prompts import encode_prompt
from cohyde.rewriter.vllm_process import Cannot, wait_for_memory
from stages.pipeline import pipeline
from tests.chat_server import COMPLETIONS, Act, body, chat_server, hang, status
from tests.command_line import caller
from tests.tiny_language_models import save_llama

GIB = 1 << 30


# ------------------------------------------------------------------------------------------- which, and its identity


def test_auto_hangs_on_what_is_reserved_and_on_nothing_else() -> None:
    assert chosen(RewriterConfig()).backend == "transformers"
    assert chosen(RewriterConfig(), gpus=1).backend == "vllm"
    assert chosen(RewriterConfig(), gpus=0.5).backend == "vllm"
    assert chosen(RewriterConfig(backend="transformers"), gpus=1).backend == "transformers"


def test_settings_of_a_backend_that_is_not_chosen_bear_no_identity() -> None:
    config = RewriterConfig(vllm=VllmConfig(prefix_caching="off"), openai=EndpointConfig(model="m"))
    assert identity_of(chosen(config)) == identity_of(chosen(RewriterConfig()))
    assert "vllm" not in identity_of(chosen(RewriterConfig(), gpus=1))


def test_of_an_engine_s_settings_only_a_forced_prefix_cache_bears_identity() -> None:
    def of(**settings: Any) -> dict[str, Any]:
        return identity_of(chosen(RewriterConfig(backend="vllm", vllm=VllmConfig(**settings))))

    assert of(gpu_memory_utilization=0.5, enforce_eager=True, max_sequences=8, tensor_parallel_size=2) == of()
    assert of(prefix_caching="on") != of() != of(prefix_caching="off")


def test_a_server_is_told_by_the_model_and_not_by_its_address() -> None:
    def of(**settings: Any) -> dict[str, Any]:
        return identity_of(chosen(RewriterConfig(backend="openai", openai=EndpointConfig(**settings))))

    assert of(url="http://127.0.0.1:1/v1", model="m") == of(url="http://127.0.0.1:2/v1", model="m", concurrency=2)
    assert of(model="m") != of(model="n")


def test_stages_of_a_preset_with_gpus_generate_with_vllm() -> None:
    specs = {
        gpus: {spec.id: spec for spec in pipeline(load_config("tiny", [f"resources.generation.gpus={gpus}"]))}
        for gpus in (0, 1)
    }
    for stage_id in ("S2.1", "S4s.1", "E.0", "E.1"):
        assert specs[0][stage_id].config.rewriter.backend == "transformers"
        assert specs[1][stage_id].config.rewriter.backend == "vllm"
    # The model in training is in memory, where no engine can reach it.
    assert specs[1]["S1b"].config == specs[0]["S1b"].config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rewriter.backend=openai"], "a server's weights stay as they are"),
        (["rewriter.backend=openai", "rounds=0"], "a server's weights stay as they are"),
        (["rewriter.backend=openai", "rounds=0", "sft.enabled=false"], "not said who answers"),
        (
            ["rewriter.backend=vllm", "rewriter.vllm.tensor_parallel_size=2", "resources.generation.gpus=1"],
            "is 2, but generation reserves 1 GPUs",
        ),
    ],
)
def test_what_a_backend_cannot_do_is_refused_before_anything_runs(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pipeline(load_config("tiny", overrides))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_is_named_with_the_command(tiny_rewriter_path: Path) -> None:
    with (
        pytest.raises(UserError, match="vLLM is not installed") as caught,
        open_generator(tiny_rewriter_path, RewriterConfig(backend="vllm", precision="float32")),
    ):
        pass
    assert "pip install -c constraints.txt -e '.[gpu]'" in caught.value.remedy


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_run_says_so_before_anything_is_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = caller(capfd, monkeypatch)
    code, _, said = call("run", "--config", "tiny", "--store", str(tmp_path), "rewriter.backend=vllm")
    assert code == 2 and "vLLM is not installed" in said
    assert not (tmp_path / "logs").exists()


# ------------------------------------------------------------------------------------------- prompts that are too long


def test_a_prompt_without_room_is_an_error_or_an_empty_completion(tmp_path: Path) -> None:
    llama = save_llama(tmp_path / "llama")  # 512 tokens at most, a byte each
    requests = [Request(id="long", prompt="weather " * 200, seed=1), Request(id="short", prompt="weather", seed=2)]
    config = RewriterConfig(backend="transformers", precision="float32")
    with (
        open_generator(llama, config) as generator,
        pytest.raises(UserError, match="request long: 1600 prompt tokens and 4 new ones are more than"),
    ):
        generator.generate(requests, SamplingConfig(max_new_tokens=4), Silent())
    with open_generator(llama, replace(config, too_long="drop")) as generator:
        long, short = generator.generate(requests, SamplingConfig(max_new_tokens=4), Silent())
    assert (long.id, long.texts, long.tokens, long.finished) == ("long", ("",), (0,), (False,))
    assert short.id == "short" and short.tokens[0] > 0


# ------------------------------------------------------------------------------------------------------- prefix caching


def test_linear_attention_caches_no_prefix_until_it_was_found_to_be_right(
    tiny_rewriter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHYDE_CACHE", str(tmp_path / "cache"))
    llama = save_llama(tmp_path / "llama")
    assert not is_hybrid(llama) and caches_prefixes(llama, "auto") and not caches_prefixes(llama, "off")
    assert is_hybrid(tiny_rewriter_path) and finding(tiny_rewriter_path) is None
    assert not caches_prefixes(tiny_rewriter_path, "auto") and caches_prefixes(tiny_rewriter_path, "on")
    remember(tiny_rewriter_path, True)
    assert caches_prefixes(tiny_rewriter_path, "auto")
    remember(tiny_rewriter_path, False)
    assert finding(tiny_rewriter_path) is False and not caches_prefixes(tiny_rewriter_path, "auto")


# ------------------------------------------------------------------------------------------------------------- a server


def completions(*texts: str, finish: str = "stop") -> Act:
    """An answer with these texts, in the wrong order."""
    choices = [{"index": place, "text": text, "finish_reason": finish} for place, text in enumerate(texts)]
    return body(json.dumps({"object": "text_completion", "choices": choices[::-1]}))


@pytest.fixture
def tokenizer(tiny_rewriter_path: Path) -> Any:
    return load_tokenizer(tiny_rewriter_path)


def asking(tokenizer: Any, url: str, **settings: Any) -> OpenAIGenerator:
    endpoint = EndpointConfig(url=url, model="m", retries=1, timeout_seconds=20, concurrency=4)
    too_long = settings.pop("too_long", "error")
    return OpenAIGenerator(tokenizer, RewriterConfig(openai=replace(endpoint, **settings), too_long=too_long))


def requests_for(*prompts: str) -> list[Request]:
    return [Request(id=f"q{place}", prompt=prompt, seed=(1 << 63) - 1 - place) for place, prompt in enumerate(prompts)]


def test_completions_come_in_the_order_of_the_requests(tokenizer: Any) -> None:
    prompts = ["one", "two", "three", "four", "five", "six"]
    by_tokens = {tuple(encode_prompt(tokenizer, prompt)): prompt for prompt in prompts}
    with chat_server(lambda asked, _: completions(by_tokens[tuple(asked["prompt"])].upper()), route=COMPLETIONS) as at:
        generator = asking(tokenizer, at.url)
        done = generator.generate(requests_for(*prompts), SamplingConfig(), Silent())
        generator.close()
    assert [(item.id, item.texts) for item in done] == [(f"q{n}", (p.upper(),)) for n, p in enumerate(prompts)]
    assert at.most_at_once <= 4


def test_every_setting_is_said_and_each_request_has_its_seed(tokenizer: Any) -> None:
    sampling = SamplingConfig(n=2, temperature=0.7, top_p=0.95, top_k=50, max_new_tokens=9, repetition_penalty=1.1)
    with chat_server(lambda asked, _: completions("first", "second", finish="length"), route=COMPLETIONS) as at:
        (done,) = asking(tokenizer, at.url).generate(requests_for("prompt"), sampling, Silent())
    (asked,) = at.requests
    assert asked["prompt"] == encode_prompt(tokenizer, "prompt")
    expected = {"n": 2, "temperature": 0.7, "top_p": 0.95, "top_k": 50, "max_tokens": 9, "repetition_penalty": 1.1}
    assert {name: asked[name] for name in expected} == expected
    # Some servers read 32 bits with a sign, and the second candidate's seed is one more, so it is 2^63 - 1 modulo
    # 2^31 - 2; there 2^31 is 2, and 2^63 = 2 * 2^31 * 2^31 is 8.
    assert asked["seed"] == 8 - 1
    assert done.texts == ("first", "second") and done.finished == (False, False)
    assert done.tokens == tuple(len(encode_prompt(tokenizer, text)) for text in done.texts)


def test_tokens_are_counted_as_the_server_counts_them(tokenizer: Any) -> None:
    choice = {"index": 0, "text": "word", "finish_reason": "stop", "token_ids": [5, 6, 7]}
    with chat_server(lambda asked, _: body(json.dumps({"choices": [choice]})), route=COMPLETIONS) as at:
        (done,) = asking(tokenizer, at.url).generate(requests_for("prompt"), SamplingConfig(), Silent())
    assert done.tokens == (2,)  # the third ended it


def test_a_prompt_that_the_server_finds_too_long_is_dropped_where_that_is_wanted(tokenizer: Any) -> None:
    long = tuple(encode_prompt(tokenizer, "long"))

    def script(asked: dict[str, Any], _: int) -> Act:
        refused = status(400, "This model's maximum context length is 16 tokens")
        return refused if tuple(asked["prompt"]) == long else completions("text")

    with chat_server(script, route=COMPLETIONS) as at:
        requests = requests_for("short", "long")
        done = asking(tokenizer, at.url, too_long="drop").generate(requests, SamplingConfig(), Silent())
        with pytest.raises(UserError, match=r"request q1: status 400.*maximum context length"):
            asking(tokenizer, at.url).generate(requests, SamplingConfig(), Silent())
    assert [(item.texts, item.tokens) for item in done] == [(("text",), done[0].tokens), (("",), (0,))]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (status(503), "status 503"),
        (hang(0.0), "no connection"),
        (body("<html>"), "not JSON"),
        (completions("one", "two"), "does not hold 1 completions"),
        (body('{"choices": [{"message": {}}]}'), "does not hold 1 completions"),
        (status(404, "no such model"), "the models there are: m"),
    ],
)
def test_a_server_that_gives_no_completion_stops_the_work(
    tokenizer: Any, act: Act, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("cohyde.rewriter.openai_endpoint.FIRST_PAUSE", 0.01)
    with chat_server(lambda asked, before: act, route=COMPLETIONS) as at, pytest.raises(UserError) as caught:
        asking(tokenizer, at.url).generate(requests_for("prompt"), SamplingConfig(), Silent())
    assert message in f"{caught.value.message} {caught.value.remedy}"


def test_work_that_shall_stop_asks_no_more(tokenizer: Any) -> None:
    class Stopping(Silent):
        stopping = True

    with chat_server(lambda asked, _: completions("text"), route=COMPLETIONS) as at, pytest.raises(Interrupted):
        generator = asking(tokenizer, at.url, concurrency=1)
        generator.generate(requests_for(*map(str, range(50))), SamplingConfig(), Stopping())
    assert len(at.requests) <= 3


# ------------------------------------------------------------------------------------------------ memory and processes


def memory(*free: float) -> Callable[[], tuple[int, int]]:
    """A GPU of 100 GiB of which so much is free, look after look; the last for ever."""
    left = list(free)
    return lambda: (int((left.pop(0) if len(left) > 1 else left[0]) * GIB), 100 * GIB)


def test_an_engine_waits_until_the_memory_it_takes_is_free() -> None:
    looks = memory(10, 60, 95)
    wait_for_memory(0.9, looks, patience=60, pause=0)
    assert looks() == (95 * GIB, 100 * GIB)
    with pytest.raises(Cannot, match=r"10\.0 of 100\.0 GiB free, and the engine takes 90%"):
        wait_for_memory(0.9, memory(10), patience=0)


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def test_a_retry_ends_what_a_dead_worker_had_started_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    worker = "import subprocess, sys; from cohyde.dag.attempts import *; from cohyde.dag.store import Store\n"
    worker += "attempt = new_attempt(Store(sys.argv[1]), 'S2.1-abc'); attempt.start(Owner.this_process('run'))\n"
    worker += (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    )
    worker += "attempt.note_processes([]); print(child.pid, flush=True); import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", worker, str(tmp_path)], stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        child = int(dying.stdout.readline())
        other = sleeper()
        try:
            # The worker lives: what it has started is its own.
            assert end_left_processes(store, "S2.1-abc", 2) == (0, [])
            os.kill(child, signal.SIGSTOP)
            dying.kill()
            dying.wait()
            assert is_alive(child)
            assert end_left_processes(store, "S2.1-abc", 2) == (1, [])
            assert not is_alive(child) and is_alive(other.pid)
        finally:
            other.kill()
            other.wait()


def test_a_number_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    other = sleeper()
    try:
        attempt = new_attempt(store, "S2.1-abc")
        gone = sleeper()
        owner = replace(Owner.this_process("run"), pid=gone.pid, birth=birth_of(gone.pid))
        gone.kill()
        gone.wait()
        attempt.start(owner)
        noted = {"host": owner.host, "processes": [[other.pid, "1"]]}
        (attempt.folder / "processes.json").write_text(json.dumps(noted), encoding="utf-8")
        assert end_left_processes(store, "S2.1-abc", 2) == (0, [])
        assert is_alive(other.pid)
    finally:
        other.kill()
        other.wait()
