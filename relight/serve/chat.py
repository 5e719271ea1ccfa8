"""`POST /v1/chat/completions`. Knows the order of things; shapes are in `ask` and `wire`."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from relight.serve import ask, sse, wire
from relight.serve.decode import Decoded, decode
from relight.serve.exchange import Exchange
from relight.serve.fields import CHAT_REFUSED
from relight.serve.reading import aside
from relight.serve.schema import ChatCall
from relight.serve.server import Server
from relight.session import (
    Finish,
    Job,
    Options,
    Piece,
    Scored,
    Session,
    collect_all,
    together,
)
from relight.text.conversation import Conversation
from relight.text.parse import Reasoning


async def chat_completions(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    with server.counted():
        decoded, conversation, options = await aside(lambda: _read(body, strict), body)
        call = decoded.call
        model = server.model_name(call.model)
        usage_in = ask.usage_in(call)
    server.report_ignored(exchange, decoded.ignored)
    with server.admit(options.n) as session:
        head = wire.Head(int(server.wall_clock()), model, usage_in, bool(call.include_speculation))
        work = _answer(server, exchange, session, call, conversation, options, head)
        await exchange.while_connected(work, server.stopping)


def _read(body: bytes, strict: bool) -> tuple[Decoded[ChatCall], Conversation, Options]:
    decoded = decode(body, ChatCall, CHAT_REFUSED, strict=strict, idle=ask.ignored)
    call = decoded.call
    return decoded, ask.conversation(call.messages, call), ask.options(call)


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
        head = head.named("chatcmpl", job)
        jobs = server.on_terms(exchange, session.choices(job))
    async with server.queued(session, jobs):
        include_reasoning = call.include_reasoning is not False
        copy = server.options.reasoning_copy
        if call.stream:
            events = _events(session, jobs, head, include_reasoning=include_reasoning, copy=copy)
            await exchange.stream(events, server.options.keep_alive_s)
            return
        answers = await collect_all(session, jobs)
        choices = [
            wire.answer_choice(
                index,
                answer,
                include_reasoning=include_reasoning,
                logprobs=options.logprobs is not None,
            )
            for index, answer in enumerate(answers)
        ]
        for choice in choices if copy else ():
            choice.message.reasoning = choice.message.reasoning_content
        usages = [answer.finish.usage for answer in answers if answer.finish]
        usage = wire.total_usage(list(zip(jobs, usages, strict=True)))
        await exchange.reply_json(wire.chat_completion(head, choices, usage))


async def _events(
    session: Session,
    jobs: Sequence[Job],
    head: wire.Head,
    *,
    include_reasoning: bool,
    copy: bool,
) -> AsyncGenerator[bytes, None]:
    """`copy`: reasoning is sent under both of its names."""
    usages = []
    scores: list[list[Scored]] = [[] for _ in jobs]  # sent with the text that they belong to
    for index, job in enumerate(jobs):
        yield head.chat_chunk([wire.first_choice(index)], head.so_far(job))
    async with aclosing(together(session, jobs)) as pieces:
        async for index, piece in pieces:
            if not include_reasoning and _is_reasoning(piece):
                continue
            if isinstance(piece, Scored):
                scores[index].append(piece)
                continue
            choice = wire.delta_choice(index, piece, scores[index])
            if choice is not None:
                scores[index].clear()
                if copy:
                    choice.delta.reasoning = choice.delta.reasoning_content
                yield head.chat_chunk([choice], head.so_far(jobs[index]))
            if isinstance(piece, Finish):
                usages.append((jobs[index], piece.usage))
    if head.usage_in != "none":
        yield head.chat_chunk([], wire.total_usage(usages))
    yield sse.DONE


def _is_reasoning(piece: Piece) -> bool:
    if isinstance(piece, Scored):
        return piece.section == "reasoning"
    return isinstance(piece, Reasoning)
