"""Writes grammars in llguidance's form of Lark. Knows no markup and no schema's meaning."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

PYTHON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON as the models write it in calls, which is how history is written again: the same tokens."""

ANY_STYLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
"""JSON with what people indent it by. Bounded, since a model may go on with blanks for ever."""

COMPACT_STYLE = {"whitespace_flexible": False}
"""JSON without a blank between its parts."""


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def token(id: int) -> str:
    return f"<[{id}]>"


def json_value(schema: Any, style: Mapping[str, Any], *, lenient: bool = False) -> str:
    """A value of a JSON schema. `lenient`: what llguidance cannot hold it to, it is not held to."""
    if not isinstance(schema, Mapping):
        schema = {} if schema is True else {"not": {}}
    options = {**style, "lenient": lenient, "coerce_one_of": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def pattern(expression: str) -> str:
    """A regular expression, as a terminal."""
    return "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", expression) + "/"


def any_of(choices: Iterable[str]) -> str:
    return " | ".join(choices)


class Grammar:
    """Rules by name, `start` first."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        """Adds a rule, or a terminal if the name is in capitals; returns its name."""
        assert name not in self._rules
        self._rules[name] = body
        return name

    def text(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._rules.items())
