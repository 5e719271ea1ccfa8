"""Which JSON types a tool's schema allows for a parameter, and a value's JSON text in view of that.
Validates nothing else: a value that breaks its schema is the caller's to judge."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

Types = frozenset[str]

MAX_REFERENCES = 16
"""Nesting of $ref and combined schemas that is followed; schemas may refer to themselves."""


class ParameterTypes:
    """The parameters of one tool. `schema` None stands for a tool that is not known."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self.known = schema is not None
        self._root: Mapping[str, Any] = schema or {}

    def has(self, name: str) -> bool:
        return _find_property(self._root, name, self._root, MAX_REFERENCES) is not None

    def allowed(self, name: str) -> Types | None:
        """The types that the parameter may have; None: any, or nothing known."""
        schema = _find_property(self._root, name, self._root, MAX_REFERENCES)
        return _allowed_types(schema, self._root, MAX_REFERENCES)

    def forbids_text(self, name: str) -> bool:
        allowed = self.allowed(name)
        return allowed is not None and "string" not in allowed

    def to_json(self, name: str, text: str, is_string: bool | None) -> str:
        """The value as JSON text. What the markup says (`is_string`) comes first: text becomes
        another type only where the schema forbids strings and the text is of an allowed type.
        Without a word from the markup (None), or where it says not a string, JSON stays as it was
        written, so that numbers keep all their digits, and anything else becomes a string."""
        types = json_types(text)
        allowed = self.allowed(name)
        fits = types is not None and (allowed is None or bool(types & allowed))
        if is_string:
            as_json = fits and self.forbids_text(name)
        elif is_string is None:
            as_json = fits or (types is not None and self.forbids_text(name))
        else:
            as_json = types is not None
        return text.strip() if as_json else json.dumps(text, ensure_ascii=False)


def json_types(text: str) -> Types | None:
    """The schema types of JSON text, None if it is not JSON (NaN is not), or is nested too deep to
    be read. Numbers are not converted: they may be of any length."""
    try:
        value = json.loads(text, parse_int=lambda _: 0, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return _types_of(value)


def is_object(text: str) -> bool:
    types = json_types(text)
    return types is not None and "object" in types


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _types_of(value: Any) -> Types:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _find_property(schema: Any, name: str, root: Mapping[str, Any], depth: int) -> Any:
    """The schema of a property, also through references and combinations; None if there is none."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    inner = [resolve(schema["$ref"], root)] if "$ref" in schema else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        inner += _schemas(schema.get(keyword))
    found = (_find_property(part, name, root, depth - 1) for part in inner)
    return next((part for part in found if part is not None), None)


def _allowed_types(schema: Any, root: Mapping[str, Any], depth: int) -> Types | None:
    """What every keyword of the schema allows together; None: any type."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    limits: list[Types | None] = []
    kind = schema.get("type")
    if isinstance(kind, str):
        limits.append(_with_integer([kind]))
    elif isinstance(kind, list):
        limits.append(_with_integer(kind))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [*values, *([schema["const"]] if "const" in schema else [])]
    if values:
        limits.append(frozenset().union(*map(_types_of, values)))
    if "$ref" in schema:
        limits.append(_allowed_types(resolve(schema["$ref"], root), root, depth - 1))
    for part in _schemas(schema.get("allOf")):
        limits.append(_allowed_types(part, root, depth - 1))
    for keyword in ("anyOf", "oneOf"):
        choices = [_allowed_types(p, root, depth - 1) for p in _schemas(schema.get(keyword))]
        if choices:
            limits.append(_union(choices))
    known = [limit for limit in limits if limit is not None]
    return frozenset.intersection(*known) if known else None


def _with_integer(kinds: list[Any]) -> Types:
    names = {kind for kind in kinds if isinstance(kind, str)}
    return frozenset(names | {"integer"} if "number" in names else names)


def _union(choices: list[Types | None]) -> Types | None:
    """Any type, if one of the choices allows any."""
    known = [choice for choice in choices if choice is not None]
    return frozenset().union(*known) if len(known) == len(choices) else None


def _schemas(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """The target of a reference within the schema (`#/…`), None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or step not in target:
            return None
        target = target[step]
    return target
