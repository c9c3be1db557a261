"""Requests as people and programs send them: what cannot be searched with is refused, and says why."""

import unicodedata
from collections.abc import Sequence

from cohyde.catalog import check_text, fold
from cohyde.errors import UserError

FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that show nothing although Unicode counts them among letters, marks or symbols."""


class RequestError(UserError):
    """A request that cannot be answered as it is: its sender's to mend."""


def check_query(text: str, most_characters: int) -> str:
    """The request in the form that is searched with: composed characters (NFC), white space folded.

    Args:
        text: a request in everyday words.
        most_characters: a longer one is refused.

    Raises:
        RequestError: no text, nothing in it that can be seen, too long, or characters that no UTF-8 text holds.
    """
    if not isinstance(text, str):
        raise RequestError(f"the request has to be a text, got {type(text).__name__}", "give one sentence")
    if len(text) > most_characters:
        raise RequestError(
            f"the request has {len(text):,} characters, of at most {most_characters:,}",
            "say in a sentence or two what the tools are for; the limit is serve.max_query_characters",
        )
    try:
        check_text("query", text)
    except ValueError as error:
        raise RequestError(f"the request cannot be read: {error}", "send it as UTF-8") from None
    if not any(map(_is_visible, text)):
        what = "is empty" if not text else "holds nothing but white space or invisible characters"
        raise RequestError(f"the request {what}", "say in a sentence what the tools are for")
    return unicodedata.normalize("NFC", fold(text))


def _is_visible(character: str) -> bool:
    return character not in FILLERS and unicodedata.category(character)[0] not in "CZ"


def check_count(k: int) -> int:
    """How many tools are asked for; a smaller catalogue gives all that it has.

    Raises:
        RequestError: no whole number of at least 1.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise RequestError(f"k has to be a whole number of at least 1, got {k!r}", "k is how many tools are wanted")
    return k


def check_queries(texts: Sequence[str], most_characters: int) -> list[str]:
    """As :func:`check_query`, for every text.

    Raises:
        RequestError: one of them is at fault, or they are one text in place of several.
    """
    if isinstance(texts, (str, bytes)):
        raise RequestError("several requests are expected, got one text", "give a list: search([text])")
    return [check_query(text, most_characters) for text in texts]
