"""Prompt files, messages, chat rendering and the cutting of long requests."""

from pathlib import Path
from typing import Any

import pytest

from cohyde import resources
from cohyde.errors import UserError
from cohyde.rewriter import prompts
from cohyde.rewriter.load import copy_model, load_rewriter, load_tokenizer
from cohyde.rewriter.prompts import (
    Example,
    Prompt,
    build_messages,
    encode_prompt,
    fit_prompt,
    load_prompt,
    prompt_hash,
    prompt_names,
    render_chat,
)

PROMPT = Prompt(name="p", system="Be brief.", user="Request: {query}\nEntries:")
EXAMPLES = [Example(query="rain?", answer="Weather API."), Example(query="euros?", answer="Currency API.")]


@pytest.fixture(scope="module")
def tokenizer(tiny_rewriter_path: Path) -> Any:
    return load_tokenizer(tiny_rewriter_path)


@pytest.fixture
def prompt_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prompts, "resource_folder", lambda name: tmp_path)
    return tmp_path


# -------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", sorted(path.stem for path in resources.resource_folder("prompts").glob("*.yaml")))
def test_every_prompt_file_loads_and_is_asked_about_something(name: str) -> None:
    prompt = load_prompt(name)
    assert prompt.fields
    assert prompt.system
    assert prompt_hash(name) == prompt.sha256


def test_unknown_prompt_lists_those_there_are() -> None:
    with pytest.raises(UserError, match="no prompt 'hydra'") as caught:
        load_prompt("hydra")
    assert all(name in caught.value.remedy for name in prompt_names())


def test_path_is_not_a_prompt_name() -> None:
    with pytest.raises(UserError, match="no prompt"):
        load_prompt("../prompts/hyde")


@pytest.mark.parametrize(
    "text",
    ["system: a", "system: a\nuser: b\nextra: c", "system: a\nuser: [b]", "- a", "system: a\nuser: 'b", ""],
)
def test_prompt_file_has_to_hold_two_texts(prompt_folder: Path, text: str) -> None:
    (prompt_folder / "p.yaml").write_text(text)
    with pytest.raises(UserError, match=r"p\.yaml"):
        load_prompt("p")


def test_prompt_file_may_bring_examples_of_its_own(prompt_folder: Path) -> None:
    text = "system: s\nuser: 'Tools: {tools}'\n"
    (prompt_folder / "p.yaml").write_text(text + "examples:\n- {tools: rain, answer: 'Is it wet?'}")
    prompt = load_prompt("p")
    assert prompt.examples == (Example(query="rain", answer="Is it wet?"),)
    assert build_messages(prompt, {"tools": "songs"}) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Tools: rain"},
        {"role": "assistant", "content": "Is it wet?"},
        {"role": "user", "content": "Tools: songs"},
    ]
    without = Prompt(name="p", system="s", user="Tools: {tools}")
    assert prompt.sha256 != without.sha256


@pytest.mark.parametrize(
    ("user", "examples"),
    [
        ("{tools}", "[{query: rain, answer: a}]"),
        ("{tools}", "[{tools: rain}]"),
        ("{tools}", "[{tools: rain, answer: 5}]"),
        ("{tools}", "{tools: rain, answer: a}"),
        ("{tools} {query}", "[{tools: rain, answer: a}]"),
        ("no field", "[{tools: rain, answer: a}]"),
    ],
)
def test_examples_of_a_prompt_file_fill_its_only_field(prompt_folder: Path, user: str, examples: str) -> None:
    (prompt_folder / "p.yaml").write_text(f"system: s\nuser: '{user}'\nexamples: {examples}")
    with pytest.raises(UserError, match=r"p\.yaml: examples are a list"):
        load_prompt("p")


def test_hash_sees_the_text_and_not_the_comments(prompt_folder: Path) -> None:
    (prompt_folder / "p.yaml").write_text("system: a\nuser: '{query}'")
    before = prompt_hash("p")
    (prompt_folder / "p.yaml").write_text("# words\nuser: '{query}'\nsystem: a")
    assert prompt_hash("p") == before
    (prompt_folder / "p.yaml").write_text("system: b\nuser: '{query}'")
    assert prompt_hash("p") != before


# ----------------------------------------------------------------------------------------------------- messages


def test_examples_are_turns_before_the_request() -> None:
    assert build_messages(PROMPT, {"query": "a song?"}, EXAMPLES) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Request: rain?\nEntries:"},
        {"role": "assistant", "content": "Weather API."},
        {"role": "user", "content": "Request: euros?\nEntries:"},
        {"role": "assistant", "content": "Currency API."},
        {"role": "user", "content": "Request: a song?\nEntries:"},
    ]


def test_prompt_without_a_system_text_has_no_system_message() -> None:
    messages = build_messages(Prompt(name="p", system="", user="{query}"), {"query": "x"})
    assert messages == [{"role": "user", "content": "x"}]


def test_braces_in_a_value_are_text() -> None:
    messages = build_messages(PROMPT, {"query": 'call {"city": {query}} {0} {}'})
    assert messages[-1]["content"] == 'Request: call {"city": {query}} {0} {}\nEntries:'


@pytest.mark.parametrize("fields", [{}, {"query": "x", "tools": "y"}, {"question": "x"}])
def test_missing_and_unknown_fields_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(UserError, match="needs the fields"):
        build_messages(PROMPT, fields)


def test_examples_need_a_prompt_of_a_query_alone() -> None:
    prompt = Prompt(name="p", system="s", user="{query} {tools}")
    with pytest.raises(UserError, match="takes no examples"):
        build_messages(prompt, {"query": "x", "tools": "y"}, EXAMPLES)


# ---------------------------------------------------------------------------------------------------- rendering


def test_rendered_prompt_ends_where_the_answer_begins(tokenizer: Any) -> None:
    text = render_chat(tokenizer, build_messages(PROMPT, {"query": "rain?"}))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nRequest: rain?\nEntries:<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert tokenizer.decode(encode_prompt(tokenizer, text)) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", "leaves out the system message"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n", "opens a <think> block"),
    ],
)
def test_unfit_chat_templates_are_refused(tiny_rewriter_path: Path, template: str | None, message: str) -> None:
    tokenizer = load_tokenizer(tiny_rewriter_path)
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=message):
        render_chat(tokenizer, build_messages(PROMPT, {"query": "<think> about rain"}))


# ------------------------------------------------------------------------------------------------------ cutting


def test_prompt_that_fits_is_whole(tokenizer: Any) -> None:
    whole = render_chat(tokenizer, build_messages(PROMPT, {"query": "rain in Paris"}, EXAMPLES))
    length = len(encode_prompt(tokenizer, whole))
    assert fit_prompt(tokenizer, PROMPT, {"query": "rain in Paris"}, EXAMPLES, length) == (whole, False)


def test_long_request_loses_its_end_and_nothing_else(tokenizer: Any) -> None:
    query = " ".join(f"word{number}" for number in range(400))
    text, was_cut = fit_prompt(tokenizer, PROMPT, {"query": query}, EXAMPLES, 200)
    assert was_cut
    assert 185 < len(encode_prompt(tokenizer, text)) <= 200
    kept = text.split("Request: ")[-1].partition("\nEntries:")[0]
    assert query.startswith(kept + " ")
    assert text == render_chat(tokenizer, build_messages(PROMPT, {"query": kept}, EXAMPLES))


def test_long_word_without_blanks_is_cut_too(tokenizer: Any) -> None:
    text, was_cut = fit_prompt(tokenizer, PROMPT, {"query": "漢字" * 500}, [], 100)
    assert was_cut
    assert 90 < len(encode_prompt(tokenizer, text)) <= 100


def test_examples_that_leave_no_room_are_an_error(tokenizer: Any) -> None:
    with pytest.raises(UserError, match="leaves no room") as caught:
        fit_prompt(tokenizer, PROMPT, {"query": "rain in Paris tomorrow"}, EXAMPLES, 40)
    assert "few_shot" in caught.value.remedy


# ------------------------------------------------------------------------------------------------------ loading


def test_copied_model_is_the_same_files(tiny_rewriter_path: Path, tmp_path: Path) -> None:
    copy_model(tiny_rewriter_path, tmp_path / "copy")
    for path in tiny_rewriter_path.iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_folder_that_is_no_language_model_is_the_users_to_mend(tmp_path: Path, tiny_rewriter_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer does not load"):
        load_rewriter(tmp_path, "float32")
    copy_model(tiny_rewriter_path, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="does not load as a causal language model"):
        load_rewriter(tmp_path / "model", "float32")


def test_precision_is_the_models_type(tiny_rewriter_path: Path) -> None:
    import torch

    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        model, _ = load_rewriter(tiny_rewriter_path, precision)
        assert model.dtype == dtype
        assert not model.training
