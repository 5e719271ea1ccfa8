"""`POST /v1/chat/completions`. Knows the order of things; shapes are in `ask` and `wire`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from relight.serve import ask, sse, wire
from relight.serve.decode import decode
from relight.serve.exchange import Exchange
from relight.serve.fields import CHAT_REFUSED
from relight.serve.schema import ChatCall
from relight.serve.server import Server
from relight.session import Finish, Job, Options, Session, collect
from relight.text.conversation import Conversation
from relight.text.parse import Reasoning


async def chat_completions(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    with server.counted():
        decoded = decode(body, ChatCall, CHAT_REFUSED, strict=server.options.strict_fields)
        call = decoded.call
        model = server.model_name(call.model)
        include_usage = ask.check_stream_options(call)
        conversation = ask.conversation(call.messages, call)
        options = ask.options(call)
    server.report_ignored(exchange, decoded.ignored)
    with server.admit() as session:
        head = wire.Head(
            f"chatcmpl-{session.new_id()}", int(server.wall_clock()), model, include_usage
        )
        work = _answer(server, exchange, session, call, conversation, options, head)
        await exchange.while_connected(work, server.stopping)


async def _answer(
    server: Server,
    exchange: Exchange,
    session: Session,
    call: ChatCall,
    conversation: Conversation,
    options: Options,
    head: wire.Head,
) -> None:
    with server.counted():
        job = await session.chat(conversation, options)
    include_reasoning = call.include_reasoning is not False
    if call.stream:
        events = _events(session, job, head, include_reasoning=include_reasoning)
        await exchange.stream(events, server.options.keep_alive_s)
    else:
        answer = await collect(session.run(job))
        await exchange.reply_json(
            wire.chat_completion(head, answer, include_reasoning=include_reasoning)
        )


async def _events(
    session: Session, job: Job, head: wire.Head, *, include_reasoning: bool
) -> AsyncGenerator[bytes, None]:
    yield head.chat_chunk([wire.first_choice()])
    async with aclosing(session.run(job)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Reasoning) and not include_reasoning:
                continue
            choice = wire.delta_choice(piece)
            if choice is not None:
                yield head.chat_chunk([choice])
            if isinstance(piece, Finish) and head.include_usage:
                yield head.chat_chunk([], piece.usage)
    yield sse.DONE
