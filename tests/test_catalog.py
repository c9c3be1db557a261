"""Records and the five renderings; every expected text is written out by hand."""

import itertools
from dataclasses import replace

import pytest

from cohyde.catalog import (
    Dataset,
    Parameter,
    Query,
    Tool,
    catalog_line,
    fold,
    query_from_row,
    query_to_row,
    render,
    tiers_of,
    tool_from_row,
    tool_to_row,
)

FORECAST = Tool(
    id="sky/hourly",
    category="Weather",
    title="SkyLantern",
    description="Forecasts for any point on Earth.",
    api_name="hourlyForecast",
    api_description="Temperature and wind for the next 48 hours.",
    parameters=(Parameter(name="place", description="Name or coordinates"), Parameter(name="units")),
    schema="list of hours",
)
BARE = Tool(id="bare")
FORMS = (1, 2, 3, 4, 5)
DANGLING = ("Parameters:", "Returns:", ". .", "..", "()", ", ,", "  ")


def test_title_form_is_the_title():
    assert render(FORECAST, 1) == "SkyLantern"


def test_name_form_is_title_and_api_name():
    assert render(FORECAST, 2) == "SkyLantern hourlyForecast"


def test_third_form_adds_the_description_of_the_tool():
    assert render(FORECAST, 3) == "SkyLantern hourlyForecast. Forecasts for any point on Earth"


def test_fourth_form_adds_the_description_of_the_api():
    assert render(FORECAST, 4) == "SkyLantern hourlyForecast. Temperature and wind for the next 48 hours"


def test_full_form_holds_every_field():
    assert render(FORECAST, 5) == (
        "Weather. SkyLantern hourlyForecast. Temperature and wind for the next 48 hours. "
        "Forecasts for any point on Earth. Parameters: place (Name or coordinates), units. Returns: list of hours"
    )


def test_catalog_line_says_what_the_endpoint_does_else_what_its_provider_does():
    assert catalog_line(FORECAST) == "SkyLantern hourlyForecast. Temperature and wind for the next 48 hours"
    assert catalog_line(replace(FORECAST, api_description=" ")) == (
        "SkyLantern hourlyForecast. Forecasts for any point on Earth"
    )


def test_there_is_no_sixth_form():
    for form in (0, 6):
        with pytest.raises(KeyError):
            render(FORECAST, form)


@pytest.mark.parametrize(
    ("field", "full"),
    [
        ("category", "Title api. Does. About. Parameters: p. Returns: s"),
        ("title", "Cat. api. Does. About. Parameters: p. Returns: s"),
        ("api_name", "Cat. Title. Does. About. Parameters: p. Returns: s"),
        ("api_description", "Cat. Title api. About. Parameters: p. Returns: s"),
        ("description", "Cat. Title api. Does. Parameters: p. Returns: s"),
        ("parameters", "Cat. Title api. Does. About. Returns: s"),
        ("schema", "Cat. Title api. Does. About. Parameters: p"),
    ],
)
def test_an_empty_field_leaves_no_trace(field, full):
    tool = Tool(
        id="t",
        category="Cat",
        title="Title",
        description="About.",
        api_name="api",
        api_description="Does.",
        parameters=(Parameter(name="p"),),
        schema="s",
    )
    blanks = [()] if field == "parameters" else ["", " \t\n", "\u00a0"]
    assert {render(replace(tool, **{field: blank}), 5) for blank in blanks} == {full}


def test_no_combination_of_empty_fields_leaves_a_dangling_label_or_separator():
    texts = ("category", "title", "description", "api_name", "api_description", "schema")
    for kept in itertools.product((True, False), repeat=len(texts)):
        blank = {name: "" for name, keep in zip(texts, kept, strict=True) if not keep}
        for parameters in ((), (Parameter(name=""),), (Parameter(name=" ", description=" "),)):
            tool = replace(FORECAST, parameters=parameters, **blank)
            for form in FORMS:
                text = render(tool, form)
                assert text == text.strip(" .,:") and text
                assert not [mark for mark in DANGLING if mark in text.replace("Returns: list", "list")]


def test_a_parameter_without_a_name_leaves_no_trace():
    tool = replace(FORECAST, parameters=(Parameter(name=" "), Parameter(name="units"), Parameter(name="")))
    assert "Parameters: units. Returns" in render(tool, 5)


def test_a_description_of_full_stops_alone_leaves_no_trace():
    assert render(replace(FORECAST, description="..."), 3) == "SkyLantern hourlyForecast"
    assert render(replace(FORECAST, description=". ."), 3) == "SkyLantern hourlyForecast"


def test_sentences_are_parted_by_one_full_stop():
    assert render(replace(FORECAST, description="Trailing dots . ."), 3) == "SkyLantern hourlyForecast. Trailing dots"


def test_an_api_name_that_repeats_the_title_is_said_once():
    assert render(replace(FORECAST, api_name="SkyLantern"), 2) == "SkyLantern"


def test_a_form_without_any_text_is_rendered_in_full_and_a_tool_without_any_by_its_id():
    assert render(Tool(id="t", api_description="Does."), 1) == "Does"
    assert [render(BARE, form) for form in FORMS] == ["bare"] * 5
    assert catalog_line(BARE) == "bare"


def test_white_space_is_folded_in_every_form():
    messy = replace(FORECAST, title=" Sky\n\tLantern ", api_description="Two\r\nlines  here.")
    assert render(messy, 4) == "Sky Lantern hourlyForecast. Two lines here"
    assert all(fold(render(messy, form)) == render(messy, form) for form in FORMS)
    padded = Tool(id="t", parameters=(Parameter(name="when ", description="\ta  day "), Parameter(name=" where")))
    assert render(padded, 5) == "Parameters: when (a day), where"


def test_all_that_unicode_calls_white_space_is_folded():
    blanks = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    assert len(blanks) > 20
    assert fold("".join(f"{blank}a" for blank in blanks)) == " ".join("a" * len(blanks))


def test_folding_twice_changes_nothing():
    for text in ("", " a  b ", "a\u00a0\u2003b\n", "\u200bzero width\u200b", "שלום  עולם"):
        assert fold(fold(text)) == fold(text)


def test_zero_width_and_right_to_left_text_reach_the_rendering():
    tool = Tool(id="t", title="שלום", api_name="می\u200cخواهم", api_description="مرحبا بالعالم")
    assert render(tool, 4) == "שלום می\u200cخواهم. مرحبا بالعالم"


def test_a_tool_survives_its_row():
    assert tool_from_row(tool_to_row(FORECAST)) == FORECAST
    assert tool_from_row(tool_to_row(BARE)) == BARE
    assert "schema" not in tool_to_row(BARE)


def test_missing_and_null_texts_of_a_tool_are_empty():
    assert tool_from_row({"id": "bare", "description": None, "parameters": None}) == BARE


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "'id' is missing"),
        ({"id": "  "}, "'id' is missing"),
        ({"id": 7}, "'id' has to be a text, got int"),
        ({"id": "t", "title": ["x"]}, "'title' has to be a text, got list"),
        ({"id": "t", "colour": "red"}, "unknown field 'colour'"),
        ({"id": "t", "parameters": "x"}, "'parameters' has to be a list of objects"),
        ({"id": "t", "parameters": ["x"]}, "'parameters' has to be a list of objects"),
        ({"id": "t", "parameters": [{"type": "x"}]}, "every parameter needs a 'name'"),
        ({"id": "t", "title": "ab\0"}, "'title' holds a NUL character at position 3"),
        ({"id": "t", "title": "a\ud800"}, "'title' holds half a surrogate pair at position 2"),
        ({"id": "t", "parameters": [{"name": "\0"}]}, "'parameters' holds a NUL character at position 1"),
    ],
)
def test_a_malformed_tool_is_refused_by_the_name_of_its_field(row, message):
    with pytest.raises(ValueError, match=message):
        tool_from_row(row)


def test_a_query_survives_its_row():
    query = Query(id="q", text="rain?", tools=("a", "b"), tier="G2", split="eval")
    assert query_from_row(query_to_row(query)) == query


def test_further_gold_sets_survive_and_others_write_no_trace_of_them():
    query = Query(id="q", text="rain?", tools=("a", "b"), gold_sets=(("c",), ("a", "d")))
    assert query_from_row(query_to_row(query)) == query
    assert query.valid_sets == (("a", "b"), ("c",), ("a", "d"))
    assert "gold_sets" not in query_to_row(Query(id="q", text="rain?", tools=("a",)))


def test_a_gold_set_that_says_the_same_again_is_kept_once():
    row = {"id": "q", "text": "x", "tools": ["a", "b"], "gold_sets": [["b", "a"], ["c", "d", "c"], ["d", "c"]]}
    assert query_from_row(row).gold_sets == (("c", "d"),)


def test_repeated_gold_counts_once_and_keeps_its_order():
    assert query_from_row({"id": "q", "text": "x", "tools": ["b", "a", "b"]}).tools == ("b", "a")


def test_tier_and_split_have_defaults():
    query = query_from_row({"id": "q", "text": "x", "tools": ["a"], "tier": "", "split": None})
    assert (query.tier, query.split) == ("all", "train")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, "'id'"),
        ({"id": "q"}, "'text'"),
        ({"id": "q", "text": " \n"}, "'text' has to be a text that is not empty"),
        ({"id": "q", "text": 3}, "'text'"),
        ({"id": "q", "text": "x", "tools": "a"}, "'tools' has to be a list of tool ids"),
        ({"id": "q", "text": "x", "tools": [1]}, "'tools' has to be a list of tool ids"),
        ({"id": "q", "text": "x", "gold_sets": ["a"]}, "'gold_sets' has to be a list of lists of tool ids"),
        ({"id": "q", "text": "x", "gold_sets": [[1]]}, "'gold_sets' has to be a list of lists of tool ids"),
        ({"id": "q", "text": "x", "gold_sets": [["a"], []]}, "'gold_sets' holds an empty set, number 2"),
        ({"id": "q", "text": "x\0y"}, "'text' holds a NUL character at position 2"),
        ({"id": "q", "text": "x", "tier": "\udfff"}, "'tier' holds half a surrogate pair"),
    ],
)
def test_a_malformed_query_is_refused_by_the_name_of_its_field(row, message):
    with pytest.raises(ValueError, match=message):
        query_from_row(row)


def test_positions_follow_the_catalogue_and_tiers_are_sorted():
    dataset = Dataset(name="d", tools=(FORECAST, BARE))
    assert dataset.position_of() == {"sky/hourly": 0, "bare": 1}
    queries = [Query(id=tier, text="x", tools=("bare",), tier=tier) for tier in ("G3", "G1", "G3")]
    assert tiers_of(queries) == ["G1", "G3"]
