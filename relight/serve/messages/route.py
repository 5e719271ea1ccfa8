"""`POST /v1/messages` and its `count_tokens`. Knows the order of things; shapes are in `ask` and
`stream`."""

from dataclasses import dataclass

from relight.serve import ask
from relight.serve.decode import Decoded, decode
from relight.serve.exchange import Exchange
from relight.serve.messages.ask import REFUSED, chat_call
from relight.serve.messages.schema import MessagesCall, TokenCount
from relight.serve.messages.stream import MessageTeller
from relight.serve.names import Names
from relight.serve.reading import aside
from relight.serve.server import Server
from relight.serve.teller import answer
from relight.session import Options
from relight.text.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Read:
    """A call with what it asks for. `names` tells errors in the client's words."""

    decoded: Decoded[MessagesCall]
    names: Names
    conversation: Conversation
    options: Options


async def messages(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    with server.counted():
        read = await aside(lambda: _read(body, strict), body)
        call = read.decoded.call
        model = server.model_name(call.model)
    server.report_ignored(exchange, read.decoded.ignored)
    with read.names.told():
        await answer(
            server,
            exchange,
            read.conversation,
            read.options,
            lambda job: MessageTeller(job, model),
            stream=bool(call.stream),
        )


async def count_tokens(server: Server, exchange: Exchange) -> None:
    """By the very encoder that generation uses. The body of a call does as it stands."""
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    with server.counted():
        read = await aside(lambda: _read(body, strict), body)
        server.model_name(read.decoded.call.model)
    server.report_ignored(exchange, read.decoded.ignored)
    with read.names.told():
        work = _count(server, read.conversation)
        count = await exchange.while_connected(work, server.stopping)
    await exchange.reply_json(TokenCount(count))


def _read(body: bytes, strict: bool) -> Read:
    decoded = decode(body, MessagesCall, REFUSED, strict=strict)
    call, names = chat_call(decoded.call)
    with names.told():
        conversation = ask.conversation(call.messages, call)
        return Read(decoded, names, conversation, ask.options(call))


async def _count(server: Server, conversation: Conversation) -> int:
    prompt = await server.ready().encode_chat(conversation)
    return len(prompt.ids)
