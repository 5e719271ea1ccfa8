"""Clients that are slow, silent or gone, and heads without end, on real sockets."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from relight.engine.replay import INFO, ReplayClient
from relight.serve.connection import HEAD_BYTES
from relight.serve.http import HttpServer, listen
from tests.serve.fakes import EOS, HELLO, Rig, answering, rig, tokens

Scene = Callable[[Rig, int], Awaitable[None]]
SILENT_S = 0.3
BODY = {"messages": HELLO, "thinking": {"type": "disabled"}}


def play(rig: Rig, scene: Scene) -> None:
    async def run() -> None:
        http = HttpServer(rig.server)
        listener = listen("127.0.0.1", 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # soon full
        serving = asyncio.ensure_future(http.serve([listener]))
        try:
            await scene(rig, listener.getsockname()[1])
        finally:
            http.stop()
            await serving

    asyncio.run(asyncio.wait_for(run(), 30))


def request(**fields: object) -> bytes:
    body = json.dumps(BODY | fields).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )


async def open_(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What comes before the end of the connection, however it ends."""
    data = b""
    try:
        while part := await reader.read(2**16):
            data += part
    except ConnectionError:
        pass
    return data


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nx-a: b\r\nx-"]
)
def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        writer.write(sent)
        assert await closed(reader) == b""
        writer.close()

    play(answering("a", silent_s=SILENT_S), scene)


def test_a_head_that_drips_is_not_waited_for_either() -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        reading = asyncio.ensure_future(closed(reader))
        writer.write(b"GET /health HTTP/1.1\r\n")
        while not reading.done():
            writer.write(b"x-a: b\r\n")
            await asyncio.sleep(0.02)
        assert reading.result() == b""
        writer.close()

    play(answering("a", silent_s=SILENT_S), scene)


def test_a_second_head_on_a_connection_is_waited_for_as_the_first() -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea")
        answer = await closed(reader)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()

    play(answering("a", silent_s=SILENT_S), scene)


@pytest.mark.parametrize("part", [b"x-%d: y\r\n", b"a"])
def test_a_head_without_end_is_cut_off(part: bytes) -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        reading = asyncio.ensure_future(closed(reader))
        writer.write(b"GET /health" + (b" HTTP/1.1\r\n" if b"\r" in part else b""))
        sent = 0
        while not reading.done() and sent < 100 * HEAD_BYTES:
            block = b"".join(part % i if b"%" in part else part for i in range(1000))
            writer.write(block)
            sent += len(block)
            await asyncio.sleep(0)
        assert b"200 OK" not in await reading
        assert sent < 100 * HEAD_BYTES
        writer.close()

    play(answering("a", silent_s=0.0), scene)


def test_a_body_that_stops_coming_is_a_408() -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        writer.write(request()[:-5])
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"408" in head.splitlines()[0]
        writer.close()
        assert rig.client.requests == []

    play(answering("a", silent_s=SILENT_S), scene)


def test_a_body_that_drips_is_read_to_its_end() -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        data = request()
        for i in range(0, len(data), 12):
            writer.write(data[i : i + 12])
            await asyncio.sleep(0.02)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    play(answering("a" + EOS, silent_s=2.0), scene)


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off_and_its_request_aborted() -> None:
    long = tokens("many words and more ") * 1000

    async def scene(rig: Rig, port: int) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, request(stream=True, max_tokens=len(long)))
        await until(lambda: bool(rig.client.aborted))
        await until(lambda: rig.server.num_open == 0)
        assert rig.client.num_running == 0
        client.close()

    info = msgspec.structs.replace(INFO, max_context=2**20)
    play(rig(ReplayClient(lambda _: long, info=info), silent_s=SILENT_S), scene)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_a_connection_that_is_closed_or_half_closed_ends_its_request(
    stream: bool, half: bool
) -> None:
    """A client that only sends no more cannot be told from one that is gone."""

    async def scene(rig: Rig, port: int) -> None:
        rig.client.gate.clear()
        _, writer = await open_(port)
        writer.write(request(stream=stream))
        await until(lambda: bool(rig.client.requests))
        writer.write_eof() if half else writer.transport.abort()
        await until(lambda: rig.client.aborted == [rig.client.requests[0].id])
        await until(lambda: rig.server.num_open == 0)
        writer.transport.abort()

    play(answering("a" + EOS), scene)


def test_many_connections_that_say_nothing_do_not_hold_up_one_that_asks() -> None:
    async def scene(rig: Rig, port: int) -> None:
        silent = [await open_(port) for _ in range(200)]
        reader, writer = await open_(port)
        writer.write(request())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        for _, other in [*silent, (reader, writer)]:
            other.transport.abort()

    play(answering("a" + EOS), scene)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /v1/models HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_harms_nobody(sent: bytes) -> None:
    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        writer.write(sent)
        writer.write_eof()
        assert b"HTTP/1.1 5" not in await closed(reader)
        writer.transport.abort()
        reader, writer = await open_(port)
        writer.write(request())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    play(answering("a" + EOS), scene)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("cut", [None, 100, 330, 420])
def test_the_body_of_a_request_that_asks_for_another_protocol_is_read(
    chunked: bool, cut: int | None
) -> None:
    """Java's HTTP client offers HTTP/2 with the first request of a connection."""
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    head, _, body = request().partition(b"\r\n\r\n")
    if chunked:
        head = head.partition(b"content-length")[0] + b"transfer-encoding: chunked"
        body = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    first = head + b"\r\n" + offer + b"\r\n" + body

    async def scene(rig: Rig, port: int) -> None:
        reader, writer = await open_(port)
        for part in (first,) if cut is None else (first[:cut], first[cut:]):
            writer.write(part)
            await asyncio.sleep(0.05)
        for _ in range(2):  # the connection goes on as it was
            told = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in told
            length = int(told.partition(b"content-length: ")[2].partition(b"\r")[0])
            assert json.loads(await reader.readexactly(length))["choices"]
            writer.write(request())
        writer.transport.abort()

    play(answering("a" + EOS), scene)


def test_a_client_that_goes_behind_a_second_request_ends_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pipelined request makes the server stop reading, so only a write can find that out."""

    async def scene(rig: Rig, port: int) -> None:
        rig.client.gate.clear()
        reader, writer = await open_(port)
        writer.write(request(stream=True) + request())
        await reader.readuntil(b"assistant")
        writer.transport.abort()
        await asyncio.sleep(0.05)
        rig.client.gate.set()
        await until(lambda: bool(rig.client.aborted))
        await until(lambda: rig.server.num_open == 0)

    play(rig(ReplayClient(lambda _: tokens("a" * 3000))), scene)
    assert not [record for record in caplog.records if record.exc_info]
