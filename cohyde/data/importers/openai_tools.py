"""Functions in the tool schema of OpenAI's API, and conversations in which they are called.

The schema (https://platform.openai.com/docs/guides/function-calling) has name, description, and parameters as JSON
Schema, bare or as ``{"type": "function", "function": {…}}``. A file is an array of such, one a line, or a document with
a list of them as its ``tools`` or ``functions``. Conversations are those of OpenAI's fine-tuning files: an object with
``messages`` and ``tools`` a line, or with ``functions`` and ``function_call``, as they were before.

A function's name is its id. A name that several catalogue files have gets its file's name in front in each of them
(``mail/search``, ``files/search``); a conversation that calls it does not say which it means, and is at fault. The
functions that conversations bring along join the catalogue, unless a catalogue file has their name already.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohyde.data.importers.format import SPLIT_NAMES, Format, Options
from cohyde.data.importers.json_schema import parameters_of
from cohyde.data.reading import WHITESPACE, Reading, json_of, objects, text_of
from cohyde.data.sources import Sources
from cohyde.data.validation import DatasetRows, Findings, Row

LISTS = ("tools", "functions")


def read(sources: Sources, reading: Reading, options: Options) -> DatasetRows:
    """A catalogue, whose categories are the names of its files, and a query for each conversation with a call.

    A conversation's query is what the user says up to the first call, its gold what is called before the user speaks
    again. Its split is what the file's name says (``train.jsonl``, ``support_test.jsonl``), else what the options say,
    else train.
    """
    files = sources.files(".json", ".jsonl")
    queries: list[Row] = []  # filled while the tools are read, which comes before the queries
    return DatasetRows(tools=_tools(files, options, queries, reading), queries=queries)


def _tools(files: Sequence[Path], options: Options, queries: list[Row], reading: Reading) -> Iterator[Row]:
    """The functions of catalogue files and of conversations; the conversations' queries are added to ``queries``."""
    labels = _labels(files)
    holders = _holders(files, replace(reading, findings=Findings())) if len(files) > 1 else Counter[str]()
    brought: dict[str, Any] = {}
    for path, label in labels.items():
        split = _split(path, options)
        for where, item in _items(path, reading):
            for place, function in _functions(where, item, reading.findings):
                name = function["name"]
                if "messages" not in item:
                    identifier = f"{label}/{name}" if holders[name] > 1 else name
                    yield Row(place, tool_fields(function, category=path.stem) | {"id": identifier})
                elif not holders[name] and name not in brought:
                    brought[name] = function
                    yield Row(place, tool_fields(function, category=""))
                elif brought.get(name, function) != function:
                    what = f"the first description of {name!r} is kept"
                    reading.findings.remark("function described in several ways", place, what)
            if "messages" in item:
                number = where.removeprefix(str(path)).strip(":#/")
                fields = {"id": f"{label}/{number}" if number else label, "split": split}
                queries += [Row(where, fields | query) for query in _query(where, item, reading.findings)]


def _labels(files: Sequence[Path]) -> dict[Path, str]:
    """What stands for each file in ids: its name without the ending, and its folder's where two are named alike."""
    times = Counter(path.stem for path in files)
    return {path: path.stem if times[path.stem] == 1 else f"{path.parent.name}/{path.stem}" for path in files}


def _holders(files: Sequence[Path], reading: Reading) -> Counter[str]:
    """How many catalogue files have a function of each name."""
    holders: Counter[str] = Counter()
    for path in files:
        items = (pair for pair in _items(path, reading) if "messages" not in pair[1])
        holders.update({function["name"] for pair in items for _, function in _functions(*pair, reading.findings)})
    return holders


def _split(path: Path, options: Options) -> str:
    words = re.split(r"[^a-z]+", path.stem.lower())
    said = next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)
    return said or options.split or "train"


def _items(path: Path, reading: Reading) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of an array or of lines, or the one object that the file is."""
    if path.suffix != ".jsonl" and _is_document(reading.text(path)):
        yield f"{path}#", reading.json(path)
    else:
        yield from reading.json_objects(path)


def _is_document(text: str) -> bool:
    """Whether a text is one object: it goes on after a first line that is not whole, or does not go on."""
    first, _, rest = text.strip(WHITESPACE).partition("\n")
    if not first.startswith("{"):
        return False
    try:
        return not rest or not json_of(first)
    except ValueError:
        return True


def _functions(where: str, item: Mapping[str, Any], findings: Findings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The functions that an item is or holds, out of their wrapping; each has a name."""
    key = next((key for key in LISTS if item.get(key) is not None), None)
    if key is None and "messages" in item:
        return
    for place, tool in [(where, item)] if key is None else objects(item[key], f"{where}/{key}", findings):
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name.strip():
            yield place, function
        elif "function" not in tool and isinstance(tool.get("type"), str) and tool["type"] != "function":
            findings.remark("tool that is no function", place, f"of type {tool['type']!r}: left out")
        else:
            findings.fault("malformed tool", place, "expected a function with a 'name'")


def tool_fields(function: Mapping[str, Any], category: str) -> dict[str, Any]:
    """The row of a function: its name is its id."""
    return {
        "id": function["name"],
        "category": category,
        "title": function["name"],
        "api_description": text_of(function.get("description")),
        "parameters": parameters_of(function.get("parameters") or function.get("input_schema")),
    }


def _query(where: str, item: Mapping[str, Any], findings: Findings) -> Iterator[dict[str, Any]]:
    """The text and the gold of a conversation; nothing where no function is called."""
    said: list[str] = []
    called: list[str] = []
    for place, message in objects(item["messages"], f"{where}/messages", findings):
        if message.get("role") != "user":
            called += _called(place, message, findings)
        elif called:
            break
        else:
            said.append(_content(message.get("content")))
    if called:
        yield {"text": "\n".join(said), "tools": called}
    else:
        findings.remark("conversation without a call", where, "it makes no query")


def _called(where: str, message: Mapping[str, Any], findings: Findings) -> Iterator[str]:
    calls = list(objects(message["tool_calls"], f"{where}/tool_calls", findings)) if message.get("tool_calls") else []
    if message.get("function_call"):
        calls.append((f"{where}/function_call", {"function": message["function_call"]}))
    for place, call in calls:
        function = call.get("function", call)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            yield name
        else:
            findings.fault("malformed call", place, "a call needs a function's 'name'")


def _content(content: Any) -> str:
    """A message's text, or those of its parts."""
    if isinstance(content, list):
        return "\n".join(text_of(part.get("text")) for part in content if isinstance(part, dict) and part.get("text"))
    return text_of(content)


FORMAT = Format(
    name="openai-tools",
    title="functions in OpenAI's tool schema, and conversations that call them",
    published="*.json, *.jsonl",
    read=read,
)
