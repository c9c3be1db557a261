"""APIs by their names: ids that a person can read, and names that differ in case, accents or punctuation only."""

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from cohyde.catalog import fold
from cohyde.io import sha256_text

Item = TypeVar("Item")
Name = tuple[str, ...]
"""The names that tell an API from others, the widest first: category, provider, API."""
WORD = re.compile(r"[^\W_]+")
TIER = re.compile(r"(?<![A-Za-z0-9])G\d(?!\d)")
CLASH_DIGITS = 8


def tier_named(name: str) -> str:
    """The tier that a file's name says (``G1_query``, ``chat_G3_test``); empty where it says none, or several."""
    found = TIER.search(name)
    return found[0] if found else ""


def readable_ids(names: Iterable[Name], taken: Collection[str] = ()) -> dict[Name, str]:
    """An id for each name: its letters and digits, ``category/provider/api``.

    Where several would be the same, or one is ``taken``, each ends in a checksum of its name: so an id never means
    another API than it does in any other file.
    """
    slugs = {name: "/".join("_".join(WORD.findall(part.casefold())) or "-" for part in name) for name in names}
    uses = Counter(slugs.values())
    return {
        name: f"{slug}-{_checksum(name)}" if uses[slug] > 1 or slug in taken else slug for name, slug in slugs.items()
    }


def _checksum(name: Name) -> str:
    return sha256_text(json.dumps(name))[:CLASH_DIGITS]


def squeezed(name: Name) -> Name:
    """A name's letters and digits, without case and accents; a part that has none stands for itself."""
    return tuple(_squeezed(part) for part in name)


def _squeezed(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(character for character in plain if character.isalnum()) or fold(text)


class NameIndex(Generic[Item]):
    """Items by name. A name that is not there is looked for once more by what :func:`squeezed` leaves of it."""

    def __init__(self, named: Iterable[tuple[Name, Item]]) -> None:
        """Index the items; several may have the same name."""
        self._exact: dict[Name, list[Item]] = defaultdict(list)
        for name, item in named:
            if item not in self._exact[name]:
                self._exact[name].append(item)
        self._alike: Mapping[Name, list[Item]] | None = None

    def find(self, name: Name) -> tuple[Sequence[Item], bool]:
        """The items of a name, each once and in order, and whether they have that very name."""
        if name in self._exact:
            return self._exact[name], True
        if self._alike is None:  # most names are found as they stand, and then this is never needed
            alike: dict[Name, list[Item]] = defaultdict(list)
            for given, items in self._exact.items():
                alike[squeezed(given)] += items
            self._alike = dict(alike)
        return self._alike.get(squeezed(name), []), False
