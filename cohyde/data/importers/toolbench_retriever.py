"""ToolBench's retriever data: ``corpus.tsv``, ``SPLIT.query.txt`` and ``qrels.SPLIT.tsv``, in one folder a tier.

Ids count from 1 in each folder, so those of a tier are told apart by its name: ``G1/17``. An API that several tiers
record is one tool, under the first of its ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohyde.data.importers.api_record import CORPUS_COLUMNS, record_in, tool_fields
from cohyde.data.importers.format import Format, Options, split_named
from cohyde.data.importers.judgements import check_queries_known, gold_of
from cohyde.data.reading import Reading, literal_of
from cohyde.data.sources import Sources
from cohyde.data.validation import SPLITS, DatasetRows, Findings, Row
from cohyde.errors import UserError

TIERS = ("G1", "G2", "G3")
CORPUS, QUERIES, QRELS = "corpus.tsv", "{}.query.txt", "qrels.{}.tsv"
TEXTS, JUDGEMENTS = ("qid", "query"), ("qid", "unused", "docid", "label")
"""Columns of the files of queries and of judgements, which have no header."""


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """The APIs of all tiers, and the queries of all their splits."""
    tiers = _tiers(sources, options)
    tool_of: dict[str, str] = {}
    return DatasetRows(tools=_tools(tiers, tool_of, reading), queries=_queries(tiers, tool_of, reading))


# --------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True)
class _Split:
    """The queries of a split and their judgements."""

    name: str
    queries: Path
    qrels: Path


@dataclass(frozen=True)
class _Tier:
    """One folder of the data; its name is empty where it is not that of a tier."""

    name: str
    corpus: Path
    splits: Sequence[_Split]

    def id(self, number: str) -> str:
        """An id that is unique among all tiers, of one that is so within this tier."""
        return f"{self.name}/{number}" if self.name else number


def _tiers(sources: Sources, options: Options) -> list[_Tier]:
    corpora = _found(sources, CORPUS)
    tiers = {_tier_name(path): path for path in corpora}
    if not corpora or len(tiers) < len(corpora):
        found = f"{len(corpora)} {CORPUS} of one tier" if corpora else f"no {CORPUS}"
        raise UserError(f"{sources}: {found} there", "name the folder of a tier, or the one that holds G1, G2 and G3")
    return [_Tier(name, tiers[name], _splits(sources, tiers[name].parent, options)) for name in sorted(tiers)]


def _found(sources: Sources, name: str) -> list[Path]:
    return sources.named(name, *(f"{tier}/{name}" for tier in TIERS))


def _tier_name(corpus: Path) -> str:
    folder = corpus.resolve().parent.name
    return folder if folder in TIERS else ""


def _splits(sources: Sources, folder: Path, options: Options) -> list[_Split]:
    """The splits of a folder, evaluation first: a query that is in two of them stays there."""
    queries = [path for path in _found(sources, QUERIES.format("*")) if path.parent == folder]
    qrels = {path.name: path for path in _found(sources, QRELS.format("*")) if path.parent == folder}
    if not queries:
        raise UserError(f"{folder}: no {QUERIES.format('*')} there", f"published is {QUERIES.format('train')}")
    splits = []
    for path in queries:
        name = path.name.removesuffix(QUERIES.format(""))
        judgements = QRELS.format(name)
        if judgements not in qrels:
            raise UserError(f"{folder}: no {judgements} there", f"it says which tools are gold for {path.name}")
        splits.append(_Split(split_named(name, path, options), path, qrels[judgements]))
    return sorted(splits, key=lambda split: -SPLITS.index(split.name))


def _distinct(
    rows: Iterable[tuple[str, Mapping[str, str]]], identifier: str, content: str, findings: Findings
) -> Iterator[tuple[str, str, str]]:
    """``(where, id, content)`` of each row, given its two columns; rows that say the same again are remarked on."""
    said: set[tuple[str, int]] = set()
    for where, row in rows:
        pair = (row[identifier], hash(row[content]))
        if pair in said:
            findings.remark(f"repeated {identifier}", where, f"{identifier} {row[identifier]} says the same as before")
            continue
        said.add(pair)
        yield where, row[identifier], row[content]


# --------------------------------------------------------------------------------------------------------- tools


def _tools(tiers: Sequence[_Tier], tool_of: dict[str, str], reading: Reading) -> Iterator[Row]:
    """Each API once; ``tool_of`` is told which tool a document is."""
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    for tier in tiers:
        rows = reading.table(tier.corpus, CORPUS_COLUMNS, delimiter="\t")
        for where, number, content in _distinct(rows, *CORPUS_COLUMNS, reading.findings):
            document = tier.id(number)
            try:
                fields = tool_fields(record_in(content), where, reading.findings)
            except ValueError as error:
                reading.findings.fault("malformed document", where, str(error))
                continue
            if document in tool_of:  # with another content: the validation's to say
                yield Row(where, {"id": tool_of[document], **fields})
                continue
            api = (fields["category"], fields["title"], fields["api_name"])
            tool, recorded = first.setdefault(api, (document, hash(str(fields))))
            tool_of[document] = tool
            if tool == document:
                yield Row(where, {"id": tool, **fields})
            elif recorded == hash(str(fields)):
                reading.findings.remark("API under several ids", where, f"{document!r} is {tool!r} again")
            else:
                what = f"{document!r} defines {tool!r} anew; the first definition is kept"
                reading.findings.remark("API with several definitions", where, what)


# ------------------------------------------------------------------------------------------------------- queries


def _queries(tiers: Sequence[_Tier], tool_of: Mapping[str, str], reading: Reading) -> Iterator[Row]:
    for tier in tiers:
        for split in tier.splits:
            yield from _of_split(tier, split, tool_of, reading)


def _of_split(tier: _Tier, split: _Split, tool_of: Mapping[str, str], reading: Reading) -> Iterator[Row]:
    judgements = reading.table(split.qrels, JUDGEMENTS, delimiter="\t", header=False)
    gold = gold_of(judgements, "qid", "docid", "label", reading.findings)
    texts = reading.table(split.queries, TEXTS, delimiter="\t", header=False)
    known = set()
    for where, number, text in _distinct(texts, *TEXTS, reading.findings):
        known.add(number)
        documents = [tier.id(document) for document in gold[number].tools] if number in gold else []
        fields = {
            "id": tier.id(number),
            "text": _unlisted(text, where, reading.findings),
            "tools": [tool_of.get(document, document) for document in documents],
            "tier": tier.name or "all",
            "split": split.name,
        }
        yield Row(where, fields)
    places = {number: judged.where for number, judged in gold.items()}
    check_queries_known(places, known, split.queries.name, reading.findings)


def _unlisted(text: str, where: str, findings: Findings) -> str:
    """The query of a one-element list, as a few are stored; any other text as it is."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    value = literal_of(text)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        findings.remark("query in a list", where, "a list of one text; the text is taken")
        return value[0]
    return text


FORMAT = Format(
    name="toolbench-retriever",
    title="ToolBench's retriever data, by tier",
    published="corpus.tsv, train.query.txt, test.query.txt, qrels.train.tsv, qrels.test.tsv; in G1, G2, G3 or not",
    read=read,
)
