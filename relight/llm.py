"""A model in this process for plain synchronous code. Knows the session; the engine is loaded when
an `LLM` is made."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args
from weakref import WeakSet

import msgspec

from relight.base.errors import BadRequest
from relight.base.packaged import DEFAULT_MODEL
from relight.base.settings import Settings, load
from relight.base.types import EngineInfo
from relight.engine.client import EngineClient, LocalClient
from relight.session import Answer, Job, Options, Piece, Session, collect, collect_all
from relight.text.conversation import Conversation, Message, Tool, ToolChoice

Prompt = str | Sequence[int]


class LLM:
    """`LLM(model="folder", device="cpu")`; every setting of the server is a keyword here."""

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
        **settings: object,
    ) -> None:
        """`progress` is told (bytes done, bytes in all) while weights are read. Raises
        `BadSetting`, `BadConfig`, `BadCheckpoint` or `CannotFit`, what is quickly seen before
        weights are read."""
        self.settings: Settings = load({"model": str(model), **settings}, {}).settings
        self._session = Session.open(self.settings, lambda: _engine(self.settings, progress))
        self.info: EngineInfo = self._session.info
        self._streams = WeakSet[Generator[Piece, None, None]]()
        # A stream that is closed only when the interpreter is torn down starts a thread there, and
        # that never ends; atexit is too late, since executors take nothing more by then.
        threading._register_atexit(_close, self._streams)  # type: ignore[attr-defined]

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Any) -> list[Answer]:
        """Continues raw prompts, all at once: texts, in which special tokens may be spelt, or ids.
        `options` are the fields of `Options`. The answers come in the order of the prompts, `n` for
        each."""
        return asyncio.run(self._complete(_several(prompts), _options(options)))

    def chat(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Tool] = (),
        thinking: bool = True,
        effort: str | None = None,
        tool_choice: str = "auto",
        **options: Any,
    ) -> Answer:
        """Answers one conversation. A message may be a mapping with the fields of `Message`.
        `tool_choice` is auto, none, required, or the name of the tool that must be called."""
        conversation = _conversation(messages, tools, thinking, effort, tool_choice)
        return asyncio.run(self._chat(conversation, _one(options)))

    def stream(self, prompt: Prompt, **options: Any) -> Generator[Piece, None, None]:
        """As `generate` for one prompt, piece by piece. Closing the iterator ends the request."""
        return self._streamed(self._session.complete(prompt, _one(options)))

    def stream_chat(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Tool] = (),
        thinking: bool = True,
        effort: str | None = None,
        tool_choice: str = "auto",
        **options: Any,
    ) -> Generator[Piece, None, None]:
        """As `chat`, piece by piece. Closing the iterator ends the request."""
        conversation = _conversation(messages, tools, thinking, effort, tool_choice)
        return self._streamed(self._session.chat(conversation, _one(options)))

    def _streamed(self, asked: Coroutine[Any, Any, Job]) -> Generator[Piece, None, None]:
        pieces = self._pieces(asked)
        self._streams.add(pieces)
        return pieces

    def _pieces(self, asked: Coroutine[Any, Any, Job]) -> Generator[Piece, None, None]:
        with asyncio.Runner() as runner:
            pieces = self._session.run(runner.run(asked))

            async def following() -> Piece | None:
                return await anext(pieces, None)

            try:
                while (piece := runner.run(following())) is not None:
                    yield piece
            finally:
                runner.run(pieces.aclose())

    async def _complete(self, prompts: Sequence[Prompt], options: Options) -> list[Answer]:
        asked = [await self._session.complete(prompt, options) for prompt in prompts]
        jobs = [choice for job in asked for choice in self._session.choices(job)]
        return await collect_all(self._session, jobs)

    async def _chat(self, conversation: Conversation, options: Options) -> Answer:
        job = await self._session.chat(conversation, options)
        return await collect(self._session.run(job))


def _close(streams: WeakSet[Generator[Piece, None, None]]) -> None:
    for pieces in list(streams):
        pieces.close()


def _engine(settings: Settings, progress: Callable[[int, int], None]) -> EngineClient:
    from relight.engine.assemble import assemble  # brings torch, which the rest never needs

    return LocalClient(*assemble(settings, progress))


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A text or a list of ids is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    ids = [part for part in prompts if isinstance(part, int)]
    several = [part for part in prompts if not isinstance(part, int)]
    if ids and several:
        raise BadRequest(
            "prompts mix token ids with prompts; give one prompt, or a list of prompts",
            param="prompts",
        )
    return [ids] if ids else several


def _options(options: Mapping[str, Any]) -> Options:
    try:
        return msgspec.convert(options, Options)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{error}; see relight.session.Options") from error


def _one(options: Mapping[str, Any]) -> Options:
    found = _options(options)
    if found.n != 1:
        raise BadRequest(f"n is {found.n}, and this gives one answer; use generate()", param="n")
    return found


def _conversation(
    messages: Sequence[Message | Mapping[str, Any]],
    tools: Sequence[Tool],
    thinking: bool,
    effort: str | None,
    tool_choice: str,
) -> Conversation:
    named = tool_choice not in get_args(ToolChoice)
    if named and tool_choice not in [tool.name for tool in tools]:
        raise BadRequest(
            f"tool_choice is {tool_choice!r}; wanted auto, none, required or the name of a tool",
            param="tool_choice",
        )
    return Conversation(
        messages=tuple(map(_message, messages)),
        tools=tuple(tools),
        tool_choice="required" if named else cast(ToolChoice, tool_choice),
        forced_tool=tool_choice if named else None,
        thinking=thinking,
        effort=effort,
    )


def _message(message: Message | Mapping[str, Any]) -> Message:
    if isinstance(message, Message):
        return message
    try:
        return msgspec.convert(message, Message)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a message: {error}; see relight.text.conversation.Message") from error
