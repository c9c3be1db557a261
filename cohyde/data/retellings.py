"""A retelling and its judgement, as chat models write them: what is taken out, what is wrong, what was answered."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cohyde.catalog import Tool, fold
from cohyde.data.validation import normalised
from cohyde.rewriter.clean import without_quotes

CRITERIA: Mapping[str, str] = {
    "intent": "changes what is wanted",
    "hidden": "gives the tools away",
    "natural": "nobody would say it so",
}
"""The keys of a judgement, and what is wrong with a retelling where the answer is no."""
YES_NO: Mapping[str, bool] = {"true": True, "yes": True, "false": False, "no": False}
SHORTEST_NAME = 4
"""Letters of a tool's name that may not occur; a shorter one is often a word of everyday speech."""
ADDRESS = re.compile(r"\S*(?:@|://)\S*")
LABEL = re.compile(r"\A(?:retold(?: request)?|request)\s*:\s*", re.IGNORECASE)
SHOWN_CHARACTERS = 200
"""Of what a judge wrote where it cannot be read."""


def names_of(tools: Sequence[Tool]) -> tuple[str, ...]:
    """The names that would give tools away: titles and API names, each once."""
    return tuple(dict.fromkeys(name for tool in tools for name in (fold(tool.title), fold(tool.api_name)) if name))


def tidied(text: str) -> str:
    """A retelling without what chat models put around one: an announcement, a label, quotation marks."""
    announcement, _, rest = text.partition("\n")
    if announcement.rstrip().endswith(":") and rest.strip():
        text = rest
    return without_quotes(LABEL.sub("", fold(text)))


def named(text: str, names: Sequence[str]) -> list[str]:
    """The names that occur in a text as whole words, whatever their case and punctuation.

    Names of fewer than four letters are let through, and so are words of e-mail and web addresses: these are facts.
    """
    words = f" {normalised(ADDRESS.sub(' ', text))} "
    forms = {name: normalised(name) for name in names}
    return [
        name for name, form in forms.items() if sum(map(str.isalpha, form)) >= SHORTEST_NAME and f" {form} " in words
    ]


def fault_in(text: str, original: str, names: Sequence[str], training: set[str]) -> tuple[str, str]:
    """What is wrong with a retelling, where that needs no judge.

    Args:
        text: the retelling.
        original: the query.
        names: names of the query's gold tools.
        training: normalised texts that a retelling may not read as, or the dataset would leak.

    Returns:
        The reason and its detail, both empty where nothing is wrong.
    """
    if not text:
        return "empty", ""
    if normalised(text) == normalised(original):
        return "the same as the original", ""
    if normalised(text) in training:
        return "reads as a training query", ""
    leaked = named(text, names)
    return ("names a tool", ", ".join(leaked)) if leaked else ("", "")


def judgement_in(text: str) -> tuple[str, str]:
    """What a judge has against a retelling: the reason and the judge's own words, both empty where it passes."""
    verdict = verdict_in(text)
    if verdict is None:
        return "the judgement cannot be read", fold(text)[:SHOWN_CHARACTERS]
    reason = "; ".join(what for criterion, what in CRITERIA.items() if not verdict[criterion])
    return reason, fold(str(verdict["reason"])) if reason else ""


def verdict_in(text: str) -> dict[str, Any] | None:
    """The last JSON object in a text that answers all three criteria, prose and fences around it or not.

    Answers are true or false, or the words yes, no, true and false. None where there is no such object.
    """
    decoder = json.JSONDecoder()
    verdict = None
    for place in (match.start() for match in re.finditer(r"\{", text)):
        try:
            found, _ = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        answers = {name: _yes_or_no(found.get(name)) for name in CRITERIA}
        if None not in answers.values():
            verdict = {**answers, "reason": found.get("reason") or ""}
    return verdict


def _yes_or_no(value: Any) -> bool | None:
    return value if isinstance(value, bool) else YES_NO.get(str(value).strip().lower())
