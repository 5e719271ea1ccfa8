"""Items of an answer while they grow: each step of one as events. Knows no response around them."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from msgspec import UNSET

from relight.serve.responses import schema
from relight.serve.responses.sealed import seal
from relight.serve.responses.tools import Exposed, text_of
from relight.serve.schema import ChatLogprob

Told = tuple[type[schema.Event], dict[str, Any]]
"""An event but for its place: number, index and id are added where they are known."""


class Growing(Protocol):
    """One item. It may end before it is complete, which shows in its status only."""

    id: str

    def begin(self) -> Iterator[Told]: ...

    def add(self, text: str) -> Iterator[Told]: ...

    def end(self) -> Iterator[Told]: ...

    def item(self, status: str) -> schema.OutputItem: ...


class GrowingReasoning:
    def __init__(self, id: str, *, sealed: bool) -> None:
        self.id = id
        self._sealed = sealed
        self._parts: list[str] = []

    def begin(self) -> Iterator[Told]:
        yield schema.PartAdded, {"part": schema.ReasoningPart("")}

    def add(self, text: str) -> Iterator[Told]:
        self._parts.append(text)
        yield schema.ReasoningDelta, {"delta": text}

    def end(self) -> Iterator[Told]:
        text = "".join(self._parts)
        yield schema.ReasoningDone, {"text": text}
        yield schema.PartDone, {"part": schema.ReasoningPart(text)}

    def item(self, status: str) -> schema.ReasoningItem:
        text = "".join(self._parts)
        if not text:
            return schema.ReasoningItem(self.id, status, [])
        sealed = seal(text) if self._sealed else None
        content = [schema.ReasoningPart(text)]
        return schema.ReasoningItem(self.id, status, content, encrypted_content=sealed)


class GrowingText:
    def __init__(self, id: str) -> None:
        self.id = id
        self._parts: list[str] = []
        self._logprobs: list[ChatLogprob] = []

    def begin(self) -> Iterator[Told]:
        yield schema.PartAdded, {"part": schema.TextPart("")}

    def add(self, text: str, logprobs: Sequence[ChatLogprob] = ()) -> Iterator[Told]:
        """`logprobs` are those of the tokens of this text, where they are asked for."""
        self._parts.append(text)
        self._logprobs += logprobs
        yield schema.OutputTextDelta, {"delta": text, "logprobs": list(logprobs)}

    def end(self) -> Iterator[Told]:
        part = self._part()
        yield schema.OutputTextDone, {"text": part.text, "logprobs": part.logprobs}
        yield schema.PartDone, {"part": part}

    def item(self, status: str) -> schema.MessageItem:
        part = self._part()
        return schema.MessageItem(self.id, status, "assistant", [part] if part.text else [])

    def _part(self) -> schema.TextPart:
        return schema.TextPart("".join(self._parts), logprobs=self._logprobs)


class GrowingCall:
    """`complete` is set when the model has ended the call."""

    def __init__(self, id: str, call_id: str, exposed: Exposed) -> None:
        self.id = id
        self.complete = False
        self._call_id = call_id
        self._exposed = exposed
        self._parts: list[str] = []

    def begin(self) -> Iterator[Told]:
        yield from ()

    def add(self, text: str) -> Iterator[Told]:
        self._parts.append(text)
        yield schema.ArgumentsDelta, {"delta": text}

    def end(self) -> Iterator[Told]:
        arguments = "".join(self._parts)
        yield schema.ArgumentsDone, {"name": self._exposed.name, "arguments": arguments}

    def item(self, status: str) -> schema.OutputItem:
        name, namespace = self._exposed.name, self._exposed.namespace or UNSET
        arguments = "".join(self._parts)
        return schema.FunctionCallItem(self.id, status, self._call_id, name, arguments, namespace)


class GrowingCustomCall(GrowingCall):
    """Its text is inside of JSON, and certain when that has ended: it is sent in one piece."""

    def add(self, text: str) -> Iterator[Told]:
        self._parts.append(text)
        yield from ()

    def end(self) -> Iterator[Told]:
        if self.complete:
            text = self._text
            yield schema.CustomInputDelta, {"delta": text}
            yield schema.CustomInputDone, {"input": text}

    def item(self, status: str) -> schema.CustomCallItem:
        name = self._exposed.name
        return schema.CustomCallItem(self.id, status, self._call_id, name, self._text)

    @property
    def _text(self) -> str:
        return text_of("".join(self._parts)) if self.complete else ""
