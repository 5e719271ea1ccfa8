"""Plays a conversation by a client's form against the server, and notes what each turn reuses."""

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx

from relight.base.types import FinishReason, Request, TokenDelta
from relight.cache.layout import PAGE_TOKENS
from relight.serve.app import create_app
from relight.serve.metrics import Metrics
from relight.serve.server import ServeOptions, Server
from relight.session import Job, Session
from relight.session.memory import Memory
from relight.text.dialect import Encoding
from tools.replay import vocabulary
from tools.replay.clients import Client
from tools.replay.engine import scripted_engine
from tools.replay.script import SAID, TASKS, Pen, Said

_BROKEN = re.compile(r": (.*) leaves an earlier prefix .*: (.*)")


@dataclass(frozen=True)
class Turn:
    """In tokens. `reusable` is the last boundary of what had been computed for the conversation;
    `broken` is what the log says of a prefix that was left: where, and why."""

    prompt: int
    cached: int
    reusable: int
    broken: str = ""

    @property
    def reuse(self) -> float:
        return self.cached / self.reusable if self.reusable else 1.0


class Figures:
    """Hears of the jobs of a session, and of its log."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.reusable = 0
        self._made = 0
        self._lines: list[str] = []

    def delta(self, job: Job, delta: TokenDelta) -> None:
        if not self._made:
            turn = Turn(len(job.request.prompt), delta.num_cached, self.reusable, self._broken())
            self.turns.append(turn)
        self._made += len(delta.tokens)

    def ended(self, job: Job, reason: FinishReason) -> None:
        computed = len(job.request.prompt) + self._made - 1  # the last token is drawn, not read
        self.reusable = computed // PAGE_TOKENS * PAGE_TOKENS
        self._made = 0

    def note(self, line: str) -> None:
        self._lines.append(line)

    def _broken(self) -> str:
        text = "; ".join(self._lines)
        self._lines.clear()
        return text


class _Noting(logging.Handler):
    def __init__(self, figures: Figures) -> None:
        super().__init__()
        self._figures = figures

    def emit(self, record: logging.LogRecord) -> None:
        found = _BROKEN.search(record.getMessage())
        if found:
            self._figures.note(f"{found[1]}: {found[2]}")


def in_text(said: Said) -> Said:
    """The answer of a model whose tools are in the text."""
    calls = "".join(
        f"\n<{name}>\n"
        + "\n".join(f"<{k}>{v}</{k}>" for k, v in arguments.items())
        + f"\n</{name}>"
        for name, arguments in said.calls
    )
    return replace(said, content=said.content + calls, calls=())


def play(client: Client, encoding: Encoding = "v4", *, remembers: bool = True) -> list[Turn]:
    """The turns of the conversation, requests besides it left out."""
    return asyncio.run(_play(client, encoding, remembers))


async def _play(client: Client, encoding: Encoding, remembers: bool) -> list[Turn]:
    tokenizer, encoder = vocabulary.encoder(encoding)
    pen = Pen(tokenizer, encoder.tags)
    script = SAID if client.tools else tuple(map(in_text, SAID))
    answers = iter([pen.write(said, thinking=client.thinking) for said in script])
    title = pen.write(Said("", "A title"), thinking=True)

    def answer(request: Request) -> Sequence[int]:
        return title if request.sampling.max_tokens == 8 else next(answers)

    engine = scripted_engine(answer, tokenizer.vocab_size)
    figures = Figures()
    memory = Memory() if remembers else None
    session = Session(engine, tokenizer, encoder, memory=memory, observer=figures)
    app = create_app(Server([session], ServeOptions(names=("scripted",)), Metrics("scripted")))
    log, handler = logging.getLogger("relight.session.session"), _Noting(figures)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            return await _converse(client, http, figures)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


async def _converse(client: Client, http: httpx.AsyncClient, figures: Figures) -> list[Turn]:
    tasks = iter(TASKS)
    said = iter(SAID)
    client.ask(next(tasks))
    turns: list[Turn] = []
    for step in said:
        client.hear(await _post(http, client.path, client.body()))
        turns.append(figures.turns[-1])
        if step.calls:
            continue
        if (aside := client.aside()) is not None:
            reusable = figures.reusable
            await _post(http, client.path, aside)
            figures.reusable = reusable
        if (task := next(tasks, None)) is not None:
            client.ask(task)
    return turns


async def _post(http: httpx.AsyncClient, path: str, body: object) -> str:
    reply = await http.post(path, content=json.dumps(body))
    assert reply.status_code == 200, reply.text
    return reply.text
