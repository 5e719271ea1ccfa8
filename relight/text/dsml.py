"""The tool call markup of V4 and V4.1: tag names, and past calls written in them. Knows no
messages, and of the vocabulary only the marker's id, which callers pass."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from relight.base.errors import BadRequest
from relight.text.conversation import ToolCall
from relight.text.tokenizer import Segment


class Tags(msgspec.Struct, frozen=True):
    """Tag names as they follow the marker, and what stands in a call without arguments."""

    block: str
    invoke: str
    parameter: str
    no_arguments: str = ""


V4_TAGS = Tags(block="tool_calls", invoke="invoke", parameter="parameter")
V41_TAGS = Tags(block=" calls", invoke=" invoke", parameter=" parameter", no_arguments="\n")


def python_json(value: Any) -> str:
    """JSON as the models were trained on it: `, ` and `: ` between items, no ASCII escapes."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadRequest("a schema or an argument is nested too deep; flatten it") from None


def open_block(tags: Tags, dsml: int) -> list[Segment]:
    """What stands before the first call, after content or `</think>`."""
    return ["\n\n<", dsml, tags.block + ">\n"]


def render_calls(calls: tuple[ToolCall, ...], tags: Tags, dsml: int) -> Iterator[Segment]:
    """The whole block. Names and values go in as they are: the markup has no escapes, and the
    marker is an id that their text cannot spell."""
    yield from open_block(tags, dsml)
    for call in calls:
        yield from ("<", dsml, f'{tags.invoke} name="{call.name}">\n')
        arguments = parse_arguments(call.arguments)
        if not arguments:
            yield tags.no_arguments
        for name, value in arguments.items():
            is_text = isinstance(value, str)
            flag = "true" if is_text else "false"
            yield from ("<", dsml, f'{tags.parameter} name="{name}" string="{flag}">')
            yield value if is_text else python_json(value)
            yield from ("</", dsml, tags.parameter + ">\n")
        yield from ("</", dsml, tags.invoke + ">\n")
    yield from ("</", dsml, tags.block + ">")


def parse_arguments(arguments: str | dict[str, Any]) -> dict[str, Any]:
    """The arguments of a past call. JSON that was encoded twice is decoded twice; what is not an
    object even so becomes one string, `arguments`, since history must never be refused."""
    if isinstance(arguments, dict):
        return arguments
    value = _strict_json(arguments)
    if isinstance(value, str):
        value = _strict_json(value)
    return value if isinstance(value, dict) else {"arguments": arguments}


def _strict_json(text: str) -> Any:
    """The value, or None where the text is not JSON that can be written again: NaN, infinities and
    numbers that overflow, half surrogates, and nesting beyond the interpreter's stack."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value
