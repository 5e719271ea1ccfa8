"""`POST /v1/completions`: raw prompts, each a choice of one answer. Knows no layout of a prompt."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from relight.base.errors import BadRequest
from relight.base.types import Usage
from relight.serve import ask, sse, wire
from relight.serve.decode import decode
from relight.serve.exchange import Exchange
from relight.serve.fields import COMPLETION_REFUSED
from relight.serve.schema import CompletionCall, TextChoice
from relight.serve.server import Server
from relight.session import Answer, Finish, Job, Piece, Session
from relight.text.parse import Content

MAX_PROMPTS = 128

RawPrompt = str | list[int]


async def completions(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    with server.counted():
        decoded = decode(
            body, CompletionCall, COMPLETION_REFUSED, strict=server.options.strict_fields
        )
        call = decoded.call
        model = server.model_name(call.model)
        include_usage = ask.check_stream_options(call)
        prompts = _prompts(call.prompt)
    server.report_ignored(exchange, decoded.ignored)
    with server.admit(len(prompts)) as session:
        head = wire.Head(f"cmpl-{session.new_id()}", int(server.wall_clock()), model, include_usage)
        work = _answer(server, exchange, session, call, prompts, head)
        await exchange.while_connected(work, server.stopping)


async def _answer(
    server: Server,
    exchange: Exchange,
    session: Session,
    call: CompletionCall,
    prompts: Sequence[RawPrompt],
    head: wire.Head,
) -> None:
    options = ask.options(call)
    with server.counted():
        jobs = [await session.complete(prompt, options) for prompt in prompts]
    if call.stream:
        await exchange.stream(_events(session, jobs, head), server.options.keep_alive_s)
        return
    answers = [Answer() for _ in jobs]
    async with aclosing(_merge(session, jobs)) as pieces:
        async for index, piece in pieces:
            answers[index].add(piece)
    choices = [_whole(i, answer) for i, answer in enumerate(answers)]
    usage = sum_usage([answer.finish.usage for answer in answers if answer.finish])
    await exchange.reply_json(head.text(choices, wire.usage_body(usage)))


async def _events(
    session: Session, jobs: Sequence[Job], head: wire.Head
) -> AsyncGenerator[bytes, None]:
    usages = []
    async with aclosing(_merge(session, jobs)) as pieces:
        async for index, piece in pieces:
            if isinstance(piece, Content):
                yield head.text_chunk([TextChoice(index, piece.text)])
            elif isinstance(piece, Finish):
                usages.append(piece.usage)
                choice = TextChoice(
                    index, "", finish_reason=piece.reason, stop_reason=piece.stopped_by
                )
                yield head.text_chunk([choice])
    if head.include_usage:
        yield head.text_chunk([], sum_usage(usages))
    yield sse.DONE


async def _merge(session: Session, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The pieces of all jobs as they come, each with the index of its job. The first that fails
    ends all. One slot in the queue for each job: none runs ahead of the client."""
    queue: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue(len(jobs))

    async def run(index: int, job: Job) -> None:
        try:
            async with aclosing(session.run(job)) as pieces:
                async for piece in pieces:
                    await queue.put((index, piece))
        except Exception as error:
            await queue.put((index, error))

    tasks = [asyncio.ensure_future(run(i, job)) for i, job in enumerate(jobs)]
    try:
        num_open = len(jobs)
        while num_open:
            index, piece = await queue.get()
            if isinstance(piece, Exception):
                raise piece
            yield index, piece
            num_open -= isinstance(piece, Finish)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _prompts(prompt: str | Sequence[int | str | list[int]]) -> list[RawPrompt]:
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(part, int) for part in prompt) and prompt:
        return [[part for part in prompt if isinstance(part, int)]]
    texts = [part for part in prompt if isinstance(part, str)]
    lists = [part for part in prompt if isinstance(part, list)]
    if not prompt or len(prompt) not in (len(texts), len(lists)):
        raise BadRequest(
            "prompt must be a string, a list of token ids, or a list of several of one of these",
            param="prompt",
        )
    if len(prompt) > MAX_PROMPTS:
        raise BadRequest(
            f"prompt holds {len(prompt)} prompts; the most in one request is {MAX_PROMPTS}",
            param="prompt",
        )
    return [*texts, *lists]


def _whole(index: int, answer: Answer) -> TextChoice:
    assert answer.finish is not None, "a whole answer has a finish"
    return TextChoice(
        index,
        answer.content,
        finish_reason=answer.finish.reason,
        stop_reason=answer.finish.stopped_by,
    )


def sum_usage(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
