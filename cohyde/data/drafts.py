"""A request as a chat model drafted it: what is taken out of the reply, and what is wrong with it.

The rules are lexical: they find what is no request, gives its tools away or copies the catalogue. That a request is
sensible, and needs all of its tools, they cannot tell.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache, cached_property

from cohyde.catalog import SURROGATE, Query, Tool, fold, render
from cohyde.data.validation import normalised
from cohyde.rewriter.clean import clean

SHORTEST, LONGEST = 4, 120
"""Words of a request at least and at most (ours)."""
COPIED_SHARE = 0.8
"""A request with this share of its words from the tools' descriptions is a copy of them (ours)."""
COPIED_RUN = 8
"""So is one with this many of their words in a row, or of an example's (ours)."""
ALIKE = 0.8
"""Two requests for the same tools with this share of words in common (Jaccard) are one (ours)."""
DISTINCT_TRIPLES = 0.75
"""Share of a request's runs of three words that differ from each other; with fewer it goes in circles (ours)."""
TELLING_WORDS = 6
"""Words of a description that say enough without a name (ours)."""
TOLD_WORDS = 80
"""Words of a description that the model is told: some fill pages (ours)."""
EVERYDAY = frozenset(
    {"can", "could", "find", "get", "give", "help", "know", "like", "list", "need", "show", "tell", "want", "would"}
)
"""Words that say nothing of the matter, beside the usual stop words."""
STEM = 4
"""Letters by which words are compared where only the matter counts: ``wind`` and ``windy`` are one (ours)."""

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""A run of letters and digits; in Chinese and Japanese, which part words by no blanks, one character."""
PARAGRAPH_END = re.compile(r"\n\s*\n")
SENTENCE_END = re.compile(r"[.!?。！？]+[\"'”’»)]*(?=\s|\Z|(?<=[。！？]))")
LABEL = re.compile(r"\A(?:request|query|question|user|person)\s*:\s*", re.IGNORECASE)
LOWER_CASE = re.compile(r"\b[^\W\d_A-Z]+\b")
IDENTIFIER = re.compile(r"\d|[a-z][A-Z]")

ASSISTANT = re.compile(
    r"\A(?:sure|certainly|of course)\b|"
    r"\b(?:i am|i['’]m|as) (?:just )?an? (?:\w+[ -]){0,3}(?:ai|language model|chatbot|assistant)\b|"
    r"\b(?:i am|i['’]m) (?:sorry|afraid|unable|ready|here)\b|\bi apologi[sz]e\b|"
    r"\b(?:happy|glad) to (?:help|assist)|\b(?:cannot|can['’]t|unable to) (?:help|assist|provide|give)\b|"
    r"\b(?:how|what) (?:can|may) i (?:help|assist|do for)|\bi can (?:tell|help|assist) you|\bhelp you with\b|"
    r"\bplease note that\b",
    re.IGNORECASE,
)
"""What assistants say, and people who ask them do not."""
OF_TOOLS = re.compile(
    r"\bAPIs?\b|\bendpoints?\b|\btools?:|\bthe (?:given|above|following|first|second) (?:tool|service)|"
    r"\[[a-z _-]+\]|\{[a-z _-]+\}"
)
"""Words of one who has seen the catalogue, and gaps left to be filled, such as ``[city]``."""
STATING = re.compile(
    r"\A(?:the|this|that|these|those|it|there|an?|you|your|they|he|she|his|her|their|its|some|all|most|no)\b|"
    r"\b(?:is|are|was|were|has|have|had|will)\b",
    re.IGNORECASE,
)
"""How English statements begin, and what verbs they have; orders mostly do neither."""
ASKING = re.compile(
    r"[?？]|\b(?:i|we|my|our|me|us|please|let['’]s)\b|"
    r"\A(?:what|which|who|whose|how|when|where|why|is|are|was|were|do|does|did|can|could|has|have|will|would|should)\b|"
    r"\A(?:find|show|tell|give|get|list|check|look|search|compare|send|make|create|add|book|work out)\b",
    re.IGNORECASE,
)
"""A question mark, a person who speaks, and how English questions and orders begin."""


def words(text: str) -> list[str]:
    """The words of a text, normalised."""
    return WORD.findall(normalised(text))


def request_in(reply: str, *, finished: bool) -> str:
    """The request in what a model wrote: its first paragraph, without what chat models put around one.

    Of a reply that was cut at the token limit, whole sentences only. What is left may be empty.
    """
    paragraphs = PARAGRAPH_END.split(SURROGATE.sub("\ufffd", reply).strip())
    for place, paragraph in enumerate(paragraphs, start=1):
        text = clean(LABEL.sub("", clean(paragraph)))
        if not finished and place == len(paragraphs):
            ends = [match.end() for match in SENTENCE_END.finditer(text)]
            text = text[: ends[-1]] if ends else ""
        if text:
            return text
    return ""


class Known:
    """What drafts are compared with: the catalogue's own words, and the requests that there are."""

    def __init__(self, tools: Sequence[Tool], queries: Iterable[Query], examples: Sequence[str] = ()) -> None:
        """Look through a dataset.

        Args:
            tools: the whole catalogue.
            queries: those that are there, whatever their split, paraphrases included.
            examples: requests that the model has been shown.
        """
        self.plain = _plain_words(tools)
        self.examples = [words(example) for example in examples]
        self.texts: dict[str, str] = {}
        self.alike: dict[frozenset[str], list[tuple[str, frozenset[str]]]] = defaultdict(list)
        for query in queries:
            self.add(query.id, query.text, query.tools)

    def add(self, identifier: str, text: str, tools: Iterable[str]) -> None:
        """Take in a request, by the ids of its gold tools."""
        self.texts.setdefault(normalised(text), identifier)
        self.alike[frozenset(tools)].append((identifier, frozenset(words(text))))

    def telling_names(self, tool: Tool) -> list[str]:
        """The names that would give a tool away.

        Names of two words or more; of one word, API names that are identifiers (``sendMail``, ``lookup2``), and
        titles, unless the catalogue uses the title as an ordinary word, in lower case or as a category (``weather``).
        A person who says *search* or *weather* has not seen the catalogue.
        """
        title, api_name = fold(tool.title), fold(tool.api_name)
        telling = {title: len(title) > 2 and normalised(title) not in self.plain}
        telling[api_name] = telling.get(api_name, False) or IDENTIFIER.search(api_name) is not None
        return [name for name, tells in telling.items() if tells or len(words(name)) > 1]


def _plain_words(tools: Sequence[Tool]) -> frozenset[str]:
    """Words that descriptions have in lower case, and those of categories."""
    plain: set[str] = set()
    for tool in tools:
        described = (tool.description, tool.api_description, *(parameter.description for parameter in tool.parameters))
        for text in described:
            plain.update(LOWER_CASE.findall(text))
        plain.update(words(tool.category))
    return frozenset(plain)


@dataclass(frozen=True)
class Draft:
    """A request that was asked for, for these tools, to be compared with what is known."""

    text: str
    tools: tuple[Tool, ...]
    known: Known

    @cached_property
    def words(self) -> list[str]:
        """The words of the text, normalised."""
        return words(self.text)

    @cached_property
    def described(self) -> list[str]:
        """The words of the tools' descriptions, normalised."""
        return words(" ".join(f"{tool.api_description} {tool.description}" for tool in self.tools))


def _empty(draft: Draft) -> str:
    return "" if draft.words else "no words"


def _broken(draft: Draft) -> str:
    return "characters that cannot be read" if "\0" in draft.text or "\ufffd" in draft.text else ""


def _too_short(draft: Draft) -> str:
    return f"{len(draft.words)} words" if len(draft.words) < SHORTEST else ""


def _too_long(draft: Draft) -> str:
    return f"{len(draft.words)} words" if len(draft.words) > LONGEST else ""


def _no_request(draft: Draft) -> str:
    said = ASSISTANT.search(draft.text) or OF_TOOLS.search(draft.text)
    return repr(said[0].strip()) if said and normalised(said[0]) not in draft.described else ""


def _statement(draft: Draft) -> str:
    return "asks for nothing" if STATING.search(draft.text) and not ASKING.search(draft.text) else ""


def _in_circles(draft: Draft) -> str:
    sentences = [normalised(text) for text in SENTENCE_END.split(draft.text) if text.strip()]
    if len(set(sentences)) < len(sentences):
        return "a sentence twice"
    triples = list(zip(draft.words, draft.words[1:], draft.words[2:], strict=False))
    return "the same words again and again" if len(set(triples)) < DISTINCT_TRIPLES * len(triples) else ""


def _names_a_tool(draft: Draft) -> str:
    text = f" {' '.join(draft.words)} "
    names = dict.fromkeys(name for tool in draft.tools for name in draft.known.telling_names(tool))
    return ", ".join(repr(name) for name in names if f" {' '.join(words(name))} " in text)


def _copied(draft: Draft) -> str:
    own = set(draft.words)
    share = len(own & set(draft.described)) / len(own)
    return _run_of(draft.described, draft) or (f"{share:.0%} of its words" if share >= COPIED_SHARE else "")


def _like_an_example(draft: Draft) -> str:
    return next((run for example in draft.known.examples if (run := _run_of(example, draft))), "")


def _run_of(source: Sequence[str], draft: Draft) -> str:
    """The longest run of words that a draft takes from a text, if it is long enough to be a copy."""
    run = SequenceMatcher(None, draft.words, source, autojunk=False).find_longest_match()
    return repr(" ".join(draft.words[run.a : run.a + run.size])) if run.size >= COPIED_RUN else ""


def _off_topic(draft: Draft) -> str:
    said = _stems(draft.words)
    missed = [tool.id for tool in draft.tools if not said & _stems(words(render(tool, 5)))]
    return f"says nothing of {', '.join(missed)}" if missed else ""


@cache
def _small_words() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return frozenset(STOPWORDS_EN_PLUS) | EVERYDAY


def _stems(said: Sequence[str]) -> set[str]:
    matter = set(said) - _small_words()
    return {word[:STEM] for word in matter if len(word) > 2 or not word.isascii()}


def _duplicate(draft: Draft) -> str:
    twin = draft.known.texts.get(normalised(draft.text))
    return f"reads as {twin!r}" if twin else ""


def _alike(draft: Draft) -> str:
    own = frozenset(draft.words)
    for identifier, other in draft.known.alike[frozenset(tool.id for tool in draft.tools)]:
        if len(own & other) >= ALIKE * len(own | other):
            return f"reads much as {identifier!r}"
    return ""


FILTERS: Mapping[str, Callable[[Draft], str]] = {
    "empty": _empty,
    "broken text": _broken,
    "too short": _too_short,
    "too long": _too_long,
    "no request": _no_request,
    "statement": _statement,
    "in circles": _in_circles,
    "names a tool": _names_a_tool,
    "copies the catalogue": _copied,
    "copies an example": _like_an_example,
    "off topic": _off_topic,
    "duplicate": _duplicate,
    "near-duplicate": _alike,
}
"""What may be wrong with a draft, in the order of looking; each says what it found, or nothing.

``off topic`` is for small models, which wander off. It refuses good requests too: those that share no word with the
catalogue, 4% to 16% of ordinary ones written by hand, and two thirds of vague ones.
"""


def fault_in(draft: Draft, filters: Collection[str] = tuple(FILTERS)) -> tuple[str, str]:
    """The first of the filters that finds something and what it found, both empty where nothing is wrong."""
    for name, finds in FILTERS.items():
        if name in filters and (found := finds(draft)):
            return name, found
    return "", ""


def told(tool: Tool) -> str:
    """A tool in one line for the model that drafts: what it does, and its names only where that says too little.

    A name that the model has not seen it cannot give away. The provider's description stays: among tools that do the
    same, it is what tells them apart.
    """
    described = [fold(text).rstrip(". ") for text in (tool.api_description, tool.description)]
    text = ". ".join(part for part in dict.fromkeys(described) if part)
    if len(words(text)) < TELLING_WORDS:
        text = render(replace(tool, schema=""), 5)
    return " ".join(text.split(" ")[:TOLD_WORDS])
