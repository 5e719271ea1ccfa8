"""Pieces of an answer → the message that a client will send back of it. Knows no vocabulary."""

from collections.abc import Sequence

from relight.session.pieces import CallStart, Piece
from relight.text.conversation import Message, ToolCall
from relight.text.parse import Content, Reasoning, ToolCallArguments, ToolCallEnd


class Heard:
    """`ids` are the tokens that the pieces were read from."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._arguments: list[str] = []
        self._started: CallStart | None = None
        self._calls: list[ToolCall] = []

    @property
    def num_calls(self) -> int:
        """Those that ended."""
        return len(self._calls)

    def add(self, ids: Sequence[int], pieces: Sequence[Piece]) -> None:
        self.ids += ids
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: Piece) -> None:
        match piece:
            case Reasoning(text=text):
                self._reasoning.append(text)
            case Content(text=text):
                self._content.append(text)
            case CallStart():
                self._started = piece
                self._arguments.clear()
            case ToolCallArguments(text=text):
                self._arguments.append(text)
            case ToolCallEnd() if self._started:
                arguments = "".join(self._arguments)
                self._calls.append(ToolCall(self._started.id, self._started.name, arguments))

    def message(self) -> Message:
        return Message(
            "assistant", "".join(self._content), "".join(self._reasoning), tuple(self._calls)
        )
