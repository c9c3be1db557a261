"""From what a chat model wrote to a text in catalogue style: pure, deterministic, idempotent."""

import re

from cohyde.catalog import fold

REASONING = r"(?:think|thinking|thought|reasoning)"
CLOSED_REASONING = re.compile(rf"<({REASONING})\b[^<>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
CLOSED_ELSEWHERE = re.compile(rf"\A.*</{REASONING}\s*>", re.DOTALL | re.IGNORECASE)
"""A block that the chat template opened: the text holds its end alone."""
CUT_OFF_REASONING = re.compile(rf"<{REASONING}\b.*\Z", re.DOTALL | re.IGNORECASE)
SPECIAL_TOKEN = re.compile(r"<\|\w+\|>")

FENCE = re.compile(r"^(?:```|~~~)[\w+-]*$", re.MULTILINE)
RULE = re.compile(r"^([-*_=])(?:[ \t]*\1){2,}$", re.MULTILINE)
HEADING = re.compile(r"^(?:#{1,6}[ \t]+)+", re.MULTILINE)
BULLET = re.compile(r"^(?:(?:[-*+•‣◦▪–—>]|\(?\d{1,3}[.)]|[a-z]\))[ \t]+)+", re.MULTILINE)
LONE_BULLET = re.compile(r"^(?:[-*+•‣◦▪–—>]|\(?\d{1,3}[.)])$", re.MULTILINE)
EMPHASIS = re.compile(r"\*\*|(?<!\w)__(?=\S)|(?<=\S)__(?!\w)|`")
ITALIC = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_\n]*[^\s*_])\1(?![\w*])")

_PREAMBLES = (
    r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|alright|all right|got it|great|no problem)"
    r"\s*[!,.:—–-]+(?:\s+|\Z)",
    r"(?:here(?:['’]s| is| are| you go)|below (?:is|are)|(?:these|the following) (?:is|are)|the following)\b"
    r"[^\n:.!?]{0,150}:(?:\s+|\Z)",
    r"(?:i(?:['’]d| would|['’]ll| will)? ?(?:be |am |['’]m )?(?:happy|glad) to|i can (?:certainly )?help you)\b"
    r"[^\n:.!?]{0,150}[:.!](?:\s+|\Z)",
    r"(?:the )?(?:(?:hypothetical|catalog(?:ue)?|api|tools?) )*(?:entry|entries|descriptions?|answers?|response|"
    r"output|pipeline|restated request|rewritten request|retold)\s*:(?:\s+|\Z)",
)
PREAMBLE = re.compile(r"\A\s*(?:" + "|".join(_PREAMBLES) + ")+", re.IGNORECASE)
SIGN_OFF = re.compile(
    r"(?:(?:\A|(?<=[.!?:)\"'”])[ \t]+|\n)"
    r"(?:(?:please )?(?:let me know|feel free)\b|(?:i )?hope (?:this|that|it) helps?\b|is there anything else\b|"
    r"(?:please )?don['’]t hesitate\b|if you (?:have|need) (?:any|more|further|other)\b)"
    r"[^\n.!?]*[.!?]*)+\Z",
    re.IGNORECASE,
)
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "„": "“"}


def clean(text: str) -> str:
    """Strip what a chat model puts around a description, and fold white space into single blanks.

    Reasoning blocks (closed, cut off, or opened by the template), preambles ("Sure, here is…:"), sign-offs ("Let me
    know if…"), Markdown fences, headings, emphasis, bullets and numbering, quotes around the whole. What is left may
    be empty. ``clean(clean(text)) == clean(text)`` for every text.
    """
    while True:
        # A pass only removes and folds, so this ends; its fixed point is what makes the function idempotent.
        cleaned = _pass(text)
        if cleaned == text:
            return cleaned
        text = cleaned


def _pass(text: str) -> str:
    lines = [line.strip() for line in without_reasoning(text).splitlines()]
    text = _without_markdown("\n".join(line for line in lines if line))
    text = PREAMBLE.sub("", text)
    return without_quotes(fold(SIGN_OFF.sub("", text)))


def without_reasoning(text: str) -> str:
    """The text without reasoning blocks (closed, cut off, or opened by the template) and special tokens."""
    text = CLOSED_REASONING.sub(" ", text)
    text = CLOSED_ELSEWHERE.sub("", text)
    return SPECIAL_TOKEN.sub(" ", CUT_OFF_REASONING.sub("", text))


def _without_markdown(text: str) -> str:
    for pattern in (FENCE, RULE, HEADING, BULLET, LONE_BULLET, EMPHASIS):
        text = pattern.sub("", text)
    return ITALIC.sub(r"\2", text)


def without_quotes(text: str) -> str:
    """The text without a pair of quotation marks around the whole of it."""
    closing = QUOTES.get(text[:1])
    inside = text[1:-1]
    if closing and len(text) > 1 and text[-1] == closing and closing not in inside and text[0] not in inside:
        return inside.strip()
    return text
