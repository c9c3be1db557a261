"""Prompts: the files in ``prompts/``, the messages made from them, and their rendering as chat text.

Rendering and tokenising happen here alone, for generation and for training, so that the two can never differ.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.errors import UserError
from cohyde.io import canonical_json, sha256_text
from cohyde.resources import resource_folder

FIELD = re.compile(r"\{(\w+)\}")
KEYS = {"system", "user"}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A few-shot example: a request, and the answer that is wanted."""

    query: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt file: ``user`` has fields in braces, such as ``{query}``.

    A file may bring ``examples`` of its own, each what stands in for its only field and the answer that is wanted.
    """

    name: str
    system: str
    user: str
    examples: tuple[Example, ...] = ()

    @property
    def sha256(self) -> str:
        """Identity of the prompt's text, whatever its name and the file's comments."""
        turns = [[example.query, example.answer] for example in self.examples]
        own = {"examples": turns} if turns else {}
        return sha256_text(canonical_json({"system": self.system, "user": self.user, **own}))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names in braces, in order of first occurrence."""
        return tuple(dict.fromkeys(FIELD.findall(self.user)))


def prompt_names() -> list[str]:
    """The prompts that exist, sorted."""
    return sorted(path.stem for path in resource_folder("prompts").glob("*.yaml"))


def load_prompt(name: str) -> Prompt:
    """Read ``prompts/<name>.yaml``.

    Raises:
        UserError: there is no such prompt, or the file is not two texts ``system`` and ``user``, with or without
            ``examples``.
    """
    import yaml

    if name not in prompt_names():
        raise UserError(f"there is no prompt {name!r}", f"prompts are: {', '.join(prompt_names())}")
    path = resource_folder("prompts") / f"{name}.yaml"
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    examples = data.pop("examples", None) if isinstance(data, dict) else None
    if not _is_texts(data, KEYS):
        raise UserError(f"{path}: a prompt has two texts, system and user, and nothing else but examples")
    user = data["user"].strip()
    return Prompt(name=name, system=data["system"].strip(), user=user, examples=_examples(path, user, examples))


def _is_texts(data: Any, keys: set[str]) -> bool:
    return isinstance(data, dict) and set(data) == keys and all(isinstance(text, str) for text in data.values())


def _examples(path: Path, user: str, rows: Any) -> tuple[Example, ...]:
    if rows is None:
        return ()
    fields = set(FIELD.findall(user))
    field = next(iter(fields), "")
    if len(fields) != 1 or not isinstance(rows, list) or not all(_is_texts(row, {field, "answer"}) for row in rows):
        raise UserError(
            f"{path}: examples are a list of texts for the one field of user, and the answer to each",
            f"write for each: {field or 'FIELD'}: …, answer: …",
        )
    return tuple(Example(query=row[field].strip(), answer=row["answer"].strip()) for row in rows)


def prompt_hash(name: str) -> str:
    """SHA-256 of a prompt's text: part of the identity of every stage that uses it."""
    return load_prompt(name).sha256


def build_messages(prompt: Prompt, fields: Mapping[str, str], examples: Sequence[Example] = ()) -> list[dict[str, str]]:
    """The chat messages: system, then each example as a user's and an assistant's turn, then the request.

    The prompt's own examples come before those given.

    Raises:
        UserError: fields are missing or unknown, or there are examples for a prompt with more than ``{query}``.
    """
    if set(fields) != set(prompt.fields):
        raise UserError(
            f"prompt {prompt.name!r} needs the fields {sorted(prompt.fields)}, got {sorted(fields)}",
            "give exactly the fields that the prompt's user text has in braces",
        )
    if examples and prompt.fields != ("query",):
        raise UserError(
            f"prompt {prompt.name!r} takes no examples: its user text has more fields than {{query}}",
            "set rewriter.few_shot to 0, or choose another prompt",
        )
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    for example in (*prompt.examples, *examples):
        messages.append({"role": "user", "content": _filled(prompt.user, {prompt.fields[0]: example.query})})
        messages.append({"role": "assistant", "content": example.answer})
    return [*messages, {"role": "user", "content": _filled(prompt.user, fields)}]


def _filled(template: str, fields: Mapping[str, str]) -> str:
    # One pass over the template: braces inside a value are text, not fields.
    return FIELD.sub(lambda match: fields[match[1]], template)


def render_chat(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    """The chat text up to where the model begins to write, with thinking switched off.

    Raises:
        UserError: the model has no chat template, its template drops or refuses a message, or it thinks all the same.
    """
    from jinja2.exceptions import TemplateError

    if not tokenizer.chat_template:
        raise UserError(
            "the rewriter's tokenizer has no chat template",
            "use an instruction-tuned model, or put its chat_template.jinja into the model folder",
        )
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except TemplateError as error:
        raise UserError(
            f"the rewriter's chat template refuses the prompt: {error}",
            "models without a system role need a prompt file whose system text is empty",
        ) from None
    assert isinstance(text, str)
    for message in messages:
        if message["content"].strip() not in text:
            raise UserError(
                f"the rewriter's chat template leaves out the {message['role']} message",
                "use a model with that role, or a prompt file whose system text is empty",
            )
    _check_not_thinking(text, messages[-1]["content"].strip())
    return text


def _check_not_thinking(text: str, last: str) -> None:
    opening = text[text.rindex(last) + len(last) :]
    for tag in ("think", "thinking", "reasoning"):
        if opening.rfind(f"<{tag}>") > opening.rfind(f"</{tag}>"):
            raise UserError(
                f"the rewriter's chat template opens a <{tag}> block although thinking is switched off",
                "use a model whose template honours enable_thinking=False",
            )


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a rendered chat text. The template has written all special tokens; none are added."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def fit_prompt(
    tokenizer: Any, prompt: Prompt, fields: Mapping[str, str], examples: Sequence[Example], max_tokens: int
) -> tuple[str, bool]:
    """Render a prompt in at most ``max_tokens`` tokens; a longer one loses the end of its request.

    Returns:
        The chat text, and whether the ``query`` field was cut. Instruction and examples are never cut.

    Raises:
        UserError: the prompt is too long even without a request.
    """
    query = fields["query"]

    def rendered(characters: int) -> str:
        shortened = {**fields, "query": _cut(query, characters)}
        return render_chat(tokenizer, build_messages(prompt, shortened, examples))

    def fits(text: str) -> bool:
        return len(encode_prompt(tokenizer, text)) <= max_tokens

    whole = rendered(len(query))
    if fits(whole):
        return whole, False
    fitting, too_long = 0, len(query)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        fitting, too_long = (middle, too_long) if fits(rendered(middle)) else (fitting, middle)
    text = rendered(fitting)
    if not _cut(query, fitting) or not fits(text):
        raise UserError(
            f"prompt {prompt.name!r} with {len(examples)} examples leaves no room for a request in {max_tokens} tokens",
            "raise rewriter.max_prompt_tokens, or lower rewriter.few_shot",
        )
    return text, True


def _cut(text: str, characters: int) -> str:
    """The beginning of a text, at the end of a word where there is one."""
    if characters >= len(text):
        return text
    start = text[:characters]
    whole_words = start if text[characters].isspace() else start.rpartition(" ")[0]
    return (whole_words or start).rstrip()
