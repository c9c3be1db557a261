"""Drafts of requests: what is taken out of a reply, and each filter by example."""

import pytest

from cohyde.catalog import Parameter, Query, Tool
from cohyde.data.drafts import FILTERS, LONGEST, TOLD_WORDS, Draft, Known, fault_in, request_in, told, words

RAIN = Tool(
    id="rain",
    category="Weather",
    title="SkyLantern",
    api_name="hourlyForecast",
    description="Forecasts for any place, refreshed every ten minutes by weather stations.",
    api_description="Temperature, wind and rain probability for each of the next 48 hours at a place.",
    parameters=(Parameter(name="location", description="Place name"),),
)
MAIL = Tool(id="mail", title="Post Rider", api_name="send", api_description="Sends a message to a list of addresses.")
QUERIES = (
    Query(id="q1", text="Will it rain in Porto at nine?", tools=("rain",)),
    Query(id="q2", text="Mail the team that practice is cancelled.", tools=("mail",), split="eval"),
)
EXAMPLE = "Will it rain before eight? If so, when is the next bus from the hospital, and where can I get a taxi?"


def fault(text: str, *tools: Tool) -> tuple[str, str]:
    tools = tools or (RAIN,)
    return fault_in(Draft(text, tools, Known([RAIN, MAIL], QUERIES, [EXAMPLE])))


# ------------------------------------------------------------------------------------------------------ replies


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("Will it rain tonight?", "Will it rain tonight?"),
        ('"Will it rain\ntonight?"', "Will it rain tonight?"),
        ("Request: Will it rain tonight?", "Will it rain tonight?"),
        (
            "Sure, here is a request:\n\n**Will it rain tonight?**\n\nThis request needs the tool.",
            "Will it rain tonight?",
        ),
        ('Person: "Will it rain tonight?"', "Will it rain tonight?"),
        ("<think>hm</think>\n\nWill it rain tonight?", "Will it rain tonight?"),
        ("\n \n", ""),
        ("half a pair \ud83d", "half a pair \ufffd"),
    ],
)
def test_request_is_the_first_paragraph_without_what_is_put_around_it(reply: str, text: str) -> None:
    assert request_in(reply, finished=True) == text


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("Will it rain? And if it does, should I", "Will it rain?"),
        ("Will it rain tonight? I ask", "Will it rain tonight?"),
        ("Will it rain (in Porto, or", ""),
        ("Is it 3.5 degrees in Por", ""),
        ("明日は雨ですか？東京に行", "明日は雨ですか？"),
        ("Will it rain tonight\n\nThis request", "Will it rain tonight"),
    ],
)
def test_reply_that_was_cut_gives_whole_sentences(reply: str, text: str) -> None:
    assert request_in(reply, finished=False) == text


def test_words_of_scripts_without_blanks_are_characters() -> None:
    assert words("Is it 5°C in Köln?") == ["is", "it", "5", "c", "in", "köln"]
    assert words("東京 rain") == ["東", "京", "rain"]


# ------------------------------------------------------------------------------------------------------ filters


@pytest.mark.parametrize(
    "text",
    [
        "Our crane lifts panels in Gdynia tomorrow. How windy will it be each hour of the day?",
        "Find out whether I need an umbrella in Leeds at six, or will the rain have stopped?",
        "Compare tonight's rain in Porto with yesterday's.",
        "weather for the picnic in Bern at noon?",
        "The wedding is at three. Shall we put up the tent, or does the rain hold off?",
        "You said it would rain. Was that for Porto or for our village?",
        "Wie warm wird es heute Abend in Wien, und kommt noch ein Gewitter mit Temperaturen unter 20 Grad?",
    ],
)
def test_request_in_a_persons_words_passes(text: str) -> None:
    assert fault(text) == ("", "")


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        ("", "empty", "no words"),
        ("?!", "empty", "no words"),
        ("Will it rain in P\ufffdrto tonight?", "broken text", "characters that cannot be read"),
        ("Any rain today?", "too short", "3 words"),
        ("rain " * LONGEST + "today", "too long", f"{LONGEST + 1} words"),
        ("As an AI language model I know no rain.", "no request", "'As an AI language model'"),
        ("I'm sorry, but where is the rain?", "no request", '"I\'m sorry"'),
        ("How can I help you with the rain?", "no request", "'How can I help'"),
        ("Sure! Will it rain in Porto tonight?", "no request", "'Sure'"),
        ("Use the weather API for rain in Porto.", "no request", "'API'"),
        ("Will it rain in [city] on [date]?", "no request", "'[city]'"),
        ("The rain in Porto is heavy at this time of year.", "statement", "asks for nothing"),
        ("Porto was flooded by the rain of 1989.", "statement", "asks for nothing"),
        ("Will it rain? Will it rain? Tell me now.", "in circles", "a sentence twice"),
        (
            "I want rain and I want rain and I want rain and I want rain and I want rain",
            "in circles",
            "the same words again and again",
        ),
        ("What does SkyLantern say about rain tonight?", "names a tool", "'SkyLantern'"),
        ("Does sky-lantern say skylantern, rain or HOURLYFORECAST?", "names a tool", "'SkyLantern', 'hourlyForecast'"),
        (
            "Please: wind and rain probability for each of the next 48 hours.",
            "copies the catalogue",
            "'wind and rain probability for each of the next 48 hours'",
        ),
        ("Rain and wind at a place, for hours?", "copies the catalogue", "100% of its words"),
        (
            "When is the next bus from the hospital, and where can I go in the rain?",
            "copies an example",
            "'when is the next bus from the hospital and where can i'",
        ),
        ("When does the bus to Leeds leave?", "off topic", "says nothing of rain"),
        ("will it RAIN in Porto, at nine", "duplicate", "reads as 'q1'"),
        ("Will it rain in Porto at nine today?", "near-duplicate", "reads much as 'q1'"),
    ],
)
def test_each_filter_says_what_it_found(text: str, reason: str, detail: str) -> None:
    assert fault(text) == (reason, detail)


def test_every_filter_has_an_example_above() -> None:
    marks = test_each_filter_says_what_it_found.pytestmark  # type: ignore[attr-defined]
    assert {reason for _, reason, _ in marks[0].args[1]} == set(FILTERS)


def test_request_has_to_touch_each_of_its_tools() -> None:
    assert fault("Tell my team by message if it will rain at six.", RAIN, MAIL) == ("", "")
    assert fault("Will it rain at six in the evening?", RAIN, MAIL) == ("off topic", "says nothing of mail")


def test_filter_that_is_left_out_finds_nothing() -> None:
    draft = Draft("Do I need an umbrella in Leeds?", (RAIN,), Known([RAIN], ()))
    assert fault_in(draft)[0] == "off topic"
    assert fault_in(draft, set(FILTERS) - {"off topic"}) == ("", "")


def test_words_of_programmers_pass_where_the_tools_are_for_them() -> None:
    keys = Tool(id="keys", title="Vault", api_name="rotate", api_description="Renews the API key of a service.")
    assert fault("Which API key of mine runs out in May?", keys) == ("", "")


def test_reads_like_only_counts_among_requests_for_the_same_tools() -> None:
    close = "Will it rain in Porto at nine today?"
    assert fault(close, RAIN, MAIL)[0] == "off topic"
    assert fault("Please mail the team that practice is cancelled today.", RAIN, MAIL)[0] == "off topic"
    known = Known([RAIN, MAIL], ())
    known.add("new", "Tell my team by message if it will rain at six.", ("mail", "rain"))
    draft = Draft("Tell my team by message if it will rain at seven.", (RAIN, MAIL), known)
    assert fault_in(draft) == ("near-duplicate", "reads much as 'new'")


# -------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("tool", "names"),
    [
        (RAIN, ["SkyLantern", "hourlyForecast"]),
        (MAIL, ["Post Rider"]),
        (Tool(id="t", title="Weather", api_name="search"), []),
        (Tool(id="t", title="weather", api_name="get_alerts"), ["get_alerts"]),
        (Tool(id="t", title="message", api_name="/v2/send"), ["/v2/send"]),
        (Tool(id="t", title="Rookery", api_name="Rookery"), ["Rookery"]),
        (Tool(id="t", title="IP", api_name="ip4"), ["ip4"]),
        (Tool(id="t", api_name="GET"), []),
        (Tool(id="t", title="天気予報"), ["天気予報"]),
        (Tool(id="t"), []),
    ],
)
def test_names_tell_unless_they_are_plain_words(tool: Tool, names: list[str]) -> None:
    assert Known([RAIN, MAIL], ()).telling_names(tool) == names


# --------------------------------------------------------------------------------------------- what is told


def test_model_is_told_what_a_tool_does_and_not_its_name() -> None:
    assert told(RAIN) == (
        "Temperature, wind and rain probability for each of the next 48 hours at a place. "
        "Forecasts for any place, refreshed every ten minutes by weather stations"
    )


def test_model_is_told_all_there_is_where_descriptions_say_little() -> None:
    tool = Tool(
        id="t",
        category="Location",
        title="Netwhere",
        api_name="ip_lookup",
        description="Lookup.",
        api_description="Lookup",
        parameters=(Parameter(name="ip", description="IPv4"),),
        schema="{}",
    )
    assert told(tool) == "Location. Netwhere ip_lookup. Lookup. Lookup. Parameters: ip (IPv4)"
    assert told(Tool(id="only-an-id")) == "only-an-id"


def test_long_description_is_told_in_part() -> None:
    assert told(Tool(id="t", description="word " * 500)) == " ".join(["word"] * TOLD_WORDS)
