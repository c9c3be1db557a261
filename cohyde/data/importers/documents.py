"""Pieces of JSON and YAML documents, whatever they hold: texts, keys, JSON pointers."""

import re
from typing import Any

from cohyde.data.reading import text_of

BLANK_LINE = re.compile(r"\n\s*\n")
HEADING = "#"


def plain_text(value: Any) -> str:
    """A text as published, a number or a truth value as JSON has it; anything else is no text, and empty."""
    return text_of(value) if isinstance(value, (str, bool, int, float)) else ""


def first_paragraph(text: str) -> str:
    """The first paragraph that is no Markdown heading; empty where there is none."""
    paragraphs = (paragraph.strip() for paragraph in BLANK_LINE.split(text.replace("\r\n", "\n")))
    return next((one for one in paragraphs if one and not one.startswith(HEADING)), "")


def key_text(key: Any) -> str:
    """The name under which something stands, which YAML may have read as a number, a truth value or null."""
    return key if isinstance(key, str) else plain_text(key) or "null"


def pointer(*keys: Any) -> str:
    """The part of a JSON pointer that leads through these keys: ``/paths/~1invoices/get``."""
    return "".join("/" + key_text(key).replace("~", "~0").replace("/", "~1") for key in keys)


def unescaped(token: str) -> str:
    """The key that a part of a JSON pointer stands for."""
    return token.replace("~1", "/").replace("~0", "~")


def child_of(value: Any, token: str) -> Any:
    """What stands under a key, or at a position, that is written as in a JSON pointer; None where nothing does."""
    key = unescaped(token)
    if isinstance(value, dict):
        return value[key] if key in value else next((v for k, v in value.items() if key_text(k) == key), None)
    if isinstance(value, list) and key.isdecimal() and len(key) < 10 and int(key) < len(value):
        return value[int(key)]
    return None


def list_of(value: Any) -> list[Any]:
    """The list that a field holds; empty where it holds none."""
    return value if isinstance(value, list) else []


def mapping_of(value: Any) -> dict[Any, Any]:
    """The object that a field holds; empty where it holds none."""
    return value if isinstance(value, dict) else {}
