"""A file of weights that becomes shorter while an engine serves: on a processor it is mapped, so
the process ends where it touches what is gone. Who waits is told so, and of which file."""

import asyncio
import errno
import os
import signal
from pathlib import Path

from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from relight.engine import client as client_module
from relight.engine.client import ProcessClient
from tests.engine.real import words
from tests.model.tables import TABLES, WEIGHTS, write_tables_apart

Ending = tuple[list[int], str, str]
"""Tokens, how they ended, and why."""


def request(id: str, max_tokens: int) -> Request:
    return Request(
        id=id, prompt=tuple(words(id, 20)), sampling=SamplingParams(max_tokens=max_tokens, seed=1)
    )


async def collect(client: ProcessClient, request: Request) -> Ending:
    tokens: list[int] = []
    async for delta in client.generate(request):
        tokens += delta.tokens
    return tokens, delta.finish or "", delta.error or ""


async def lose(folder: Path, shard: str, engram: str) -> tuple[list[int], Ending]:
    """A sound answer, and one in whose middle a shard is cut."""
    settings = Settings(  # type: ignore[call-arg]
        model=str(folder), device="cpu", engram=engram, threads=1, num_slots=2, log_level="error"
    )
    client = ProcessClient(settings)
    await client.start()
    try:
        await client.ready()
        sound, *_ = await collect(client, request("same", 8))
        answer = asyncio.create_task(collect(client, request("same", 4000)))
        while (await client.stats()).generated_tokens < 8 + 5:
            await asyncio.sleep(0.01)
        # To its header: of a model this small all matrices may lie decoded in memory.
        header = 8 + int.from_bytes((folder / shard).read_bytes()[:8], "little")
        os.truncate(folder / shard, header)
        cut = await asyncio.wait_for(answer, 120)
        assert client.state() == ("dead" if engram == "device" else "idle")
        reads = (await client.stats()).tables  # what a scrape would show
        assert (reads.rows > 0, reads.errors) == ((False, 0) if engram == "device" else (True, 1))
        return sound, cut
    finally:
        await client.aclose()


def test_weights_that_are_cut_end_the_engine_and_every_answer_with_the_files_name(
    tmp_path: Path,
) -> None:
    folder = write_tables_apart(tmp_path)
    sound, (tokens, finish, error) = asyncio.run(lose(folder, WEIGHTS, "device"))
    assert tokens[:8] == sound[: len(tokens)]
    assert finish == "error"
    assert error.startswith(f"the engine died (signal {signal.SIGBUS.value}): a file of weights")
    assert str(folder / WEIGHTS) in error
    assert "is truncated: it has" in error
    assert "fetch the file again" in error


def test_a_table_that_is_read_by_row_and_cut_ends_the_answer_alone(tmp_path: Path) -> None:
    folder = write_tables_apart(tmp_path)
    sound, (tokens, finish, error) = asyncio.run(lose(folder, TABLES, "mmap"))
    assert tokens[:8] == sound[: len(tokens)]
    assert finish == "error"
    assert f"BadCheckpoint: {folder / TABLES}: layers." in error


def test_a_disk_that_fails_where_nobody_expects_it_is_told(monkeypatch, tmp_path) -> None:
    """The look at the files may not fail itself: open requests wait for what it says."""

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(folder))

    monkeypatch.setattr(client_module, "open_model", fail)
    told = client_module._file_fault(str(tmp_path))
    assert told == f"{tmp_path}: Input/output error"
