"""Collects the segments of a prompt and makes its ids. Knows no conversation and no template.

Text is encoded as the tokenizer would split it, which is not always how the model wrote it. Where
an answer of the past is recalled, the ids that the model made stand in the prompt, so that what was
computed for them is found again.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import msgspec

from relight.text.conversation import Message, Start
from relight.text.fingerprint import Fingerprint, fingerprint
from relight.text.tokenizer import Segment, Tokenizer


class Recall(Protocol):
    """Finds the ids of an answer that was made here."""

    def __call__(self, before: bytes, what: Fingerprint) -> Sequence[int] | None:
        """`before` stands for all ids before the answer; None if there was no such answer."""


class Place(msgspec.Struct, frozen=True):
    """A turn begins with the token `at`; `message` is the first message that it is made of."""

    at: int
    message: int


class Body(msgspec.Struct, frozen=True):
    """What an assistant wrote in one turn, from the token `at` on. `before` stands for all ids
    before it."""

    at: int
    message: int
    before: bytes
    what: Fingerprint
    recalled: bool


class Prompt(msgspec.Struct, frozen=True):
    """`record_hints` are the offsets in `ids` where user turns start, ascending. `start` is where
    the answer begins; `continued` says that the client's own text stands right before it.

    `places` are the turns in their order. With a `Recall` there are the `bodies` of past answers,
    and `answer_at` is where that of the coming one begins: `before_answer` stands for the ids
    before it. `text` is what ids that were not recalled stand for.
    """

    ids: tuple[int, ...]
    text: str
    record_hints: tuple[int, ...]
    start: Start
    continued: bool = False
    places: tuple[Place, ...] = ()
    bodies: tuple[Body, ...] = ()
    answer_at: int = 0
    before_answer: bytes = b""


@dataclass(slots=True)
class _Span:
    """The segments of a body; `end` None: it is the answer to come."""

    first: int
    message: int = 0
    what: Fingerprint | None = None
    end: int | None = None


class Writer:
    """A run of text is one segment, because the tokenizer may join characters across the pieces
    that it was written in."""

    def __init__(self, tokenizer: Tokenizer, recall: Recall | None = None) -> None:
        self._tokenizer = tokenizer
        self._recall = recall
        self._segments: list[Segment] = []
        self._run: list[str] = []
        self._turns: list[tuple[int, int, bool]] = []  # segment, message, is a user's
        self._spans: list[_Span] = []

    def add(self, *pieces: Segment) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self._run.append(piece)
            else:
                self._end_run()
                self._segments.append(piece)

    def begin_turn(self, message: int, *, of_user: bool = False) -> None:
        """The next piece, a marker, opens a turn."""
        self._end_run()
        self._turns.append((len(self._segments), message, of_user))

    def begin_body(self, message: int = 0, said: Message | None = None) -> None:
        """The piece before, a marker, opened what an assistant wrote: `said`, or the answer."""
        if self._recall:
            self._end_run()
            what = fingerprint(said) if said else None
            self._spans.append(_Span(len(self._segments), message, what))

    def end_body(self) -> None:
        if self._recall:
            self._end_run()
            self._spans[-1].end = len(self._segments)

    def prompt(self, start: Start, *, continued: bool = False) -> Prompt:
        self._end_run()
        encoded = self._tokenizer.encode_segments(self._segments)
        ids: list[int] = []
        offsets: list[int] = []
        bodies: list[Body] = []
        before, answer_at = b"", 0
        chain = _Chain()
        for span in self._spans:
            _append(encoded[len(offsets) : span.first], ids, offsets)
            before, at = chain.name(ids), len(ids)
            if span.end is None or span.what is None:
                answer_at = at
                continue
            made = self._recall(before, span.what) if self._recall else None
            body = encoded[len(offsets) : span.end]
            if made is None:
                _append(body, ids, offsets)
            else:
                offsets += [at] * len(body)
                ids += made
            bodies.append(Body(at, span.message, before, span.what, made is not None))
        _append(encoded[len(offsets) :], ids, offsets)
        decode = self._tokenizer.decode
        return Prompt(
            ids=tuple(ids),
            text="".join(x if isinstance(x, str) else decode([x]) for x in self._segments),
            record_hints=tuple(offsets[segment] for segment, _, user in self._turns if user),
            start=start,
            continued=continued,
            places=tuple(Place(offsets[segment], i) for segment, i, _ in self._turns),
            bodies=tuple(bodies),
            answer_at=answer_at,
            before_answer=before if answer_at else b"",
        )

    def _end_run(self) -> None:
        if run := "".join(self._run):
            self._segments.append(run)
        self._run.clear()


class _Chain:
    """Names beginnings of a list of ids that grows, each token read once."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._num_read = 0

    def name(self, ids: Sequence[int]) -> bytes:
        self._hash.update(array("I", ids[self._num_read :]).tobytes())
        self._num_read = len(ids)
        return self._hash.digest()


def _append(segments: Sequence[Sequence[int]], ids: list[int], offsets: list[int]) -> None:
    for segment in segments:
        offsets.append(len(ids))
        ids += segment
