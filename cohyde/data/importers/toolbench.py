"""ToolBench's instruction JSON, and StableToolBench's: requests, each with the APIs it was written from, and its gold.

A record has ``query``, ``query_id``, ``api_list`` and ``relevant APIs`` (pairs of provider and API). Tier and split are
those of the file's name or folder: ``G1_query.json`` and ``G1/train.json`` are for training, ``G1_instruction.json``,
``G1_tool.json``, ``G1_category.json`` and ``G1/test_G1_tool.json`` for evaluation. A folder ``test_query_ids`` beside
says which records belong to an evaluation file, and which of a training file are held out for evaluation.

The catalogue is the union of the lists, sorted by category, provider and API. Ids are these names, readable; those of
queries are ``G1_instruction/588``, the same in every release. With a catalogue to join with (``corpus_G123.tsv`` of
ToolGen's release holds all APIs, also those in no list), that one is taken as it is, and completed by what it lacks.
ToolGen's memorisation file, where it is among the sources, adds what it says of the providers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cohyde.data.importers.api_names import Name, NameIndex, readable_ids, tier_named
from cohyde.data.importers.api_record import tool_fields
from cohyde.data.importers.format import Format, Options
from cohyde.data.importers.given_catalog import API, given_tools, name_of
from cohyde.data.importers.toolgen_conversations import memorised
from cohyde.data.reading import Reading, objects, text_of
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Row
from cohyde.errors import UserError

LEVELS = ("instruction", "tool", "category")
"""ToolBench's levels of generalisation: each is a file of evaluation queries."""
PUBLISHED = (
    "**/G?_query.json",
    *(f"**/G?_{level}.json" for level in LEVELS),
    "**/G?/train.json",
    *(f"**/G?/test_G?_{level}.json" for level in LEVELS),
)
TEST_IDS = "test_query_ids"
MEMORISED = "**/*memorization*.json"
TRIPLE = ("category_name", "tool_name", "api_name")


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """The union of all lists, or the given catalogue, and the requests of all files."""
    lists = _Lists(reading)
    requests: list[_Request] = []
    tool_of: dict[Name, str] = {}

    def tools() -> Iterator[Row]:
        for path in _files(sources):
            requests.extend(_requests(path, lists, reading, options))
        given = given_tools(options.catalog, reading) if options.catalog else []
        yield from _described(sources, reading, _catalogue(lists, given, tool_of, reading))

    def queries() -> Iterator[Row]:
        for request in requests:
            yield Row(request.where, {**request.fields, "tools": [tool_of[api] for api in request.gold]})

    return DatasetRows(tools=tools(), queries=queries())


# --------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True)
class _File:
    """A file of requests. ``group`` is what its queries' ids begin with, ``G1_instruction``."""

    path: Path
    tier: str
    group: str
    split: str

    @classmethod
    def of(cls, path: Path) -> "_File":
        stem = path.stem.removeprefix("test_")
        in_name, in_folder = tier_named(stem), tier_named(path.absolute().parent.name)
        tier = in_name or in_folder or "all"
        group = stem if in_name or not in_folder else f"{in_folder}_{stem}"
        held_out = path.stem.startswith("test") or stem.removeprefix(f"{tier}_") in LEVELS
        return cls(path, tier, group, "eval" if held_out else "train")


def _files(sources: Sources) -> list[_File]:
    """The files that were named, whatever their names, and those of a folder under their published names."""
    memorised_files = sources.named(MEMORISED)
    named = [path for path in sources.paths if path.is_file() and path not in memorised_files]
    below = [path for path in sources.named(*PUBLISHED) if path.parent.name != TEST_IDS]
    found = list(dict.fromkeys([*named, *below]))
    if not found:
        raise UserError(f"{sources}: no file of requests there", f"published are: {FORMAT.published}")
    return [_File.of(path) for path in found]


def _listed_ids(path: Path, reading: Reading) -> dict[str, set[str]]:
    """Ids of evaluation queries by group, from a folder ``test_query_ids`` beside a file or beside its folder."""
    beside = path.absolute().parent
    folder = next((one / TEST_IDS for one in (beside, beside.parent) if (one / TEST_IDS).is_dir()), None)
    files = sorted(folder.glob("*.json")) if folder else []
    return {file.stem.removesuffix(f"_{TEST_IDS}"): _ids(file, reading) for file in files}


def _ids(path: Path, reading: Reading) -> set[str]:
    ids = reading.json(path)
    if not isinstance(ids, (dict, list)):
        raise UserError(f"{path}: expected an object whose keys are query ids, got {type(ids).__name__}")
    return set(map(str, ids))


# ------------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True)
class _Request:
    """A row of a query but for its gold, which is still by name."""

    where: str
    fields: Mapping[str, Any]
    gold: list[Name]


@dataclass(frozen=True)
class _Lists:
    """The APIs of all lists read so far, by name, each with the place and the record of its first occurrence."""

    reading: Reading
    found: dict[Name, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)

    def take(self, apis: Any, where: str) -> list[Name]:
        """Take up the APIs of a list, and give their names."""
        names = []
        for place, record in objects(apis, where, self.reading.findings):
            if record.get("tool_name") or record.get("api_name"):
                names.append(self._add(place, record))
            else:
                self.reading.findings.fault("malformed API", place, "has neither a 'tool_name' nor an 'api_name'")
        return names

    def _add(self, where: str, record: Mapping[str, Any]) -> Name:
        """One that was defined otherwise before keeps its first definition."""
        name = tuple(text_of(record.get(key)) for key in TRIPLE)
        known = self.found.setdefault(name, (where, record))
        if known[1] is not record and known[1] != record:
            what = f"{' / '.join(name)!r} is defined anew; the first definition is kept"
            self.reading.findings.remark("API with several definitions", where, what)
        return name


def _requests(file: _File, lists: _Lists, reading: Reading, options: Options) -> Iterator[_Request]:
    listed = _listed_ids(file.path, reading)
    held_out = {
        number: group for group in sorted(listed) if group.startswith(f"{file.tier}_") for number in listed[group]
    }
    for position, (where, record) in enumerate(reading.json_items(file.path)):
        if not isinstance(record, dict):
            reading.findings.fault("malformed record", where, f"expected an object, got {type(record).__name__}")
            continue
        number = text_of(record.get("query_id")) or str(position)
        if file.group in listed and number not in listed[file.group]:
            reading.findings.remark(f"not in {TEST_IDS}", where, f"query {number} of {file.group}; left out")
            continue
        group = file.group if file.group in listed else held_out.get(number, file.group)
        apis = lists.take(record.get("api_list"), f"{where}/api_list")
        fields = {
            "id": f"{group}/{number}",
            "text": _text(record.get("query"), where, reading),
            "tier": file.tier,
            "split": options.split or (file.split if group == file.group else "eval"),
        }
        yield _Request(where, fields, _gold(record.get("relevant APIs"), apis, f"{where}/relevant APIs", reading))


def _text(query: Any, where: str, reading: Reading) -> Any:
    """The query; a few are stored as a list of its parts."""
    if not (isinstance(query, list) and query and all(isinstance(part, str) for part in query)):
        return query
    reading.findings.remark("query in a list", f"{where}/query", f"a list of {len(query)}; joined by blanks")
    return " ".join(query)


def _gold(pairs: Any, apis: list[Name], where: str, reading: Reading) -> list[Name]:
    """The APIs of a query's own list that its gold pairs name.

    A pair that several categories have is all of them, as in ToolBench's own retriever data.
    """
    findings = reading.findings
    own = NameIndex((name[1:], name) for name in apis)
    gold: dict[Name, None] = {}
    if not isinstance(pairs, list):
        findings.fault("malformed record", where, f"expected a list, got {type(pairs).__name__}")
        return []
    for position, pair in enumerate(pairs):
        place = f"{where}/{position}"
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            findings.fault("malformed relevant API", place, f"expected a pair of texts, got {pair!r:.60}")
            continue
        found, exactly = own.find(tuple(pair))
        if not found:
            findings.fault("relevant API not in the list", place, f"{pair!r} is not in the query's api_list")
            continue
        if not exactly:
            findings.remark("matched by normalised name", place, f"{pair!r} is taken for {list(found[0][1:])!r}")
        if len(found) > 1:
            findings.remark("relevant API of several categories", place, f"{pair!r} is {len(found)} APIs of the list")
        if all(name in gold for name in found):
            findings.remark("repeated relevant API", place, f"{pair!r} is named before")
        gold |= dict.fromkeys(found)
    return list(gold)


# ----------------------------------------------------------------------------------------------------- catalogue


def _catalogue(lists: _Lists, given: list[Row], tool_of: dict[Name, str], reading: Reading) -> Iterator[Row]:
    """The given tools, then what they lack of the lists; ``tool_of`` is told which tool each API of a list is."""
    index = NameIndex((name_of(row.fields, API), row.fields.get("id")) for row in given)
    lacking = []
    for name in sorted(lists.found):
        found, exactly = index.find(name)
        if not found:
            lacking.append(name)
            continue
        tool_of[name] = str(found[0])
        if not exactly:
            what = f"{' / '.join(name)!r} is taken for {tool_of[name]!r}"
            reading.findings.remark("matched by normalised name", lists.found[name][0], what)
    ids = readable_ids(lacking, taken={str(row.fields.get("id")) for row in given})
    tool_of |= ids
    return chain(given, (_row(ids[name], *lists.found[name], given, reading) for name in lacking))


def _row(identifier: str, where: str, record: Mapping[str, Any], given: list[Row], reading: Reading) -> Row:
    if given:
        reading.findings.remark("not in the given catalogue", where, f"{identifier!r} is added")
    return Row(where, {"id": identifier, **tool_fields(record, where, reading.findings)})


def _described(sources: Sources, reading: Reading, rows: Iterator[Row]) -> Iterator[Row]:
    """The same rows; an empty description of the provider is filled in from ToolGen's memorisation file."""
    path = sources.optional(MEMORISED)
    if path is None:
        yield from rows
        return
    said = NameIndex((one.api, one.fields.get("description", "")) for one in memorised(path, reading))
    for row in rows:
        found, _ = said.find(name_of(row.fields, API[1:]))
        description = next((text for text in found if text), "")
        known = row.fields.get("description") or not description
        yield row if known else Row(row.where, {**row.fields, "description": description})


FORMAT = Format(
    name="toolbench",
    title="ToolBench and StableToolBench instruction JSON",
    published="G?_query.json, G?_instruction.json, G?_tool.json, G?_category.json; G?/train.json, G?/test_G?_*.json",
    read=read,
    joins=True,
)
