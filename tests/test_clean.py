"""Cleaning of what a chat model wrote."""

import random

import pytest

from cohyde.rewriter.clean import clean

LINE = "Weather API. Returns the forecast of a city by its name."


@pytest.mark.parametrize(
    "text",
    [
        "<think>The user wants weather.</think>" + LINE,
        "<think>\n\n</think>\n\n" + LINE,
        "<thinking>Hm.</thinking>\n<think>So.</think> " + LINE,
        "The user wants weather.\n</think>\n" + LINE,
        LINE + "\n<think>But wait, the user",
        "<THINK>loud</THINK>" + LINE,
    ],
)
def test_reasoning_is_stripped_closed_or_not(text: str) -> None:
    assert clean(text) == LINE


@pytest.mark.parametrize("text", ["<think>cut off in", "", " \n\t ", "<think></think>", "```\n```", "Sure!", "-"])
def test_nothing_is_left_of_nothing(text: str) -> None:
    assert clean(text) == ""


@pytest.mark.parametrize(
    "preamble",
    [
        "Sure, here is the catalogue entry:\n\n",
        "Sure! Here are the tools that would fulfil the request:\n",
        "Certainly. ",
        "Of course! Here's the description: ",
        "Here are the catalogue entries:\n",
        "The following tools would fulfil the request: ",
        "Below is the pipeline of API tools:\n",
        "Catalogue entries:\n",
        "Description: ",
        "**Answer:** ",
        "I'd be happy to help you with that! ",
        "Okay, ",
    ],
)
def test_preambles_are_stripped(preamble: str) -> None:
    assert clean(preamble + LINE) == LINE


@pytest.mark.parametrize(
    "sign_off",
    [
        "\n\nLet me know if you need anything else!",
        " I hope this helps.",
        "\nI hope this helps! Let me know if you have questions.",
        "\nFeel free to ask for more",
        " Is there anything else you need?",
        "\n\nIf you have any questions, please ask.",
        " Please don't hesitate to ask.",
    ],
)
def test_sign_offs_are_stripped(sign_off: str) -> None:
    assert clean(LINE + sign_off) == LINE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```\nWeather API\n```", "Weather API"),
        ("```json\nWeather API\n```", "Weather API"),
        ("# Tools\n## Weather API", "Tools Weather API"),
        ("**Weather API**: gets *the* forecast", "Weather API: gets the forecast"),
        ("__Weather API__ calls `get_weather`", "Weather API calls get_weather"),
        ("- Weather API\n- Maps API", "Weather API Maps API"),
        ("1. Weather API\n2) Maps API\n(3) News API", "Weather API Maps API News API"),
        ("* 1. **Weather API**\n\n  • Maps API", "Weather API Maps API"),
        ("Weather API\n---\nMaps API", "Weather API Maps API"),
        ("> Weather API", "Weather API"),
        ("Weather   API\r\n\tgets\u00a0it", "Weather API gets it"),
        ('"Weather API"', "Weather API"),
        ("“Weather API”", "Weather API"),
        ("Weather API<|im_end|>", "Weather API"),
    ],
)
def test_markdown_quotes_and_white_space_are_folded(text: str, expected: str) -> None:
    assert clean(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        "3D Printing API. Slices a model.",
        'Searches "exact" phrases and "near" ones',
        "5.1 surround decoder",
        "Sure Bet API. Lists odds.",
        "Great Circle Distance. Takes two places.",
        "Converts snake_case_names and a * b",
        "Here Maps geocoding. Takes an address.",
        "C# snippets search",
        "Here is where you are. Geolocation by IP.",
        "OK Google search. Returns hits.",
        "Feel Free Yoga. Lists classes. Returns places and prices of each.",
    ],
)
def test_catalogue_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_cleaning_is_idempotent_on_composed_texts() -> None:
    pieces = [
        "<think>", "</think>", "<thinking>", "</", "think>", "Sure!", "Sure, ", "Here is the entry:", "Here are",
        "Catalogue entries:", "Let me know if you need more.", "I hope this helps", "```", "```json", "**", "*", "__",
        "_", "`", "- ", "1. ", "2)", "# ", ">", "---", '"', "'", "“", "”", "\n", "\n\n", " ", "\t", ".", "!", ":", ",",
        "Weather API", "forecast", "<|im_end|>", "<", "a) ", "Okay", "I'd be happy to help", "OK:", "É漢",
    ]  # fmt: skip
    draw = random.Random(7)
    for _ in range(4000):
        text = "".join(draw.choice(pieces) for _ in range(draw.randint(0, 14)))
        once = clean(text)
        assert clean(once) == once, repr(text)
        assert once == once.strip() and "\n" not in once and "  " not in once
        assert "<think>" not in once


def test_cleaning_long_hostile_texts_is_quick() -> None:
    for piece in ("<think>", "**", "# ", "- ", "Sure, ", "```\n", '"', "* * ", "Let me know if. ", "_a_ "):
        once = clean(piece * 500)
        assert clean(once) == once
