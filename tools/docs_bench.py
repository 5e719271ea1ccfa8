"""Writes the reference of a scenario's fields from the structs that read it. Knows no other
document."""

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from relight.bench import scenario
from relight.bench.needle import Kind

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "A scenario": scenario.Scenario,
    "classes": scenario.Class,
    "sessions": scenario.Sessions,
    "trace": scenario.Trace,
    "limits": scenario.Limits,
    "expect": scenario.Expect,
}
PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "any"}


def scenarios() -> Iterator[str]:
    yield "# Scenarios of the benchmark\n"
    yield "<!-- Written by `make docs` from the code. Do not edit. -->\n"
    yield (
        "Fields of the YAML files of `relight bench`; [measuring](notes/measuring.md) says\n"
        "what is done with them.\n"
    )
    for name, struct in STRUCTS.items():
        yield f"## {name}\n"
        yield " ".join((struct.__doc__ or "").split()) + "\n"
        yield "| field | default | wanted |\n| --- | --- | --- |"
        for field in msgspec.structs.fields(struct):
            yield f"| `{field.name}` | {_default(field)} | {wanted(field.type)} |"
        yield ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "must be given"
    value = field.default
    if value is msgspec.NODEFAULT and callable(field.default_factory):
        value = field.default_factory()
    if value is None or value in ("", [], {}) or isinstance(value, msgspec.Struct):
        return "–"
    return f"`{value}`"


def wanted(kind: Any) -> str:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind == Kind:
        return "one of " + ", ".join(f"`{value}`" for value in inside)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inside)
    if origin is typing.Annotated:
        return wanted(inside[0])
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(wanted(one) for one in inside if one is not type(None))
    if origin is list:
        return f"list of: {wanted(inside[0])}"
    if origin is dict or kind is dict:
        return "names and values"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return next(
            f"see [{n}](#{n.lower().replace(' ', '-')})" for n, s in STRUCTS.items() if s is kind
        )
    return PLAIN[kind]
