"""Live retrieval: requests, batches, the circuit breaker, descriptions in time, and a catalogue that changes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cohyde
from cohyde.catalog import Tool, render
from cohyde.config import EmbeddingConfig, RewriterConfig, SamplingConfig, SearchConfig, ServeConfig
from cohyde.encoder.model import embed, load_encoder
from cohyde.encoder.retriever import DenseRetriever
from cohyde.errors import UserError
from cohyde.io import read_rows
from cohyde.retrieval.answer import Answer
from cohyde.retrieval.batching import Batcher
from cohyde.retrieval.breaker import Breaker
from cohyde.retrieval.catalog import UnknownToolError
from cohyde.retrieval.descriptions import Cache, Descriptions
from cohyde.retrieval.live import LiveRetriever
from cohyde.retrieval.requests import RequestError, check_count, check_queries, check_query
from cohyde.retrieval.rewriters import GeneratorRewriter
from cohyde.rewriter.generate import open_generator
from cohyde.rewriter.prompts import Example, load_prompt

EMBEDDING = EmbeddingConfig(max_length=64)
RAIN = Tool(id="rain", title="Weather", api_name="forecast", api_description="Returns the forecast for a city.")
EURO = Tool(id="euro", title="Money", api_name="rate", api_description="Returns an exchange rate.")
WAKE = Tool(id="wake", title="Clock", api_name="alarm", api_description="Sets an alarm.")
TOOLS = (RAIN, EURO, WAKE)


def rewriter_saying(describe: Callable[[Sequence[str]], list[str]], batches_at_once: int = 1):
    """A rewriter that does as a test says."""

    class Saying:
        def __init__(self) -> None:
            self.calls: list[list[str]] = []
            self.batches_at_once = batches_at_once
            self.closed = False

        def describe(self, texts: Sequence[str]) -> list[str]:
            self.calls.append(list(texts))
            return describe(texts)

        def close(self) -> None:
            self.closed = True

    return Saying()


def descriptions(rewriter, *, cached: int = 10, failures: int = 2, deadline: float | None = None, clock=None):
    breaker = Breaker(failures=failures, pause_seconds=30, **({"clock": clock} if clock else {}))
    return Descriptions(rewriter, cache=Cache(cached), breaker=breaker, most=8, window=0, deadline=deadline)


def retriever(encoder: Path, *, mode: str = "query", **arguments) -> LiveRetriever:
    return LiveRetriever(encoder, TOOLS, embedding=EMBEDDING, search=SearchConfig(mode=mode), **arguments)


def ids(answer: Answer) -> list[str]:
    return [tool.id for tool, _ in answer.tools]


# ------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the request is empty"),
        (" \t\n\u00a0", "nothing but white space or invisible"),
        ("\u200b\u200d\ufeff", "nothing but white space or invisible"),
        ("\u3164\u2800", "nothing but white space or invisible"),
        ("a" * 101, "has 101 characters, of at most 100"),
        ("rain\0", "NUL character at position 5"),
        ("rain \ud800", "half a surrogate pair at position 6"),
        (None, "has to be a text, got NoneType"),
    ],
)
def test_a_request_that_cannot_be_searched_with_is_refused(text: str, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        check_query(text, 100)


def test_a_request_is_composed_and_its_white_space_folded() -> None:
    assert check_query("  cafe\u0301 \n near\u3000me ", 100) == "caf\u00e9 near me"
    assert check_query("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", 100).count("\u200c") == 1  # Persian needs it
    assert check_query("🌧️?", 100) == "🌧️?"


def test_one_text_in_place_of_several_is_refused() -> None:
    with pytest.raises(RequestError, match="got one text"):
        check_queries("rain", 100)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3"])
def test_a_count_that_is_no_whole_number_from_one_is_refused(k) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        check_count(k)


# ------------------------------------------------------------------------------------------------------- batches


def test_what_waits_while_a_batch_is_in_work_is_the_next_batch() -> None:
    going, begun = threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        begun.set()
        going.wait(60)
        return [2 * item for item in items]

    batcher: Batcher[int, int] = Batcher(work, most=3)
    first = batcher.submit(0)
    assert begun.wait(60)
    rest = batcher.submit_all([1, 2, 3, 4])
    going.set()
    assert [future.result(60) for future in (first, *rest)] == [0, 2, 4, 6, 8]
    batcher.close()
    assert batcher.sizes == {1: 2, 3: 1}  # 0 alone, then 1 2 3, then 4


def test_a_batch_that_fails_fails_for_its_items_alone() -> None:
    def work(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    batcher: Batcher[int, float] = Batcher(work, most=1)
    failing, fine = batcher.submit(0), batcher.submit(2)
    with pytest.raises(ZeroDivisionError):
        failing.result(60)
    assert fine.result(60) == 0.5
    batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(1)


def test_results_that_are_too_few_are_an_error_and_not_a_wait_without_end() -> None:
    batcher: Batcher[int, int] = Batcher(lambda items: [], most=1)
    with pytest.raises(ValueError):
        batcher.submit(1).result(60)
    batcher.close()


# -------------------------------------------------------------------------------------------------------- breaker


def test_a_breaker_opens_after_failures_in_a_row_and_tries_again_after_a_pause() -> None:
    now = [0.0]
    breaker = Breaker(failures=2, pause_seconds=30, clock=lambda: now[0])
    breaker.failed("one")
    breaker.succeeded()
    breaker.failed("two")
    assert breaker.allows() and not breaker.is_open  # two failures, but not in a row
    breaker.failed("three")
    assert breaker.is_open and breaker.reason == "three" and not breaker.allows()
    now[0] = 30.0
    assert breaker.allows() and not breaker.allows()  # one try, and the others do not wait for it
    breaker.failed("four")
    now[0] = 59.0
    assert not breaker.allows()
    now[0] = 60.0
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows() and breaker.allows() and not breaker.is_open


# --------------------------------------------------------------------------------------------------- descriptions


def test_a_description_is_made_once_and_then_known() -> None:
    rewriter = rewriter_saying(lambda texts: [f"about {text}" for text in texts])
    asked = descriptions(rewriter)
    assert [item.text for item in asked.describe(["a", "b", "a"])] == ["about a", "about b", "about a"]
    assert [(item.text, item.cached) for item in asked.describe(["b"])] == [("about b", True)]
    assert sorted(text for call in rewriter.calls for text in call) == ["a", "b"]
    asked.close()
    assert rewriter.closed


def test_the_description_that_was_not_used_for_longest_is_forgotten() -> None:
    cache = Cache(2)
    for key in ("a", "b"):
        cache.put(key, key)
    assert cache.get("a") == "a"
    cache.put("c", "c")
    assert [cache.get(key) for key in ("a", "b", "c")] == ["a", None, "c"] and len(cache) == 2
    nothing = Cache(0)
    nothing.put("a", "a")
    assert nothing.get("a") is None


def test_a_rewriter_that_is_too_slow_is_not_waited_for_and_its_late_answer_is_kept() -> None:
    going = threading.Event()

    def describe(texts: Sequence[str]) -> list[str]:
        going.wait(60)
        return list(texts)

    asked = descriptions(rewriter_saying(describe), deadline=0.5)
    [late] = asked.describe(["a"])
    assert (late.text, late.reason) == ("", "the rewriter did not answer in 0.5 s")
    going.set()
    asked.batcher.close()
    assert asked.cache.get("a") == "a"


def test_a_rewriter_that_is_down_is_left_alone_and_tried_again() -> None:
    now, broken = [0.0], [True]

    def describe(texts: Sequence[str]) -> list[str]:
        if broken[0]:
            raise UserError("nobody answers there", "start it")
        return list(texts)

    rewriter = rewriter_saying(describe)
    asked = descriptions(rewriter, failures=2, clock=lambda: now[0])
    assert [asked.describe([text])[0].reason for text in "ab"] == ["the rewriter failed: nobody answers there"] * 2
    resting = asked.describe(["c"])[0].reason
    assert resting == "the rewriter is left alone for a while: the rewriter failed: nobody answers there"
    assert rewriter.calls == [["a"], ["b"]]
    now[0], broken[0] = 30.0, False
    assert asked.describe(["d"])[0].text == "d"
    assert asked.describe(["c"])[0].text == "c"
    asked.close()


def test_one_request_at_fault_does_not_cost_the_others_their_description() -> None:
    def describe(texts: Sequence[str]) -> list[str]:
        if "bad" in texts:
            raise UserError("too long")
        return list(texts)

    asked = descriptions(rewriter_saying(describe))
    assert [item.text for item in asked.describe(["good", "bad", "fine"])] == ["good", "", "fine"]
    asked.close()


def test_an_unexpected_error_is_named_by_its_kind_alone() -> None:
    def describe(texts: Sequence[str]) -> list[str]:
        raise ValueError("what nobody outside should read")

    asked = descriptions(rewriter_saying(describe))
    assert asked.describe(["a"])[0].reason == "the rewriter failed (ValueError)"
    asked.close()


def test_a_description_that_is_empty_after_cleaning_is_said_and_is_no_failure() -> None:
    asked = descriptions(rewriter_saying(lambda texts: [""] * len(texts)), failures=1)
    assert asked.describe(["a"])[0].reason == "nothing was left of what the rewriter wrote"
    assert not asked.breaker.is_open
    asked.close()


# ------------------------------------------------------------------------------------------------------- catalogue


def test_a_changed_catalogue_ranks_as_one_that_was_built_so(tiny_encoder_path: Path) -> None:
    dawn = Tool(id="dawn", title="Sun", api_name="rise", api_description="Returns when the sun rises.")
    twin = replace(EURO, id="twin")
    money = replace(EURO, api_description="Converts an amount of money.")
    with retriever(tiny_encoder_path) as live:
        change = live.change(put=[dawn, twin, money], remove=["rain"])
        assert (change.added, change.changed, change.removed, change.tools) == (2, 1, 1, 4)
        assert change.embedded == 2  # the twin's rendering was there already
        answers = live.search(["how much is a euro", "when does it get light", "wake me"], k=10)
        assert live.catalog.current.version == 1
    fresh = LiveRetriever(
        tiny_encoder_path, (money, WAKE, dawn, twin), embedding=EMBEDDING, search=SearchConfig(mode="query")
    )
    with fresh:
        for ours, theirs in zip(answers, fresh.search([a.query for a in answers], k=10), strict=True):
            assert ids(ours) == ids(theirs)
            assert [score for _, score in ours.tools] == pytest.approx([score for _, score in theirs.tools], abs=1e-6)


def test_a_new_tool_with_a_known_rendering_ties_and_comes_last(tiny_encoder_path: Path) -> None:
    with retriever(tiny_encoder_path) as live:
        live.change(put=[replace(RAIN, id="again")])
        [answer] = live.search([render(RAIN, 5)], k=2)
    assert ids(answer) == ["rain", "again"] and answer.tools[0][1] == answer.tools[1][1]


def test_a_change_is_whole_or_not_made(tiny_encoder_path: Path) -> None:
    with retriever(tiny_encoder_path) as live:
        before = live.catalog.current
        with pytest.raises(UnknownToolError, match="'nope': not in the catalogue"):
            live.change(put=[replace(RAIN, title="Other")], remove=["nope"])
        with pytest.raises(RequestError, match="given twice"):
            live.change(put=[RAIN, RAIN])
        with pytest.raises(RequestError, match="given twice"):
            live.change(put=[RAIN], remove=["rain"])
        with pytest.raises(RequestError, match="no tool would be left"):
            live.change(remove=["rain", "euro", "wake"])
        assert live.change(put=[RAIN]).unchanged == 1
        assert live.catalog.current is before


def test_searches_go_on_while_the_catalogue_changes(tiny_encoder_path: Path) -> None:
    with retriever(tiny_encoder_path) as live:
        sizes, errors, stop = set(), [], threading.Event()

        def search() -> None:
            while not stop.is_set():
                try:
                    sizes.add(len(live.search(["rain"], k=100)[0].tools))
                except Exception as error:
                    errors.append(error)

        searching = [threading.Thread(target=search) for _ in range(2)]
        for thread in searching:
            thread.start()
        for number in range(5):
            live.change(put=[replace(RAIN, id=f"{number}-{n}", title=f"Weather {number} {n}") for n in range(10)])
        stop.set()
        for thread in searching:
            thread.join()
        assert not errors
        assert sizes <= {3, 13, 23, 33, 43, 53}  # never half a change
        assert len(live.search(["rain"], k=100)[0].tools) == 53


def test_a_kept_catalogue_is_there_again_and_only_what_is_new_is_embedded(
    tiny_encoder_path: Path, tmp_path: Path
) -> None:
    keep = tmp_path / "live.jsonl"
    with retriever(tiny_encoder_path, keep=keep) as live:
        assert not keep.exists()  # nothing has changed
        live.change(put=[replace(RAIN, id="snow", title="Snow")], remove=["euro"])
    assert [row["id"] for row in read_rows(keep)] == ["rain", "wake", "snow"]
    with retriever(tiny_encoder_path, keep=keep) as again:
        assert [tool.id for tool in again.catalog.current.tools] == ["rain", "wake", "snow"]
        assert sum(size * count for size, count in again.embedder.sizes.items()) == 1
    keep.write_text('{"id": "a"}\n{"id": "a"}\n', "utf-8")
    with pytest.raises(UserError, match=r"live.jsonl:2: tool 'a' is there twice"):
        retriever(tiny_encoder_path, keep=keep)


def test_a_change_that_cannot_be_kept_is_not_made(tiny_encoder_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with retriever(tiny_encoder_path, keep=tmp_path / "file" / "live.jsonl") as live:
        with pytest.raises(UserError, match="give a --keep FILE that can be written to"):
            live.change(remove=["rain"])
        assert len(live.catalog.current.tools) == 3


# ------------------------------------------------------------------------------------------------------- retriever


def test_an_index_that_was_saved_is_used_and_another_catalogue_s_refused(
    tiny_encoder_path: Path, tmp_path: Path
) -> None:
    DenseRetriever.build(tiny_encoder_path, TOOLS, EMBEDDING).save_index(tmp_path)
    with retriever(tiny_encoder_path, index=tmp_path) as live:
        assert ids(live.search([render(WAKE, 5)], 1)[0]) == ["wake"]
    with pytest.raises(UserError, match="is of another catalogue"):
        LiveRetriever(
            tiny_encoder_path, TOOLS[:2], embedding=EMBEDDING, search=SearchConfig(mode="query"), index=tmp_path
        )


def test_more_tools_than_there_are_gives_all_and_none_is_refused(tiny_encoder_path: Path) -> None:
    with retriever(tiny_encoder_path) as live:
        assert len(live.search(["rain"], k=10**30)[0].tools) == 3
        assert live.search([], k=1) == []
        with pytest.raises(RequestError):
            live.search(["rain"], k=0)


def test_the_rewriter_s_description_is_searched_with_and_without_it_the_request(tiny_encoder_path: Path) -> None:
    says = {"get me up": render(WAKE, 5), render(EURO, 5): ""}
    rewriter = rewriter_saying(lambda texts: [says[text] for text in texts])
    with retriever(tiny_encoder_path, mode="description", rewriter=rewriter) as live:
        found, alone = live.search(["get  me up", render(EURO, 5)], 1)
    assert (ids(found), found.rewritten, found.reason) == (["wake"], True, None)
    assert (found.query, found.description) == ("get  me up", render(WAKE, 5))
    assert (ids(alone), alone.rewritten, alone.description) == (["euro"], False, "")
    assert alone.reason == "nothing was left of what the rewriter wrote"


@pytest.mark.parametrize("mode", ["concatenated", "fused"])
def test_where_the_rewriter_had_no_part_the_request_s_own_vector_is_searched_with(
    tiny_encoder_path: Path, mode: str
) -> None:
    rewriter = rewriter_saying(lambda texts: [""] * len(texts))
    with retriever(tiny_encoder_path, mode=mode, rewriter=rewriter) as live:
        [answer] = live.search(["rain in town"], 3)
    model = load_encoder(tiny_encoder_path, EMBEDDING)
    vectors = embed(model, ["rain in town", *(render(tool, 5) for tool in TOOLS)], 8)
    expected = dict(zip(("rain", "euro", "wake"), (vectors[1:] @ vectors[0]).tolist(), strict=True))
    assert {tool.id: score for tool, score in answer.tools} == pytest.approx(expected, abs=1e-5)


def test_requests_of_several_threads_are_embedded_together(tiny_encoder_path: Path) -> None:
    with retriever(tiny_encoder_path, limits=ServeConfig(batch_window_ms=1000)) as live:
        start = threading.Barrier(64)  # as many as a batch holds: it is full before the window is over

        def ask(number: int) -> None:
            start.wait()
            live.search([f"request {number}"], 1)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert live.embedder.sizes == {64: 1}


def test_a_mode_that_does_not_exist_is_refused(tiny_encoder_path: Path) -> None:
    with pytest.raises(UserError, match="no search mode is called 'magic'"):
        retriever(tiny_encoder_path, mode="magic")


def test_a_generator_describes_as_the_evaluation_does(tiny_rewriter_path: Path) -> None:
    from cohyde.catalog import Query
    from cohyde.progress import Silent
    from cohyde.rewriter.describe import describe_with

    config = RewriterConfig(precision="float32")
    sampling, examples = SamplingConfig(max_new_tokens=8), [Example(query="is it warm", answer="Weather. Now.")]
    texts = ["will it rain", "wake me at six"]
    with open_generator(tiny_rewriter_path, config) as generator:
        queries = [Query(id=text, text=text, tools=()) for text in texts]
        described, _ = describe_with(generator, queries, examples, config, sampling, 0, Silent())
    rewriter = GeneratorRewriter(
        tiny_rewriter_path, rewriter=config, sampling=sampling, prompt=load_prompt("hyde"), examples=examples
    )
    assert rewriter.describe(texts) == [item.texts[0] for item in described]
    rewriter.close()


def test_an_answer_is_json_with_ranks_from_one() -> None:
    answer = Answer(
        query="will it rain",
        description="Returns a forecast.",
        rewritten=True,
        tools=((RAIN, 0.5), (EURO, 0.25)),
        timings={"rewrite": 0.2},
    )
    assert answer.to_json() == {
        "query": "will it rain",
        "description": "Returns a forecast.",
        "rewritten": True,
        "reason": None,
        "tools": [{"id": "rain", "score": 0.5, "rank": 1}, {"id": "euro", "score": 0.25, "rank": 2}],
        "timings": {"rewrite": 0.2},
    }


def test_the_package_offers_the_retriever_when_it_is_asked_for() -> None:
    assert cohyde.Retriever.__module__ == "cohyde.retriever"
    with pytest.raises(AttributeError, match="no attribute 'Retrever'"):
        cohyde.Retrever  # noqa: B018


def test_vectors_of_an_index_are_those_it_was_made_of() -> None:
    from cohyde.encoder.index import ExactIndex

    assert np.array_equal(ExactIndex(np.eye(2)).vectors, np.eye(2, dtype=np.float32))
