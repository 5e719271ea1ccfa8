"""`POST /v1/messages` and its `count_tokens`. Knows the order of things; shapes are in `ask` and
`stream`."""

from relight.serve import ask
from relight.serve.decode import decode
from relight.serve.exchange import Exchange
from relight.serve.messages.ask import REFUSED, chat_call
from relight.serve.messages.schema import MessagesCall, PromptCall, TokenCount
from relight.serve.messages.stream import MessageTeller
from relight.serve.server import Server
from relight.serve.teller import answer
from relight.text.conversation import Conversation


async def messages(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    with server.counted():
        decoded = decode(body, MessagesCall, REFUSED, strict=server.options.strict_fields)
        model = server.model_name(decoded.call.model)
        call, names = chat_call(decoded.call)
        with names.told():
            conversation = ask.conversation(call.messages, call)
            options = ask.options(call)
    server.report_ignored(exchange, decoded.ignored)
    with names.told():
        await answer(
            server,
            exchange,
            conversation,
            options,
            lambda job: MessageTeller(job, model),
            stream=bool(call.stream),
        )


async def count_tokens(server: Server, exchange: Exchange) -> None:
    """By the very encoder that generation uses."""
    body = await exchange.body(server.options.body_limit)
    decoded = decode(body, PromptCall, REFUSED)
    server.model_name(decoded.call.model)
    call, names = chat_call(decoded.call)
    with names.told():
        conversation = ask.conversation(call.messages, call)
        count = await exchange.while_connected(_count(server, conversation), server.stopping)
    await exchange.reply_json(TokenCount(count))


async def _count(server: Server, conversation: Conversation) -> int:
    prompt = await server.ready().encode_chat(conversation)
    return len(prompt.ids)
