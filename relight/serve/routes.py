"""Every operation of the server: method, path, what it reads, what it answers, what it says of
itself. Knows no ASGI."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from relight.serve import schema, small
from relight.serve.chat import chat_completions
from relight.serve.completions import completions
from relight.serve.exchange import Exchange
from relight.serve.fields import (
    CHAT_REFUSED,
    COMPLETION_REFUSED,
    IGNORED,
    MESSAGES_IGNORED,
    RESPONSES_IGNORED,
    Refused,
)
from relight.serve.messages import schema as anthropic
from relight.serve.messages.ask import REFUSED as MESSAGES_REFUSED
from relight.serve.messages.route import count_tokens, messages
from relight.serve.messages.voice import MessagesVoice
from relight.serve.responses import schema as items
from relight.serve.responses.ask import REFUSED as RESPONSES_REFUSED
from relight.serve.responses.route import responses
from relight.serve.server import Server
from relight.serve.voice import OPENAI, Voice

Answer = Callable[[Server, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """`reply` None: the answer is not JSON. `chunk`: a type, or several joined by |; with `stream`
    the answer is an event stream of these. `voice` tells errors, as `error`. `refused` and
    `ignored` are what is known of fields that `call` does not have."""

    method: str
    path: str
    answer: Answer
    summary: str
    call: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    chunk: Any = None
    voice: Voice = OPENAI
    error: type[msgspec.Struct] = schema.ErrorBody
    refused: Mapping[str, Refused] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()


OPERATIONS = (
    Operation(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        "Answer a conversation.",
        schema.ChatCall,
        schema.ChatCompletion,
        schema.ChatChunk,
        refused=CHAT_REFUSED,
        ignored=IGNORED,
    ),
    Operation(
        "POST",
        "/v1/completions",
        completions,
        "Continue raw prompts, in which special tokens may be spelt.",
        schema.CompletionCall,
        schema.TextCompletion,
        schema.TextCompletion,
        refused=COMPLETION_REFUSED,
        ignored=IGNORED,
    ),
    Operation(
        "POST",
        "/v1/responses",
        responses,
        "Answer a conversation of items.",
        items.ResponsesCall,
        items.ResponseBody,
        items.ResponseEvent,
        refused=RESPONSES_REFUSED,
        ignored=RESPONSES_IGNORED,
    ),
    Operation(
        "POST",
        "/v1/messages",
        messages,
        "Answer a conversation, by Anthropic's protocol.",
        anthropic.MessagesCall,
        anthropic.MessageBody,
        anthropic.MessageEvent,
        MessagesVoice(),
        anthropic.MessageError,
        refused=MESSAGES_REFUSED,
        ignored=MESSAGES_IGNORED,
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "The length of a conversation's prompt.",
        anthropic.PromptCall,
        anthropic.TokenCount,
        voice=MessagesVoice(),
        error=anthropic.MessageError,
        refused=MESSAGES_REFUSED,
    ),
    Operation("GET", "/v1/models", small.models, "The names of the model.", None, schema.ModelList),
    Operation("GET", "/v1/models/{name:path}", small.model, "One name.", None, schema.ModelCard),
    Operation(
        "POST",
        "/tokenize",
        small.tokenize,
        "The token ids of a prompt or a conversation.",
        schema.TokenizeCall,
        schema.TokenizeAnswer,
    ),
    Operation(
        "POST",
        "/detokenize",
        small.detokenize,
        "The text of token ids.",
        schema.DetokenizeCall,
        schema.DetokenizeAnswer,
    ),
    Operation(
        "GET",
        "/health",
        small.health,
        "Whether requests are answered: 200 if so, else 503.",
        None,
        schema.Health,
    ),
    Operation("GET", "/ping", small.health, "The same as /health.", None, schema.Health),
    Operation("GET", "/metrics", small.metrics, "Prometheus metrics."),
    Operation("GET", "/version", small.version, "The server's version.", None, schema.Version),
    # Some clients look here, whether there is a server, before they send anything.
    Operation("GET", "/", small.version, "The same as /version.", None, schema.Version),
)
