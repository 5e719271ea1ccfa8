"""Reads the fields of a JSON object strictly, by name and type. Knows no model."""

import json
from collections import Counter
from collections.abc import Collection
from math import inf
from typing import NoReturn

from relight.base.errors import BadConfig

LARGEST = 2**31 - 1
"""Of an integer. No size of a model comes near; shapes of larger ones would not fit in 64 bits."""


def load_json(text: bytes) -> object:
    """Raises ValueError, also for a name that appears twice in an object, and RecursionError."""
    return json.loads(text, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{name} appears twice")
    return data


class Fields:
    """The fields of `data`. Every reader raises BadConfig that names the field and the remedy.

    `source` and `prefix` only serve messages: `prefix` is the path to a nested object.
    """

    def __init__(self, data: object, source: str, prefix: str = "") -> None:
        if not isinstance(data, dict):
            raise BadConfig(
                f"{source}: {prefix.rstrip('.') or 'the file'} is {_shown(data)}; "
                "wanted a JSON object; give the config.json of a DeepSeek-V4 checkpoint",
                param=prefix.rstrip(".") or None,
            )
        self._data: dict[str, object] = data
        self._source = source
        self._prefix = prefix
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def refuse(self, name: str, wanted: str, remedy: str, found: str | None = None) -> NoReturn:
        field = self._prefix + name
        if found is None:
            found = f"is {_shown(self._data[name])}" if name in self._data else "is missing"
        raise BadConfig(f"{self._source}: {field} {found}; wanted {wanted}; {remedy}", param=field)

    def raw(self, name: str) -> object:
        """The value as it stands, None when absent."""
        self._asked.add(name)
        return self._data.get(name)

    def integer(self, name: str, least: int = 1) -> int:
        value = self.raw(name)
        if type(value) is not int or not least <= value <= LARGEST:
            self.refuse(name, f"an integer of at least {least} and at most {LARGEST}", _COPY)
        return value

    def number(self, name: str) -> float:
        value = self.raw(name)
        if type(value) is int and 0 < value <= LARGEST:
            value = float(value)
        if not isinstance(value, float) or not 0 < value < inf:
            self.refuse(name, "a finite number above 0", _COPY)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.raw(name)
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            self.refuse(name, "a list of integers", _COPY)
        return tuple(value)

    def fixed(self, name: str, wanted: object, *, required: bool = False) -> None:
        """The field must be `wanted`; unless `required`, leaving it out means the same."""
        value = self.raw(name)
        if (name in self._data or required) and (
            value != wanted or isinstance(value, bool) != isinstance(wanted, bool)
        ):
            self.refuse(name, _shown(wanted), "no other form of this is built here")

    def nested(self, name: str, missing_remedy: str) -> "Fields":
        value = self.raw(name)
        if name not in self._data:
            self.refuse(name, "a JSON object", missing_remedy)
        return Fields(value, self._source, f"{self._prefix}{name}.")

    def unknown(self, ignored: Collection[str] = ()) -> tuple[str, ...]:
        """Names of fields that nobody asked for, without `ignored`, in the order of the file."""
        return tuple(
            self._prefix + name
            for name in self._data
            if name not in self._asked and name not in ignored
        )


_COPY = "copy the value from the model's published config.json"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
