"""A server that answers by a script, to the millisecond. Knows nothing of who measures it.

Every write is due at an absolute time, so lateness does not add up, and the time at which it was
really written is kept: what a client measured is compared with that, which holds on a busy machine
too.
"""

import asyncio
import time
from collections import defaultdict, deque
from typing import Any, cast

import httptools
import msgspec

from relight.bench.selftest.script import (
    TEMPLATE_TOKENS,
    Asked,
    Script,
    Served,
    num_tokens,
    prompt_of,
)

BLOCK = 64
"""Characters of a block of the prefix cache."""


class ScriptedServer:
    """`async with ScriptedServer(script) as server:` listens on a free port of this machine."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.served: list[Served] = []
        self.url = ""
        self.numbers: dict[str, float] = defaultdict(float)
        self.waiting = deque["_Answer"]()
        self.running = 0
        self._begun = 1
        self._asked = 0
        self._listed = 0
        self._connections: set[_Connection] = set()

    async def __aenter__(self) -> "ScriptedServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        await self._server.wait_closed()

    def opened(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def closed(self, connection: "_Connection") -> None:
        self._connections.discard(connection)

    @property
    def measured(self) -> list[Served]:
        return [served for served in self.served if served.asked.measured]

    def models(self) -> bytes:
        card: dict[str, Any] = {"id": "scripted", "object": "model"}
        card["created"] = self.script.model_created(self._listed)
        self._listed += 1
        if self.script.max_model_len is not None:
            card["max_model_len"] = self.script.max_model_len
        return msgspec.json.encode({"object": "list", "data": [card]})

    def asked(self, body: dict[str, Any]) -> Asked:
        # Warm-up and measured requests look alike on the wire, as they should; a canary and a
        # calibration ask for other lengths.
        wanted = body["max_tokens"]
        like_measured = wanted == self.script.measured_tokens
        number = self._asked - self.script.warm_ups
        self._asked += like_measured
        measured = like_measured and number >= 0
        if measured and number == self.script.restart_before:
            self.numbers.clear()
            self._begun += 1
        return Asked(number, prompt_of(body), wanted, measured)

    def cached(self, prompt: str) -> int:
        """Tokens of the longest known prefix, in whole blocks; remembers this prompt."""
        if not self.script.prefix_cache:
            return 0
        prefixes = [prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        hits = sum(prefix in self.script.prefixes for prefix in prefixes)
        self.script.prefixes.update(prefixes)
        return hits * BLOCK // 4

    def enqueue(self, answer: "_Answer") -> None:
        self.waiting.append(answer)
        self.fill()

    def fill(self) -> None:
        while self.waiting and self.running < self.script.slots:
            self.running += 1
            self.waiting.popleft().start()

    def done(self) -> None:
        self.running -= 1
        self.fill()

    def metrics(self) -> bytes:
        if self.script.dialect == "none":
            return b""
        if self.script.garbage:
            return b"\xff\x00vllm:{{{ \nvllm:prompt_tokens_total nan-ish\nvllm:x{a=} 1e\n" * 50
        prefix = "vllm:" if self.script.dialect == "vllm" else "sglang:"
        label = '{model_name="scripted",engine="0"}'
        lines = [f"{prefix}{name}{label} {value}" for name, value in self.numbers.items()]
        names = {
            "vllm": ("num_requests_running", "num_requests_waiting"),
            "sglang": ("num_running_reqs", "num_queue_reqs"),
        }[self.script.dialect]
        for name, value in zip(names, (self.running, len(self.waiting)), strict=True):
            lines.append(f"{prefix}{name}{label} {value}")
        for position, accepted in enumerate(self._positions()):
            place = label[:-1] + f',position="{position}"}}'
            name = "spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"{prefix}{name}{place} {accepted}")
        for position, share in enumerate(self.script.spec_drafted):
            place = label[:-1] + f',position="{position}"}}'
            drafts = self.numbers["spec_decode_num_drafts_total"]
            name = "spec_decode_num_draft_tokens_per_pos_total"
            lines.append(f"{prefix}{name}{place} {drafts * share}")
        if self.script.tells_start:
            lines.append(f"process_start_time_seconds {self._begun}")
        return ("# HELP scripted\n" + "\n".join(lines) + "\n").encode()

    def _positions(self) -> list[float]:
        drafts = self.numbers["spec_decode_num_drafts_total"]
        return [drafts * rate for rate in self.script.spec_accept]

    def count(self, served: Served, cached: int, out: int) -> None:
        """One answer's share of the counters."""
        script = self.script
        prompt = num_tokens(served.asked.prompt)
        vllm = script.dialect == "vllm"
        self._add("prompt_tokens_total", prompt)
        self._add("generation_tokens_total", out * script.tokens_lie)
        if vllm:
            self._add("prefix_cache_queries_total", prompt)
        self._add("prefix_cache_hits_total" if vllm else "cached_tokens_total", cached)
        self._add("num_preemptions_total" if vllm else "num_retracted_requests_total", 0)
        first = served.writes[0][0] - served.arrived + script.ttft_lie_s
        queue = "request_queue_time_seconds" if vllm else "queue_time_seconds"
        waited = served.started - served.arrived
        for name, seconds in (("time_to_first_token_seconds", first), (queue, waited)):
            self._add(f"{name}_sum", seconds)
            self._add(f"{name}_count", 1)
        if script.spec_depth:
            drafts = out / (1 + sum(script.spec_accept))
            self._add("spec_decode_num_drafts_total", drafts)
            self._add("spec_decode_num_draft_tokens_total", drafts * script.spec_depth)
            self._add("spec_decode_num_accepted_tokens_total", drafts * sum(script.spec_accept))

    def _add(self, name: str, value: float) -> None:
        self.numbers[name] += value


class _Connection(asyncio.Protocol):
    """One request, by HTTP/1.1 with chunks."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._answer: _Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.opened(self)

    def connection_lost(self, problem: Exception | None) -> None:
        self.transport = None
        self.server.closed(self)
        if self._answer is not None and not self.server.script.keeps_left:
            self._answer.stop()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url == b"/v1/models":
            self.whole(200, self.server.models())
        elif self._url == b"/metrics":
            self.whole(200, self.server.metrics())
        elif self._url.startswith(b"/server_info") and self.server.script.settings:
            self.whole(200, msgspec.json.encode(self.server.script.settings))
        elif self._url == b"/tokenize" and self.server.script.tokenizes:
            text = str(msgspec.json.decode(bytes(self._body)).get("prompt"))
            count = num_tokens(text) - TEMPLATE_TOKENS
            self.whole(200, msgspec.json.encode({"count": count}))
        elif self._url == b"/health":
            self.whole(200, b"{}")
        elif self._url == b"/v1/chat/completions":
            body = msgspec.json.decode(bytes(self._body))
            self._answer = _Answer(self, self.server.asked(body))
            self.server.enqueue(self._answer)
        else:
            self.whole(404, b"{}")

    def whole(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Scripted\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        self.write(head + body)
        if self.transport is not None:
            self.transport.close()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def events(self, *events: bytes) -> None:
        for event in events:
            self.write(b"%x\r\n%s\r\n" % (len(event), event))


class _Answer:
    """Writes one answer at its due times."""

    def __init__(self, connection: _Connection, asked: Asked) -> None:
        self._to = connection
        self._server = connection.server
        self._asked = asked
        self._reply = self._server.script.reply(asked)
        self._tokens = asked.max_tokens if self._reply.tokens is None else self._reply.tokens
        self._sent = 0
        self._holds_slot = False
        self._timer: asyncio.TimerHandle | None = None
        self._cached = self._server.cached(asked.prompt)
        if self._reply.cached is not None:
            self._cached = self._reply.cached
        self._served = Served(asked, time.perf_counter())
        self._server.served.append(self._served)

    def start(self) -> None:
        """Its slot was given."""
        self._holds_slot = True
        self._served.started = time.perf_counter()
        if self._reply.status != 200:
            problem = {"error": {"message": self._server.script.refusal}}
            self._to.whole(self._reply.status, msgspec.json.encode(problem))
            return self.stop()
        self._to.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if self._reply.prelude:
            self._to.events(_event({"role": "assistant", "content": ""}))
        self._begun = asyncio.get_running_loop().time()
        self._comment()
        self._next()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._holds_slot:
            self._holds_slot = False
            self._server.done()

    def _comment(self) -> None:
        if self._reply.comment_s and self._holds_slot:
            self._to.events(b": alive\n\n")
            asyncio.get_running_loop().call_later(self._reply.comment_s, self._comment)

    def _next(self) -> None:
        reply = self._reply
        due = self._begun + reply.first_s + self._sent // reply.per_chunk * reply.gap_s
        self._timer = asyncio.get_running_loop().call_at(due, self._token)

    def _token(self) -> None:
        reply = self._reply
        end = self._tokens if reply.cut is None else min(reply.cut, self._tokens)
        if self._sent >= end:
            return self._end()
        count = min(reply.per_chunk, end - self._sent)
        if self._sent < reply.thought:
            count = min(count, reply.thought - self._sent)
        self._write(count)
        self._served.writes.append((time.perf_counter(), count))
        self._sent += count
        if self._sent >= end:
            self._end()
        else:
            self._next()

    def _write(self, count: int) -> None:
        reply = self._reply
        name = reply.thought_field if self._sent < reply.thought else reply.answer_field
        text = "".join(f" {self._asked.prompt[:3]}{self._sent + i}" for i in range(count))
        if reply.text:
            text = reply.text if self._sent == 0 else " "
        value: Any = text
        if name == "tool_calls":
            value = [{"index": 0, "function": {"arguments": text}}]
        usage = self._usage(self._sent + count) if reply.usage_each else None
        self._to.events(_event({name: value}, usage=usage))

    def _usage(self, out: int) -> dict[str, Any]:
        return {
            "prompt_tokens": num_tokens(self._asked.prompt),
            "completion_tokens": out,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def _end(self) -> None:
        reply, to = self._reply, self._to
        if reply.ending == "stall":
            return
        if reply.ending == "die":
            to.abort()
            return
        if reply.ending == "garbage":
            to.events(b"data: {half\n\n")
        if reply.ending == "in_band":
            to.events(b'data: {"error":{"message":"scripted failure","code":500}}\n\n')
        if reply.ending != "no_finish":
            to.events(_event({}, finish=reply.finish))
        if reply.ending != "no_usage":
            usage = self._usage(self._sent + reply.usage_lie)
            last: dict[str, Any] = {"choices": [], "usage": usage}
            if reply.histogram:
                told = {"acceptance_histogram": reply.histogram}
                last["metrics"] = {"speculative_decoding": told}
            to.events(b"data: " + msgspec.json.encode(last) + b"\n\n")
        self._server.count(self._served, self._cached, self._sent)
        if reply.ending != "no_done":
            to.events(b"data: [DONE]\n\n")
        to.write(b"0\r\n\r\n")
        if to.transport is not None:
            to.transport.close()
        self.stop()


def _event(delta: dict[str, Any], finish: str | None = None, usage: Any = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [choice]}
    if usage is not None:
        chunk["usage"] = usage
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
