"""What a JSON schema says, as far as calls need to know: the parameters of an object, and which
texts a string may be. Knows no grammar and no markup.

What is not understood here is None, and left to whoever reads whole schemas.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from relight.text.schema import MAX_REFERENCES, resolve

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "nullable"),
        *("readOnly", "writeOnly", "$comment", "$schema", "$id", "strict"),
    }
)
NOT_FOR_STRINGS = frozenset(
    {
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems"),
        *("uniqueItems", "contains", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        "multipleOf",
    }
)
LITERALS = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords whose values are no schemas."""
NOT_TEXT = ("object", "array", "number", "boolean", "null")


class Parameter(msgspec.Struct, frozen=True):
    name: str
    schema: Any
    required: bool


class Shape(msgspec.Struct, frozen=True):
    """An object that is a list of parameters. `extra` is the schema of parameters with other
    names; None: there are none."""

    parameters: tuple[Parameter, ...]
    extra: Any = None


class Texts(msgspec.Struct, frozen=True):
    """The texts that a string may be: these, or any of `least` to `most` characters."""

    these: tuple[str, ...] | None = None
    least: int = 0
    most: int | None = None


def shape_of(root: Any) -> Shape | None:
    """An object that lists its parameters and says nothing of other names has no others, also if
    its list is empty: so tools without parameters are described. Without a list it is free."""
    schema = _follow(root, root)
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return None
    told = schema.keys() - ANNOTATIONS - {"format", "$defs", "definitions"}
    if not told <= {"type", "properties", "required", "additionalProperties"}:
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    extra = schema.get("additionalProperties", None if "properties" in schema else {})
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    if not all(isinstance(name, str) and name in properties for name in required):
        return None
    parameters = tuple(
        Parameter(name, part, name in required)
        for name, part in properties.items()
        if part is not False or name in required
    )
    return Shape(parameters, None if extra is False else extra)


def texts_of(schema: Any, root: Any, *, formats: bool) -> tuple[Texts, ...] | None:
    """None: the schema may say more of strings than this; (): there can be none. `formats`: the
    keyword `format` is more than a remark."""
    return _texts(
        schema, root, ANNOTATIONS if formats else ANNOTATIONS | {"format"}, MAX_REFERENCES
    )


def _texts(schema: Any, root: Any, remarks: frozenset[str], depth: int) -> tuple[Texts, ...] | None:
    if schema is True:
        return (Texts(),)
    schema = _follow(schema, root)
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    told = schema.keys() - remarks - NOT_FOR_STRINGS
    if not _allows_strings(schema.get("type")):
        return ()
    for keyword in ("anyOf", "oneOf"):
        if told == {keyword} and isinstance(schema[keyword], list):
            found = [_texts(part, root, remarks, depth - 1) for part in schema[keyword]]
            known = [texts for texts in found if texts is not None]
            alone = keyword == "anyOf" or sum(map(bool, known)) == 1
            return sum(known, ()) if len(known) == len(found) and alone else None
    if not told <= {"type", "enum", "const", "minLength", "maxLength"}:
        return None
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not isinstance(least, int) or not isinstance(most, int | None):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None:
        return (Texts(None, least, most),) if most is None or most >= least else ()
    if not isinstance(values, list) or ("const" in schema and "enum" in schema):
        return None
    these = tuple(
        value
        for value in values
        if isinstance(value, str) and least <= len(value) and (most is None or len(value) <= most)
    )
    return (Texts(these),) if these else ()


def without_text(schema: Any) -> Any:
    """The schema where strings are excluded, if that is easy to say, else as it is: then a string
    may be written in two ways."""
    if not isinstance(schema, Mapping):
        return {"type": list(NOT_TEXT)} if schema is True else schema
    kind = schema.get("type")
    if isinstance(kind, list):
        return {**schema, "type": [name for name in kind if name != "string"]}
    if not schema.keys() - ANNOTATIONS - {"format"}:
        return {"type": list(NOT_TEXT)}
    return schema


def standalone(schema: Any, root: Any) -> Any:
    """The schema with all that it refers to in `root`."""
    if '"$ref"' not in json.dumps(schema):
        return schema
    return {**_moved(schema), "$defs": {"root": _moved(root)}}


def _moved(schema: Any) -> Any:
    """With references to where `standalone` puts the root."""
    if isinstance(schema, list):
        return [_moved(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: part if key in LITERALS else _moved(part) for key, part in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = "#/$defs/root" + reference.removeprefix("#")
    return moved


def _follow(schema: Any, root: Any) -> Any:
    """The target of a schema that is nothing but a reference; None if it leads nowhere."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        if schema.keys() - ANNOTATIONS - {"$ref", "$defs", "definitions"}:
            return None
        schema = resolve(schema["$ref"], root)
    return None


def _allows_strings(kind: Any) -> bool:
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)
