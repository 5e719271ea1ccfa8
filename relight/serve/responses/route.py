"""`POST /v1/responses`. Knows the order of things; shapes are in `ask` and `stream`."""

from dataclasses import dataclass

from msgspec import UNSET

from relight.serve import ask
from relight.serve.decode import Decoded, decode, refuse_ignored
from relight.serve.exchange import Exchange
from relight.serve.reading import aside
from relight.serve.responses.ask import REFUSED, SEALED, Asked, chat_call
from relight.serve.responses.schema import ReasoningEcho, ResponseBody, ResponsesCall
from relight.serve.responses.stream import ResponseTeller
from relight.serve.server import Server
from relight.serve.teller import answer
from relight.session import Job, Options
from relight.text.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Read:
    """A call with what it asks for."""

    decoded: Decoded[ResponsesCall]
    asked: Asked
    conversation: Conversation
    options: Options


async def responses(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    with server.counted():
        read = await aside(lambda: _read(body, strict), body)
        call, asked = read.decoded.call, read.asked
        model = server.model_name(call.model)
    server.report_ignored(exchange, [*read.decoded.ignored, *asked.ignored])
    created = int(server.wall_clock())

    def teller(job: Job) -> ResponseTeller:
        response = _response(call, f"resp_{job.request.id}", created, model)
        return ResponseTeller(response, asked.tools, sealed=SEALED in (call.include or ()))

    with asked.names.told():
        await answer(
            server,
            exchange,
            read.conversation,
            read.options,
            teller,
            stream=bool(call.stream),
        )


def _read(body: bytes, strict: bool) -> Read:
    decoded = decode(body, ResponsesCall, REFUSED, strict=strict)
    asked = chat_call(decoded.call)
    if strict:
        refuse_ignored(asked.ignored)
    with asked.names.told():
        conversation = ask.conversation(asked.call.messages, asked.call)
        return Read(decoded, asked, conversation, ask.options(asked.call))


def _response(call: ResponsesCall, id: str, created: int, model: str) -> ResponseBody:
    """The answer before it begins: what was asked, in the words of the client."""
    return ResponseBody(
        id=id,
        created_at=created,
        status="in_progress",
        model=model,
        output=[],
        instructions=call.instructions,
        max_output_tokens=call.max_output_tokens,
        parallel_tool_calls=call.parallel_tool_calls is not False,
        reasoning=ReasoningEcho(call.reasoning.effort if call.reasoning else None),
        temperature=call.temperature,
        top_p=call.top_p,
        text={"format": (call.text and call.text.format) or {"type": "text"}},
        tool_choice="auto" if call.tool_choice is None else call.tool_choice,
        tools=call.tools or [],
        metadata=call.metadata or {},
        top_logprobs=UNSET if call.top_logprobs is None else call.top_logprobs,
    )
