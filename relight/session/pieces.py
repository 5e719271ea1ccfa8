"""What an answer is made of: pieces in the order of the text, and the whole that they add up to.
Knows no tokens and no wire format."""

from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from relight.base.types import Usage
from relight.text.parse import Content, Reasoning, ToolCallArguments, ToolCallEnd


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins; `id` names it in the rest of the conversation."""

    index: int
    id: str
    name: str


class Candidate(msgspec.Struct, frozen=True):
    """A token that was or could have been drawn."""

    id: int
    bytes: bytes
    logprob: float


class Scored(msgspec.Struct, frozen=True):
    """The log probability of one token, beside those of the best ones. It comes before the piece
    that the token's text is part of; text that no piece has is not scored. `offset` counts the
    characters of a raw answer before the token."""

    token: Candidate
    top: tuple[Candidate, ...]
    section: Literal["reasoning", "content"] = "content"
    offset: int = 0


class Finish(msgspec.Struct, frozen=True):
    """The last piece. `stopped_by` is the stop string or the client's stop token that was met."""

    reason: Literal["stop", "length", "tool_calls"]
    usage: Usage
    stopped_by: str | int | None = None


Piece = Reasoning | Content | CallStart | ToolCallArguments | ToolCallEnd | Scored | Finish


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Answer:
    """The sum of pieces. A call that was cut off is left out of `calls`."""

    reasoning: str = ""
    content: str = ""
    finish: Finish | None = None
    scores: list[Scored] = field(default_factory=list)
    started: dict[int, Call] = field(default_factory=dict)

    @property
    def calls(self) -> list[Call]:
        return [call for call in self.started.values() if call.complete]

    def add(self, piece: Piece) -> None:
        match piece:
            case Reasoning(text=text):
                self.reasoning += text
            case Content(text=text):
                self.content += text
            case CallStart(index=index):
                self.started[index] = Call(piece.id, piece.name)
            case ToolCallArguments(index=index, text=text):
                self.started[index].arguments += text
            case ToolCallEnd(index=index):
                self.started[index].complete = True
            case Scored():
                self.scores.append(piece)
            case Finish():
                self.finish = piece


async def collect(pieces: AsyncIterable[Piece]) -> Answer:
    answer = Answer()
    async for piece in pieces:
        answer.add(piece)
    return answer
