"""Vague paraphrases: retold and judged by a model behind a real server, resumed after a kill, written into a folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Act, ChatServer, Script, body, chat_server, hang, hang_up, said, status

from cohyde.catalog import Dataset, Query, Tool
from cohyde.config import ChatConfig
from cohyde.data import vague
from cohyde.data.dataset import read_card, read_dataset, write_dataset
from cohyde.data.retellings import judgement_in, named, names_of, tidied, verdict_in
from cohyde.data.spot_check import Pair, spot_check_text
from cohyde.data.vague import Outcome, write_vague
from cohyde.errors import UserError
from cohyde.io import read_rows, sha256_file
from cohyde.progress import Silent

ROOT = Path(__file__).resolve().parent.parent
GOOD = '{"reason": "", "intent": true, "hidden": true, "natural": true}'
LEAK = '{"reason": "says \\"tunes\\"", "intent": true, "hidden": false, "natural": true}'
TOOLS = (
    Tool(id="rain", title="SkyLantern", api_name="hourly_forecast", api_description="Rain by the hour."),
    Tool(id="song", title="Tunery", api_name="getLyrics", api_description="Words of a song."),
)
EVALUATION = tuple(
    Query(id=f"q{number}", text=f"Fetch forecast number {number}.", tools=("rain", "song"), split="eval")
    for number in range(4)
)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pause before a retry is 10 ms, and no key or proxy comes from outside."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train = (Query(id="t", text="Is it wet out?", tools=("rain",)),)
    write_dataset(tmp_path / "data", Dataset(name="small", tools=TOOLS, train=train, eval=EVALUATION), {"licence": "x"})
    return tmp_path / "data"


def query_in(request: dict[str, Any]) -> str:
    """The query that a request is about."""
    asked: str = request["messages"][-1]["content"].partition("\n")[0].partition(": ")[2]
    return asked


def is_judgement(request: dict[str, Any]) -> bool:
    return str(request["messages"][-1]["content"]).endswith("Judgement:")


def retold(query: str) -> str:
    return query.replace("Fetch forecast", "How wet will it get, take")


def script(
    retelling: Callable[[str, int], Act | str] = lambda query, before: retold(query),
    judgement: Callable[[str, int], Act | str] = lambda query, before: GOOD,
) -> Script:
    """What a server does with retellings and judgements; each is told the query, and how often it was asked before."""
    seen: Counter[tuple[str, bool]] = Counter()

    def act(request: dict[str, Any], before: int) -> Act | str:
        key = (query_in(request), is_judgement(request))
        seen[key] += 1
        return (judgement if key[1] else retelling)(key[0], seen[key] - 1)

    return act


def run(
    folder: Path, server: ChatServer, attempts: int = 3, seed: int = 42, redo: bool = False, **chat: Any
) -> Outcome:
    config = ChatConfig(**{"backend": "openai", "endpoint": server.url, "model": "m", "retries": 0, **chat})
    return write_vague(folder, config, attempts=attempts, seed=seed, redo=redo, progress=Silent())


def asked(server: ChatServer) -> list[tuple[str, str]]:
    """The query and the kind of each request, in the order of arrival."""
    return [(query_in(request), "judge" if is_judgement(request) else "retell") for request in server.requests]


# ----------------------------------------------------------------------------------------------------- what is kept


def test_what_passes_is_kept_in_the_order_of_evaluation(folder: Path) -> None:
    with chat_server(script()) as server:
        outcome = run(folder, server)
    dataset, _ = read_dataset(folder)
    assert [(query.id, query.text) for query in dataset.vague] == [(q.id, retold(q.text)) for q in EVALUATION]
    assert outcome.counts == {"asked": 4, "kept": 4, "rejected": 0, "unanswered": 0}
    assert len(server.requests) == 4 * 2
    assert read_rows(folder / "vague_rejected.jsonl") == []
    card = read_card(folder)
    assert card["licence"] == "x"
    assert card["counts"] == {"tools": 2, "train": 1, "dev": 0, "eval": 4, "vague": 4}
    assert card["sha256"]["vague.jsonl"] == sha256_file(folder / "vague.jsonl")
    assert card["paraphrased"]["model"] == {"backend": "openai", "model": "m"}


def test_each_judgement_is_a_conversation_of_its_own_that_shows_everything(folder: Path) -> None:
    with chat_server(script()) as server:
        run(folder, server)
    judge = next(request for request in server.requests if is_judgement(request))
    assert [message["role"] for message in judge["messages"]] == ["system", "user"]
    query = query_in(judge)
    assert judge["messages"][1]["content"] == (
        f"Original: {query}\n"
        "Names that must not occur: SkyLantern; hourly_forecast; Tunery; getLyrics\n"
        f"Retold: {retold(query)}\n"
        "Judgement:"
    )
    assert judge["temperature"] == 0


def test_another_attempt_is_another_draw(folder: Path) -> None:
    with chat_server(script(judgement=lambda query, before: GOOD if before else LEAK)) as server:
        outcome = run(folder, server)
    assert outcome.counts["kept"] == 4
    assert len(server.requests) == 4 * (2 + 2)
    retellings = [request for request in server.requests if not is_judgement(request)]
    assert len({request["seed"] for request in retellings}) == 8
    assert {request["temperature"] for request in retellings} == {0.7}


def test_what_never_passes_is_reported_with_the_reason(folder: Path) -> None:
    with chat_server(script(judgement=lambda query, before: LEAK if "2" in query else GOOD)) as server:
        outcome = run(folder, server, attempts=3)
    assert asked(server).count((EVALUATION[2].text, "retell")) == 3
    assert outcome.counts == {"asked": 4, "kept": 3, "rejected": 1, "unanswered": 0}
    assert read_rows(folder / "vague_rejected.jsonl") == [
        {
            "id": "q2",
            "original": EVALUATION[2].text,
            "text": retold(EVALUATION[2].text),
            "reason": "gives the tools away",
            "detail": 'says "tunes"',
            "attempts": 3,
        }
    ]
    assert [row["id"] for row in read_rows(folder / "vague.jsonl")] == ["q0", "q1", "q3"]


@pytest.mark.parametrize(
    ("retelling", "reason"),
    [
        ("", "empty"),
        ("<think>A retelling could be</think>", "empty"),
        (said("How wet will it", "length"), "cut at the token limit"),
        ("fetch forecast, number 1", "the same as the original"),
        ("Retold: “Fetch forecast number 1”", "the same as the original"),
        ("Is it wet out", "reads as a training query"),
        ("Does skylantern know how wet it gets?", "names a tool"),
        ("What does the hourly forecast say?", "names a tool"),
    ],
)
def test_what_is_seen_without_a_judge_is_not_judged(folder: Path, retelling: Act | str, reason: str) -> None:
    answer = script(lambda query, before: retelling if "1" in query else retold(query))
    with chat_server(answer) as server:
        outcome = run(folder, server, attempts=2)
    assert [(item.id, item.reason, item.attempts) for item in outcome.rejected] == [("q1", reason, 2)]
    assert Counter(asked(server))[EVALUATION[1].text, "judge"] == 0
    read_dataset(folder)


def test_a_judgement_that_cannot_be_read_is_a_failed_attempt(folder: Path) -> None:
    with chat_server(script(judgement=lambda query, before: GOOD if before else "It looks fine to me.")) as server:
        assert run(folder, server, attempts=2).counts["kept"] == 4
    with chat_server(script(judgement=lambda query, before: "It looks fine to me.")) as server:
        outcome = run(folder, server, attempts=2, seed=1, redo=True)
    assert outcome.reasons == {"the judgement cannot be read": 4}
    assert outcome.rejected[0].detail == "It looks fine to me."


# ------------------------------------------------------------------------------------------------ killed, and resumed


def test_a_killed_run_goes_on_and_asks_nothing_twice(folder: Path) -> None:
    code = """
import sys
from pathlib import Path
from cohyde.config import ChatConfig
from cohyde.data.vague import write_vague
from cohyde.progress import Silent
config = ChatConfig(backend="openai", endpoint=sys.argv[2], model="m", concurrency=1)
write_vague(Path(sys.argv[1]), config, attempts=3, seed=42, progress=Silent())
"""
    stuck = 6  # the fourth judgement's turn but one: 4 retellings and 1 judgement are answered, 1 never is

    def act(request: dict[str, Any], before: int) -> Act | str:
        if len(server.requests) == stuck:
            return hang(30)
        return GOOD if is_judgement(request) else retold(query_in(request))

    with chat_server(act) as server:
        process = subprocess.Popen([sys.executable, "-c", code, str(folder), server.url], cwd=ROOT, env={**os.environ})
        deadline = time.monotonic() + 60
        while len(server.requests) < stuck and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not read_rows(folder / "vague.jsonl")
        outcome = run(folder, server, concurrency=1)
    assert outcome.counts["kept"] == 4
    assert len(server.requests) == 4 * 2 + 1  # the one that was under way
    assert asked(server)[stuck - 1] == asked(server)[stuck]


def test_what_was_killed_and_resumed_is_what_a_run_in_one_go_gives(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    dataset, _ = read_dataset(folder)
    write_dataset(whole, dataset, {"licence": "x"})
    answer = script(judgement=lambda query, before: LEAK if "2" in query else GOOD)
    with chat_server(answer) as server:
        run(whole, server)

    class Interrupt(Silent):
        def update(self, done: float, total: float, what: str = "") -> None:
            if done == 2:
                raise KeyboardInterrupt

    with chat_server(answer) as server:
        for _ in range(9):
            config = ChatConfig(backend="openai", endpoint=server.url, model="m")
            try:
                write_vague(folder, config, attempts=3, seed=42, progress=Interrupt())
            except KeyboardInterrupt:
                continue
    for name in ("vague.jsonl", "vague_rejected.jsonl", "vague_spot_check.md", "dataset.yaml"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_running_again_asks_nothing(folder: Path) -> None:
    with chat_server(script(judgement=lambda query, before: LEAK if "2" in query else GOOD)) as server:
        first = run(folder, server)
        count = len(server.requests)
        again = run(folder, server)
        assert len(server.requests) == count
        assert again.rejected == first.rejected
        assert again.counts["asked"] == 1
        assert run(folder, server, redo=True) == first
        assert len(server.requests) == count


def test_more_attempts_go_on_from_those_there_are(folder: Path) -> None:
    with chat_server(script(judgement=lambda query, before: LEAK if before < 2 else GOOD)) as server:
        assert run(folder, server, attempts=2).counts["kept"] == 0
        assert len(server.requests) == 4 * 2 * 2
        assert run(folder, server, attempts=3).counts["kept"] == 4
        assert len(server.requests) == 4 * 2 * 3
        assert run(folder, server, attempts=1, redo=True).counts["kept"] == 0
        assert len(server.requests) == 4 * 2 * 3


def test_a_query_that_has_changed_is_asked_again_alone(folder: Path) -> None:
    with chat_server(script()) as server:
        run(folder, server)
        dataset, _ = read_dataset(folder)
        changed = (*EVALUATION[:3], replace(EVALUATION[3], text="Fetch forecast number 33."))
        write_dataset(folder, replace(dataset, eval=changed, vague=()), {})
        server.requests.clear()
        run(folder, server)
        assert sorted(asked(server)) == [(changed[3].text, "judge"), (changed[3].text, "retell")]
    assert read_rows(folder / "vague.jsonl")[3]["text"] == retold(changed[3].text)


@pytest.mark.parametrize("departure", [{"seed": 7}, {"model": "n"}])
def test_another_seed_and_another_model_ask_anew(folder: Path, departure: dict[str, Any]) -> None:
    with chat_server(script()) as server:
        run(folder, server)
        run(folder, server, **{"redo": True, **departure})
    assert len(server.requests) == 2 * 4 * 2


# ------------------------------------------------------------------------------------------------- which are asked


def test_only_queries_without_a_paraphrase_are_asked(folder: Path) -> None:
    (folder / "vague.jsonl").write_text('{"id": "q1", "text": "by hand"}\n')
    with chat_server(script()) as server:
        assert run(folder, server).counts["asked"] == 3
    texts = {row["id"]: row["text"] for row in read_rows(folder / "vague.jsonl")}
    assert list(texts) == ["q0", "q1", "q2", "q3"]
    assert texts["q1"] == "by hand"


def test_redo_replaces_what_is_kept_drops_what_is_refused_and_leaves_what_nobody_answers(folder: Path) -> None:
    rows = [{"id": query.id, "text": f"by hand {query.id}"} for query in EVALUATION]
    (folder / "vague.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def judgement(query: str, before: int) -> Act | str:
        return {"1": LEAK, "2": status(500)}.get(query[-2], GOOD)

    with chat_server(script(judgement=judgement)) as server:
        outcome = run(folder, server, redo=True, attempts=2)
    assert outcome.counts == {"asked": 4, "kept": 2, "rejected": 2, "unanswered": 1}
    assert {row["id"]: row["text"] for row in read_rows(folder / "vague.jsonl")} == {
        "q0": retold(EVALUATION[0].text),
        "q2": "by hand q2",
        "q3": retold(EVALUATION[3].text),
    }


def test_where_nothing_is_to_ask_nobody_is_asked(folder: Path) -> None:
    with chat_server(script()) as server:
        run(folder, server)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    nowhere = ChatServer(url="http://127.0.0.1:9/v1")
    assert run(folder, nowhere).counts["asked"] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_dataset_without_evaluation_queries_is_refused(folder: Path) -> None:
    dataset, _ = read_dataset(folder)
    write_dataset(folder, replace(dataset, eval=()), {})
    with pytest.raises(UserError, match="no evaluation queries"):
        run(folder, ChatServer(url="http://127.0.0.1:9/v1"))


# ------------------------------------------------------------------------------------------------- failing endpoints


@pytest.mark.parametrize(
    "act",
    [
        status(429),
        status(500),
        hang(1.0),
        hang_up,
        body('{"choices": [{'),
        body("<html>no</html>", "text/html"),
        body("{}"),
    ],
    ids=["429", "500", "hangs", "hangs up", "half JSON", "HTML", "no choices"],
)
@pytest.mark.parametrize("kind", ["retelling", "judgement"])
def test_a_failing_query_is_reported_and_asked_when_run_again(folder: Path, act: Act, kind: str) -> None:
    answer = {"retelling": retold, "judgement": lambda query: GOOD}

    def failing(query: str, before: int) -> Act | str:
        return act if "3" in query and before < 2 else answer[kind](query)

    with chat_server(script(**{kind: failing})) as server:
        outcome = run(folder, server, attempts=2, timeout_seconds=0.2)
        assert outcome.counts == {"asked": 4, "kept": 3, "rejected": 1, "unanswered": 1}
        assert (outcome.rejected[0].id, outcome.rejected[0].reason) == ("q3", "no reply")
        assert outcome.rejected[0].detail
        server.requests.clear()
        assert run(folder, server, attempts=2).counts == {"asked": 1, "kept": 1, "rejected": 0, "unanswered": 0}
    assert {query for query, _ in asked(server)} == {EVALUATION[3].text}
    assert len(server.requests) == {"retelling": 2, "judgement": 1}[kind]


def test_an_endpoint_that_goes_away_leaves_the_dataset_as_it_was(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with chat_server(script(judgement=lambda query, before: status(503))) as server:
        with pytest.raises(UserError, match="2 requests in a row have failed"):
            run(folder, server, concurrency=1)
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
        server.requests.clear()
    with chat_server(script()) as server:
        assert run(folder, server).counts["kept"] == 4
    assert Counter(kind for _, kind in asked(server)) == {"judge": 4}


def test_the_key_is_in_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hush-hush")
    answer = script(lambda query, before: status(500, "no sk-hush-hush") if "3" in query else retold(query))
    with chat_server(answer) as server:
        outcome = run(folder, server)
    assert server.headers[0]["authorization"] == "Bearer sk-hush-hush"
    assert outcome.rejected[0].detail == "status 500: 'no [key]'"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 7
    assert not [path for path in files if b"hush" in path.read_bytes()]


def test_a_loaded_model_is_asked_in_the_same_way(
    folder: Path, tiny_rewriter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, sampling in vague.SAMPLING.items():
        monkeypatch.setitem(vague.SAMPLING, name, replace(sampling, max_new_tokens=8))  # type: ignore[arg-type]
    config = ChatConfig(model=str(tiny_rewriter_path))
    outcome = write_vague(folder, config, attempts=1, seed=42, progress=Silent())
    assert outcome.counts["asked"] == 4
    assert outcome.counts["unanswered"] == 0
    assert len(read_rows(folder / "vague_rejected.jsonl")) == outcome.counts["rejected"]


# ------------------------------------------------------------------------------------------- retellings, judgements


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("Is it\n wet?", "Is it wet?"),
        ("Sure, here is the retold request:\n\nIs it wet?", "Is it wet?"),
        ("Retold: Is it wet?", "Is it wet?"),
        ('Retold request: "Is it wet?"', "Is it wet?"),
        ("“Is it wet?”", "Is it wet?"),
        ("Here is the thing: my cat is wet.", "Here is the thing: my cat is wet."),
        ("Okay, is it wet? Let me know if so.", "Okay, is it wet? Let me know if so."),
        ("I need two things:", "I need two things:"),
    ],
)
def test_a_retelling_loses_what_is_around_it_and_no_word_of_its_own(written: str, text: str) -> None:
    assert tidied(written) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ask SKYLANTERN please", ["SkyLantern"]),
        ("the Hourly-Forecast!", ["hourly_forecast"]),
        ("skylanterns in the sky", []),
        ("a lantern in the sky", []),
        ("use maps now", []),
        ("mail me@skylantern.org or see https://skylantern.org/x", []),
        ("getlyrics and skylantern", ["SkyLantern", "getLyrics"]),
    ],
)
def test_names_are_found_as_whole_words(text: str, found: list[str]) -> None:
    assert named(text, ("SkyLantern", "hourly_forecast", "getLyrics", "map", "use")) == found


def test_a_tool_s_names_are_its_title_and_its_api_s() -> None:
    bare = Tool(id="bare", description="no name at all")
    assert names_of([*TOOLS, bare, TOOLS[0]]) == ("SkyLantern", "hourly_forecast", "Tunery", "getLyrics")


def test_paraphrases_written_by_hand_name_no_tool(shared_data: Path) -> None:
    dataset, _ = read_dataset(shared_data / "toolbench_mini")
    tools = {tool.id: tool for tool in dataset.tools}
    naming = [query.id for query in dataset.vague if named(query.text, names_of([tools[t] for t in query.tools]))]
    assert len(dataset.vague) == 208
    assert naming == []


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (GOOD, (True, True, True)),
        ('{"intent": "Yes", "hidden": "no", "natural": " TRUE "}', (True, False, True)),
        ('Let me see. ```json\n{"intent": true,\n "hidden": true, "natural": false}\n``` Done.', (True, True, False)),
        ('As asked: {"reason": "…", "intent": true or false} {"a": {' + GOOD[1:] + "}}", (True, True, True)),
        (LEAK + " No, on second thoughts: " + GOOD, (True, True, True)),
        ('{"judgement": ' + LEAK + "}", (True, False, True)),
    ],
)
def test_judgements_are_read_in_prose_and_fences(text: str, answers: tuple[bool, bool, bool]) -> None:
    verdict = verdict_in(text)
    assert verdict is not None
    assert (verdict["intent"], verdict["hidden"], verdict["natural"]) == answers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes yes yes",
        "{",
        '{"intent": true, "hidden": true}',
        GOOD.replace("true", "1"),
        GOOD[:-1],
        "{" * 5000,
        GOOD.replace("true", "null"),
        GOOD.replace("true", "[true]"),
        "[true, true, true]",
    ],
)
def test_what_does_not_answer_all_criteria_is_no_judgement(text: str) -> None:
    assert verdict_in(text) is None


def test_all_criteria_that_fail_are_the_reason() -> None:
    assert judgement_in('{"intent": false, "hidden": true, "natural": "no", "reason": ["odd", 1]}') == (
        "changes what is wanted; nobody would say it so",
        "['odd', 1]",
    )
    assert judgement_in(GOOD) == ("", "")


# ---------------------------------------------------------------------------------------------------- the spot check


def pairs(count: int) -> list[Pair]:
    return [
        Pair(id=f"q{number}", original=f"original {number}", text=f"retold\n{number}", tools=("SkyLantern", "api"))
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "entries", "bound"), [(80, 50, "6%"), (50, 50, "6%"), (12, 12, "25%"), (2, 2, "100%")]
)
def test_the_sheet_says_what_passes_would_mean(count: int, entries: int, bound: str) -> None:
    text = spot_check_text(pairs(count), seed=1)
    assert text.count("\n## ") == entries
    assert text.count("- [ ] ") == 3 * entries
    assert f"If all {entries} pass, then at 95% confidence at most {bound} of all" in text
    assert f"{entries} of {count} paraphrases" in text


def test_the_sheet_shows_both_texts_and_the_tools_in_the_order_of_evaluation() -> None:
    text = spot_check_text(pairs(3), seed=1)
    assert (
        "## 2. q1\n\n- original: original 1\n- paraphrase: retold 1\n- gold tools: SkyLantern; api\n\n"
        "- [ ] intent\n- [ ] hidden\n- [ ] natural\n\n## 3. q2\n"
    ) in text


def test_the_draw_is_the_seed_s() -> None:
    assert spot_check_text(pairs(200), seed=1) == spot_check_text(pairs(200), seed=1)
    assert spot_check_text(pairs(200), seed=1) != spot_check_text(pairs(200), seed=2)


def test_a_sheet_without_paraphrases_says_so() -> None:
    assert "nothing to check" in spot_check_text([], seed=1)


def test_ticks_on_a_sheet_stay_as_long_as_the_paraphrases_do(folder: Path) -> None:
    sheet = folder / "vague_spot_check.md"
    with chat_server(script()) as server:
        run(folder, server)
        ticked = sheet.read_text("utf-8").replace("[ ]", "[x]", 1)
        sheet.write_text(ticked, "utf-8")
        run(folder, server, redo=True)
        assert sheet.read_text("utf-8") == ticked
    with chat_server(script(lambda query, before: "Wet or not, " + retold(query))) as server:
        run(folder, server, redo=True, seed=1)
    assert "[x]" not in sheet.read_text("utf-8")
