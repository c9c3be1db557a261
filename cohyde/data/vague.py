"""Vague paraphrases of evaluation queries: a chat model retells each, and judges every retelling afresh.

Only what passes all criteria is kept. What the models said is in a :class:`~cohyde.data.ledger.Ledger`, so that work
that was killed goes on where it was and asks nothing twice.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset, Query
from cohyde.config import ChatConfig, SamplingConfig, identity_of
from cohyde.data.dataset import VAGUE, read_card, read_dataset, write_card
from cohyde.data.ledger import Ledger
from cohyde.data.retellings import fault_in, judgement_in, names_of, tidied
from cohyde.data.spot_check import Pair, spot_check_text
from cohyde.data.validation import normalised
from cohyde.errors import UserError
from cohyde.filesystem import writing_to
from cohyde.io import canonical_json, sha256_text, write_jsonl, write_text
from cohyde.progress import Progress
from cohyde.rewriter.chat import ChatModel, Conversation, Reply, open_chat
from cohyde.rewriter.generate import request_seed
from cohyde.rewriter.prompts import Prompt, build_messages, load_prompt, prompt_hash

RETELL, CHECK = "vague", "vague_check"
"""The prompts."""
SAMPLING: Mapping[str, SamplingConfig] = {
    RETELL: SamplingConfig(temperature=0.7, top_p=0.95, max_new_tokens=512),
    CHECK: SamplingConfig(max_new_tokens=512),
}
"""Retellings are drawn, so that another attempt is another text; judgements are greedy (ours)."""
REJECTED = "vague_rejected.jsonl"
SPOT_CHECK = "vague_spot_check.md"
WORK = Path(".work", "vague")
NO_REPLY = "no reply"
CUT = "cut at the token limit"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A query that has no paraphrase after all attempts, and why the last one was refused."""

    id: str
    original: str
    text: str
    """The last retelling; empty where there is none."""
    reason: str
    detail: str
    """The judge's own words, the names that occurred, or why nobody replied."""
    attempts: int
    """Retellings that were refused. Fewer than allowed: nobody replied to the others, and running again asks them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the queries that were asked, in their order."""

    kept: tuple[Pair, ...]
    rejected: tuple[Rejected, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many were ``asked``, ``kept`` and ``rejected``; of these, running again asks the ``unanswered`` again."""
        return {
            "asked": len(self.kept) + len(self.rejected),
            "kept": len(self.kept),
            "rejected": len(self.rejected),
            "unanswered": self.reasons[NO_REPLY],
        }

    @property
    def reasons(self) -> Counter[str]:
        """Rejected queries by reason."""
        return Counter(item.reason for item in self.rejected)


@dataclass
class _Case:
    """A query on its way to a paraphrase; its state is what its rows in the ledger say."""

    query: Query
    names: tuple[str, ...]
    attempts: int = 0
    text: str = ""
    waiting: bool = False
    """Retold, and not judged yet."""
    kept: bool = False
    reason: str = ""
    detail: str = ""
    error: str = ""
    """Why nobody replied, the last time that this was so."""

    @property
    def key(self) -> str:
        """Of all that is asked about: rows of a query that has changed since are not this one's."""
        return sha256_text(canonical_json([self.query.id, self.query.text, *self.names]))[:12]

    def row(self, **said: str) -> dict[str, Any]:
        return {"id": self.query.id, "key": self.key, "attempt": self.attempts + 1, **said}

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is the next there can be: two processes at once, or a hand, may have written others."""
        complete = {"reason", "detail"} <= row.keys()
        return complete and row.get("attempt") == self.attempts + 1 and ("text" in row) != self.waiting

    def apply(self, row: Mapping[str, Any]) -> None:
        self.reason, self.detail = row["reason"], row["detail"]
        if "text" in row:
            self.text = row["text"]
            self.waiting = not self.reason
        else:
            self.waiting, self.kept = False, not self.reason
        if not self.waiting:
            self.attempts += 1

    def conversation(self, prompt: Prompt, seed: int) -> Conversation:
        fields = {"query": self.query.text, "tools": "; ".join(self.names), "vague": self.text}
        messages = build_messages(prompt, {name: fields[name] for name in prompt.fields})
        where = f"{prompt.name}.{self.attempts + 1}"
        return Conversation(id=self.query.id, messages=tuple(messages), seed=request_seed(seed, where, self.query.id))


def ledger_identity(chat: ChatModel, seed: int) -> dict[str, Any]:
    """All that can change what is said about a query; another number of attempts only continues the work."""
    return {
        "model": dict(chat.identity),
        "prompts": {name: prompt_hash(name) for name in SAMPLING},
        "sampling": {name: identity_of(sampling) for name, sampling in SAMPLING.items()},
        "seed": seed,
    }


def paraphrase(
    dataset: Dataset,
    queries: Sequence[Query],
    chat: ChatModel,
    ledger: Ledger,
    *,
    attempts: int,
    seed: int,
    progress: Progress,
) -> Outcome:
    """Retell queries in everyday words, and keep the retellings that pass all criteria.

    Goes in waves: all queries that are still without a paraphrase are retold, then all retellings are judged, each in
    a conversation of its own.

    Args:
        dataset: holds the queries' gold tools, and the training queries that no paraphrase may read as.
        queries: those to retell.
        chat: retells and judges.
        ledger: of :func:`ledger_identity`; what it holds is not asked again.
        attempts: retellings a query at most.
        seed: of the retellings.
        progress: is told how far each wave is.

    Raises:
        UserError: the endpoint does not answer; what was said until then is in the ledger.
    """
    tools = {tool.id: tool for tool in dataset.tools}
    cases = [_Case(query=query, names=names_of([tools[tool] for tool in query.tools])) for query in queries]
    by_key = {case.key: case for case in cases}
    for row in ledger.rows:
        case = by_key.get(row.get("key", ""))
        if case and not case.kept and case.attempts < attempts and case.fits(row):
            case.apply(row)
    work = _Work(dataset, chat, ledger, seed, progress)
    for wave in range(1, attempts + 1):
        going = [case for case in cases if not case.kept and case.attempts < attempts]
        work.retell([case for case in going if not case.waiting], f"retold, wave {wave} of {attempts}")
        work.judge([case for case in going if case.waiting], f"judged, wave {wave} of {attempts}")
    return _outcome(cases, attempts)


class _Work:
    def __init__(self, dataset: Dataset, chat: ChatModel, ledger: Ledger, seed: int, progress: Progress) -> None:
        self.chat, self.ledger, self.seed, self.progress = chat, ledger, seed, progress
        self.training = {normalised(query.text) for query in (*dataset.train, *dataset.dev)}

    def retell(self, cases: Sequence[_Case], what: str) -> None:
        for case, reply in self._replies(RETELL, cases, what):
            text = tidied(reply.text)
            if reply.finished:
                reason, detail = fault_in(text, case.query.text, case.names, self.training)
            else:
                reason, detail = CUT, "if the model reasons before it answers, switch that off"
            self._record(case, text=text, reason=reason, detail=detail)

    def judge(self, cases: Sequence[_Case], what: str) -> None:
        for case, reply in self._replies(CHECK, cases, what):
            reason, detail = judgement_in(reply.text)
            self._record(case, reason=reason, detail=detail)

    def _record(self, case: _Case, **said: str) -> None:
        row = case.row(**said)
        self.ledger.append(row)
        case.apply(row)

    def _replies(self, name: str, cases: Sequence[_Case], what: str) -> Iterator[tuple[_Case, Reply]]:
        """Replies as they come. A query that gets none stays as it is: the next wave asks it again."""
        prompt = load_prompt(name)
        by_id = {case.query.id: case for case in cases}
        conversations = [case.conversation(prompt, self.seed) for case in cases]
        for done, reply in enumerate(self.chat.replies(conversations, SAMPLING[name]), start=1):
            case = by_id[reply.id]
            if reply.error:
                case.error = reply.error
            else:
                yield case, reply
            self.progress.update(done, len(cases), what)


def _outcome(cases: Sequence[_Case], attempts: int) -> Outcome:
    kept = [
        Pair(id=case.query.id, original=case.query.text, text=case.text, tools=case.names)
        for case in cases
        if case.kept
    ]
    rejected = []
    for case in cases:
        if not case.kept:
            tried = case.attempts == attempts
            rejected.append(
                Rejected(
                    id=case.query.id,
                    original=case.query.text,
                    text=case.text,
                    reason=case.reason if tried else NO_REPLY,
                    detail=case.detail if tried else case.error,
                    attempts=case.attempts,
                )
            )
    return Outcome(kept=tuple(kept), rejected=tuple(rejected))


# ---------------------------------------------------------------------------------------------- in a dataset folder


def write_vague(
    folder: Path, config: ChatConfig, *, attempts: int, seed: int, progress: Progress, redo: bool = False
) -> Outcome:
    """Paraphrase a dataset's evaluation queries, and write what came of it into its folder.

    ``vague.jsonl`` gets what was kept, ``vague_rejected.jsonl`` the rest with the reasons, ``vague_spot_check.md`` a
    sheet for a person (anew where paraphrases have changed), and the card new counts and checksums. None of these
    changes before all queries were asked. Work in progress lies in ``.work/vague/``.

    Args:
        folder: the dataset folder.
        config: the chat model.
        attempts: retellings a query at most.
        seed: of the retellings and of the sheet's draw. Another seed is how to get other retellings.
        progress: is told how far each wave is.
        redo: ask all queries, and not only those without a paraphrase. One that is refused loses the paraphrase it
            had; one that nobody replied to keeps it.

    Raises:
        UserError: the dataset is invalid or has no evaluation queries; the model is not there; the endpoint does not
            answer (what was said until then is kept: run it again); the folder cannot be written to.
    """
    dataset, _ = read_dataset(folder)
    if not dataset.eval:
        raise UserError(f"{folder}: there are no evaluation queries", 'paraphrased are queries whose split is "eval"')
    there = {query.id: query.text for query in dataset.vague}
    asked = [query for query in dataset.eval if redo or query.id not in there]
    card = read_card(folder)
    outcome = Outcome(kept=(), rejected=())
    if asked:
        with open_chat(config) as chat:
            identity = ledger_identity(chat, seed)
            ledger = Ledger(folder / WORK, identity)
            outcome = paraphrase(dataset, asked, chat, ledger, attempts=attempts, seed=seed, progress=progress)
        card |= {"paraphrased": {**identity, "attempts": attempts}}
    refused = {item.id for item in outcome.rejected if item.reason != NO_REPLY}
    texts = {name: text for name, text in there.items() if name not in refused}
    texts |= {pair.id: pair.text for pair in outcome.kept}
    vague = tuple(replace(query, text=texts[query.id], split="vague") for query in dataset.eval if query.id in texts)
    with writing_to(folder, "dataset folder"):
        write_jsonl(folder / VAGUE, ({"id": query.id, "text": query.text} for query in vague))
        write_card(folder, replace(dataset, vague=vague), card)
        write_jsonl(folder / REJECTED, map(asdict, outcome.rejected))
        # A sheet that still holds may have a person's ticks on it.
        if vague != dataset.vague or not (folder / SPOT_CHECK).exists():
            write_text(folder / SPOT_CHECK, spot_check_text(_pairs(replace(dataset, vague=vague)), seed))
    return outcome


def _pairs(dataset: Dataset) -> list[Pair]:
    tools = {tool.id: tool for tool in dataset.tools}
    original = {query.id: query.text for query in dataset.eval}
    return [
        Pair(
            id=query.id,
            original=original[query.id],
            text=query.text,
            tools=names_of([tools[tool] for tool in query.tools]),
        )
        for query in dataset.vague
    ]
