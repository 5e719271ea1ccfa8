"""What a call says of the form of its answer: one format, in whichever dialect. Knows shapes and
names; what a format does is known to `text/constrain`."""

from typing import Any

import msgspec

from relight.base.errors import BadRequest, Unsupported
from relight.serve.decode import check_depth, shown
from relight.serve.schema import FormFields, ResponseFormatBody, StructuredOutputs
from relight.text.constrain import Format

MAX_CHOICES = 10_000


def read_format(call: FormFields) -> Format | None:
    """Raises `BadRequest` or `Unsupported` that names the field."""
    found = [format for format in (*_of_openai(call), *_of_vllm(call), *_of_sglang(call)) if format]
    if len(found) > 1:
        names = " and ".join(format.param for format in found)
        raise BadRequest(
            f"{names} exclude each other; ask for one form of the answer", param=found[1].param
        )
    return found[0] if found else None


def _of_openai(call: FormFields) -> list[Format | None]:
    body, param = call.response_format, "response_format"
    if body is None or body.type == "text":
        return []
    if body.type == "json_object":
        return [Format(kind="json_object", param=param)]
    if body.type == "json_schema":
        return [_of_schema(body, param)]
    if body.type == "regex":
        return [_text("regex", _needed(body.regex, f"{param}.regex"), f"{param}.regex")]
    if body.type == "grammar":
        return [_text("grammar", _needed(body.grammar, f"{param}.grammar"), f"{param}.grammar")]
    raise Unsupported(
        f"{param}.type is {shown(body.type)}; send text, json_object, json_schema, regex or "
        "grammar",
        param=f"{param}.type",
    )


def _of_schema(body: ResponseFormatBody, param: str) -> Format | None:
    """Without `strict` a schema is followed as far as it can be, as the protocol has it."""
    holder = body.json_schema
    if holder is None:
        raise BadRequest(
            f'{param}.json_schema is missing; send {{"name": …, "schema": …}}',
            param=f"{param}.json_schema",
        )
    where = f"{param}.json_schema.schema"
    schema = {} if holder.schema is None else holder.schema
    return _schema(schema, where, exact=bool(holder.strict))


def _of_vllm(call: FormFields) -> list[Format | None]:
    outputs = call.structured_outputs or StructuredOutputs()
    for name in ("structural_tag", "whitespace_pattern"):
        if getattr(outputs, name) is not None:
            param = f"structured_outputs.{name}"
            raise Unsupported(f"{param} is not built; leave it out", param=param)
    place = "structured_outputs."
    if outputs.disable_additional_properties:
        param = f"{place}disable_additional_properties"
        raise Unsupported(f"{param} is not built; say it in the schema", param=param)
    compact = bool(outputs.disable_any_whitespace)
    any_object = Format(kind="json_object", param=f"{place}json_object", compact=compact)
    return [
        any_object if outputs.json_object else None,
        _schema(outputs.json, f"{place}json", compact=compact),
        _text("regex", outputs.regex, f"{place}regex"),
        _choice(outputs.choice, f"{place}choice"),
        _text("grammar", outputs.grammar, f"{place}grammar"),
        _schema(call.guided_json, "guided_json"),
        _text("regex", call.guided_regex, "guided_regex"),
        _choice(call.guided_choice, "guided_choice"),
        _text("grammar", call.guided_grammar, "guided_grammar"),
    ]


def _of_sglang(call: FormFields) -> list[Format | None]:
    return [
        _schema(call.json_schema, "json_schema"),
        _text("regex", call.regex, "regex"),
        _text("grammar", call.ebnf, "ebnf"),
    ]


def _schema(value: Any, param: str, *, exact: bool = True, compact: bool = False) -> Format | None:
    """A schema, or its JSON text."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(
                f"{param} is text that is not JSON: {error}; send a schema", param=param
            ) from error
    check_depth(value, param)
    return Format(kind="json_schema", value=value, param=param, exact=exact, compact=compact)


def _text(kind: Any, value: str | None, param: str) -> Format | None:
    if value is None:
        return None
    if not value:
        raise BadRequest(f"{param} is empty; say what the answer may be", param=param)
    return Format(kind=kind, value=value, param=param)


def _choice(value: list[str] | None, param: str) -> Format | None:
    if value is None:
        return None
    if not 1 <= len(value) <= MAX_CHOICES:
        raise BadRequest(f"{param} has {len(value)} texts; send 1 to {MAX_CHOICES}", param=param)
    return Format(kind="choice", value=value, param=param)


def _needed(value: str | None, param: str) -> str:
    if value is None:
        raise BadRequest(f"{param} is missing; add it", param=param)
    return value
