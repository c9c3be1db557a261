"""ToolGen's files: conversations in which a user speaks, and the answer is the name of an API, ``<<Tool&&api>>``."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.data.importers.api_names import Name
from cohyde.data.reading import Reading, objects

TOKEN = re.compile(r"<<(.+?)&&(.+?)>>", re.DOTALL)
"""An API as ToolGen's tokenizers hold it, as one token: provider and API."""
DOCUMENT = re.compile(
    r"Tool Name: (?P<title>.*?)\.? Tool Description: (?P<description>.*?) "
    r"Api Name: (?P<api_name>.*?) Api Description: (?P<api_description>.*?)\.?",
    re.DOTALL,
)
"""What the user says in the memorisation file: the documentation of one API."""
NOTHING = "None"
ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
"""Speakers by the names that the two common layouts of conversations give them."""


@dataclass(frozen=True)
class Turn:
    """One conversation: its position in the file, what the user says first, the APIs that the first answer names."""

    where: str
    position: int
    text: str
    apis: list[Name]


@dataclass(frozen=True)
class Memorised:
    """The documentation of an API: ``api`` is its name in answers, ``fields`` a row of ours but for its id."""

    where: str
    api: Name
    fields: dict[str, Any]


def turns(path: Path, reading: Reading) -> Iterator[Turn]:
    """The conversations of a file; one without a user's message, or without an API in the answer, is a fault."""
    for position, (where, record) in enumerate(reading.json_items(path)):
        messages = record.get("conversations") if isinstance(record, dict) else None
        pointer = f"{where}/conversations"
        if not isinstance(messages, list):
            reading.findings.fault("malformed conversation", where, "expected an object with a list 'conversations'")
            continue
        said = {"user": "", "assistant": ""}
        for _, message in objects(messages, pointer, reading.findings):
            role = ROLES.get(str(message.get("role", message.get("from"))))
            content = message.get("content", message.get("value"))
            if role and isinstance(content, str) and not said[role]:
                said[role] = content
        apis: list[Name] = TOKEN.findall(said["assistant"])
        if said["user"].strip() and apis:
            yield Turn(where, position, said["user"], apis)
        else:
            missing = "an answer <<Tool&&api>>" if said["user"].strip() else "a message of the user"
            reading.findings.fault("malformed conversation", pointer, f"lacks {missing}")


def memorised(path: Path, reading: Reading) -> Iterator[Memorised]:
    """The APIs of the memorisation file; a text of another form is kept whole, as what the API does."""
    for turn in turns(path, reading):
        title, api_name = turn.apis[0]
        match = DOCUMENT.fullmatch(turn.text)
        if match is None:
            reading.findings.remark("documentation of another form", turn.where, repr(turn.text[:60]))
            fields = {"title": title, "api_name": api_name, "api_description": turn.text}
        else:
            fields = {key: "" if text == NOTHING else text for key, text in match.groupdict().items()}
        yield Memorised(turn.where, turn.apis[0], fields)
