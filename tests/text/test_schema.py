import pytest

from relight.text.schema import ParameterTypes, json_types

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "maybe": {"type": ["integer", "null"]},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {"type": "object"},
        "any_of": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "open": {"oneOf": [{"type": "integer"}, {}]},
        "all_of": {"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]},
        "ref": {"$ref": "#/$defs/a~1b"},
        "loop": {"$ref": "#/$defs/loop"},
        "lost": {"$ref": "#/$defs/none"},
        "far": {"$ref": "http://elsewhere/schema"},
        "choice": {"enum": [1, 2, None]},
        "word": {"enum": ["1", "2"]},
        "fixed": {"const": 3},
        "free": {},
    },
    "$defs": {"a/b": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
}
TYPES = ParameterTypes(SCHEMA)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "42", '"42"'),
        ("count", "42", "42"),
        ("count", " 42\n", "42"),
        ("count", "4.0", "4.0"),
        ("count", "4.5", '"4.5"'),
        ("count", "forty", '"forty"'),
        ("count", "true", '"true"'),
        ("ratio", "42", "42"),
        ("ratio", "-1.5e3", "-1.5e3"),
        ("maybe", "null", "null"),
        ("maybe", "7", "7"),
        ("flag", "true", "true"),
        ("flag", "True", '"True"'),
        ("list", '["a"]', '["a"]'),
        ("list", '"a"', '"\\"a\\""'),
        ("object", '{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("any_of", "3", "3"),
        ("open", "3", '"3"'),
        ("all_of", "3", "3"),
        ("ref", "3", "3"),
        ("loop", "3", '"3"'),
        ("lost", "3", '"3"'),
        ("far", "3", '"3"'),
        ("choice", "2", "2"),
        ("word", "2", '"2"'),
        ("fixed", "3", "3"),
        ("free", "3", '"3"'),
        ("absent", "3", '"3"'),
    ],
)
def test_marked_text_changes_type_only_where_the_schema_forbids_strings(name, text, value):
    assert TYPES.to_json(name, text, True) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12345678901234567890", "12345678901234567890"),
        ("9" * 5000, "9" * 5000),
        ("1.50", "1.50"),
        ("[1, 2", '"[1, 2"'),
        ("12,5", '"12,5"'),
        ("NaN", '"NaN"'),
        ("", '""'),
        ("[" * 100_000, '"' + "[" * 100_000 + '"'),
        ('"quoted"', '"quoted"'),
    ],
)
def test_marked_json_keeps_its_digits_and_falls_back_to_a_string(text, value):
    assert TYPES.to_json("text", text, False) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("text", "42", '"42"'), ("count", "42", "42"), ("absent", "42", "42"), ("absent", "x", '"x"')],
)
def test_without_a_mark_the_schema_decides(name, text, value):
    assert TYPES.to_json(name, text, None) == value


def test_properties_are_found_through_references_and_combinations():
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "integer"}}}],
        "$defs": {"base": {"properties": {"a": {"type": "boolean"}}}},
    }
    types = ParameterTypes(schema)
    assert types.allowed("a") == {"boolean"}
    assert types.allowed("b") == {"integer"}
    assert not types.has("c")


@pytest.mark.parametrize("broken", [{"type": 5}, {"anyOf": "x"}, {"enum": 3}, {"allOf": [1]}, True])
def test_a_broken_schema_allows_anything(broken):
    assert ParameterTypes({"properties": {"a": broken}}).allowed("a") is None


def test_an_unknown_tool_allows_anything():
    types = ParameterTypes(None)
    assert types.allowed("a") is None
    assert not types.known


def test_json_types_of_every_kind():
    assert json_types("1") == {"integer", "number"}
    assert json_types("1e400") == {"number"}
    assert json_types("{}") == {"object"}
    assert json_types("nope") is None
