"""Training rows as token ids: the one place where prompts, completions and texts are tokenised for SFT and DPO.

Prompt and completion are tokenised apart, so that the prompt's ids are exactly those that generation starts from and
nothing is re-tokenised across the seam. A target ends in exactly one end-of-sequence token unless it was cut.
"""

from dataclasses import dataclass
from typing import Any

from cohyde.errors import UserError
from cohyde.rewriter.prompts import encode_prompt

MAX_DROPPED_SHARE = 0.2
"""More rows than this share without room for a completion is an error, not a footnote."""
IGNORED = -100
"""Label of a token that bears no loss."""


@dataclass(frozen=True)
class TextRow:
    """A text whose every token is a target."""

    text: str


@dataclass(frozen=True)
class PromptRow:
    """A rendered chat prompt and the completion that bears the loss."""

    prompt: str
    completion: str


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A row's token ids: what is read, and what is learnt."""

    prompt: list[int]
    target: list[int]
    truncated: bool

    @property
    def input_ids(self) -> list[int]:
        """Prompt and target as one sequence."""
        return self.prompt + self.target

    @property
    def labels(self) -> list[int]:
        """The sequence with the prompt masked out."""
        return [IGNORED] * len(self.prompt) + self.target


def target_ids(tokenizer: Any, text: str) -> list[int]:
    """A text's ids with exactly one end-of-sequence token, at the end, even where the text spells one out."""
    eos = eos_id(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [token for token in ids if token != eos] + [eos]


def eos_id(tokenizer: Any) -> int:
    """The token that ends a turn."""
    if tokenizer.eos_token_id is None:
        raise UserError(
            "the rewriter's tokenizer has no end-of-sequence token",
            "set eos_token in the model folder's tokenizer_config.json",
        )
    return int(tokenizer.eos_token_id)


def set_padding(tokenizer: Any) -> int:
    """Give the tokenizer, in memory, a padding token that is not the end-of-sequence token; returns its id.

    Padding is masked everywhere; what matters is that no code takes an end of sequence for padding.
    """
    eos = eos_id(tokenizer)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == eos:
        special = [token for token in tokenizer.all_special_ids if token != eos]
        replacement = min(special) if special else next(token for token in range(2) if token != eos)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(replacement)
    return int(tokenizer.pad_token_id)


def encode(tokenizer: Any, row: TextRow | PromptRow, max_length: int) -> Encoded | None:
    """A row's ids, cut to ``max_length``; None where the prompt leaves no room for a target."""
    if isinstance(row, TextRow):
        prompt, target = _text_start(tokenizer), target_ids(tokenizer, row.text)
    else:
        prompt, target = encode_prompt(tokenizer, row.prompt), target_ids(tokenizer, row.completion)
    room = max_length - len(prompt)
    if room <= 0:
        return None
    return Encoded(prompt=prompt, target=target[:room], truncated=len(target) > room)


def check_dropped(dropped: int, total: int, max_length: int, what: str) -> None:
    """Stop where so many prompts fill ``max_length`` that training would be on something else than was asked for.

    Raises:
        UserError: more than a fifth of the rows were dropped, or all of them.
    """
    if total and (dropped > MAX_DROPPED_SHARE * total or dropped == total):
        raise UserError(
            f"{dropped} of {total} {what} have a prompt of {max_length} tokens or more: no room for a completion",
            "raise max_length, or shorten the prompt (fewer few-shot examples)",
        )


def _text_start(tokenizer: Any) -> list[int]:
    """The beginning-of-sequence token, where this tokenizer begins a text with one."""
    bos = tokenizer.bos_token_id
    begun = tokenizer("a")["input_ids"]
    return [bos] if bos is not None and begun and begun[0] == bos else []
