"""docs/api.md: every route, and every field of what it reads, with what becomes of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from relight.serve.app import OPEN
from relight.serve.decode import shown
from relight.serve.fields import Refused
from relight.serve.routes import OPERATIONS, Operation
from tools.api_notes import NOTES

Json = Mapping[str, Any]

INTRODUCTION = """A field **works**, is **refused** with a 400 that names it, or is **ignored**:
then it changes no answer, is named in the response header `x-relight-ignored` and counted in
`relight:ignored_fields_total`. A field that no table names is ignored as well, and so is a member
of a message, part, item or tool that is not read, as `messages.content.cache_control`;
`--strict-fields` refuses all that would be ignored. `null` is as if a field were absent. Bodies are
JSON in UTF-8 of at most `--body-limit` bytes. Packed ones (`content-encoding`) are refused, and so
is, with a 415, a `content-type` that is not JSON's, or none beside an `origin`: pages of browsers
could send these to a server that never asked for them. Where a name stands twice in an object,
the last one counts. Requests for a host that is not the server's, by `--allowed-host`, get a 403.

With `--api-key` every route needs a key, as `Authorization: Bearer KEY` or `x-api-key: KEY`, but
for {open}. Headers that are read besides: `x-request-id`
(returned, and in the log), `x-relight-priority`, `x-relight-deadline-ms`, `x-relight-client`. How
tokens are drawn is told in [sampling](sampling.md).

A connection that the client closes, or closes half (it sends no more but would read), ends its
request: a client that is gone and one that only stopped sending cannot be told apart.
`/v1/completions` is raw: markers may be spelt in its prompts, so whoever may call it decides what
the model sees. In all other routes the text of clients spells no marker.
"""


def api() -> Iterator[str]:
    probes = ", ".join(f"`{path}`" for path in sorted(OPEN))
    yield INTRODUCTION.format(open=probes)
    yield "| route | what it does |\n| --- | --- |"
    for operation in OPERATIONS:
        path = operation.path.replace("{name:path}", "{name}")
        yield f"| `{operation.method} {path}` | {operation.summary} |"
    yield ""
    for operation in OPERATIONS:
        if operation.call:
            yield f"## {operation.method} {operation.path}\n"
            yield "| field | | values | meaning |\n| --- | --- | --- | --- |"
            yield from _rows(operation)
            yield ""


def _rows(operation: Operation) -> Iterator[str]:
    assert operation.call
    schema = msgspec.json.schema(operation.call)
    definitions = schema["$defs"]
    fields: Json = definitions[operation.call.__name__]["properties"]
    for name, field in sorted(fields.items()):
        assert name in NOTES, f"{name} is read and has no note; write one in tools/api_notes.py"
        yield f"| `{name}` | works | {_values(field, definitions)} | {NOTES[name]} |"
    alike: dict[tuple[str, str], list[str]] = {}
    for name, rule in sorted(operation.refused.items()):
        alike.setdefault((_neutral(rule), rule.remedy), []).append(f"`{name}`")
    for (neutral, remedy), names in alike.items():
        yield f"| {', '.join(names)} | refused | {neutral} | {remedy} |"
    if operation.ignored:
        ignored = ", ".join(f"`{name}`" for name in sorted(operation.ignored))
        yield f"| {ignored} | ignored | any | |"


def _neutral(rule: Refused) -> str:
    accepted = ", ".join(f"`{shown(value)}`" for value in rule.neutral)
    return f"only {accepted} is accepted" if accepted else "none is accepted"


def _values(field: Json, definitions: Json) -> str:
    if "anyOf" in field:
        parts = [
            _values(part, definitions) for part in field["anyOf"] if part.get("type") != "null"
        ]
        return " or ".join(dict.fromkeys(parts))
    if "$ref" in field:
        inner = definitions[field["$ref"].rpartition("/")[2]]
        members = ", ".join(f"`{name}`" for name in inner["properties"])
        return f"object: {members}"
    match field.get("type"):
        case "array":
            most = f", at most {field['maxItems']}" if "maxItems" in field else ""
            return f"list of: {_values(field['items'], definitions)}{most}"
        case "integer" | "number" as kind:
            return f"{kind}{_range(field)}"
        case "string":
            longest = field.get("maxLength")
            return f"string of at most {longest} characters" if longest else "string"
        case "object" if field.get("additionalProperties"):
            values = _values(field["additionalProperties"], definitions)
            most = f", at most {field['maxProperties']}" if "maxProperties" in field else ""
            return f"object of: {values}{most}"
        case "object":
            return "object"
        case "boolean":
            return "true or false"
        case _:
            return "any"


def _range(field: Json) -> str:
    low = _number(field.get("minimum"))
    above = _number(field.get("exclusiveMinimum"))
    high = _number(field.get("maximum"))
    if above and high:
        return f" above {above}, at most {high}"
    if low and high:
        return f" {low} to {high}"
    return f" from {low}" if low else ""


def _number(value: float | None) -> str:
    """Limits of what 32 and 64 bits hold are written as powers."""
    if value is None:
        return ""
    powers: dict[float, str] = {2**31 - 1: "2^31 − 1", 2**63 - 1: "2^63 − 1", -(2**63): "−2^63"}
    return powers.get(value) or f"{value:g}".replace("-", "−")
