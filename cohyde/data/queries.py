"""Training queries for a catalogue: a chat model asks for each tool alone, and for related tools together.

What the model wrote is in a :class:`~cohyde.data.ledger.Ledger`, word for word, and judged anew in each run: so that
work that was killed goes on where it was, asks nothing twice, and gives what it would have given.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from cohyde.catalog import SURROGATE, Dataset, Query, Tool, query_to_row
from cohyde.config import ChatConfig, SamplingConfig, identity_of
from cohyde.data.dataset import QUERIES, catalogue_checksum, read_card, read_dataset, write_card
from cohyde.data.drafts import FILTERS, Draft, Known, fault_in, request_in, told
from cohyde.data.ledger import Ledger
from cohyde.data.related import due, seed_groups, tier_of
from cohyde.data.validation import SPLITS, Tally
from cohyde.errors import UserError
from cohyde.filesystem import writing_to
from cohyde.io import canonical_json, sha256_text, write_jsonl
from cohyde.progress import Progress
from cohyde.resources import sample_folder
from cohyde.rewriter.chat import ChatModel, Conversation, Reply, open_chat
from cohyde.rewriter.generate import request_seed
from cohyde.rewriter.prompts import Prompt, build_messages, load_prompt

PROMPT = "write_request"
SAMPLING = SamplingConfig(temperature=0.7, top_p=0.9, max_new_tokens=120)
"""Requests are drawn, so that another one for the same tools is another text (ours)."""
WORK = Path(".work", "queries")
EVAL_SHARE = 0.15
"""Of a catalogue without evaluation queries (ours)."""
CUT = "cut at the token limit"
GIVEN_UP_SHARE = 0.1
"""Of the requests: where more are given up, the person is told that another model would do better (ours)."""
PREFIX = "generated"
"""Ids of queries that are written here begin with it."""


@dataclass(frozen=True, kw_only=True)
class QueriesConfig:
    """How many queries are written for a catalogue, and of which kind."""

    per_tool: int = 4
    """Requests for each tool alone, at least 1 (ours)."""
    multi_share: float = 1 / 3
    """Share of all requests that need two or three related tools, at least 0 and below 1 (ours)."""
    eval_share: float | None = None
    """Share of the groups of gold tools whose requests are held out for evaluation, by tier. None: 0.15, or 0 where
    the dataset brings evaluation queries of its own."""
    attempts: int = 3
    """Times that a request is drawn until one passes the filters (ours)."""
    filters: tuple[str, ...] = tuple(FILTERS)
    """Strategies: what a request may not be (``cohyde.data.drafts.FILTERS``). Without ``off topic``, requests may share
    no word with the catalogue: for models that can be trusted to stay on topic."""
    limit: int | None = None
    """Requests at most. None: all."""
    seed: int = 42
    """Of groups, split and draws. Another seed writes further queries."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.per_tool < 1 or self.attempts < 1 or (self.limit is not None and self.limit < 1):
            raise UserError("requests a tool, attempts and limit have to be at least 1")
        if not 0 <= self.multi_share < 1 or not 0 <= (self.eval_share or 0) < 1:
            raise UserError("shares have to be at least 0 and less than 1")
        for name in self.filters:
            if name not in FILTERS:
                raise UserError(f"there is no filter {name!r}", f"filters are: {', '.join(FILTERS)}")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request that is to be written: the id it will have, its gold tools and its split."""

    id: str
    tools: tuple[Tool, ...]
    split: str

    @property
    def tool_ids(self) -> tuple[str, ...]:
        """The gold."""
        return tuple(tool.id for tool in self.tools)

    def query(self, text: str) -> Query:
        """The query, once its text is there."""
        return Query(id=self.id, text=text, tools=self.tool_ids, tier=tier_of(self.tools), split=self.split)

    def conversation(self, name: str, prompt: Prompt, seed: int) -> Conversation:
        """What the model is asked, and with random numbers that belong to the conversation's ``name``."""
        messages = build_messages(prompt, {"tools": "\n".join(told(tool) for tool in self.tools)})
        return Conversation(id=name, messages=tuple(messages), seed=request_seed(seed, "queries", name))


def plan(dataset: Dataset, config: QueriesConfig) -> list[Ask]:
    """The requests that are to be written for a dataset's catalogue, in an order whose beginning is a fair sample.

    All requests for the same tools are on one side, ``train`` or ``eval``: where there are such in the dataset, on
    theirs; but evaluation queries that the dataset brings keep no tools from training.
    """
    there = _queries_of(dataset)
    brought = any(query.split == "eval" and not _is_generated(query) for query in there)
    share = config.eval_share if config.eval_share is not None else (0.0 if brought else EVAL_SHARE)
    sides = {frozenset(query.tools): query.split for query in there if _is_generated(query) or query.split != "eval"}
    groups = seed_groups(dataset.tools, per_tool=config.per_tool, multi_share=config.multi_share, seed=config.seed)
    asks = []
    drawn: Counter[tuple[str, int]] = Counter()
    numbers: Counter[frozenset[str]] = Counter()
    for tools in islice(groups, config.limit):
        gold = frozenset(tool.id for tool in tools)
        if gold not in numbers:
            stratum = (tier_of(tools), len(tools))
            sides.setdefault(gold, "eval" if due(drawn[stratum], share) else "train")
            drawn[stratum] += 1
        numbers[gold] += 1
        asks.append(Ask(id=_ask_id(config.seed, gold, numbers[gold]), tools=tools, split=sides[gold]))
    return asks


def _ask_id(seed: int, gold: Iterable[str], number: int) -> str:
    return f"{PREFIX}/{seed}/{sha256_text(canonical_json(sorted(gold)))[:12]}/{number}"


def _is_generated(query: Query) -> bool:
    return query.id.startswith(f"{PREFIX}/")


def _queries_of(dataset: Dataset) -> list[Query]:
    return [*dataset.train, *dataset.dev, *dataset.eval]


@dataclass(kw_only=True)
class Outcome:
    """What became of the requests that were to be written."""

    planned: int
    there: int = 0
    """Were in the dataset already, and were not asked again."""
    written: list[Query] = field(default_factory=list)
    rejected: Tally = field(default_factory=Tally)
    """Replies that were refused, by the filter that refused them; most were drawn again."""
    given_up: list[Ask] = field(default_factory=list)
    """No reply passed, in all attempts."""
    unanswered: Tally = field(default_factory=Tally)
    """Nobody replied: running again asks these again."""

    @property
    def counts(self) -> dict[str, int]:
        """How many were ``planned``, and of these were ``there``, ``written``, ``given_up`` and ``unanswered``."""
        return {
            "planned": self.planned,
            "there": self.there,
            "written": len(self.written),
            "given_up": len(self.given_up),
            "unanswered": self.unanswered.counts.total(),
        }

    def to_json(self) -> dict[str, Any]:
        """All counts, each reason with its first example, and the first ten queries."""
        return {
            "counts": self.counts,
            "splits": dict(sorted(Counter(query.split for query in self.written).items())),
            "tiers": dict(sorted(Counter(query.tier for query in self.written).items())),
            "rejected": _kinds(self.rejected),
            "unanswered": _kinds(self.unanswered),
            "examples": [query_to_row(query) for query in self.written[:10]],
        }


def _kinds(tally: Tally) -> list[dict[str, Any]]:
    return [{"kind": kind, "count": count, "first": tally.first[kind]} for kind, count in tally.counts.most_common()]


def ledger_identity(dataset: Dataset, chat: ChatModel, seed: int) -> dict[str, Any]:
    """All that can change a reply; more requests a tool, or more attempts, only continue the work."""
    return {
        "catalogue": catalogue_checksum(dataset.tools),
        "model": dict(chat.identity),
        "prompt": load_prompt(PROMPT).sha256,
        "sampling": identity_of(SAMPLING),
        "seed": seed,
    }


def ask(
    dataset: Dataset, asks: Sequence[Ask], chat: ChatModel, ledger: Ledger, config: QueriesConfig, progress: Progress
) -> Outcome:
    """Have requests written, and keep those that pass every filter.

    Goes in waves: all that are without a request are asked, then all replies are judged in the order of ``asks``, so
    that what is kept does not depend on the order in which replies come.

    Args:
        dataset: its catalogue and its queries are what drafts are compared with.
        asks: the requests, as :func:`plan` has them.
        chat: writes.
        ledger: of :func:`ledger_identity`; what it holds is not asked again.
        config: attempts and seed.
        progress: is told how many requests are settled.

    Raises:
        UserError: the endpoint does not answer; what was written until then is in the ledger.
    """
    there = {query.id for query in _queries_of(dataset)}
    waiting = [each for each in asks if each.id not in there]
    outcome = Outcome(planned=len(asks), there=len(asks) - len(waiting))
    prompt = load_prompt(PROMPT)
    known = Known(dataset.tools, [*_queries_of(dataset), *dataset.vague], [shown.answer for shown in prompt.examples])
    desk = _Desk(chat, ledger, prompt, config, progress)
    for attempt in range(1, config.attempts + 1):
        replies = desk.replies(waiting, attempt, total=len(asks))
        waiting = _judge(waiting, replies, known, config.filters, outcome)
    outcome.given_up = waiting
    return outcome


def _judge(
    asks: Sequence[Ask], replies: Mapping[str, Reply], known: Known, filters: Collection[str], outcome: Outcome
) -> list[Ask]:
    """Take in what passes; returns those that have to be asked once more."""
    again = []
    for each in asks:
        reply = replies[each.id]
        if reply.error:
            outcome.unanswered.add(reply.error, each.id, "no reply")
            continue
        text = request_in(reply.text, finished=reply.finished)
        reason, detail = fault_in(Draft(text, each.tools, known), filters)
        if not text and not reply.finished:
            reason, detail = CUT, "if the model reasons before it answers, switch that off"
        if reason:
            outcome.rejected.add(reason, each.id, f"{detail}: {text!r}" if text else detail)
            again.append(each)
        else:
            known.add(each.id, text, each.tool_ids)
            outcome.written.append(each.query(text))
    return again


class _Desk:
    """Where replies come from: the ledger, or else the model."""

    def __init__(
        self, chat: ChatModel, ledger: Ledger, prompt: Prompt, config: QueriesConfig, progress: Progress
    ) -> None:
        self.chat, self.ledger, self.prompt, self.config, self.progress = chat, ledger, prompt, config, progress
        self.rows = {row["id"]: row for row in ledger.rows if row.keys() >= {"id", "text", "finished"}}

    def replies(self, asks: Sequence[Ask], attempt: int, total: int) -> dict[str, Reply]:
        """The reply to each request, asked for the ``attempt``-th time, by the request's id."""
        names = {each.id: f"{each.id}#{attempt}" for each in asks}
        asked = [
            each.conversation(name, self.prompt, self.config.seed)
            for each, name in zip(asks, names.values(), strict=True)
            if name not in self.rows
        ]
        errors = {}
        for done, reply in enumerate(self.chat.replies(asked, SAMPLING), start=total - len(asked) + 1):
            if reply.error:
                errors[reply.id] = reply
            else:
                self._record(reply)
            self.progress.update(done, total, f"requests, draw {attempt} of {self.config.attempts}")
        return {identifier: errors.get(name) or Reply(**self.rows[name]) for identifier, name in names.items()}

    def _record(self, reply: Reply) -> None:
        # Half a surrogate pair, which a server may send as a JSON escape, cannot be written as UTF-8.
        text = SURROGATE.sub("\ufffd", reply.text)
        row = {"id": reply.id, "text": text, "finished": reply.finished}
        self.ledger.append(row)
        self.rows[reply.id] = row


# ---------------------------------------------------------------------------------------------- in a dataset folder


def write_queries(folder: Path, chat: ChatConfig, config: QueriesConfig, *, progress: Progress) -> Outcome:
    """Write queries for a dataset's catalogue into its folder, beside those that are there.

    ``queries.jsonl`` gets what passed the filters, and the card new counts, checksums and how it was made. Neither
    changes before all requests were asked. Work in progress lies in ``.work/queries/``. Requests that are in the
    dataset already are not asked again, whatever has become of their text since.

    Args:
        folder: the dataset folder; its ``queries.jsonl`` may be empty.
        chat: the chat model.
        config: how many requests, and of which kind.
        progress: is told how many requests were asked.

    Raises:
        UserError: the dataset is invalid, or the embedded sample; the model is not there; the endpoint does not
            answer (what was written until then is kept: run it again); the folder cannot be written to.
    """
    if folder.resolve() == sample_folder().resolve():
        raise UserError(f"{folder}: the embedded sample stays as it is", "copy it, or give a dataset folder of yours")
    dataset, _ = read_dataset(folder)
    asks = plan(dataset, config)
    there = {query.id for query in _queries_of(dataset)}
    if all(each.id in there for each in asks):
        return Outcome(planned=len(asks), there=len(asks))
    with open_chat(chat) as model:
        identity = ledger_identity(dataset, model, config.seed)
        with writing_to(folder, "dataset folder"):
            ledger = Ledger(folder / WORK, identity)
        outcome = ask(dataset, asks, model, ledger, config, progress)
    if len(outcome.given_up) > GIVEN_UP_SHARE * len(asks):
        progress.warn(
            f"{len(outcome.given_up):,} of {len(asks):,} requests were given up: this model is too weak for them; "
            "a larger one writes more of them, and better ones"
        )
    made = identity | {"attempts": config.attempts, "filters": list(config.filters)}
    completed = _with_queries(dataset, asks, outcome.written)
    with writing_to(folder, "dataset folder"):
        write_jsonl(folder / QUERIES, map(query_to_row, _queries_of(completed)))
        write_card(folder, completed, {**read_card(folder), "generated": made})
    return outcome


def _with_queries(dataset: Dataset, asks: Sequence[Ask], written: Iterable[Query]) -> Dataset:
    """The dataset with the requests after all others, in the order of ``asks``, whenever each was written."""
    by_id = {query.id: query for query in (*_queries_of(dataset), *written)}
    asked = dict.fromkeys(each.id for each in asks if each.id in by_id)
    queries = [*(query for name, query in by_id.items() if name not in asked), *(by_id[name] for name in asked)]
    train, dev, evaluation = (tuple(query for query in queries if query.split == split) for split in SPLITS)
    return replace(dataset, train=train, dev=dev, eval=evaluation)
