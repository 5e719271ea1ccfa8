"""One of several client processes: takes its share of the load on standard input, tells what it saw
on standard output. Knows no figures.

Frames are a length of four bytes and msgpack. In: an order, then the moment to begin. Out: `ready`,
each ended request without its chunks, then all rows and the lag. The end of the input stops it. All
processes of a machine share one clock, so moments need no translation.
"""

import asyncio
import sys
from typing import Any, BinaryIO

import msgspec

from relight.bench.client import Client
from relight.bench.http import Target
from relight.bench.load import Lag, Share, send
from relight.bench.record import Record


class Order(msgspec.Struct, frozen=True):
    """`started` is the moment, by the clock of all processes, that times are told from."""

    to: Target
    model: str
    extra: dict[str, Any]
    silence_s: float
    total_s: float
    needs_done: bool
    needs_usage: bool
    started: float
    share: Share


class Seen(msgspec.Struct, frozen=True, tag=True):
    record: Record


class Done(msgspec.Struct, frozen=True, tag=True):
    records: list[Record]
    lag: Lag


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


def frame(value: Any) -> bytes:
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "big") + data


def _read(file: BinaryIO) -> bytes:
    return file.read(int.from_bytes(file.read(4), "big"))


async def _work(order: Order, begin: float) -> None:
    client = Client(
        order.to,
        order.model,
        extra=order.extra,
        silence_s=order.silence_s,
        total_s=order.total_s,
        needs_done=order.needs_done,
        needs_usage=order.needs_usage,
        started=order.started,
    )
    loop = asyncio.get_running_loop()
    # Whatever ends the parent closes this pipe; nothing more is ever sent on it.
    loop.add_reader(sys.stdin.fileno(), client.cancel)

    def seen(record: Record) -> None:
        _tell(Seen(msgspec.structs.replace(record, chunks=())))

    records, lag = await send(client, order.share, begin, seen)
    loop.remove_reader(sys.stdin.fileno())
    _tell(Done(records, lag))


def _tell(value: Any) -> None:
    sys.stdout.buffer.write(frame(value))
    sys.stdout.buffer.flush()


def main() -> None:
    import uvloop  # there is none on Windows, where this module must be importable

    order = msgspec.msgpack.decode(_read(sys.stdin.buffer), type=Order)
    _tell(Ready())
    begin = msgspec.msgpack.decode(_read(sys.stdin.buffer), type=float)
    uvloop.run(_work(order, begin))


if __name__ == "__main__":
    main()
