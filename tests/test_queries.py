"""Training queries for a catalogue: planned, written by a model behind a real server, filtered, resumed, split."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Act, chat_server, status

from cohyde.catalog import Dataset, Query, tool_from_row
from cohyde.config import ChatConfig, SamplingConfig
from cohyde.data.dataset import read_card, read_dataset, write_dataset
from cohyde.data.drafts import FILTERS
from cohyde.data.ledger import Ledger
from cohyde.data.queries import QueriesConfig, ask, ledger_identity, plan, write_queries
from cohyde.errors import UserError
from cohyde.io import read_rows, sha256_file
from cohyde.progress import Silent
from cohyde.resources import sample_folder
from cohyde.rewriter.chat import Conversation, Reply

ROOT = Path(__file__).resolve().parent.parent
TOOLS = tuple(tool_from_row(row) for row in read_rows(sample_folder() / "catalog.jsonl")[:20])
CATALOGUE = Dataset(name="own", tools=TOOLS)
THINGS = [
    "boat",
    "tent",
    "piano",
    "bicycle",
    "garden",
    "oven",
    "camera",
    "kite",
    "violin",
    "sofa",
    "ladder",
    "lamp",
    "drum",
    "basket",
    "kettle",
    "rug",
]
ONCE = QueriesConfig(per_tool=1, attempts=2)


def request_for(messages: Sequence[Mapping[str, str]], seed: int) -> str:
    """A request that touches each tool by the first long word that the model is told of it."""
    rng = random.Random(seed)
    lines = messages[-1]["content"].splitlines()
    matters = [next(word.strip(".,:;") for word in line.split() if len(word) > 4) for line in lines]
    things = rng.sample(THINGS, 6)
    return f"My {', '.join(things)} and number {rng.randrange(9999)}: what about {' and '.join(matters).lower()}?"


class Writer:
    """A chat model that writes by rule, in any order, at times nothing usable, and remembers what it was asked."""

    identity: Mapping[str, Any] = {"backend": "rule"}

    def __init__(self, *, bad: str = "", errors: str = "", kill_after: int | None = None) -> None:
        self.bad, self.errors, self.kill_after = bad, errors, kill_after
        self.asked: list[str] = []

    def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
        for conversation in random.Random(len(self.asked)).sample(conversations, len(conversations)):
            if self.kill_after is not None and len(self.asked) == self.kill_after:
                raise KeyboardInterrupt
            self.asked.append(conversation.id)
            if self.errors and self.errors in conversation.id:
                yield Reply(id=conversation.id, text="", finished=False, error="429: too many requests")
                continue
            text = request_for(conversation.messages, conversation.seed)
            unusable = self.bad and self.bad in conversation.id
            yield Reply(
                id=conversation.id, text="I'm sorry, I cannot say." if unusable else f"Sure:\n\n{text}", finished=True
            )

    def close(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "own", CATALOGUE)


def written(folder: Path, dataset: Dataset) -> Path:
    write_dataset(folder, dataset, {"source": "a test"})
    return folder


def ledger(folder: Path) -> Ledger:
    return Ledger(folder, {"work": "test"})


# --------------------------------------------------------------------------------------------------------- plan


def test_plan_has_each_tool_and_groups_with_ids_of_their_own() -> None:
    asks = plan(CATALOGUE, QueriesConfig(per_tool=4, multi_share=1 / 3))
    assert len(asks) == 4 * 20 + 4 * 20 // 2
    assert len({each.id for each in asks}) == len(asks)
    assert {each.id.split("/")[0] for each in asks} == {"generated"}
    alone = Counter(each.tools[0].id for each in asks if len(each.tools) == 1)
    assert alone == {tool.id: 4 for tool in TOOLS}


def test_no_gold_set_is_on_both_sides_and_each_tier_is_held_out_by_its_share() -> None:
    asks = plan(CATALOGUE, QueriesConfig(per_tool=8, multi_share=0.5, eval_share=0.25))
    side = {frozenset(each.tool_ids): each.split for each in asks}
    assert all(each.split == side[frozenset(each.tool_ids)] for each in asks)
    alone = [split for gold, split in side.items() if len(gold) == 1]
    assert Counter(alone) == {"train": 15, "eval": 5}
    tiers = Counter(each.query("x").tier for each in asks if len(each.tools) > 1 and each.split == "eval")
    assert set(tiers) == {"G1", "G2", "G3"}


def test_share_that_is_held_out_is_none_where_the_dataset_brings_evaluation() -> None:
    own = Query(id="q", text="Will it rain?", tools=(TOOLS[0].id,), split="eval")
    assert {each.split for each in plan(CATALOGUE, ONCE)} == {"train", "eval"}
    brought = replace(CATALOGUE, eval=(own,))
    assert {each.split for each in plan(brought, ONCE)} == {"train"}
    assert {each.split for each in plan(brought, replace(ONCE, eval_share=0.5))} == {"train", "eval"}
    generated = replace(CATALOGUE, eval=(replace(own, id="generated/42/x/1"),))
    assert {each.split for each in plan(generated, ONCE)} == {"train", "eval"}


def test_gold_set_that_has_queries_keeps_its_side() -> None:
    first = plan(CATALOGUE, ONCE)
    there = [each.query(f"text {number}") for number, each in enumerate(first)]
    sides = {frozenset(query.tools): query.split for query in there}
    train, held_out = ([query for query in there if query.split == split] for split in ("train", "eval"))
    grown = replace(CATALOGUE, train=tuple(train), eval=tuple(held_out))
    again = plan(grown, QueriesConfig(per_tool=3, seed=7, eval_share=0.5))
    met = [each for each in again if frozenset(each.tool_ids) in sides]
    assert len(met) >= 3 * 20
    assert all(each.split == sides[frozenset(each.tool_ids)] for each in met)
    assert not {each.id for each in again} & {query.id for query in there}


def test_own_training_queries_keep_their_tools_from_evaluation() -> None:
    train = tuple(Query(id=tool.id, text=tool.id, tools=(tool.id,)) for tool in TOOLS)
    asks = plan(replace(CATALOGUE, train=train), replace(ONCE, multi_share=0.0, eval_share=0.9))
    assert {each.split for each in asks} == {"train"}


def test_smaller_plan_is_the_beginning_of_a_larger_one() -> None:
    whole = plan(CATALOGUE, QueriesConfig(per_tool=4))
    assert plan(CATALOGUE, QueriesConfig(per_tool=4, limit=17)) == whole[:17]
    assert plan(CATALOGUE, QueriesConfig(per_tool=2)) == whole[: 2 * 20 + 20]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"per_tool": 0}, "at least 1"),
        ({"attempts": 0}, "at least 1"),
        ({"limit": 0}, "at least 1"),
        ({"multi_share": 1.0}, "less than 1"),
        ({"eval_share": -0.1}, "at least 0"),
        ({"filters": ("off-topic",)}, "no filter 'off-topic'"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        QueriesConfig(**wrong)


# ------------------------------------------------------------------------------------------------------- asking


def test_every_request_that_passes_is_a_query_of_its_tools(tmp_path: Path) -> None:
    asks = plan(CATALOGUE, ONCE)
    outcome = ask(CATALOGUE, asks, Writer(), ledger(tmp_path), ONCE, Silent())
    assert [query.id for query in outcome.written] == [each.id for each in asks]
    assert [query.tools for query in outcome.written] == [each.tool_ids for each in asks]
    assert outcome.counts == {"planned": 30, "there": 0, "written": 30, "given_up": 0, "unanswered": 0}
    assert not outcome.rejected.counts
    assert all(query.text.startswith("My ") for query in outcome.written)


def test_refused_request_is_drawn_again_until_it_is_given_up(tmp_path: Path) -> None:
    asks = plan(CATALOGUE, ONCE)
    once = ask(CATALOGUE, asks, Writer(bad="/1#1"), ledger(tmp_path / "a"), ONCE, Silent())
    assert once.counts["written"] == 30
    assert once.rejected.counts == {"no request": 30}
    assert once.rejected.first["no request"] == f'{asks[0].id}: "I\'m sorry": "I\'m sorry, I cannot say."'
    writer = Writer(bad=asks[3].id)
    never = ask(CATALOGUE, asks, writer, ledger(tmp_path / "b"), ONCE, Silent())
    assert never.given_up == [asks[3]]
    assert never.counts == {"planned": 30, "there": 0, "written": 29, "given_up": 1, "unanswered": 0}
    assert len(writer.asked) == 30 + 1


def test_request_that_reads_as_another_is_drawn_again(tmp_path: Path) -> None:
    class Echo(Writer):
        def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
            for reply in super().replies(conversations, sampling):
                text = "Forecast of wind, rain, fare, flight, room, radar, index, tide, visa, hour?"
                yield reply if "#2" in reply.id else replace(reply, text=text)

    config = replace(ONCE, multi_share=0.0, filters=("duplicate",))
    asks = plan(CATALOGUE, config)
    outcome = ask(CATALOGUE, asks, Echo(), ledger(tmp_path), config, Silent())
    assert outcome.rejected.counts == {"duplicate": 19}
    assert outcome.counts["written"] == 20


def test_queries_and_paraphrases_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    asks = plan(CATALOGUE, ONCE)
    first = ask(CATALOGUE, asks, Writer(), ledger(tmp_path / "a"), ONCE, Silent()).written
    taken = (replace(first[0], id="own", split="eval"),)
    vague = (replace(first[1], id="own", split="vague"),)
    brought = replace(CATALOGUE, eval=taken, vague=vague)
    outcome = ask(brought, asks, Writer(), ledger(tmp_path / "b"), ONCE, Silent())
    assert outcome.rejected.counts == {"duplicate": 2}
    assert outcome.counts["written"] == 30


def test_killed_and_resumed_asks_nothing_twice_and_gives_the_same(tmp_path: Path) -> None:
    asks = plan(CATALOGUE, ONCE)
    straight = Writer(bad="/1#1")
    expected = ask(CATALOGUE, asks, straight, ledger(tmp_path / "straight"), ONCE, Silent())
    asked: list[str] = []
    for kill_after in (7, 0, 20, 25):
        killed = Writer(bad="/1#1", kill_after=kill_after)
        with pytest.raises(KeyboardInterrupt):
            ask(CATALOGUE, asks, killed, ledger(tmp_path / "resumed"), ONCE, Silent())
        asked += killed.asked
    last = Writer(bad="/1#1")
    outcome = ask(CATALOGUE, asks, last, ledger(tmp_path / "resumed"), ONCE, Silent())
    # The reply that was under way when it was killed is the only one that has to be asked for again.
    assert sorted({*asked, *last.asked}) == sorted(straight.asked)
    assert len(asked) + len(last.asked) <= len(straight.asked) + 4
    assert outcome == expected


def test_request_that_nobody_answered_is_asked_again_in_the_next_run(tmp_path: Path) -> None:
    asks = plan(CATALOGUE, ONCE)
    expected = ask(CATALOGUE, asks, Writer(), ledger(tmp_path / "straight"), ONCE, Silent())
    broken = ask(CATALOGUE, asks, Writer(errors=asks[5].id), ledger(tmp_path / "a"), ONCE, Silent())
    assert broken.counts == {"planned": 30, "there": 0, "written": 29, "given_up": 0, "unanswered": 1}
    assert broken.unanswered.first == {"429: too many requests": f"{asks[5].id}: no reply"}
    mended = Writer()
    assert ask(CATALOGUE, asks, mended, ledger(tmp_path / "a"), ONCE, Silent()) == expected
    assert mended.asked == [f"{asks[5].id}#1"]


def test_row_that_a_hand_has_damaged_is_asked_again(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    asks = plan(CATALOGUE, ONCE)
    book.append({"id": f"{asks[0].id}#1", "text": "half a row"})
    writer = Writer()
    assert ask(CATALOGUE, asks, writer, book, ONCE, Silent()).counts["written"] == 30
    assert len(writer.asked) == 30


def test_model_that_is_cut_while_it_reasons_is_told_of(tmp_path: Path) -> None:
    class Thinker(Writer):
        def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
            for reply in super().replies(conversations, sampling):
                yield replace(reply, text="<think>So the person", finished=False)

    outcome = ask(CATALOGUE, plan(CATALOGUE, ONCE)[:1], Thinker(), ledger(tmp_path), ONCE, Silent())
    assert outcome.rejected.counts == {"cut at the token limit": 2}
    assert "reasons" in outcome.rejected.first["cut at the token limit"]


def test_half_a_surrogate_pair_of_a_server_is_refused_and_not_written(tmp_path: Path) -> None:
    class Broken(Writer):
        def replies(self, conversations: Sequence[Conversation], sampling: SamplingConfig) -> Iterator[Reply]:
            for reply in super().replies(conversations, sampling):
                yield replace(reply, text=reply.text + " \ud83d")

    outcome = ask(CATALOGUE, plan(CATALOGUE, ONCE), Broken(), ledger(tmp_path), ONCE, Silent())
    assert outcome.rejected.counts == {"broken text": 2 * 30}


def test_progress_counts_requests_in_each_draw(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []

    class Listener(Silent):
        def update(self, done: float, total: float, what: str = "") -> None:
            told.append((done, total, what))

    asks = plan(CATALOGUE, ONCE)
    ask(CATALOGUE, asks, Writer(bad=asks[0].id), ledger(tmp_path), ONCE, Listener())
    first = [(number, 30, "requests, draw 1 of 2") for number in range(1, 31)]
    assert told == [*first, (30, 30, "requests, draw 2 of 2")]


def test_identity_is_of_what_can_change_a_reply() -> None:
    base = ledger_identity(CATALOGUE, Writer(), 42)
    assert ledger_identity(replace(CATALOGUE, train=(Query(id="q", text="t", tools=()),)), Writer(), 42) == base
    assert ledger_identity(CATALOGUE, Writer(), 43) != base
    assert ledger_identity(replace(CATALOGUE, tools=TOOLS[:19]), Writer(), 42) != base
    json.dumps(base)


# ----------------------------------------------------------------------------------------- in a dataset folder


def script(asked: dict[str, Any], before: int) -> str:
    return request_for(asked["messages"], asked["seed"])


def endpoint(url: str, **fields: Any) -> ChatConfig:
    return ChatConfig(backend="openai", model="m", endpoint=url, **fields)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pause before a retry is 10 ms, and no key or proxy comes from outside."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_catalogue_alone_becomes_a_dataset_that_can_be_read(folder: Path) -> None:
    with chat_server(script) as server:
        outcome = write_queries(folder, endpoint(server.url), ONCE, progress=Silent())
    dataset, _ = read_dataset(folder)
    assert (len(dataset.train), len(dataset.eval)) == (26, 4)
    assert outcome.to_json()["splits"] == {"eval": 4, "train": 26}
    assert {*dataset.train, *dataset.eval} == set(outcome.written)
    card = read_card(folder)
    assert card["source"] == "a test"
    assert card["counts"] == {"tools": 20, "train": 26, "dev": 0, "eval": 4, "vague": 0}
    assert card["sha256"]["queries.jsonl"] == sha256_file(folder / "queries.jsonl")
    assert card["generated"]["model"] == {"backend": "openai", "model": "m"}
    assert card["generated"]["filters"] == list(FILTERS)
    assert server.requests[0]["temperature"] == 0.7


def test_running_again_asks_nothing_and_changes_no_byte(folder: Path) -> None:
    with chat_server(script) as server:
        write_queries(folder, endpoint(server.url), ONCE, progress=Silent())
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    outcome = write_queries(folder, endpoint("http://127.0.0.1:1/v1"), ONCE, progress=Silent())
    assert outcome.counts == {"planned": 30, "there": 30, "written": 0, "given_up": 0, "unanswered": 0}
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_queries_of_ones_own_and_edits_by_hand_are_kept(tmp_path: Path) -> None:
    own = Query(id="own", text="Will it rain in Porto?", tools=(TOOLS[0].id,))
    folder = written(tmp_path / "own", replace(CATALOGUE, train=(own,)))
    with chat_server(script) as server:
        write_queries(folder, endpoint(server.url), ONCE, progress=Silent())
        rows = read_rows(folder / "queries.jsonl")
        assert rows[0]["id"] == "own"
        rows[1]["text"] = "What a person made of it?"
        (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        more = write_queries(folder, endpoint(server.url), replace(ONCE, per_tool=2), progress=Silent())
    assert more.counts == {"planned": 60, "there": 30, "written": 30, "given_up": 0, "unanswered": 0}
    after = {query.id: query.text for query in read_dataset(folder)[0].train}
    assert after[rows[1]["id"]] == "What a person made of it?"
    assert after["own"] == own.text
    assert len(server.requests) == 60


def test_order_in_the_file_does_not_depend_on_when_a_request_was_answered(tmp_path: Path) -> None:
    expected, folder = written(tmp_path / "a", CATALOGUE), written(tmp_path / "b", CATALOGUE)

    def failing(asked: dict[str, Any], before: int) -> Act | str:
        return status(400) if asked["seed"] % 3 == 0 else script(asked, before)

    with chat_server(script) as server:
        write_queries(expected, endpoint(server.url), ONCE, progress=Silent())
    with chat_server(failing) as server:
        partly = write_queries(folder, endpoint(server.url, retries=0), ONCE, progress=Silent())
    assert 0 < partly.counts["unanswered"] < 30
    assert len(read_rows(folder / "queries.jsonl")) == partly.counts["written"]
    with chat_server(script) as server:
        write_queries(folder, endpoint(server.url), ONCE, progress=Silent())
        assert len(server.requests) == partly.counts["unanswered"]
    assert (folder / "queries.jsonl").read_bytes() == (expected / "queries.jsonl").read_bytes()


def test_killed_process_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    expected, folder = written(tmp_path / "a", CATALOGUE), written(tmp_path / "b", CATALOGUE)
    with chat_server(script) as server:
        write_queries(expected, endpoint(server.url), ONCE, progress=Silent())

    def slow(asked: dict[str, Any], before: int) -> str:
        time.sleep(0.02)
        return script(asked, before)

    code = f"""
from pathlib import Path
from cohyde.config import ChatConfig
from cohyde.data.queries import QueriesConfig, write_queries
from cohyde.progress import Silent
chat = ChatConfig(backend="openai", model="m", endpoint={{url!r}}, concurrency=1)
write_queries(Path({str(folder)!r}), chat, QueriesConfig(per_tool=1, attempts=2), progress=Silent())
"""
    with chat_server(slow) as server:
        process = subprocess.Popen([sys.executable, "-c", code.replace("{url!r}", repr(server.url))], cwd=ROOT)
        while len(server.requests) < 8 and process.poll() is None:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        before = len(server.requests)
    assert (folder / "queries.jsonl").read_bytes() == b""
    with chat_server(script) as server:
        write_queries(folder, endpoint(server.url), ONCE, progress=Silent())
        assert before + len(server.requests) <= 30 + 2
    for name in ("queries.jsonl", "dataset.yaml"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes().replace(b"name: a", b"name: b")


def test_endpoint_that_is_not_there_leaves_the_dataset_as_it_was(folder: Path) -> None:
    before = (folder / "dataset.yaml").read_bytes()
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1"):
        write_queries(folder, endpoint("http://127.0.0.1:1/v1", retries=0), ONCE, progress=Silent())
    assert (folder / "queries.jsonl").read_bytes() == b""
    assert (folder / "dataset.yaml").read_bytes() == before


def test_person_is_told_that_a_model_is_too_weak(folder: Path) -> None:
    warnings: list[str] = []

    class Listener(Silent):
        def warn(self, message: str) -> None:
            warnings.append(message)

    def weak(asked: dict[str, Any], before: int) -> str:
        return "I don't know." if asked["seed"] % 2 else script(asked, before)

    with chat_server(weak) as server:
        outcome = write_queries(folder, endpoint(server.url), replace(ONCE, attempts=1), progress=Listener())
    assert warnings[0].startswith(f"{len(outcome.given_up)} of 30 requests were given up")


def test_embedded_sample_is_not_written_to() -> None:
    with pytest.raises(UserError, match="sample stays as it is"):
        write_queries(sample_folder(), ChatConfig(), ONCE, progress=Silent())


def test_faults_of_the_dataset_are_named_before_anything_is_asked(folder: Path) -> None:
    (folder / "queries.jsonl").write_text('{"id": "q", "text": "t", "tools": ["nowhere"]}\n')
    with pytest.raises(UserError, match=r"queries\.jsonl:1: .*'nowhere'"):
        write_queries(folder, ChatConfig(), ONCE, progress=Silent())


def test_model_that_is_loaded_here_is_asked_as_well(folder: Path, tiny_rewriter_path: Path) -> None:
    chat = ChatConfig(model=str(tiny_rewriter_path), batch_size=16)
    config = replace(ONCE, attempts=1, limit=6)
    outcome = write_queries(folder, chat, config, progress=Silent())
    # A model of random weights writes nothing usable; that it is read, judged and counted is what is tested.
    assert outcome.counts["planned"] == 6
    assert outcome.counts["written"] + outcome.counts["given_up"] == 6
    assert outcome.rejected.counts.total() == outcome.counts["given_up"]
    dataset, _ = read_dataset(folder)
    assert len(dataset.train) + len(dataset.eval) == outcome.counts["written"]
    again = write_queries(folder, chat, config, progress=Silent())
    assert again.given_up == outcome.given_up
