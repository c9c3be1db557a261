"""Parameters, types and shapes out of JSON Schema: references, alternatives, circles, bounds."""

import time

import pytest

from cohyde.data.importers.json_schema import DEEPEST, LONGEST, Schemas, description_of, parameters_of, type_of
from cohyde.data.validation import Findings

TEXT = {"type": "string"}


def an_object(**properties):
    return {"type": "object", "properties": properties}


def shape_of(schema, document=None):
    return Schemas(document or schema).shape_of(schema)


# ------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "STRING"}, "STRING"),
        ({"type": ["null", "string"]}, "string or null"),
        ({"type": ["string", "string"]}, "string"),
        ({"type": "string", "nullable": True}, "string or null"),
        ({"type": "array", "items": {"type": "integer"}}, "array of integer"),
        ({"type": "array", "items": [{"type": "integer"}]}, "array"),
        ({"type": "array"}, "array"),
        ({"items": TEXT}, "array of string"),
        (an_object(a=TEXT), "object"),
        ({"properties": {}}, "object"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map of integer"),
        ({"type": "object", "additionalProperties": False}, "object"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"oneOf": [{"type": "integer"}, TEXT]}, "integer or string"),
        ({"oneOf": [{"type": kind} for kind in "abcd"]}, "a or b or c or …"),
        ({"enum": ["open", "closed", 3]}, "string or integer"),
        ({"const": True}, "boolean"),
        ({"description": "anything"}, ""),
        ({}, ""),
        (True, ""),
        (None, ""),
        ("string", ""),
        ({"type": {"type": "string"}, "items": 3, "oneOf": "x", "required": True, "properties": []}, ""),
    ],
)
def test_a_type_is_a_few_words(schema, expected):
    assert type_of(schema) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"description": "A day", "title": "Day"}, "A day"),
        ({"title": "Day"}, "Day"),
        ({"description": 404}, "404"),
        ({"description": {"en": "A day"}}, ""),
        ([], ""),
    ],
)
def test_a_description_is_a_text_or_else_the_title(schema, expected):
    assert description_of(schema) == expected


# --------------------------------------------------------------------------------------------------- parameters


def test_parameters_are_the_properties_in_order_with_the_required_ones_marked():
    schema = an_object(day={"type": "string", "description": "ISO date"}, count={"type": "integer"})
    assert parameters_of(schema | {"required": ["count", "other", 3]}) == [
        {"name": "day", "type": "string", "description": "ISO date", "required": False},
        {"name": "count", "type": "integer", "description": "", "required": True},
    ]


@pytest.mark.parametrize("schema", [None, [], "x", {}, {"type": "object"}, {"properties": [1]}, TEXT])
def test_what_is_no_object_schema_has_no_parameters(schema):
    assert parameters_of(schema) == []


def test_a_title_that_only_repeats_the_name_describes_nothing():
    schema = an_object(due_date={"title": "Due Date"}, dueDate={"title": "Duedate"}, due={"title": "Due date"})
    assert [row["description"] for row in parameters_of(schema)] == ["", "", "Due date"]


def test_all_of_is_merged_and_what_is_nearer_wins():
    schema = {
        "allOf": [
            {"$ref": "#/$defs/Base"},
            {"properties": {"b": {"type": "integer"}, "a": {"type": "number"}}, "required": ["b"]},
        ],
        "$defs": {"Base": an_object(a=TEXT) | {"required": ["a"]}},
    }
    rows = parameters_of(schema)
    assert [(row["name"], row["type"], row["required"]) for row in rows] == [
        ("a", "string", True),
        ("b", "integer", True),
    ]


def test_properties_of_alternatives_are_parameters_but_not_required():
    schema = an_object(a=TEXT) | {
        "oneOf": [an_object(b=TEXT) | {"required": ["b"]}, an_object(a={"type": "integer"}, c=TEXT)]
    }
    assert [(row["name"], row["type"], row["required"]) for row in parameters_of(schema)] == [
        ("a", "string", False),
        ("b", "string", False),
        ("c", "string", False),
    ]


def test_what_is_read_only_is_no_parameter():
    schema = an_object(id={"type": "string", "readOnly": True}, name=TEXT, made={"$ref": "#/$defs/Made"})
    assert [row["name"] for row in parameters_of(schema | {"$defs": {"Made": {"readOnly": True}}})] == ["name"]


def test_names_that_yaml_read_as_something_else_are_texts():
    assert [row["name"] for row in parameters_of({"properties": {True: TEXT, 7: TEXT}})] == ["true", "7"]


# --------------------------------------------------------------------------------------------------- references

PLACE = an_object(city=TEXT)


@pytest.mark.parametrize(
    ("document", "ref"),
    [
        ({"$defs": {"Place": PLACE}}, "#/$defs/Place"),
        ({"a/b": {"c~d": PLACE}}, "#/a~1b/c~0d"),
        ({"a b": {"ü": PLACE}}, "#/a%20b/%C3%BC"),
        ({"list": [TEXT, PLACE]}, "#/list/1"),
        ({200: PLACE}, "#/200"),
        ({"": PLACE}, "#/"),
        (PLACE, "#"),
        ({"one": {"$ref": "#/two"}, "two": PLACE}, "#/one"),
    ],
)
def test_a_json_pointer_is_followed(document, ref):
    schemas = Schemas(document)
    assert schemas.shape_of({"$ref": ref}) == "{city: string}"
    assert schemas.unresolved == set()


@pytest.mark.parametrize("ref", ["#/none", "#/list/2", "#/list/-1", "#/list/x", "#/list/" + "9" * 5000, "#/list/0/a"])
def test_a_pointer_that_leads_nowhere_is_a_fault_wherever_it_is_met(ref):
    schemas, findings = Schemas({"list": [3]}), Findings()
    schema = an_object(a={"type": "array", "items": {"$ref": ref}})
    for where in ("file#/a", "file#/b"):
        schemas.parameters_of(schema)
        schemas.tell(where, findings)
    schemas.tell("file#/c", findings)
    assert findings.lines() == [f"file#/a: the document has no {ref!r} ($ref that leads nowhere; 2 in all)"]


@pytest.mark.parametrize("ref", ["other.json#/Place", "https://example.org/place.json", "Place", "#place", ""])
def test_a_reference_out_of_the_document_is_remarked_on_and_not_followed(ref):
    schemas, findings = Schemas({}), Findings()
    assert schemas.shape_of(an_object(a={"$ref": ref}, b=TEXT)) == "{a, b: string}"
    schemas.tell("file#/a", findings)
    assert findings.lines() == []
    assert findings.remarks.lines() == [f"file#/a: {ref!r} is not followed ($ref out of the document; 1 in all)"]


def test_what_stands_beside_a_reference_is_laid_over_it():
    schemas = Schemas({"Place": PLACE | {"description": "A place"}})
    beside = {"$ref": "#/Place", "description": "Where from"}
    assert schemas.description_of(beside) == "Where from"
    assert schemas.resolved(beside) == PLACE | {"description": "Where from"}
    assert schemas.resolved({"$ref": "#/None"}) is None
    assert schemas.resolved("x") is None
    assert schemas.resolved({}) == {}


def test_a_property_may_be_called_ref():
    assert shape_of(an_object(**{"$ref": TEXT})) == "{$ref: string}"


# ------------------------------------------------------------------------------------------------------ circles


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (an_object(value=TEXT, next={"$ref": "#/A"}), "{value: string, next: A}"),
        ({"type": "array", "items": {"$ref": "#/A"}}, "array of A"),
        ({"additionalProperties": {"$ref": "#/A"}, "type": "object"}, "map of A"),
        ({"$ref": "#/A"}, ""),
        ({"allOf": [{"$ref": "#/A"}, an_object(b=TEXT)]}, "{b: string}"),
        ({"anyOf": [{"$ref": "#/A"}, {"type": "null"}]}, "A or null"),
        ({"oneOf": [{"$ref": "#/A"}, TEXT]}, "A or string"),
        (an_object(up={"allOf": [{"$ref": "#/A"}]}), "{up: {up: A}}"),
    ],
)
def test_a_circle_is_cut_by_a_name(schema, expected):
    document = {"A": schema}
    assert Schemas(document).shape_of({"$ref": "#/A"}) == expected
    assert Schemas(document).parameters_of({"$ref": "#/A"}) is not None


def test_two_references_that_lead_to_each_other_end():
    document = {"A": {"$ref": "#/B"}, "B": {"$ref": "#/A"}}
    schemas = Schemas(document)
    assert schemas.shape_of(document["A"]) == ""
    assert schemas.resolved(document["A"]) is None


def test_a_value_that_holds_itself_as_yaml_allows_is_cut():
    schema = {"type": "array", "description": "loop"}
    schema["items"] = schema
    schema["allOf"] = [schema]
    schema["title"] = schema
    assert shape_of(schema) == "array of array"
    assert description_of(schema) == "loop"


# ------------------------------------------------------------------------------------------------------- bounds


def test_a_shape_shows_two_levels_of_properties():
    day = an_object(date=TEXT, rain={"type": "number"}, hours={"type": "array", "items": an_object(hour=TEXT)})
    schema = an_object(city=TEXT, days={"type": "array", "items": day})
    assert shape_of(schema) == "{city: string, days: array of {date: string, rain: number, hours: array of object}}"


def test_an_inner_object_that_is_referred_to_is_named_where_levels_end():
    document = {"A": an_object(b={"$ref": "#/B"}), "B": an_object(c={"$ref": "#/C"}), "C": an_object(d=TEXT)}
    assert shape_of({"$ref": "#/A"}, document) == "{b: {c: C}}"


def test_where_two_levels_do_not_fit_there_is_one_of_as_many_properties_as_fit():
    inner = an_object(**{f"inner_property_{i}": TEXT for i in range(30)})
    assert shape_of(an_object(a=inner, b=TEXT)) == "{a: object, b: string}"
    text = shape_of(an_object(**{f"property_{i:03}": TEXT for i in range(300)}))
    assert text.startswith("{property_000: string, property_001: string, ")
    assert text.endswith(", …}")
    each = len("property_000: string, ")
    assert text.count(": ") == LONGEST // each == 22


def test_arrays_of_arrays_end():
    schema = TEXT
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert shape_of(schema) == " of ".join(["array"] * (DEEPEST + 1))


def test_schemas_that_multiply_are_read_in_no_time():
    """Each of thirty schemas has three ways to the next: 3**30 ways in all."""
    document = {}
    for i in range(30):
        after = {"$ref": f"#/S{i + 1}"}
        document[f"S{i}"] = {
            "oneOf": [after, {"allOf": [after]}, {"type": "array", "items": after}],
            "allOf": [{"$ref": f"#/S{i + 1}"}, {"$ref": f"#/S{i + 1}"}, {"$ref": f"#/S{i + 1}"}],
            "type": ["array", "object"],
            "items": after,
            "additionalProperties": after,
        }
    document["S30"] = an_object(**{f"p{i}": {"$ref": "#/S0"} for i in range(100)})
    start = time.process_time()
    text = shape_of({"$ref": "#/S0"}, document)
    assert len(text) < 20 * LONGEST
    assert time.process_time() - start < 2
