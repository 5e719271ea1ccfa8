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
            lambda: decode(
                body, CompletionCall, COMPLETION_REFUSED, strict=strict, idle=ask.ignored
            ),
            body,
        )
        call = decoded.call
        model = server.model_name(call.model)
        usage_in = ask.usage_in(call)
        prompts = _prompts(call.prompt)
        options = ask.options(call)
        _check_echo(call, options)
    server.report_ignored(exchange, decoded.ignored)
    with server.admit(len(prompts) * options.n) as session:
        head = wire.Head(int(server.wall_clock()), model, usage_in, bool(call.include_speculation))
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
        scored = bool(call.echo) and options.logprobs is not None
        asked = [
            await session.complete(prompt, options, suffix, scored=scored) for prompt in prompts
        ]
        head = head.named("cmpl", asked[0])
        choices = [choice for job in asked for choice in session.choices(job)]
        jobs = server.on_terms(exchange, choices)
    echoes = [""] * len(jobs)
    if call.echo and not scored:
        echoes = [_text(session, prompt) for prompt in prompts for _ in range(options.n)]
    async with server.queued(session, jobs):
        if call.stream:
            events = _events(session, jobs, head, echoes)
            await exchange.stream(events, server.options.keep_alive_s)
            return
        answers = await collect_all(session, jobs)
        answered = [
            _whole(session, index, job, answer, echo)
            for index, (job, answer, echo) in enumerate(zip(jobs, answers, echoes, strict=True))
        ]
        usages = [answer.finish.usage for answer in answers if answer.finish]
        usage = wire.total_usage(list(zip(jobs, usages, strict=True)))
        await exchange.reply_json(head.text(answered, head.usage(usage)))


async def _events(
    session: Session, jobs: Sequence[Job], head: wire.Head, echoes: Sequence[str]
) -> AsyncGenerator[bytes, None]:
    usages = []
    for index, echo in enumerate(echoes):
        if echo:
            yield head.text_chunk([TextChoice(index, echo)], head.so_far(jobs[index]))
    scores: list[list[Scored]] = [[] for _ in jobs]  # sent with the text that comes next
    firsts = [_first(session, job) for job in jobs]
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
            if scores[index] or firsts[index] is not None:
                choice.logprobs = wire.text_logprobs(scores[index], firsts[index])
                scores[index].clear()
                firsts[index] = None
            yield head.text_chunk([choice], head.so_far(jobs[index]))
    if head.usage_in != "none":
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


def _check_echo(call: CompletionCall, options: Options) -> None:
    """To score a prompt its tokens are made again, and nothing else may decide what is made."""
    if not call.echo or options.logprobs is None:
        if call.max_tokens == 0:
            raise BadRequest(
                "max_tokens is 0, which is for echo with logprobs only; send 1 or more",
                param="max_tokens",
            )
        return
    others = {
        "suffix": bool(call.suffix),
        "frequency_penalty": options.frequency_penalty != 0,
        "presence_penalty": options.presence_penalty != 0,
        "repetition_penalty": options.repetition_penalty != 1,
        "response_format": options.format is not None,
    }
    for name, given in others.items():
        if given:
            raise Unsupported(
                f"{name} is not supported beside echo with logprobs; leave one of them out",
                param=name,
            )


def _first(session: Session, job: Job) -> bytes | None:
    """The first token of a prompt that is scored."""
    return session.tokenizer.token_bytes(job.request.prompt[0]) if job.scored else None


def _text(session: Session, prompt: RawPrompt) -> str:
    return prompt if isinstance(prompt, str) else session.tokenizer.decode(prompt)


def _whole(session: Session, index: int, job: Job, answer: Answer, echo: str) -> TextChoice:
    assert answer.finish is not None, "a whole answer has a finish"
    told = job.options.logprobs is not None
    return TextChoice(
        index,
        echo + answer.content,
        logprobs=wire.text_logprobs(answer.scores, _first(session, job)) if told else None,
        finish_reason=answer.finish.reason,
        stop_reason=answer.finish.stopped_by,
    )
