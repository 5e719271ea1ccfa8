"""Writes the parameters of one tool call as a JSON object, each part as early as it is certain.
Knows no tags and no tokens."""

import json

from relight.text.schema import ParameterTypes, is_object

WRAPPERS = ("arguments", "input")
"""Names under which models put a whole argument object when they miss the format."""


class Arguments:
    """Each method returns the JSON text that can be sent now; all of it joined is one object.

    A parameter that is certainly a string goes out piece by piece. Any other waits for its end,
    when it can be checked. A repeated parameter that differs is written again, since the first has
    gone out already, and readers of JSON take the last. A repetition that is equal is dropped.
    """

    def __init__(self, types: ParameterTypes) -> None:
        self._types = types
        self._sent: dict[str, str] = {}
        self._body: list[str] = []
        self._name = ""
        self._is_string: bool | None = None
        self._pieces: list[str] = []
        self._streams = False
        self._wrapped: tuple[str, str, bool | None] | None = None

    def body(self, text: str) -> None:
        """Text between parameters. It counts only if there are none and it is an object."""
        if not self._sent:
            self._body.append(text)

    def begin(self, name: str, is_string: bool | None) -> str:
        """`is_string` is what the markup says, None if it does not."""
        waiting = self._release_wrapped()
        self._name, self._is_string, self._pieces = name, is_string, []
        self._streams = (
            is_string is True
            and name not in self._sent
            and not self._types.forbids_text(name)
            and not self._may_wrap(name)
        )
        return waiting + (self._key(name) + '"' if self._streams else "")

    def value(self, text: str) -> str:
        self._pieces.append(text)
        return _escape(text) if self._streams else ""

    def end(self) -> str:
        """The current parameter is over."""
        text = "".join(self._pieces)
        if self._streams:
            self._sent[self._name] = f'"{_escape(text)}"'
            return '"'
        if self._may_wrap(self._name):
            self._wrapped = (self._name, text, self._is_string)
            return ""
        return self._entry(self._name, text, self._is_string)

    def close(self) -> str:
        """The call is over."""
        if self._wrapped and is_object(self._wrapped[1]):
            return self._wrapped[1].strip()
        waiting = self._release_wrapped()
        if self._sent:
            return waiting + "}"
        body = "".join(self._body).strip()
        return body if is_object(body) else "{}"

    def _may_wrap(self, name: str) -> bool:
        """Whether the first parameter may be the whole object, which its being alone decides."""
        known = self._types.known and not self._types.has(name)
        return name in WRAPPERS and known and not self._sent

    def _release_wrapped(self) -> str:
        """A parameter that looked like a wrapper was not alone, or was no object."""
        wrapped, self._wrapped = self._wrapped, None
        return self._entry(*wrapped) if wrapped else ""

    def _entry(self, name: str, text: str, is_string: bool | None) -> str:
        value = self._types.to_json(name, text, is_string)
        if self._sent.get(name) == value:
            return ""
        entry = self._key(name) + value
        self._sent[name] = value
        return entry

    def _key(self, name: str) -> str:
        return f"{', ' if self._sent else '{'}{json.dumps(name, ensure_ascii=False)}: "


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
