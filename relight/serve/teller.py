"""One answer in a protocol that tells it as a story: events while it is made, a whole at its end.
Knows no protocol, no body and no route.

The whole is what the events add up to, by the same code: streamed or not, an answer is one.
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Protocol

import msgspec

from relight.serve.exchange import Exchange
from relight.serve.server import Server
from relight.serve.voice import Voice
from relight.session import Job, Options, Piece, Session
from relight.text.conversation import Conversation


class Teller(Voice, Protocol):
    """Tells one answer."""

    def begin(self) -> Iterable[bytes]:
        """The events before the first piece."""

    def tell(self, piece: Piece) -> Iterable[bytes]:
        """The events of one piece; those of a `Finish` are the last."""

    def whole(self) -> msgspec.Struct:
        """The body of the answer, once it has its `Finish`."""


async def answer(
    server: Server,
    exchange: Exchange,
    conversation: Conversation,
    options: Options,
    new_teller: Callable[[Job], Teller],
    *,
    stream: bool,
) -> None:
    with server.admit() as session:
        work = _answer(server, exchange, session, conversation, options, new_teller, stream)
        await exchange.while_connected(work, server.stopping)


async def _answer(
    server: Server,
    exchange: Exchange,
    session: Session,
    conversation: Conversation,
    options: Options,
    new_teller: Callable[[Job], Teller],
    stream: bool,
) -> None:
    with server.counted():
        jobs = server.on_terms(exchange, [await session.chat(conversation, options)])
    teller = new_teller(jobs[0])
    async with server.queued(session, jobs):
        events = _events(session, jobs[0], teller)
        if stream:
            exchange.voice = teller
            await exchange.stream(events, server.options.keep_alive_s)
            return
        async with aclosing(events):
            async for _ in events:
                pass
        await exchange.reply_json(teller.whole())


async def _events(session: Session, job: Job, teller: Teller) -> AsyncGenerator[bytes, None]:
    """Those of one step travel together."""
    yield b"".join(teller.begin())
    async with aclosing(session.run(job)) as pieces:
        async for piece in pieces:
            if events := b"".join(teller.tell(piece)):
                yield events
