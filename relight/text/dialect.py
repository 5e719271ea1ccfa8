"""What the encodings of V4 and V4.1 write differently: tags, fixed texts, words of effort, where
system messages stand. Knows no messages and no ids."""

from typing import Literal, NoReturn

import msgspec

from relight.base.errors import BadRequest
from relight.text.dsml import V4_TAGS, V41_TAGS, Tags
from relight.text.literals import FixedText, Literals, Piece, load_v4_literals, load_v41_literals

Encoding = Literal["v4", "v4-first", "v4.1"]
"""`v4` is the release of 31 July and later, `v4-first` the one of April. Their configurations are
identical, so this is a setting. They differ in what an effort word means."""

Effort = str | int | float
EFFORTS: dict[Encoding, dict[Effort | None, str | int | None]] = {
    "v4": {
        None: "effort_high",
        "none": "effort_high",  # only seen with an explicit switch, which wins over the word
        "minimal": None,
        "low": None,
        "medium": "effort_high",
        "high": "effort_high",
        "xhigh": "effort_high",
        "ultra": "effort_max",
        "max": "effort_max",
    },
    "v4-first": {
        None: None,
        "none": None,
        "minimal": None,
        "low": None,
        "medium": None,
        "high": None,
        "xhigh": "effort_high",
        "ultra": "effort_high",
        "max": "effort_high",
    },
    "v4.1": {
        None: 75,
        "none": 75,
        "minimal": 50,
        "low": 50,
        "medium": 75,
        "high": 75,
        "xhigh": 75,
        "ultra": 100,
        "max": 100,
    },
}
"""A word's text by name, or its number of 100."""


class Dialect(msgspec.Struct, frozen=True):
    """`marks_system`: system texts have a marker of their own and stay in their place."""

    encoding: Encoding
    tags: Tags
    literals: Literals
    marks_system: bool = False

    def effort_text(self, effort: Effort | None) -> FixedText:
        """What opens a prompt in thinking mode. Raises `BadRequest` for a word it does not know."""
        if self.marks_system:
            line = (*self.literals.effort_head, Piece(str(self._percent(effort))))
            return (*line, *self.literals.effort_tail)
        if not isinstance(effort, str | None):
            self._refuse(effort, "")
        name = self._meaning(effort, "")
        return getattr(self.literals, str(name)) if name else ()

    def _percent(self, effort: Effort | None) -> int:
        """Numbers are of 100, and fractions of 1."""
        numbers = ", a number from 1 to 100 or a fraction below 1"
        if effort is None or isinstance(effort, str):
            return int(self._meaning(effort, numbers) or 0)
        if 0 < effort < 1:
            return max(1, round(100 * effort))
        if not 1 <= effort <= 100 or effort != int(effort):
            self._refuse(effort, numbers)
        return int(effort)

    def _meaning(self, effort: str | None, besides: str) -> str | int | None:
        words = EFFORTS[self.encoding]
        if effort not in words:
            self._refuse(effort, besides)
        return words[effort]

    def _refuse(self, effort: Effort | None, besides: str) -> NoReturn:
        words = ", ".join(str(word) for word in EFFORTS[self.encoding] if word)
        raise BadRequest(
            f"reasoning_effort is {effort!r}; this model ({self.encoding}) takes one of "
            f"{words}{besides}",
            param="reasoning_effort",
        )


def load_dialect(encoding: Encoding) -> Dialect:
    if encoding == "v4.1":
        return Dialect(encoding, V41_TAGS, load_v41_literals(), marks_system=True)
    return Dialect(encoding, V4_TAGS, load_v4_literals())
