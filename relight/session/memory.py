"""Remembers the ids of answers, so that a conversation that goes on finds what was computed for it.
Knows no template and no engine.

What is remembered is looked up by the very ids before it: whoever has not sent the same beginning
finds nothing, and whoever has could have been given the same answer. Nothing that a client changed
is put back. Where an answer comes back changed, it can be told which message did it and at which
token, since all that was cached behind that token has to be read again.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from relight.text.fingerprint import Fingerprint
from relight.text.writer import Prompt, Recall

K = TypeVar("K")
V = TypeVar("V", "list[Made]", "array[int]")

TYPE = "I"
MAX_ANSWER_TOKENS = 4_000_000  # 16 MB: all answers of forty conversations of 100,000 tokens made
MAX_PROMPT_TOKENS = 8_000_000  # 32 MB: the last prompt of eighty conversations of 100,000 tokens
ENTRY_TOKENS = 256  # 1 KB: what an entry takes besides its tokens
MAX_ALIKE = 4
"""Answers to one prompt that are kept: a client may ask for several, or again."""

# A beginning that is shared by so few tokens may be chance.
SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Opening:
    """Where an answer begins: `before` stands for the ids before it, `at` of them in the prompt.
    `goes_on`: the answer before it, if that was recalled."""

    before: bytes
    at: int
    goes_on: Fingerprint | None = None

    @classmethod
    def of(cls, prompt: Prompt) -> "Opening | None":
        if not prompt.before_answer:
            return None
        last = prompt.bodies[-1] if prompt.bodies else None
        goes_on = last.what if last and last.recalled else None
        return cls(prompt.before_answer, prompt.answer_at, goes_on)


@dataclass(frozen=True, slots=True)
class Made:
    ids: "array[int]"
    what: Fingerprint


@dataclass(frozen=True, slots=True)
class Break:
    """A prompt leaves what was computed for an earlier one at the token `at`, in the message
    `message` (None: the system text, the tools or the effort); `lost` tokens of that one follow."""

    at: int
    message: int | None
    lost: int
    why: str

    def told(self, num_tokens: int) -> str:
        """Of a prompt of so many tokens."""
        where = "the system text, the tools or the effort"
        if self.message is not None:
            where = f"messages[{self.message}]"
        return (
            f"{where} leaves an earlier prefix at token {self.at} of {num_tokens}, so that "
            f"{self.lost} tokens that were computed cannot be reused: {self.why}"
        )


class Memory:
    """Bounded in tokens; what was unused for longest goes first. Threads may share it."""

    def __init__(
        self,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        max_prompt_tokens: int = MAX_PROMPT_TOKENS,
    ) -> None:
        self._lock = Lock()
        self._answers: _Shelf[tuple[str, bytes], list[Made]] = _Shelf(max_answer_tokens)
        # Of each conversation all ids up to its last answer, by that answer.
        self._latest: _Shelf[tuple[str, Fingerprint], array[int]] = _Shelf(max_prompt_tokens)

    def recall(self, salt: str) -> Recall:
        def find(before: bytes, what: Fingerprint) -> Sequence[int] | None:
            with self._lock:
                made = self._answers.get((salt, before)) or []
            return next((one.ids for one in reversed(made) if one.what == what), None)

        return find

    def remember(
        self,
        salt: str,
        opening: Opening,
        prompt: Sequence[int],
        ids: Sequence[int],
        what: Fingerprint,
    ) -> None:
        """`ids` were made behind the beginning `prompt`, and say `what`."""
        made = Made(array(TYPE, ids), what)
        whole = array(TYPE, prompt)
        whole.extend(made.ids)
        with self._lock:
            alike = self._answers.get((salt, opening.before)) or []
            kept = [one for one in alike if one.what != what][1 - MAX_ALIKE :]
            kept.append(made)
            size = sum(len(one.ids) + ENTRY_TOKENS for one in kept)
            self._answers.put((salt, opening.before), kept, size)
            if opening.goes_on:
                self._latest.drop((salt, opening.goes_on))
            if len(made.ids) >= SHORTEST:
                self._latest.put((salt, what), whole, len(whole) + ENTRY_TOKENS)

    def explain(self, salt: str, prompt: Prompt) -> Break | None:
        """Where a prompt leaves the one that it goes on from, as far as that is remembered."""
        for body in reversed(prompt.bodies):  # the last beginning that is known is the longest
            if body.recalled:
                break
            with self._lock:
                made = self._answers.get((salt, body.before))
            if made:
                last = made[-1]
                shared = _num_shared(last.ids, prompt.ids[body.at :])
                why = _difference(last.what, body.what)
                return Break(body.at + shared, body.message, len(last.ids) - shared, why)
        if not prompt.bodies or prompt.bodies[-1].recalled:
            return None
        with self._lock:
            whole = self._latest.get((salt, prompt.bodies[-1].what))
        shared = _num_shared(whole, prompt.ids) if whole else 0
        if not whole or shared == len(whole):
            return None
        before = [place for place in prompt.places if place.at <= shared]
        message = before[-1].message if before else None
        return Break(shared, message, len(whole) - shared, "it is not what it was")


class _Shelf(Generic[K, V]):
    """Values by key and their sizes; the ones unused for longest go when there is too much."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        self._values[key] = value, size
        self._size += size
        while self._size > self._max_size:
            self.drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        if (found := self._values.pop(key, None)) is not None:
            self._size -= found[1]


def _num_shared(one: Iterable[int], other: Iterable[int]) -> int:
    """The length of the beginning that both have."""
    count = 0
    for left, right in zip(one, other):  # noqa: B905 - one may be longer
        if left != right:
            break
        count += 1
    return count


def _difference(made: Fingerprint, sent: Fingerprint) -> str:
    parts = []
    for part in ("reasoning", "content", "calls"):
        was, now = getattr(made, part), getattr(sent, part)
        if was != now:
            parts.append(f"its {part} {'came back changed' if now else 'did not come back'}")
    return ", ".join(parts)
