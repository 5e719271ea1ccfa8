"""Large bodies are read beside the streams."""

import asyncio
import json
import threading
from typing import Any

import pytest

from relight.serve import chat, completions, small
from relight.serve.messages import route as messages
from relight.serve.reading import INLINE_BYTES, aside
from relight.serve.responses import route as responses
from tests.serve.fakes import EOS, HELLO, answering


@pytest.mark.parametrize("size", [0, INLINE_BYTES, INLINE_BYTES + 1])
def test_only_a_large_body_goes_to_a_thread(size: int) -> None:
    thread = asyncio.run(aside(threading.get_ident, b" " * size))
    assert (thread != threading.get_ident()) == (size > INLINE_BYTES)


@pytest.mark.parametrize(
    ("path", "fields", "module"),
    [
        ("/v1/chat/completions", {"messages": HELLO * 3000}, chat),
        ("/v1/completions", {"prompt": "s" * INLINE_BYTES}, completions),
        ("/v1/messages", {"messages": HELLO, "system": "s" * INLINE_BYTES}, messages),
        ("/v1/messages/count_tokens", {"messages": HELLO * 3000}, messages),
        ("/tokenize", {"prompt": "s" * INLINE_BYTES}, small),
        ("/tokenize", {"messages": HELLO * 3000, "return_token_strs": True}, small),
        ("/detokenize", {"tokens": [7] * INLINE_BYTES}, small),
        ("/v1/responses", {"input": HELLO, "metadata": {"a": "s" * INLINE_BYTES}}, responses),
    ],
)
def test_every_route_reads_there(
    path: str, fields: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noting(*arguments: Any, **how: Any) -> Any:
        threads.append(threading.get_ident())
        return decode(*arguments, **how)

    decode = module.decode
    monkeypatch.setattr(module, "decode", noting)
    reply = answering("x" + EOS).post(path, json.dumps(fields))
    assert reply.status_code in (200, 400)  # some are too long for the model
    assert threads
    assert threading.get_ident() not in threads
