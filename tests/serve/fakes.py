"""A server without a model: a tiny real tokenizer, an engine that plays written tokens, own ids."""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from relight.serve.app import create_app
from relight.serve.metrics import Metrics
from relight.serve.server import ServeOptions, Server
from relight.session import Session
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parent.parent / "golden" / "text"
TOKENIZER = Tokenizer.load(FOLDER)
ENCODER = PromptEncoder(TOKENIZER)
EOS = "<｜end▁of▁sentence｜>"
NAME = "tiny"

HELLO = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)


def tokens(text: str) -> list[int]:
    """Ids of an answer written as text with its markers spelt out."""
    return TOKENIZER.encode_raw(text)


def script(text: str, **how: Any) -> ReplayClient:
    """An engine whose every answer is `text`."""
    ids = tokens(text)
    return ReplayClient(lambda _: ids, **how)


def echo(**how: Any) -> ReplayClient:
    """An engine that answers with the prompt, markers left out."""

    def answer(request: Request) -> list[int]:
        special = set(TOKENIZER.special.__struct_fields__)
        marks = {getattr(TOKENIZER.special, name) for name in special}
        return [*(t for t in request.prompt if t not in marks), TOKENIZER.special.eos]

    return ReplayClient(answer, **how)


def counter() -> Callable[[], str]:
    """Ids that tests can write down: 000…1, 000…2."""
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):032x}"


@dataclass
class Rig:
    """One server over one scripted engine."""

    client: ReplayClient
    server: Server

    @property
    def session(self) -> Session:
        return self.server.sessions[0]

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=create_app(self.server))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            yield client

    def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            if not self.server.stopping.is_set():
                self.server.stopping = asyncio.Event()  # one belongs to one event loop
            async with self.http() as http:
                return await http.request(method, path, **how)

        if not self.server.stopping.is_set():
            self.server.stopping = asyncio.Event()  # it belongs to the loop that first awaits it
        return asyncio.run(send())

    def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        return self.request("POST", path, content=content, **how)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": HELLO, **fields})

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, **fields})


def rig(client: ReplayClient, **options: Any) -> Rig:
    metrics = Metrics(NAME)
    session = Session(client, TOKENIZER, ENCODER, observer=metrics.observer("0"), new_id=counter())
    serve_options = ServeOptions(names=(NAME, "alias"), **options)
    server = Server([session], serve_options, metrics, wall_clock=lambda: 1_700_000_000.0)
    return Rig(client, server)


def answering(text: str, *, per_delta: int = 1, num_cached: int = 0, **options: Any) -> Rig:
    return rig(script(text, per_delta=per_delta, num_cached=num_cached), **options)


def events(response: httpx.Response) -> list[Any]:
    """The JSON of every event of a stream; `[DONE]` stays a string."""
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [
        x if (x := line.removeprefix("data: ")) == "[DONE]" else json.loads(x) for line in lines
    ]


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The message that the deltas of a chat stream add up to, in the shape of a whole answer."""
    message: dict[str, Any] = {"content": ""}
    calls: dict[int, Any] = {}
    for chunk in chunks:
        for choice in chunk["choices"] if chunk != "[DONE]" else ():
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                if key in delta:
                    message[key] = message.get(key, "") + delta[key]
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls[call["index"]] = {"id": call["id"], "type": call["type"]} | {
                        "function": dict(call["function"])
                    }
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


@contextmanager
def live(rig: Rig) -> Iterator[str]:
    """The rig behind a real socket; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(rig.server), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
