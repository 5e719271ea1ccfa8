"""`POST /v1/completions`: raw prompts, each a choice of one answer. Knows no layout of a prompt."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from relight.base.errors import BadRequest, Unsupported
from relight.serve import ask, sse, wire
from relight.serve.decode import decode
from relight.serve.exchange import Exchange
from relight.serve.fields import COMPLETION_REFUSED
from relight.serve.reading import aside
from relight.serve.schema import CompletionCall, TextChoice
from relight.serve.server import Server
from relight.session import (
    Answer,
    Finish,
    Job,
    Options,
    Scored,
    Session,
    collect_all,
    together,
)
from relight.text.parse import Content

MAX_PROMPTS = 128

RawPrompt = str | list[int]


async def completions(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    with server.counted():
        decoded = await aside(
            lambda: decode(body, CompletionCall, COMPLETION_REFUSED, strict=strict), body
        )
        call = decoded.call
        model = server.model_name(call.model)
        include_usage = ask.check_stream_options(call)
        prompts = _prompts(call.prompt)
        _check_echo(call)
        options = ask.options(call)
    server.report_ignored(exchange, decoded.ignored)
    with server.admit(len(prompts) * options.n) as session:
        head = wire.Head(int(server.wall_clock()), model, include_usage)
        work = _answer(server, exchange, session, call, prompts, options, head)
        await exchange.while_connected(work, server.stopping)


async def _answer(
    server: Server,
    exchange: Exchange,
    session: Session,
    call: CompletionCall,
    prompts: Sequence[RawPrompt],
    options: Options,
    head: wire.Head,
) -> None:
    with server.counted():
        suffix = call.suffix or ""
        asked = [await session.complete(prompt, options, suffix) for prompt in prompts]
        head = head.named("cmpl", asked[0])
        choices = [choice for job in asked for choice in session.choices(job)]
        jobs = server.on_terms(exchange, choices)
    echoes = [""] * len(jobs)
    if call.echo:
        echoes = [_text(session, prompt) for prompt in prompts for _ in range(options.n)]
    async with server.queued(session, jobs):
        if call.stream:
            events = _events(session, jobs, head, echoes)
            await exchange.stream(events, server.options.keep_alive_s)
            return
        answers = await collect_all(session, jobs)
        told = options.logprobs is not None
        answered = [
            _whole(index, answer, echo, told)
            for index, (answer, echo) in enumerate(zip(answers, echoes, strict=True))
        ]
        usages = [answer.finish.usage for answer in answers if answer.finish]
        usage = wire.total_usage(list(zip(jobs, usages, strict=True)))
        await exchange.reply_json(head.text(answered, wire.usage_body(usage)))


async def _events(
    session: Session, jobs: Sequence[Job], head: wire.Head, echoes: Sequence[str]
) -> AsyncGenerator[bytes, None]:
    usages = []
    for index, echo in enumerate(echoes):
        if echo:
            yield head.text_chunk([TextChoice(index, echo)])
    scores: list[list[Scored]] = [[] for _ in jobs]  # sent with the text that comes next
    async with aclosing(together(session, jobs)) as pieces:
        async for index, piece in pieces:
            if isinstance(piece, Scored):
                scores[index].append(piece)
                continue
            if isinstance(piece, Content):
                choice = TextChoice(index, piece.text)
            elif isinstance(piece, Finish):
                usages.append((jobs[index], piece.usage))
                choice = TextChoice(
                    index, "", finish_reason=piece.reason, stop_reason=piece.stopped_by
                )
            else:
                continue
            if scores[index]:
                choice.logprobs = wire.text_logprobs(scores[index])
                scores[index].clear()
            yield head.text_chunk([choice])
    if head.include_usage:
        yield head.text_chunk([], wire.total_usage(usages))
    yield sse.DONE


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


def _check_echo(call: CompletionCall) -> None:
    """Log probabilities of an echoed prompt would have to be told with it."""
    if call.echo and call.logprobs is not None and call.logprobs is not False:
        raise Unsupported(
            "echo with logprobs is not supported here: log probabilities are told of the answer "
            "only; send one of the two",
            param="echo",
        )


def _text(session: Session, prompt: RawPrompt) -> str:
    return prompt if isinstance(prompt, str) else session.tokenizer.decode(prompt)


def _whole(index: int, answer: Answer, echo: str, told: bool) -> TextChoice:
    assert answer.finish is not None, "a whole answer has a finish"
    return TextChoice(
        index,
        echo + answer.content,
        logprobs=wire.text_logprobs(answer.scores) if told else None,
        finish_reason=answer.finish.reason,
        stop_reason=answer.finish.stopped_by,
    )
