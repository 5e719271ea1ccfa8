"""Names of fields that were translated → the names that the client sent. Knows no protocol."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from relight.base.errors import RelightError

_PLACE = re.compile(r"(messages|tools)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Names:
    """`messages` says where each message of the conversation stood in the body, and so does `tools`
    unless it is None. `words` replace what matches, first to last, before that."""

    messages: Sequence[str]
    tools: Sequence[str] | None = None
    words: Sequence[tuple[str, str]] = ()

    @contextmanager
    def told(self) -> Iterator[None]:
        """An error that is raised inside names the client's fields."""
        try:
            yield
        except RelightError as error:
            error.message = self._renamed(error.message)
            if error.param is not None:
                error.param = self._renamed(error.param)
            raise

    def _renamed(self, text: str) -> str:
        for pattern, word in self.words:
            text = re.sub(pattern, word, text)
        return _PLACE.sub(self._place, text)

    def _place(self, match: re.Match[str]) -> str:
        places = self.messages if match[1] == "messages" else self.tools
        number = int(match[2])
        return match[0] if places is None or number >= len(places) else places[number]
