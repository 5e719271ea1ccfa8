"""The routes that generate nothing: models, token counts, health, metrics, version. Knows no engine
beyond its state."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

import relight
from relight.base.errors import BadRequest, Unavailable
from relight.serve import ask
from relight.serve.decode import Decoded, decode
from relight.serve.exchange import Exchange
from relight.serve.fields import NOTHING_REFUSED
from relight.serve.metrics import CONTENT_TYPE
from relight.serve.reading import aside
from relight.serve.schema import (
    DetokenizeAnswer,
    DetokenizeCall,
    Health,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizeCall,
    Version,
)
from relight.serve.server import READY, Server
from relight.session import Session
from relight.text.conversation import Conversation


async def models(server: Server, exchange: Exchange) -> None:
    await exchange.reply_json(ModelList("list", list(_cards(server))))


async def model(server: Server, exchange: Exchange) -> None:
    name = server.model_name(exchange.path_params["name"])
    await exchange.reply_json(next(card for card in _cards(server) if card.id == name))


def _cards(server: Server) -> Iterator[ModelCard]:
    limit = server.ready().info.max_context
    first = server.options.names[0]
    for name in server.options.names:
        root = UNSET if name == first else first
        yield ModelCard(name, "model", server.started, "relight", limit, root)


async def tokenize(server: Server, exchange: Exchange) -> None:
    """The very encoder that generation uses. A raw prompt never gets markers added: this model's
    tokenizer adds none, whatever `add_special_tokens` says."""
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    decoded, conversation = await aside(lambda: _read_tokenize(body, strict), body)
    call = decoded.call
    server.model_name(call.model)
    server.report_ignored(exchange, decoded.ignored)
    session = server.ready()
    work = _encode(session, call.prompt or "", conversation)
    ids = await exchange.while_connected(work, server.stopping)
    answer = TokenizeAnswer(
        count=len(ids),
        max_model_len=session.info.max_context,
        tokens=ids,
        token_strs=await session.spell(ids) if call.return_token_strs else UNSET,
    )
    await exchange.reply(await aside(lambda: msgspec.json.encode(answer), body))


def _read_tokenize(body: bytes, strict: bool) -> tuple[Decoded[TokenizeCall], Conversation | None]:
    decoded = decode(body, TokenizeCall, NOTHING_REFUSED, strict=strict, idle=ask.ignored)
    call = decoded.call
    if (call.prompt is None) == (call.messages is None):
        raise BadRequest("send either prompt or messages, and one of them only", param="prompt")
    return decoded, None if call.messages is None else ask.conversation(call.messages, call)


async def _encode(session: Session, text: str, conversation: Conversation | None) -> list[int]:
    if conversation is None:
        return await session.encode_raw(text)
    return list((await session.encode_chat(conversation)).ids)


async def detokenize(server: Server, exchange: Exchange) -> None:
    body = await exchange.body(server.options.body_limit)
    strict = server.options.strict_fields
    decoded = await aside(
        lambda: decode(body, DetokenizeCall, NOTHING_REFUSED, strict=strict), body
    )
    server.model_name(decoded.call.model)
    server.report_ignored(exchange, decoded.ignored)
    work = server.sessions[0].decode(decoded.call.tokens)
    text = await exchange.while_connected(work, server.stopping)
    await exchange.reply_json(DetokenizeAnswer(text))


async def health(server: Server, exchange: Exchange) -> None:
    state = server.state()
    await exchange.reply_json(Health(state), status=200 if state in READY else 503)


async def version(server: Server, exchange: Exchange) -> None:
    await exchange.reply_json(Version(relight.__version__))


async def metrics(server: Server, exchange: Exchange) -> None:
    """An engine that cannot be asked is left out, so that the rest can still be read."""
    stats, infos = {}, {}
    for i, session in enumerate(server.sessions):
        try:
            stats[str(i)] = await session.client.stats()
            infos[str(i)] = session.info
        except Unavailable:
            continue
    content_type = (b"content-type", CONTENT_TYPE.encode())
    await exchange.reply(server.metrics.render(stats, infos), headers=(content_type,))
