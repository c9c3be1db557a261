"""One validation for every dataset, whatever its format: rows in, records out, faults and remarks counted.

Importers turn a public format into rows of ours, each with the place where it was read; what is wrong with a row is
found here and nowhere else. Everything is a stream: a catalogue of a million tools is checked without being held.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cohyde.catalog import Dataset, Query, Tool, check_text, fold, query_from_row, render_full, tool_from_row
from cohyde.errors import UserError

SPLITS = ("train", "dev", "eval")
HUGE_CHARACTERS = 20_000
"""A longer text is remarked on: no encoder reads more than its first few hundred tokens."""
Record = TypeVar("Record", Tool, Query)


@dataclass(frozen=True, slots=True)
class Row:
    """A row in the form of ``catalog.jsonl`` or ``queries.jsonl``, and where it was read.

    ``where`` is ``file:line``, or ``file#/pointer`` inside a JSON document.
    """

    where: str
    fields: Mapping[str, Any]


@dataclass
class Tally:
    """Counts by kind, each with its first example."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, where: str, what: str, times: int = 1) -> None:
        """Count one more of a kind; the first of each kind is kept as its example."""
        self.counts[kind] += times
        self.first.setdefault(kind, f"{where}: {what}")

    def lines(self) -> list[str]:
        """One line a kind: its first example and its count."""
        return [f"{self.first[kind]} ({kind}; {count} in all)" for kind, count in sorted(self.counts.items())]


@dataclass
class Findings:
    """What a validation found: faults, which raise at the end unless such rows may be left out, and remarks."""

    drop_invalid: bool = False
    faults: Tally = field(default_factory=Tally)
    remarks: Tally = field(default_factory=Tally)

    def fault(self, kind: str, where: str, what: str) -> None:
        """Count something wrong, which makes its row unusable."""
        self.faults.add(kind, where, what)

    def remark(self, kind: str, where: str, what: str, times: int = 1) -> None:
        """Count something odd, which the person should know of; its row stays."""
        self.remarks.add(kind, where, what, times)

    @property
    def counts(self) -> Counter[str]:
        """Faults by kind."""
        return self.faults.counts

    def lines(self) -> list[str]:
        """One line a kind of fault: its first example and its count."""
        return self.faults.lines()

    def raise_if_any(self) -> None:
        """Stop with every kind's first example, unless the faults were dropped.

        Raises:
            UserError: there are faults and ``drop_invalid`` is off.
        """
        if self.counts and not self.drop_invalid:
            raise UserError(
                "\n".join(self.lines()),
                "mend the file, or drop such rows: --drop-invalid (with cohyde run, data.drop_invalid=true)",
            )


@dataclass(frozen=True, kw_only=True)
class DatasetRows:
    """All rows of a dataset; ``paraphrases`` have the ids of evaluation queries and a text.

    ``card`` is what the files say of the dataset itself, such as its name and licence.
    """

    tools: Iterable[Row]
    queries: Iterable[Row] = ()
    paraphrases: Iterable[Row] = ()
    card: Mapping[str, Any] = field(default_factory=dict)


def validated(name: str, rows: DatasetRows, findings: Findings) -> Dataset:
    """The dataset that is left when all faults are left out.

    Rows of another evaluation query's or paraphrase's normalised text are leakage, and so no part of train or dev.

    Raises:
        UserError: there are faults, which may not be dropped, or no tool at all.
    """
    tools = tuple(tool for _, tool in remarked_tools(checked_tools(rows.tools, findings), findings))
    check_any_tools(name, len(tools), findings)
    splits = validated_queries(rows, {tool.id for tool in tools}, findings)
    findings.raise_if_any()
    return Dataset(name=name, tools=tools, **splits)


def check_any_tools(name: str, count: int, findings: Findings) -> None:
    """Refuse an empty catalogue; where it is empty because every row is at fault, the faults are what is said."""
    if not count:
        findings.raise_if_any()
        raise UserError(f"{name}: the catalogue is empty", "a catalogue needs at least one tool")


def validated_queries(rows: DatasetRows, known: Collection[str], findings: Findings) -> dict[str, tuple[Query, ...]]:
    """Train, dev, eval and vague: well formed, with gold tools that are ``known``, and disjoint by normalised text."""
    found = list(remarked_queries(checked_queries(rows.queries, known, findings), findings))
    by_split = {name: [(where, query) for where, query in found if query.split == name] for name in SPLITS}
    evaluation = tuple(query for _, query in by_split["eval"])
    vague = tuple(checked_paraphrases(rows.paraphrases, {query.id: query for query in evaluation}, findings))
    dev = tuple(without_twins(by_split["dev"], [*evaluation, *vague], findings))
    train = tuple(without_twins(by_split["train"], [*evaluation, *vague, *dev], findings))
    return {"train": train, "dev": dev, "eval": evaluation, "vague": vague}


def checked_tools(rows: Iterable[Row], findings: Findings) -> Iterator[tuple[str, Tool]]:
    """The tools that are well formed and have an id of their own, with their places, in order."""
    return _well_formed(rows, tool_from_row, "tool", findings)


def checked_queries(rows: Iterable[Row], known: Collection[str], findings: Findings) -> Iterator[tuple[str, Query]]:
    """The queries that are well formed, have an id of their own and gold that is ``known``, with their places."""
    for where, query in _well_formed(rows, query_from_row, "query", findings):
        unknown = [tool for one in query.valid_sets for tool in one if tool not in known]
        if query.split not in SPLITS:
            findings.fault("unknown split", where, f"{query.split!r} of {query.id!r} is none of {', '.join(SPLITS)}")
        elif not query.tools:
            findings.fault("query without gold", where, f"{query.id!r} names no tool")
        elif unknown:
            findings.fault("unknown gold tool", where, f"{query.id!r} names {unknown[0]!r}, not in the catalogue")
        else:
            yield where, query


def _well_formed(
    rows: Iterable[Row], build: Callable[[Mapping[str, Any]], Record], noun: str, findings: Findings
) -> Iterator[tuple[str, Record]]:
    """Records with their places; of several with one id, the first."""
    first: dict[str, tuple[str, int]] = {}
    for row in rows:
        try:
            record = build(row.fields)
        except ValueError as error:
            findings.fault(f"malformed {noun}", row.where, str(error))
            continue
        if record.id not in first:
            first[record.id] = (row.where, hash(record))
            yield row.where, record
            continue
        where, content = first[record.id]
        if content == hash(record):
            findings.fault(f"repeated {noun}", row.where, f"{record.id!r} says the same as at {_short(where)}")
        else:
            findings.fault(f"duplicate {noun} id", row.where, f"{record.id!r} is also at {_short(where)}")


def _short(where: str) -> str:
    """A place without the folders that lead to its file."""
    return where.rpartition("/")[2] if "#" not in where else where


def checked_paraphrases(rows: Iterable[Row], evaluation: Mapping[str, Query], findings: Findings) -> Iterator[Query]:
    """Paraphrases of evaluation queries, with the gold and the tier of their originals."""
    seen: set[str] = set()
    for row in rows:
        try:
            identifier, text = _paraphrase_from(row.fields)
        except ValueError as error:
            findings.fault("malformed paraphrase", row.where, str(error))
            continue
        if identifier not in evaluation:
            findings.fault("unknown paraphrase", row.where, f"{identifier!r} is not an evaluation query")
        elif identifier in seen:
            findings.fault("duplicate paraphrase", row.where, f"{identifier!r} occurs before")
        else:
            seen.add(identifier)
            original = evaluation[identifier]
            yield Query(
                id=identifier,
                text=text,
                tools=original.tools,
                tier=original.tier,
                split="vague",
                gold_sets=original.gold_sets,
            )


def _paraphrase_from(row: Mapping[str, Any]) -> tuple[str, str]:
    identifier, text = row.get("id"), row.get("text")
    if not isinstance(identifier, str) or not isinstance(text, str) or not text.strip():
        raise ValueError("needs an 'id' and a 'text' that is not empty")
    check_text("text", text)
    return identifier, text


def normalised(text: str) -> str:
    """Letters and digits only, without case or invisible characters: texts equal in this form are the same query.

    A text without letters or digits stands for itself.
    """
    if text.isascii():
        return " ".join(text.lower().translate(_ASCII_TO_WORDS).split()) or fold(text)
    folded = unicodedata.normalize("NFKC", text).casefold()
    visible = (c for c in folded if unicodedata.category(c) != "Cf")
    return " ".join("".join(c if c.isalnum() else " " for c in visible).split()) or fold(text)


_ASCII_TO_WORDS = {code: " " for code in range(128) if not chr(code).isalnum()}


def without_twins(
    queries: Iterable[tuple[str, Query]], held_out: Iterable[Query], findings: Findings
) -> Iterator[Query]:
    """The queries, given with their places, that do not read like one that is held out."""
    texts = {normalised(query.text): query for query in held_out}
    for where, query in queries:
        twin = texts.get(normalised(query.text))
        if twin is None:
            yield query
        else:
            what = f"{query.id!r} ({query.split}) reads as {twin.id!r} ({twin.split})"
            findings.fault("leakage between splits", where, what)


# ----------------------------------------------------------------------------------------------------- remarks


def remarked_tools(tools: Iterable[tuple[str, Tool]], findings: Findings) -> Iterator[tuple[str, Tool]]:
    """The same tools; what is odd about them is remarked on: no text, no description, huge, the text of another."""
    first: dict[int, str] = {}
    for where, tool in tools:
        text = render_full(tool)
        if not text:
            findings.remark("tool without any text", where, f"{tool.id!r} has its id alone")
        elif not (fold(tool.api_description) or fold(tool.description)):
            findings.remark("tool without a description", where, repr(tool.id))
        if len(text) > HUGE_CHARACTERS:
            findings.remark("huge text", where, f"{tool.id!r} has {len(text):,} characters")
        twin = first.setdefault(hash(text), tool.id)
        if twin != tool.id:
            findings.remark("tools with the same text", where, f"{tool.id!r} reads as {twin!r}")
        yield where, tool


def remarked_queries(queries: Iterable[tuple[str, Query]], findings: Findings) -> Iterator[tuple[str, Query]]:
    """The same queries; huge ones, and ones that read like another of their split, are remarked on."""
    first: dict[tuple[str, str], str] = {}
    for where, query in queries:
        if len(query.text) > HUGE_CHARACTERS:
            findings.remark("huge text", where, f"{query.id!r} has {len(query.text):,} characters")
        twin = first.setdefault((query.split, normalised(query.text)), query.id)
        if twin != query.id:
            findings.remark("repeated query text", where, f"{query.id!r} reads as {twin!r}")
        yield where, query
